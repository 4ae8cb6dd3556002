"""A fitted ensemble beside simpler models, on sequences that none of them has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapse.estimators.base import IrregularEstimator
from lapse.estimators.ensemble import Ensemble
from lapse.estimators.fitting import split
from lapse.heads import Head, Metric
from lapse.models.tabular import TabularReadout, best_ridge
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array, concatenated_ranges

RESAMPLES = 500
OURS, NETWORKS = "lapse", "networks alone"


class Interval(NamedTuple):
    """A figure, and where 95 % of its values lie when the test sequences are drawn again."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scored:
    """The figures of one predictor.

    Args:
        name: what it is.
        figures: by the name of the metric.
    """

    name: str
    figures: dict[str, Interval]


@dataclass(frozen=True)
class Trial:
    """What a fitted ensemble reached on held-out sequences, beside its parts and simpler models.

    Args:
        ensemble: what was fitted.
        scores: the ensemble first, then the others.
        answers: (M, ...), what the ensemble answered: probabilities, or numbers.
        truth: (M, ...), what was to be answered; NaN where not known.
        train_size: the number of sequences that were learned from.
        test_size: the number of sequences that were held out.
    """

    ensemble: Ensemble
    scores: list[Scored]
    answers: Array
    truth: Array
    train_size: int
    test_size: int

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The figures in the order in which they are shown; the first one decides."""
        return self.ensemble.head.metrics

    @property
    def best(self) -> Scored:
        """The predictor with the best first figure."""
        metric = self.metrics[0]
        sign = 1 if metric.maximize else -1
        return max(self.scores, key=lambda scored: sign * scored.figures[metric.name].value)


def run_trial(
    estimator: IrregularEstimator,
    data: Sequences,
    *,
    test: float = 0.2,
    say: Callable[[str], None] = lambda message: None,
) -> Trial:
    """Hold out a part of the data by id or group, fit to the rest, and score everything on the part.

    Args:
        estimator: how to fit; it is fitted in place.
        data: sequences with targets.
        test: the share that is held out.
        say: hears what is being worked on.
    """
    inside, outside = split(data, test, int(estimator.random_state))
    say(f"fitting to {len(inside):,} sequences; {len(outside):,} are held out")
    estimator.fit(data[inside])
    say("scoring on the held-out sequences")
    return score(estimator.ensemble_, data[outside], train=data[inside])


def score(ensemble: Ensemble, test: Sequences, train: Sequences | None = None, seed: int = 0) -> Trial:
    """The figures of an ensemble and its parts, and of simpler models if there is something to train them on.

    Args:
        ensemble: the fitted ensemble.
        test: sequences with targets that it has not seen.
        train: what it was fitted to, on which a linear model of summaries is fitted too; None leaves that out.
        seed: of the resampling.
    """
    head = ensemble.head
    conformed = head.conform(test)
    prepared = ensemble.preparation(conformed)
    outputs = {OURS: ensemble.outputs(prepared)}
    if ensemble.trees is not None:
        outputs[NETWORKS] = Ensemble(ensemble.preparation, ensemble.networks).outputs(prepared)
        outputs["boosted trees"] = torch.from_numpy(ensemble.trees.outputs(prepared.table))
    if train is not None:
        outputs |= _simpler(ensemble, head.conform(train), prepared.table)
    targets = head.targets_of(conformed)
    truth = targets.values.double().masked_fill(~targets.known, torch.nan).numpy()
    resampled = _resamples(conformed, seed)
    answers = {name: head.answer(output.double()).numpy() for name, output in outputs.items()}
    scores = [
        Scored(name, {metric.name: interval(metric, found, truth, resampled) for metric in head.metrics})
        for name, found in answers.items()
    ]
    return Trial(ensemble, scores, answers[OURS], truth, 0 if train is None else len(train), len(test))


def _simpler(ensemble: Ensemble, train: Sequences, table: Array) -> dict[str, Tensor]:
    """The raw outputs of a linear model of summaries, and of the best constant answer."""
    head = ensemble.head
    known = ensemble.preparation(train).table
    targets = head.targets_of(train)
    linear = TabularReadout(known.shape[1], head.width, best_ridge(known, head, targets).strength)
    linear.solve(known, head, targets)
    name = "logistic regression" if head.gives_probabilities else "ridge regression"
    constant = head.trivial(train).expand(len(table), -1)
    return {name: linear.outputs(table), head.baseline_name: constant}


def _resamples(s: Sequences, seed: int) -> list[Array]:
    """Positions of answers with whole sequences, or whole groups of them, drawn with replacement."""
    random = np.random.default_rng(seed)
    names = np.arange(len(s)) if s.groups is None else np.unique(s.groups, return_inverse=True)[1]
    order = np.argsort(names, kind="stable")
    counts = np.bincount(names)
    starts = np.cumsum(counts) - counts
    drawn = []
    for _ in range(RESAMPLES):
        chosen = random.integers(0, len(counts), len(counts))
        sequences = order[concatenated_ranges(starts[chosen], counts[chosen])]
        per_event = (
            concatenated_ranges(s.offsets[:-1][sequences], s.lengths[sequences]) if s.per_step else sequences
        )
        drawn.append(per_event)
    return drawn


def interval(metric: Metric, answers: Array, truth: Array, resamples: Sequence[Array]) -> Interval:
    """A figure with the middle 95 % of its values over resamples; resamples in which it is not defined are left out.

    Args:
        metric: which figure.
        answers: (M, ...).
        truth: (M, ...), NaN where not known.
        resamples: positions to compute it on.
    """

    def measure(rows: Array) -> float:
        known = rows[~np.isnan(truth[rows].reshape(len(rows), -1)).all(axis=1)]
        return metric.measure(answers[known], truth[known]) if len(known) else math.nan

    values = np.array([measure(rows) for rows in resamples])
    value = measure(np.arange(len(truth)))
    if np.isnan(values).all():
        return Interval(value, math.nan, math.nan)
    low, high = np.nanquantile(values, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def calibration(trial: Trial, bins: int = 10) -> list[tuple[float, float, int]]:
    """Predicted and observed shares of the second class in groups of equal size; nothing for other answers.

    Args:
        trial: a trial with two classes.
        bins: how many groups.
    """
    answers, truth = trial.answers, trial.truth
    if (
        not trial.ensemble.head.gives_probabilities
        or answers.ndim != 2
        or answers.shape[1] != 2
        or truth.ndim != 1
    ):
        return []
    known = ~np.isnan(truth)
    order = np.argsort(answers[known, 1], kind="stable")
    groups = np.array_split(order, min(bins, max(1, len(order) // 10)))
    return [
        (float(answers[known, 1][g].mean()), float((truth[known][g] == 1).mean()), len(g))
        for g in groups
        if len(g)
    ]


def kind_for(head: Head) -> type[IrregularEstimator]:
    """The estimator whose answers are of the kind of this head.

    Args:
        head: what is asked.
    """
    from lapse import heads
    from lapse.estimators import classifiers, regressors

    kinds: tuple[type[IrregularEstimator], ...] = (
        classifiers.IrregularClassifier,
        classifiers.IrregularLabeller,
        classifiers.IrregularMultiLabelClassifier,
        regressors.IrregularRegressor,
    )
    for kind in kinds:
        if heads.find(kind.kind) is type(head) and kind.per_step == head.per_step:
            return kind
    per_event = (
        ". The target changes within an id, so an answer per event is asked for: where one per id is meant, let all "
        "events of an id have the same target; where the next values of a column are, see `lapse fit --forecast`"
    )
    raise ValueError(
        f"no estimator answers {head.sentence}; train a SequenceModel with that head instead"
        + (per_event if head.per_step else "")
    )
