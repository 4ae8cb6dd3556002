"""Sequences as a plain table: what logistic regression or boosting would be given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lapse.sequences.ragged import Array, Sequences

PRESENT_GAP = "gap before the event"
LEVELS = ("last", "mean", "least", "largest", "log-count")
SHAPE = ("deviation", "change", "first", "slope")
STATISTICS = LEVELS + SHAPE
LARGEST = float(np.finfo(np.float32).max)  # a change or a slope may be more than float32 can hold


class Summaries(NamedTuple):
    """One row per sequence.

    Args:
        names: what each column is called: the names of the static features, then "NAME last", "NAME mean", ...
        values: (S, columns) float64; NaN where a feature was never observed, or a static feature is not known.
    """

    names: tuple[str, ...]
    values: Array


def summarize(s: Sequences, statistics: Sequence[str] = LEVELS) -> Summaries:
    """The static features, and of each feature some statistics of its observations.

    Of `LEVELS`: the last, mean, least and largest value, and log(1 + observations). Of `SHAPE`: the standard deviation,
    the mean absolute change from one observation to the next, the first value, and the slope of a straight line over
    time. Deviation, change and slope of a single observation are 0, and so is a slope if all observations are of one
    time. Of a feature that was never observed only the number of observations is known.

    Args:
        s: sequences whose features are all numbers; a category would be averaged like one.
        statistics: which, of `STATISTICS`.
    """
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    firsts = s.offsets[:-1]
    count = np.add.reduceat(observed, firsts, axis=0, dtype=np.int64)
    total = np.add.reduceat(
        s.values, firsts, axis=0, dtype=np.float64
    )  # what was not observed is stored as 0
    found = {
        "last": np.take_along_axis(s.values, last_rows(s, observed), axis=0),
        "mean": total / np.maximum(count, 1),
        "least": np.minimum.reduceat(np.where(observed, s.values, np.inf), firsts, axis=0),
        "largest": np.maximum.reduceat(np.where(observed, s.values, -np.inf), firsts, axis=0),
    }
    if not set(SHAPE).isdisjoint(statistics):
        found |= _shape(s, observed)
    found = {name: np.where(count > 0, column, np.nan) for name, column in found.items()}
    found["log-count"] = np.log1p(count)
    columns = np.stack([found[name] for name in statistics], -1).reshape(len(s), -1)
    return Summaries(
        (*s.static_features, *column_names(s.features, statistics)), np.hstack([static_numbers(s), columns])
    )


def column_names(features: Sequence[str], statistics: Sequence[str]) -> tuple[str, ...]:
    """What the columns of `summarize` are called, in their order, without those of static features."""
    return tuple(f"{feature} {statistic}" for feature in features for statistic in statistics)


class _Observed(NamedTuple):
    """The observations of one feature, M of all sequences together.

    Args:
        rows: (M,), their rows.
        owner: (M,), the sequence of each.
        counts: (S,), how many a sequence has.
        times: (M,), counted from the first observation of the same sequence.
        values: (M,) float64.
    """

    rows: Array
    owner: Array
    counts: Array
    times: Array
    values: Array

    @classmethod
    def of(cls, s: Sequences, observed: Array, feature: int) -> _Observed:
        rows = np.flatnonzero(observed[:, feature])
        owner = np.repeat(np.arange(len(s)), s.lengths)[rows]
        count = np.bincount(owner, minlength=len(s))
        first = np.cumsum(count) - count
        times = s.times[rows]
        return cls(
            rows, owner, count, times - times[first[owner]], s.values[rows, feature].astype(np.float64)
        )

    def summed(self, numbers: Array) -> Array:
        """(S,), the sum of one number per observation over each sequence."""
        return np.bincount(self.owner, numbers, minlength=len(self.counts))

    def centred(self, numbers: Array) -> Array:
        """(M,), what each number differs from the mean of its sequence."""
        return numbers - (self.summed(numbers) / np.maximum(self.counts, 1))[self.owner]

    @property
    def changes(self) -> Array:
        """(M,), how much each value differs from the one before it in its sequence; 0 for the first."""
        changes = np.abs(np.diff(self.values, prepend=0.0))
        changes[(np.cumsum(self.counts) - self.counts)[self.counts > 0]] = 0.0
        return changes


def _shape(s: Sequences, observed: Array) -> dict[str, Array]:
    """(S, F) for each statistic of `SHAPE`; anything for a feature that was not observed in a sequence."""
    found = {name: np.zeros((len(s), s.num_features)) for name in SHAPE}
    for feature in range(s.num_features):
        seen = _Observed.of(s, observed, feature)
        times, values = seen.centred(seen.times), seen.centred(seen.values)
        spread = seen.summed(times**2)
        slope = np.divide(seen.summed(times * values), spread, out=np.zeros(len(s)), where=spread > 0)
        some = seen.counts > 0
        found["deviation"][:, feature] = np.sqrt(seen.summed(values**2) / np.maximum(seen.counts, 1))
        found["change"][:, feature] = seen.summed(seen.changes) / np.maximum(seen.counts - 1, 1)
        found["first"][some, feature] = seen.values[(np.cumsum(seen.counts) - seen.counts)[some]]
        found["slope"][:, feature] = slope
    return {name: column.clip(-LARGEST, LARGEST) for name, column in found.items()}


def last_rows(s: Sequences, observed: Array) -> Array:
    """(S, F), the row of the last observation of each feature in each sequence; any row where there is none."""
    rows = np.arange(s.num_events, dtype=np.int32 if s.num_events < 2**31 else np.int64)
    last = np.maximum.reduceat(np.where(observed, rows[:, None], 0), s.offsets[:-1], axis=0)
    return last.astype(np.int64)


def static_numbers(s: Sequences) -> Array:
    """(S, K) float64, the static features, NaN where one is not known."""
    if s.static is None:
        return np.zeros((len(s), 0))
    known = np.ones(s.static.shape, bool) if s.static_observed is None else s.static_observed
    return np.where(known, s.static, np.nan).astype(np.float64)


def present(s: Sequences) -> Summaries:
    """One row per event: the static features, of each feature the latest value so far, and the gap before the event.

    Args:
        s: sequences whose features are all numbers.
    """
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    firsts = np.repeat(s.offsets[:-1], s.lengths)[:, None]
    rows = np.maximum.accumulate(np.where(observed, np.arange(s.num_events)[:, None], -1), axis=0)
    latest = np.take_along_axis(s.values, np.maximum(rows, 0), axis=0).astype(np.float64)
    latest[rows < firsts] = np.nan  # observed in an earlier sequence, or not yet
    static = np.repeat(static_numbers(s), s.lengths, axis=0)
    columns = np.hstack([static, latest, s.timespans[:, None]])
    return Summaries((*s.static_features, *s.features, PRESENT_GAP), columns)


def trace_summaries(
    s: Sequences, amounts: Array, statistics: Sequence[str] = LEVELS
) -> tuple[Array, Array, Array]:
    """Amounts for the columns of `summarize`, traced back to what the columns were computed from.

    The amount for a first, last, least or largest value goes to the event that has it. Other amounts go in parts to all
    observations: for a mean in equal ones, for a standard deviation by squared distance from the mean, for changes
    by the changes on both sides, for a slope by distance in time from the middle. The amount for the number of
    observations belongs to no single event.

    Args:
        s: the sequences that were summarized.
        amounts: (S, columns), in the order of the columns of `summarize`.
        statistics: those that `summarize` was given.

    Returns:
        (S, K) for static features, (N, F) for values, (S, F) for numbers of observations.
    """
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    static, of_columns = np.split(amounts, [len(s.static_features)], axis=1)
    of = dict(zip(statistics, of_columns.reshape(len(s), s.num_features, -1).transpose(2, 0, 1), strict=True))
    count = np.add.reduceat(observed, s.offsets[:-1], axis=0, dtype=np.int64)
    values = np.zeros(s.values.shape)
    features = np.broadcast_to(np.arange(s.num_features), count.shape)
    rows = np.where(observed, np.arange(s.num_events)[:, None], s.num_events)
    for statistic, events in (
        ("last", last_rows(s, observed)),
        ("first", _rows_of_least(s, rows)),
        ("least", _rows_of_least(s, np.where(observed, s.values, np.inf))),
        ("largest", _rows_of_least(s, np.where(observed, -s.values, np.inf))),
    ):
        if statistic in of:
            values[events, features] += np.where(count > 0, of[statistic], 0.0)
    for feature in range(s.num_features):
        seen = _Observed.of(s, observed, feature)
        for statistic, parts in _parts(seen).items():
            if statistic in of:
                values[seen.rows, feature] += of[statistic][seen.owner, feature] * parts
    return static, values, of["log-count"]


def _parts(seen: _Observed) -> dict[str, Array]:
    """(M,), what part each observation has in a statistic of all; the parts of a sequence add up to 1."""
    changes = seen.changes
    wholes = {
        "mean": np.ones(len(seen.rows)),
        "deviation": seen.centred(seen.values) ** 2,
        "change": changes + np.append(changes[1:], 0.0),  # the change at a first observation is 0
        "slope": np.abs(seen.centred(seen.times)),
    }
    even = 1 / seen.counts[seen.owner]
    sums = {name: seen.summed(whole)[seen.owner] for name, whole in wholes.items()}
    return {
        name: np.divide(whole, sums[name], out=even.copy(), where=sums[name] > 0)
        for name, whole in wholes.items()
    }


def _rows_of_least(s: Sequences, numbers: Array) -> Array:
    """(S, F), the first row of each sequence that has its least number."""
    firsts = s.offsets[:-1]
    least = np.repeat(np.minimum.reduceat(numbers, firsts, axis=0), s.lengths, axis=0)
    rows = np.where(numbers == least, np.arange(s.num_events)[:, None], s.num_events)
    return np.minimum.reduceat(rows, firsts, axis=0)


def trace_present(s: Sequences, events: Array, amounts: Array) -> tuple[Array, Array, Array]:
    """Amounts for some rows of `present`, traced back: a latest value to the event at which it was observed.

    Args:
        s: the sequences of which `present` made a table.
        events: (S,), of each sequence the event whose row it is.
        amounts: (S, columns), in the order of the columns of `present`.

    Returns:
        (S, K) for static features, (N, F) for values, (N,) for gaps.
    """
    static, of_latest, of_gap = np.split(
        amounts, [len(s.static_features), len(s.static_features) + s.num_features], axis=1
    )
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    rows = np.maximum.accumulate(np.where(observed, np.arange(s.num_events)[:, None], -1), axis=0)[events]
    values, gaps = np.zeros(s.values.shape), np.zeros(s.num_events)
    known = rows >= s.offsets[:-1, None]
    features = np.broadcast_to(np.arange(s.num_features), rows.shape)
    values[rows[known], features[known]] = of_latest[known]
    gaps[events] = of_gap[:, 0]
    return static, values, gaps
