"""What a head is: the kind of answer that a model gives, with everything that follows from the kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from lapse.arguments import as_names, check_flag, check_kind
from lapse.heads.metrics import Array, Metric
from lapse.references import reference_to
from lapse.sequences import Batch, Sequences


class NonFiniteError(RuntimeError):
    """Predictions, losses or weights are NaN or infinite."""


class Targets(NamedTuple):
    """The targets of M predictions, in the form that the head's loss takes.

    Attributes:
        values: (M,) int64 for classes, (M, K) float for the other kinds; 0 where not known.
        known: bool of the same shape: where the table had a target.
        weights: (M,) float, how much each prediction counts in training; 0 where nothing is known.
    """

    values: Tensor
    known: Tensor
    weights: Tensor


class Summary(NamedTuple):
    """A small table that describes targets: its title, the names of its columns, and its rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Head(nn.Module, ABC):
    """The answer that is asked for: shape, targets, loss, metrics, trivial baseline, and what `predict` returns.

    A model computes `width` raw outputs per prediction; everything about their meaning is here. A new kind of answer
    is a subclass with the abstract methods below. All arguments of its constructor are keywords and plain values,
    which `config` returns, so that a model can be stored with its head.

    Args:
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names from `available`; the first one chooses the best epoch. The default is the
            first entry of `available`.
    """

    # The metrics that can be asked for.
    available: tuple[Metric, ...]
    # What the constant prediction of `trivial` is called in a table.
    baseline_name: ClassVar[str]
    # Whether the raw outputs are logits, so that dividing them by a temperature calibrates the probabilities.
    gives_probabilities: ClassVar[bool] = False

    def __init__(self, *, per_step: bool = False, metrics: Sequence[str] = ()) -> None:
        super().__init__()
        check_flag("per_step", per_step)
        self.per_step = per_step
        known = {metric.name: metric for metric in self.available}
        names = as_names("metrics", metrics)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(
                f"{type(self).__name__} has no metric {unknown[0]!r}; its metrics are {', '.join(known)}"
            )
        self.metrics = tuple(known[name] for name in names) or self.available[:1]

    # What a kind of answer must say.

    @property
    @abstractmethod
    def width(self) -> int:
        """How many raw outputs of the model make one prediction."""

    @property
    @abstractmethod
    def question(self) -> str:
        """What is asked, as the beginning of a sentence: "one of 7 classes"."""

    @classmethod
    @abstractmethod
    def for_data(cls, train: Sequences, **options: Any) -> Self:
        """The head that fits the targets of `train`, already measured on them; `options` go to the constructor."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The constructor's arguments beside `per_step` and `metrics`, as plain values."""

    @abstractmethod
    def encode(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """`values` and `known` of `Targets`, from raw targets (M, ...) of a table; wrong ones raise ValueError."""

    @abstractmethod
    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        """The loss of each prediction (M,), from raw outputs (M, width); 0 where no target is known."""

    @abstractmethod
    def answer(self, output: Tensor) -> Tensor:
        """What the metrics judge, from raw outputs (M, width): probabilities, or numbers in the target's own scale."""

    @abstractmethod
    def predict(self, output: Tensor) -> dict[str, Array]:
        """Named columns of M predictions, from raw outputs (M, width)."""

    @abstractmethod
    def trivial(self, train: Sequences) -> Tensor:
        """The raw output (width,) of the best constant prediction on `train`: what a model must beat."""

    @abstractmethod
    def summary(self, parts: Mapping[str, Sequences]) -> Summary:
        """What the targets of these parts of the data are like."""

    # What a kind of answer may say.

    @property
    def answer_names(self) -> tuple[str, ...]:
        """What the numbers of one `answer` are called, in their order; `predict` returns them under these names."""
        return tuple(f"answer_{k}" for k in range(self.answer(torch.zeros(1, self.width)).numel()))

    def measure(self, train: Sequences) -> None:
        """Take from the training split what the loss needs of it, such as the scale of the targets."""

    def balance(self, train: Sequences | None) -> None:
        """Weigh training so that rare classes of `train` count as much as common ones; None weighs all the same."""
        if train is not None:
            raise ValueError(
                f"class weights need classes or labels as targets, and {type(self).__name__} has none; train "
                "without class_weights"
            )

    def row_weights(self, values: Tensor, known: Tensor) -> Tensor:
        """How much each prediction counts in training (M,), before the weight of its sequence."""
        return _rows_known(known).to(torch.float32)

    def persistence(self, sequences: Sequences) -> Tensor | None:
        """The raw outputs (M, width) that repeat the present values, where targets are those values later."""
        return None

    def certain(self, values: Tensor) -> Tensor:
        """The raw outputs (..., width) that say these numbers (..., K), in the table's own units."""
        raise ValueError(f"{type(self).__name__} does not answer with numbers; use the head 'numbers'")

    def calibration(self, output: Tensor, targets: Targets) -> Tensor:
        """(width,): what to add to all raw outputs, so that the answers keep what they promise on these targets.

        Where answers promise nothing, as plain numbers do, nothing is added.

        Args:
            output: (M, width) raw outputs for examples that were not trained on.
            targets: their targets.
        """
        return output.new_zeros(self.width)

    def conform(self, sequences: Sequences) -> Sequences:
        """The sequences with targets that mean the same as in the training table, such as the same class numbers."""
        return sequences

    @property
    def contrasts(self) -> dict[str, Tensor]:
        """What can be explained of an answer: by name, the weights (width,) with which its raw outputs are summed."""
        return {f"output {k}": weights for k, weights in enumerate(torch.eye(self.width))}

    def main_contrast(self, output: Tensor) -> Tensor:
        """(M,) int64: the position in `contrasts` of what a reader of each answer asks about first."""
        return torch.zeros(len(output), dtype=torch.int64)

    def reading(self, output: Tensor, name: str) -> Tensor:
        """(M,): a contrast of raw outputs (M, width) as a reader is told it, such as a probability."""
        return output @ self.contrasts[name].to(output)

    # What follows from these methods.

    def targets(self, batch: Batch) -> Targets:
        """The batch's targets, checked, one row per prediction."""
        if batch.targets is None:
            raise ValueError("these sequences carry no targets: give `target=` when they are built")
        weights = batch.weights
        if weights is not None and self.per_step:
            weights = weights.index_select(0, batch.rows.row.to(weights.device))
        return self._targets(batch.targets, weights)

    def targets_of(self, sequences: Sequences) -> Targets:
        """All targets of the sequences in their order, one row per prediction; wrong ones raise ValueError."""
        if sequences.targets is None:
            raise ValueError("these sequences carry no targets: give `target=` when they are built")
        if sequences.per_step != self.per_step:
            raise ValueError(
                f"the targets are one per {_place(sequences.per_step)}, but the model answers once per "
                f"{_place(self.per_step)}; build one of them with per_step={sequences.per_step}"
            )
        weights = None if sequences.weights is None else torch.tensor(sequences.weights)
        if weights is not None and self.per_step:
            weights = weights.repeat_interleave(torch.tensor(sequences.lengths))
        targets = self._targets(torch.tensor(sequences.targets), weights)
        if not bool(targets.known.any()):
            raise ValueError("no target of these sequences is known: every one is missing (NaN or null)")
        return targets

    def _targets(self, raw: Tensor, weights: Tensor | None) -> Targets:
        values, known = self.encode(raw)
        own = self.row_weights(values, known)
        return Targets(values, known, own if weights is None else own * weights)

    def loss(self, output: Tensor, targets: Targets) -> Tensor:
        """The weighted loss of each prediction (M,); its sum divided by the sum of the weights is minimised."""
        return self.errors(output, targets) * targets.weights

    def scores(self) -> Scores:
        """A fresh accumulator of loss and metrics."""
        return Scores(self)

    def score(self, output: Tensor, sequences: Sequences) -> dict[str, float]:
        """Loss and metrics of raw outputs (M, width) for all sequences in their order."""
        scores = self.scores()
        scores.add(output, self.targets_of(sequences))
        return scores.values()

    def baseline(self, train: Sequences, test: Sequences) -> dict[str, float]:
        """Loss and metrics on `test` of the best constant prediction on `train`."""
        count = test.num_events if self.per_step else len(test)
        return self.score(self.trivial(train).expand(count, -1), test)

    def config(self) -> dict[str, Any]:
        """Plain values from which `lapse.heads.from_config` builds an equal head."""
        from lapse.heads.registry import HEADS

        kinds = {cls: kind for kind, cls in HEADS.items()}
        return {
            "kind": kinds.get(type(self)) or reference_to(type(self)),
            "per_step": self.per_step,
            "metrics": [metric.name for metric in self.metrics],
            **self.options(),
        }

    @property
    def sentence(self) -> str:
        """What is asked and how often: "one of 7 classes per event"."""
        return f"{self.question} per {_place(self.per_step)}"


@dataclass
class Scores:
    """Loss and metrics, gathered over the batches of one pass; every prediction with a known target counts once."""

    head: Head

    def __post_init__(self) -> None:
        self._loss, self._count = 0.0, 0
        self._answers: list[Array] = []
        self._targets: list[Array] = []

    @torch.no_grad()
    def add(self, output: Tensor, targets: Targets) -> None:
        """Take in raw outputs (M, width) and their targets; outputs that are not finite raise `NonFiniteError`."""
        _check_output(output, (len(targets.values), self.head.width))
        if not bool(torch.isfinite(output).all()):
            bad = int((~torch.isfinite(output)).any(1).sum())
            raise NonFiniteError(
                f"{bad} of {len(output)} predictions are NaN or infinite, so they cannot be scored. Likely "
                "cause: the training diverged (lower the learning rate or clip gradients), or inputs far from "
                "those of training"
            )
        scored = _rows_known(targets.known)
        self._loss += float(self.head.errors(output, targets).sum(dtype=torch.float64))
        self._count += int(scored.sum())
        values = targets.values[scored].double().masked_fill(~targets.known[scored], torch.nan)
        self._answers.append(self.head.answer(output[scored].double()).cpu().numpy())
        self._targets.append(values.cpu().numpy())

    def values(self) -> dict[str, float]:
        """The mean loss and every metric.

        ValueError if no target was known, `NonFiniteError` if the loss is NaN or infinite.
        """
        if not self._count:
            raise ValueError(
                "no target is known, so there is nothing to score: give targets that are not NaN"
            )
        if not math.isfinite(self._loss):
            raise NonFiniteError(
                f"the loss is {self._loss}, since predictions are too far from the targets for the numbers of the "
                "machine. Likely cause: the training diverged (lower the learning rate or clip gradients)"
            )
        answers, targets = np.concatenate(self._answers), np.concatenate(self._targets)
        figures = {metric.name: metric.measure(answers, targets) for metric in self.head.metrics}
        return {"loss": self._loss / self._count} | figures


def _check_output(output: Tensor, expected: tuple[int, int]) -> None:
    """Refuse raw outputs of another shape, which would be compared with the targets of other predictions."""
    check_kind("output", output, Tensor)
    if tuple(output.shape) != expected or not output.is_floating_point():
        raise ValueError(
            f"output must be floating-point numbers {expected}, one row per prediction, got {output.dtype} of shape "
            f"{tuple(output.shape)}"
        )


def _rows_known(known: Tensor) -> Tensor:
    """(M,) bool: whether anything is known of each prediction's target."""
    return known if known.dim() == 1 else known.flatten(1).any(1)


def _place(per_step: bool) -> str:
    return "event" if per_step else "sequence"
