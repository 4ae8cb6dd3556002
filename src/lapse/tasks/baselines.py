"""What needs no recurrent network: the scores that a trained model must beat to have learned anything.

Each baseline is fitted on the training split and scored on the test split by the task's own metric. It knows nothing
of the order of events beyond the last one, which is the point.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from lapse.estimators.trees import FIT
from lapse.heads import Head, Targets
from lapse.models.simple_forecasts import pasts
from lapse.sequences import Cuts, Sequences
from lapse.sequences.ragged import Array
from lapse.tasks.base import Splits, Task

# A linear model on a few features learns nothing more from further rows, and more would take minutes.
FITTED_ROWS = 20_000
ITERATIONS = 300
RIDGE = 1e-4  # keeps weights finite where a plane separates the classes


def baselines(task: Task, splits: Splits) -> dict[str, float]:
    """Name and test score of each baseline that makes sense for the task."""
    head, metric = task.head(), task.metrics[0].name
    asked = task.question.asked(splits.test)
    head.measure(task.question.asked(splits.train))
    outputs = task.question.simple_answers(head, splits.train, splits.test)
    return {name: head.score(output, asked)[metric] for name, output in outputs.items()}


def simple_answers(head: Head, train: Sequences, test: Sequences) -> dict[str, Tensor]:
    """Raw outputs for `test` by the name of the baseline, where targets belong to whole sequences or to their events.

    Args:
        head: what is asked.
        train: sequences with targets.
        test: sequences of the same form.
    """
    count = test.num_events if head.per_step else len(test)
    outputs = {head.baseline_name: head.trivial(train).expand(count, -1)}
    if (repeated := head.persistence(test)) is not None:
        outputs["persistence"] = repeated
    few = _Table.of_sequences(head, train, test)
    outputs["linear"] = linear(head, few, train)
    if (trees := boosting(head, few)) is not None:
        outputs["boosting"] = trees
    return outputs


def boosted_forecast(head: Head, train: Cuts, test: Cuts) -> Tensor | None:
    """Raw outputs for the queries of `test` of boosted trees on the last values, the means and the time to the query.

    Args:
        head: what is asked.
        train: cuts with targets.
        test: cuts of the same form.

    Returns:
        (Q, width); None for a head that has no such trees.
    """
    tables = [np.column_stack([past.last, past.mean, past.spans]) for past in pasts(train, test)]
    return boosting(head, _Table(head.targets_of(train.queries), *tables))


class _Table:
    """Features of some rows of the training split, with their targets, and of the whole test split.

    Args:
        targets: the targets of the training split.
        train: its features, one row per target.
        test: the features of the test split.
    """

    def __init__(self, targets: Targets, train: Array, test: Array) -> None:
        rows = _some(len(targets.weights))
        self.targets = Targets(*(tensor[rows] for tensor in targets))
        self.train, self.test = train[rows], test

    @staticmethod
    def of_sequences(head: Head, train: Sequences, test: Sequences) -> _Table:
        """With `simple_features`."""
        return _Table(head.targets_of(train), simple_features(train), simple_features(test))


def boosting(head: Head, table: _Table) -> Tensor | None:
    """Raw outputs for the test split of boosted trees on a table; None for a head that has no such trees."""
    fit = FIT.get(head.config()["kind"])
    if fit is None:
        return None
    train, test = (part.astype(np.float64) for part in (table.train, table.test))
    return torch.from_numpy(fit(train, table.targets, head, 0).outputs(test))


def linear(head: Head, table: _Table, train: Sequences) -> Tensor:
    """Raw outputs for the test split of the affine map of `simple_features` that minimises the head's own loss."""
    inputs, test = _standardized(table.train, table.test)
    chosen = table.targets
    affine = nn.Linear(inputs.shape[1], head.width, dtype=torch.float64)
    nn.init.zeros_(affine.weight)
    with torch.no_grad():
        affine.bias.copy_(head.trivial(train))
    optimizer = torch.optim.LBFGS(
        affine.parameters(),
        max_iter=ITERATIONS,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        optimizer.zero_grad()
        total = head.loss(affine(inputs), chosen).sum() / chosen.weights.sum()
        value = total + 0.5 * RIDGE * affine.weight.square().sum()
        value.backward()
        return float(value.detach())

    optimizer.step(loss)
    with torch.no_grad():
        output: Tensor = affine(test)
    return output


def _standardized(train: Array, test: Array) -> tuple[Tensor, Tensor]:
    mean, scale = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    scale = np.where(scale > 0, scale, 1.0)
    return torch.tensor((train - mean) / scale), torch.tensor((test - mean) / scale)


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
