"""What needs no recurrent network: the scores that a trained model must beat to have learned anything.

Each baseline is fitted on the training split and scored on the test split by the task's own metric. It knows nothing
of the order of events beyond the last one, which is the point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.tasks import Splits, Task

# A linear model on a few features learns nothing more from further rows, and more would take minutes.
FITTED_ROWS = 20_000

Prediction = Callable[[Task, Splits], Array | None]


def baselines(task: Task, splits: Splits) -> dict[str, float]:
    """Name and test score of each baseline that makes sense for the task."""
    predictions = {name: predict(task, splits) for name, predict in BASELINES.items()}
    return {name: _score(task, splits, made) for name, made in predictions.items() if made is not None}


def majority(task: Task, splits: Splits) -> Array | None:
    """The commonest class of the training split, always."""
    if task.loss != "cross_entropy":
        return None
    shares = np.bincount(_targets(splits.train), minlength=task.output_size)
    return np.tile(shares / shares.sum(), (len(_targets(splits.test)), 1))


def mean(task: Task, splits: Splits) -> Array | None:
    """The training split's mean target, always."""
    if task.loss != "mse":
        return None
    targets = _targets(splits.train)
    return np.tile(targets.mean(axis=0), (len(_targets(splits.test)), 1))


def persistence(task: Task, splits: Splits) -> Array | None:
    """Nothing changes: the next values are the present ones. Only where targets are values to come."""
    same_shape = splits.test.values.shape == _targets(splits.test).shape
    return splits.test.values if task.loss == "mse" and splits.test.per_step and same_shape else None


def linear(task: Task, splits: Splits) -> Array | None:
    """Least squares, or for classes logistic regression, on the features of :func:`simple_features`."""
    rows = _some(len(_targets(splits.train)))
    inputs, targets = simple_features(splits.train)[rows], _targets(splits.train)[rows]
    model = _regression() if task.loss == "mse" else _logistic()
    with warnings.catch_warnings():
        # A baseline that stops a little short of its optimum is still a baseline.
        warnings.simplefilter("ignore")
        model.fit(inputs, targets)
        if task.loss == "mse":
            return np.asarray(model.predict(simple_features(splits.test)))
        known = model.predict_log_proba(simple_features(splits.test))
    scores = np.full((len(known), task.output_size), -np.inf)
    scores[:, model.classes_] = np.maximum(known, np.log(1e-12))
    return np.where(np.isfinite(scores), scores, -100.0)


BASELINES: dict[str, Prediction] = {
    "majority class": majority,
    "mean": mean,
    "persistence": persistence,
    "linear": linear,
}


def simple_features(s: Sequences) -> Array:
    """What a table without order would hold: per step the event and its gap; per sequence a summary.

    The summary is each feature's mean, last value and integral over time, the number of events, how long they took,
    and the static features.
    """
    if s.per_step:
        return np.column_stack([s.values, s.timespans, _static(s)[np.repeat(np.arange(len(s)), s.lengths)]])
    seen = np.ones_like(s.values) if s.observed is None else s.observed.astype(np.float32)
    total, count = _per_sequence(s, s.values * seen), _per_sequence(s, seen)
    integral = _per_sequence(s, s.values * s.timespans[:, None])
    last = s.values[s.offsets[1:] - 1]
    duration = _per_sequence(s, s.timespans[:, None])
    return np.column_stack(
        [total / np.maximum(count, 1), last, integral, s.lengths, duration, count, _static(s)]
    )


def _per_sequence(s: Sequences, steps: Array) -> Array:
    sums: Array = np.add.reduceat(steps, s.offsets[:-1], axis=0)
    return sums


def _static(s: Sequences) -> Array:
    return np.zeros((len(s), 0), np.float32) if s.static is None else s.static


def _some(count: int) -> Array:
    if count <= FITTED_ROWS:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, FITTED_ROWS, replace=False)


def _regression() -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))


def _targets(s: Sequences) -> Array:
    assert s.targets is not None, "a task's sequences carry targets"
    return s.targets


def _score(task: Task, splits: Splits, prediction: Array) -> float:
    """By the very metric that runs are scored with."""
    import torch

    from lapse.runs import objective_of

    name = task.metrics[0].name
    metric = objective_of(task).build_metrics(task.output_size)[name]
    scores = torch.tensor(np.asarray(prediction, np.float32))
    if name in ("auroc", "auprc"):
        scores = scores[:, 1] - scores[:, 0]
    metric.update(scores, torch.tensor(_targets(splits.test)))  # a copy: memory-mapped data cannot be written
    return float(metric.compute()) * (100.0 if name == "accuracy" else 1.0)
