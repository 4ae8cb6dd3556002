"""Numbers as quantiles: values that the target stays below with given probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapse.heads import metrics as of
from lapse.heads.base import Targets
from lapse.heads.columns import ScaledHead, mean_over_known
from lapse.heads.metrics import Array, Metric
from lapse.sequences import Sequences
from lapse.sequences.arrays import real_numbers


class Quantiles(ScaledHead):
    """Q quantiles of K numbers, from K · Q raw outputs; the loss is the pinball loss.

    Quantiles are learned independently of each other; predictions are sorted, so that they never cross.

    Args:
        names: what each column is called, K words.
        levels: the probabilities of the quantiles, between 0 and 1, increasing.
        scale: whether targets are learned in units of their own spread in training.
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names among "pinball", "mae" (of the level nearest to one half) and "coverage_error" (how many
            percentage points the coverage between the outermost levels is away from what they promise).
    """

    baseline_name = "constant quantiles"

    def __init__(
        self,
        names: Sequence[str] = ("target",),
        *,
        levels: Sequence[float] = (0.1, 0.5, 0.9),
        scale: bool = True,
        per_step: bool = False,
        metrics: Sequence[str] = (),
    ) -> None:
        edges = [0.0, *real_numbers(levels, "levels").ravel().tolist(), 1.0]
        if len(edges) == 2 or np.ndim(levels) != 1 or not all(a < b for a, b in pairwise(edges)):
            raise ValueError(f"levels must increase and lie between 0 and 1, got {levels}")
        self.levels = tuple(float(level) for level in levels)
        self.available = _metrics(self.levels)  # before the constructor of `Head`, which reads it
        super().__init__(names, per_step=per_step, metrics=metrics, scale=scale)

    @property
    def width(self) -> int:
        return len(self.names) * len(self.levels)

    @property
    def question(self) -> str:
        count = "a number" if len(self.names) == 1 else f"each of {len(self.names)} numbers"
        return f"{len(self.levels)} quantiles of {count}"

    @property
    def answer_names(self) -> tuple[str, ...]:
        columns = (self.column_name(name) for name in self.names)
        return tuple(f"{column}_q{level:g}" for column in columns for level in self.levels)

    def options(self) -> dict[str, Any]:
        return super().options() | {"levels": list(self.levels)}

    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        levels = output.new_tensor(self.levels)
        error = self.scaled(targets.values).unsqueeze(-1) - self._columns(output)  # (M, K, Q)
        pinball = torch.maximum(levels * error, (levels - 1) * error).mean(-1)
        return mean_over_known(pinball, targets.known)

    def answer(self, output: Tensor) -> Tensor:
        """(M, K, Q): increasing quantiles in the table's own units."""
        return self.unscaled(self._columns(output)).sort(-1).values

    def point(self, output: Tensor) -> Tensor:
        """The level nearest to one half."""
        return self.answer(output)[..., _middle(self.levels)]

    def predict(self, output: Tensor) -> dict[str, Array]:
        """`prediction_qLEVEL` for each level; with several columns `prediction_NAME_qLEVEL`."""
        return self.answer_columns(output)

    def trivial(self, train: Sequences) -> Tensor:
        columns = [np.quantile(column.numpy(), self.levels) for column in self.known_columns(train)]
        quantiles = torch.tensor(np.stack(columns, 1))  # (Q, K)
        return self.scaled(quantiles).t().flatten()

    def certain(self, values: Tensor) -> Tensor:
        """The same number at every level."""
        return self.scaled(values).repeat_interleave(len(self.levels), -1)

    def calibration(self, output: Tensor, targets: Targets) -> Tensor:
        """Each level is shifted so that its share of the known targets lies below it (split conformal prediction)."""
        errors = self.scaled(targets.values).unsqueeze(-1) - self._columns(output)  # (M, K, Q)
        shifts = torch.zeros(len(self.names), len(self.levels))
        for k, known in enumerate(targets.known.unbind(1)):
            if bool(known.any()):
                found = errors[known, k].double().cpu().numpy()
                levels = np.minimum(np.array(self.levels) * (1 + 1 / len(found)), 1.0)
                shifts[k] = torch.tensor([np.quantile(found[:, q], level) for q, level in enumerate(levels)])
        return shifts.flatten().to(output)

    @property
    def contrasts(self) -> dict[str, Tensor]:
        """The quantile of each column that is nearest to the median."""
        places = torch.eye(self.width)[_middle(self.levels) :: len(self.levels)]
        return {
            name: weights * scale
            for name, weights, scale in zip(self.names, places, self.target_scale.cpu(), strict=True)
        }

    def _columns(self, output: Tensor) -> Tensor:
        return output.reshape(output.shape[0], len(self.names), len(self.levels))


def _metrics(levels: tuple[float, ...]) -> tuple[Metric, ...]:
    """Partial functions rather than closures, so that a model can be pickled."""
    return (
        Metric("pinball", False, partial(of.pinball, levels=np.array(levels))),
        Metric("mae", False, partial(_mae, level=_middle(levels))),
        Metric("coverage_error", False, partial(_coverage_error, levels=levels), unit="%", decimals=1),
    )


def _middle(levels: tuple[float, ...]) -> int:
    """The position of the level nearest to one half."""
    return int(np.abs(np.array(levels) - 0.5).argmin())


def _mae(answer: Array, targets: Array, level: int) -> float:
    return of.mae(answer[..., level], targets)


def _coverage_error(answer: Array, targets: Array, levels: tuple[float, ...]) -> float:
    promised = 100 * (levels[-1] - levels[0])
    return abs(of.coverage(answer[..., 0], answer[..., -1], targets) - promised)
