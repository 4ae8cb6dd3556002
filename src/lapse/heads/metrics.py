"""Figures of merit, as plain functions of predictions and targets in NumPy.

Targets are NaN where they are not known, and those take no part. A figure that is not defined (the ranking of cases
that all have one class, the share of no variance) is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LEAST_PROBABILITY = 1e-15  # a probability of 0 for what then happens would cost infinitely much


@dataclass(frozen=True)
class Metric:
    """A figure of merit: its name, its direction and how it is computed.

    Args:
        name: how results, tables and files call it.
        maximize: whether more is better.
        measure: the figure as a function of predictions and targets, as the head that lists it shapes them.
        unit: what stands behind the figure in a table: "%" or nothing.
        decimals: how many digits a table shows after the point.
        perfect: the value that no prediction can surpass and good ones reach; None if there is no such value.
    """

    name: str
    maximize: bool
    measure: Callable[[Array, Array], float] = field(repr=False, compare=False)
    unit: str = ""
    decimals: int = 3
    perfect: float | None = None


def shown_decimals(value: float, most: int, digits: int = 4) -> int:
    """How many digits after the point a figure is shown with: none where the whole number has enough of them.

    Args:
        value: the figure.
        most: the number for small figures.
        digits: how many digits there are to be in all.
    """
    if not np.isfinite(value):
        return most
    return max(0, min(most, digits - len(str(int(abs(value))))))


# Classes: probabilities (M, K), and for each case the index of its class (M,).


def accuracy(probabilities: Array, classes: Array) -> float:
    """The percentage of cases whose most probable class is the right one."""
    return 100.0 * float(np.mean(probabilities.argmax(1) == classes))


def log_loss(probabilities: Array, classes: Array) -> float:
    """The mean of minus the natural logarithm of the probability that was given to the right class."""
    given = probabilities[np.arange(len(classes)), classes.astype(np.int64)]
    return float(-np.log(np.maximum(given, LEAST_PROBABILITY)).mean())


def brier(probabilities: Array, classes: Array) -> float:
    """The mean squared difference between probabilities and what happened (0 or 1), summed over classes."""
    happened = np.eye(probabilities.shape[1])[classes.astype(np.int64)]
    return float(((probabilities - happened) ** 2).sum(1).mean())


def class_auroc(probabilities: Array, classes: Array) -> float:
    """Area under the ROC curve of the second of two classes; of more, the mean of each class against the rest."""
    return _per_class(auroc, probabilities, classes)


def class_auprc(probabilities: Array, classes: Array) -> float:
    """Average precision of the second of two classes; of more, the mean of each class against the rest."""
    return _per_class(auprc, probabilities, classes)


def _per_class(measure: Callable[[Array, Array], float], probabilities: Array, classes: Array) -> float:
    """Classes of which the data hold no case are left out of the mean."""
    width = probabilities.shape[1]
    judged = [1] if width == 2 else [k for k in range(width) if (classes == k).any()]
    return _mean([measure(probabilities[:, k], (classes == k).astype(float)) for k in judged])


# Labels: probabilities (M, K), and 0, 1 or NaN for each label of each case (M, K).


def label_accuracy(probabilities: Array, labels: Array) -> float:
    """The percentage of known labels that a threshold of one half gets right."""
    known = ~np.isnan(labels)
    return 100.0 * float(np.mean((probabilities > 0.5)[known] == (labels[known] == 1)))


def label_log_loss(probabilities: Array, labels: Array) -> float:
    """The mean of minus the natural logarithm of the probability that was given to what happened."""
    given = np.where(labels == 1, probabilities, 1 - probabilities)[~np.isnan(labels)]
    return float(-np.log(np.maximum(given, LEAST_PROBABILITY)).mean())


def label_brier(probabilities: Array, labels: Array) -> float:
    """The mean squared difference between probabilities and what happened (0 or 1)."""
    return float(np.nanmean((probabilities - labels) ** 2))


def label_auroc(probabilities: Array, labels: Array) -> float:
    """Area under the ROC curve of each label, averaged over those labels that are both given and not given."""
    return _per_column(auroc, probabilities, labels)


def label_auprc(probabilities: Array, labels: Array) -> float:
    """Average precision of each label, averaged over those labels that are given at least once."""
    return _per_column(auprc, probabilities, labels)


# One column of scores and of 0, 1.


def auroc(scores: Array, positive: Array) -> float:
    """The probability that a positive case has a higher score than a negative one; ties count one half."""
    truth = positive == 1
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return float("nan")
    _, tied, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    rank = (last - (counts - 1) / 2)[tied]  # the mean rank of those with equal scores
    wins = rank[truth].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def auprc(scores: Array, positive: Array) -> float:
    """Average precision: the precision at each threshold, weighted by the recall that it adds."""
    truth = positive == 1
    if not truth.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(truth[order])
    last_of_ties = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = found[last_of_ties]
    precision = found / (last_of_ties + 1)
    gained = np.diff(found, prepend=0) / truth.sum()
    return float((precision * gained).sum())


# Numbers: predictions and targets (M, K).


def mse(predictions: Array, targets: Array) -> float:
    """The mean squared error over all known numbers."""
    return float(np.nanmean((predictions - targets) ** 2))


def mae(predictions: Array, targets: Array) -> float:
    """The mean absolute error over all known numbers."""
    return float(np.nanmean(np.abs(predictions - targets)))


def r2(predictions: Array, targets: Array) -> float:
    """The share of the targets' variance that is explained, averaged over those columns that vary."""
    return _per_column(_r2, predictions, targets)


def _r2(predictions: Array, targets: Array) -> float:
    spread = float(((targets - targets.mean()) ** 2).sum())
    return 1.0 - float(((predictions - targets) ** 2).sum()) / spread if spread > 0 else float("nan")


# Quantiles: predictions (M, K, Q) for levels (Q,), targets (M, K).


def pinball(predictions: Array, targets: Array, levels: Array) -> float:
    """The mean pinball loss over levels and known numbers: half the absolute error where the level is one half."""
    error = targets[..., None] - predictions
    return float(np.nanmean(np.maximum(levels * error, (levels - 1) * error)))


def coverage(low: Array, high: Array, targets: Array) -> float:
    """The percentage of known numbers that lie between `low` and `high`, both (M, K)."""
    known = ~np.isnan(targets)
    return 100.0 * float(np.mean(((low <= targets) & (targets <= high))[known]))


def _per_column(measure: Callable[[Array, Array], float], predictions: Array, targets: Array) -> float:
    figures = []
    for prediction, target in zip(predictions.T, targets.T, strict=True):
        known = ~np.isnan(target)
        if known.any():
            figures.append(measure(prediction[known], target[known]))
    return _mean(figures)


def _mean(figures: list[float]) -> float:
    defined = [figure for figure in figures if not np.isnan(figure)]
    return float(np.mean(defined)) if defined else float("nan")
