"""What a forecaster must beat: persistence, the mean, and linear regression on a few numbers of the history."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapse.heads import Head
from lapse.sequences import Cuts
from lapse.sequences.ragged import Array
from lapse.sequences.summaries import summarize

BEYOND = 5.0  # standard deviations at which columns are cut off, so that one wild value does not decide
RIDGE = 1.0  # on standardised columns; with thousands of queries it only settles columns that say the same


class Past(NamedTuple):
    """What the simple forecasts know of each query.

    Args:
        last: (Q, F), the last observed value of each feature; the mean of training where there is none.
        mean: (Q, F), its mean over the history; the mean of training where there is none.
        own: positions of the features that are asked for.
        spans: (Q,), the time to the query.
    """

    last: Array
    mean: Array
    own: list[int]
    spans: Array

    @property
    def columns(self) -> Array:
        """(Q, columns) for linear regression: last values and means, the gap, and how it changes their weight."""
        gap = np.log1p(self.spans)[:, None]
        values = np.concatenate([self.last, self.mean], 1)
        return np.concatenate([values, gap * values, gap, self.spans[:, None]], 1)


def simple_forecasts(head: Head, train: Cuts, test: Cuts) -> dict[str, Tensor]:
    """Raw outputs (Q, width) on `test` by the name of the forecast; uncertainty is that of the errors on `train`.

    Args:
        head: what is asked.
        train: cuts with targets, in the form of the schema.
        test: cuts in the same form.
    """
    before, now = pasts(train, test)
    targets = head.targets_of(train.queries)
    truth = targets.values.double().masked_fill(~targets.known, torch.nan).numpy()
    mean = np.nanmean(truth, axis=0)
    forecasts: dict[str, Callable[[Past], Array]] = {
        "persistence": lambda past: past.last[:, past.own],
        "mean": lambda past: np.tile(mean, (len(past.spans), 1)),
        "linear": linear(before, truth),
    }
    outputs = {}
    for name, forecast in forecasts.items():
        then, later = (head.certain(torch.tensor(forecast(past)).float()) for past in (before, now))
        outputs[name] = later + head.calibration(then, targets)
    return outputs


def pasts(train: Cuts, test: Cuts) -> tuple[Past, Past]:
    """What the simple forecasts know of the queries of `train` and of `test`; means are those of `train`."""
    typical = _typical(train)
    own = [train.sequences.features.index(name) for name in train.queries.target_names]
    return _past(train, typical, own), _past(test, typical, own)


def linear(past: Past, truth: Array) -> Callable[[Past], Array]:
    """Ridge regression of each target on `Past.columns`, fitted to the queries whose target is known.

    Args:
        past: what is known of the training queries.
        truth: (Q, K), their targets; NaN where not known.
    """
    columns = past.columns
    shift, scale = columns.mean(0), columns.std(0)
    scale = np.where(scale > 1e-9, scale, 1.0)

    def standardized(columns: Array) -> Array:
        scaled = np.clip((columns - shift) / scale, -BEYOND, BEYOND)
        return np.concatenate([scaled, np.ones((len(columns), 1))], 1)

    inputs, weights = standardized(columns), []
    penalty = RIDGE * np.diag([1.0] * columns.shape[1] + [0.0])
    for target in truth.T:
        known = ~np.isnan(target)
        x = inputs[known]
        weights.append(np.linalg.solve(x.T @ x + penalty, x.T @ target[known]))
    return lambda later: standardized(later.columns) @ np.stack(weights, 1)


def _typical(train: Cuts) -> Array:
    """(F,) the mean of each feature over the observations of the training sequences."""
    s = train.sequences
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    total = np.sum(s.values, axis=0, where=observed, dtype=np.float64)
    mean: Array = total / np.maximum(observed.sum(0), 1)
    return mean


def _past(cuts: Cuts, typical: Array, own: list[int]) -> Past:
    names, table = summarize(cuts.history)
    features = cuts.sequences.features
    last, mean = (
        table[:, [names.index(f"{feature} {statistic}") for feature in features]]
        for statistic in ("last", "mean")
    )
    rows = np.repeat(np.arange(len(cuts)), cuts.queries.lengths)
    filled = [np.where(np.isnan(part), typical, part)[rows] for part in (last, mean)]
    return Past(filled[0], filled[1], own, cuts.spans.astype(np.float64))
