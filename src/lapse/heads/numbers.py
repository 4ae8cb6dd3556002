"""One or several numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lapse.arguments import check_choice
from lapse.heads import metrics as of
from lapse.heads.base import Targets
from lapse.heads.columns import ScaledHead, mean_over_known
from lapse.heads.metrics import Array, Metric
from lapse.sequences import Sequences


class Loss(NamedTuple):
    """A loss of numbers: elementwise, and the constant prediction that makes it least, or nearly so."""

    elementwise: Callable[[Tensor, Tensor], Tensor]
    best_constant: Callable[[Tensor], Tensor]


LOSSES = {
    "squared": Loss(lambda a, b: F.mse_loss(a, b, reduction="none"), torch.mean),
    "absolute": Loss(lambda a, b: F.l1_loss(a, b, reduction="none"), torch.median),
    # Squared up to one unit, in which targets are learned, and absolute beyond: a few wild targets do little harm.
    "huber": Loss(lambda a, b: F.huber_loss(a, b, reduction="none"), torch.median),
}


class Numbers(ScaledHead):
    """K numbers, from K raw outputs; NaN means that a number is not known.

    Args:
        names: what each column is called, K words.
        loss: "squared", "absolute" or "huber" (squared up to one unit in which targets are learned).
        scale: whether targets are learned in units of their own spread in training; predictions and metrics are
            in the table's own units either way.
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names among "mse", "mae" and "r2"; see `lapse.heads.metrics`.
    """

    available = (
        Metric("mse", False, of.mse),
        Metric("mae", False, of.mae),
        Metric("r2", True, of.r2),
    )
    baseline_name = "mean"

    def __init__(
        self,
        names: Sequence[str] = ("target",),
        *,
        loss: str = "squared",
        scale: bool = True,
        per_step: bool = False,
        metrics: Sequence[str] = (),
    ) -> None:
        super().__init__(names, per_step=per_step, metrics=metrics, scale=scale)
        check_choice("loss", loss, LOSSES)
        self.loss_name = loss

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def question(self) -> str:
        count = "a number" if self.width == 1 else f"{self.width} numbers"
        return f"{count} ({self.loss_name} error)"

    @property
    def answer_names(self) -> tuple[str, ...]:
        return tuple(self.column_name(name) for name in self.names)

    def options(self) -> dict[str, Any]:
        return super().options() | {"loss": self.loss_name}

    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        elementwise = LOSSES[self.loss_name].elementwise
        return mean_over_known(elementwise(output, self.scaled(targets.values)), targets.known)

    def answer(self, output: Tensor) -> Tensor:
        return self.unscaled(output)

    def predict(self, output: Tensor) -> dict[str, Array]:
        """`prediction`, or with several columns `prediction_NAME` for each, in the table's own units."""
        return self.answer_columns(output)

    def trivial(self, train: Sequences) -> Tensor:
        constant = LOSSES[self.loss_name].best_constant
        best = torch.stack([constant(column) for column in self.known_columns(train)])
        return self.scaled(best)
