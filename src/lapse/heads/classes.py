"""One of several classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lapse.arguments import is_number
from lapse.heads import metrics as of
from lapse.heads.base import Head, Summary, Targets
from lapse.heads.metrics import Array, Metric
from lapse.sequences import Sequences
from lapse.sequences.ragged import plain


class Classes(Head):
    """One of K classes, from K logits; the loss is the cross entropy.

    Targets are labels: any whole numbers, or indices of words. Each distinct label is a class of its own, also a
    negative one such as -100; only NaN means that a target is not known.

    Args:
        names: what each class is called, K words or numbers; of one word, each letter.
        labels: the number in the targets that stands for each class; the default is 0 to K - 1.
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names among "accuracy", "auroc", "auprc", "log_loss" and "brier"; see `lapse.heads.metrics`.
    """

    available = (
        Metric("accuracy", True, of.accuracy, unit="%", decimals=2, perfect=100.0),
        Metric("auroc", True, of.class_auroc, perfect=1.0),
        Metric("auprc", True, of.class_auprc, perfect=1.0),
        Metric("log_loss", False, of.log_loss),
        Metric("brier", False, of.brier),
    )
    baseline_name = "majority class"
    gives_probabilities = True

    class_labels: Tensor
    class_weights: Tensor

    def __init__(
        self,
        names: Sequence[Any],
        labels: Sequence[float] | None = None,
        *,
        per_step: bool = False,
        metrics: Sequence[str] = (),
    ) -> None:
        super().__init__(per_step=per_step, metrics=metrics)
        self.names = _listed("names", names)
        self.labels = tuple(range(len(self.names))) if labels is None else _listed("labels", labels)
        if len({str(name) for name in self.names}) < len(self.names) or None in self.names:
            raise ValueError(f"names must tell the classes apart, got {self.names}")
        if len(self.names) < 2 or len(self.labels) != len(self.names):
            raise ValueError(
                f"expected at least two classes and a label for each, got names {self.names} and labels {self.labels}"
            )
        whole = all(is_number(label) and label == round(label) for label in self.labels)
        if not whole or any(a >= b for a, b in zip(self.labels, self.labels[1:], strict=False)):
            raise ValueError(f"labels must be whole numbers that increase, got {self.labels}")
        # Both are functions of the constructor's arguments or of the training data, so they are not stored.
        labels_buffer = torch.tensor(self.labels, dtype=torch.float64)
        self.register_buffer("class_labels", labels_buffer, persistent=False)
        self.register_buffer("class_weights", torch.ones(len(self.names)), persistent=False)

    @classmethod
    def for_data(cls, train: Sequences, **options: Any) -> Self:
        """The classes of the training split: its words, or else its distinct labels in increasing order."""
        assert train.targets is not None, "targets are checked before a head is chosen"
        options.setdefault("per_step", train.per_step)
        if train.classes is None:
            options = {"names": (labels := _distinct(train.targets)), "labels": labels} | options
        head = cls(**({"names": train.classes} | options))
        head.targets_of(train)
        return head

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def question(self) -> str:
        return f"one of {self.width} classes"

    @property
    def answer_names(self) -> tuple[str, ...]:
        return tuple(f"p_{name}" for name in self.names)

    def options(self) -> dict[str, Any]:
        return {"names": list(self.names), "labels": list(self.labels)}

    def encode(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        columns = raw.unsqueeze(1) if raw.dim() == 1 else raw.flatten(1)
        if columns.shape[1] != 1:
            raise ValueError(
                f"targets of shape {tuple(raw.shape)} have several columns, expected one label per prediction; "
                "several labels at once need the head 'labels'"
            )
        labels = columns[:, 0].double()
        known = ~labels.isnan()
        index = torch.searchsorted(self.class_labels, labels).clamp(max=self.width - 1)
        strange = labels[known & (self.class_labels[index] != labels)]
        if len(strange):
            raise ValueError(
                f"a target is {strange[0].item():g}, which is not one of the labels {_shown(self.labels)} of this "
                "model; targets that are not whole numbers need the head 'numbers'"
            )
        return torch.where(known, index, 0), known

    def conform(self, sequences: Sequences) -> Sequences:
        """The sequences with the class numbers of the training table, if they have words for their classes.

        Every table numbers the words that it has itself, so that "sick" may be class 1 in one and class 0 in another.
        """
        if sequences.classes is None or sequences.targets is None:
            return sequences
        words, targets = [str(word) for word in sequences.classes], sequences.targets
        labels = dict(zip((str(name) for name in self.names), self.labels, strict=True))
        if {word: label for label, word in enumerate(words)} == labels:
            return sequences
        known = ~np.isnan(targets)
        used = [words[i] for i in np.unique(targets[known]).astype(int)]
        if unknown := [word for word in used if word not in labels]:
            raise ValueError(
                f"a target is {unknown[0]!r}, which is not one of the classes {self.names} of this model"
            )
        numbers = np.array([labels.get(word, np.nan) for word in words])
        renumbered = np.full(targets.shape, np.nan, np.float32)
        renumbered[known] = numbers[targets[known].astype(int)]
        return replace(sequences, targets=renumbered, classes=self.names)

    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        return F.cross_entropy(output, targets.values, reduction="none") * targets.known

    def row_weights(self, values: Tensor, known: Tensor) -> Tensor:
        return self.class_weights[values] * known

    def answer(self, output: Tensor) -> Tensor:
        return output.softmax(-1)

    def predict(self, output: Tensor) -> dict[str, Array]:
        """`prediction`, the name of the most probable class, and `p_NAME`, the probability of each class."""
        probabilities = self.answer(output.double()).cpu().numpy()
        best = np.array(self.names)[probabilities.argmax(1)]
        return {"prediction": best} | dict(zip(self.answer_names, probabilities.T, strict=True))

    @property
    def contrasts(self) -> dict[str, Tensor]:
        """The logit of each class less the mean of the others: with two classes, the log odds."""
        one_hot = torch.eye(self.width)
        contrasts = one_hot - (1 - one_hot) / (self.width - 1)
        return dict(zip((str(name) for name in self.names), contrasts, strict=True))

    def main_contrast(self, output: Tensor) -> Tensor:
        """The second of two classes, which is mostly the event that is asked about; else the most probable class."""
        return torch.ones(len(output), dtype=torch.int64) if self.width == 2 else output.argmax(-1)

    def reading(self, output: Tensor, name: str) -> Tensor:
        """The probability of the class."""
        return self.answer(output)[:, list(self.contrasts).index(name)]

    def balance(self, train: Sequences | None) -> None:
        """Weigh each class by the inverse of how often it occurs in training; the mean weight is 1."""
        self.class_weights.fill_(1.0)
        if train is not None:
            counts = self._counts(train)
            found = counts > 0
            self.class_weights[found] = (counts.sum() / (found.sum() * counts[found])).float()

    def trivial(self, train: Sequences) -> Tensor:
        """The log of each class's share of the training split."""
        return (self._counts(train) / self._counts(train).sum()).clamp(min=1e-12).log()

    def summary(self, parts: Mapping[str, Sequences]) -> Summary:
        shares = [self._counts(part) / self._counts(part).sum() for part in parts.values()]
        rows = [(str(name), *(f"{share[k]:.1%}" for share in shares)) for k, name in enumerate(self.names)]
        what = "events" if self.per_step else "sequences"
        return Summary(f"Class balance (share of {what})", ("", *parts), rows)

    def _counts(self, sequences: Sequences) -> Tensor:
        targets = self.targets_of(sequences)
        return torch.bincount(targets.values[targets.known], minlength=self.width).double()


def _listed(name: str, given: object) -> tuple[Any, ...]:
    """A list of words or numbers as a tuple of Python's own."""
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a list with one entry per class, got {given!r}")
    return tuple(plain(each) for each in given)


def _distinct(targets: Array) -> list[float]:
    found = np.unique(targets[~np.isnan(targets)])
    if (found != np.rint(found)).any():
        strange = found[found != np.rint(found)][0]
        raise ValueError(
            f"a target is {strange:g}, expected whole numbers or words for classes; numbers need the head 'numbers'"
        )
    if len(found) < 2:
        raise ValueError(
            f"the training targets hold {len(found)} class ({_shown(found.tolist())}), expected at least two; "
            "there is nothing to tell apart"
        )
    return [int(label) for label in found]


def _shown(labels: Sequence[float]) -> str:
    words = [f"{label:g}" for label in labels]
    return ", ".join(words if len(words) <= 12 else [*words[:10], "...", words[-1]])
