"""Sequences as a plain table: what logistic regression or boosting would be given."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lapse.sequences.ragged import Array, Sequences

PRESENT_GAP = "gap before the event"
STATISTICS = ("last", "mean", "least", "largest", "log-count")


class Summaries(NamedTuple):
    """One row per sequence.

    Args:
        names: what each column is called: the names of the static features, then "NAME last", "NAME mean", ...
        values: (S, columns) float64; NaN where a feature was never observed, or a static feature is not known.
    """

    names: tuple[str, ...]
    values: Array


def summarize(s: Sequences) -> Summaries:
    """The static features, and of each feature the last, mean, least and largest value, and log(1 + observations).

    Args:
        s: sequences whose features are all numbers; a category would be averaged like one.
    """
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    firsts = s.offsets[:-1]
    count = np.add.reduceat(observed, firsts, axis=0, dtype=np.int64)
    total = np.add.reduceat(
        s.values, firsts, axis=0, dtype=np.float64
    )  # what was not observed is stored as 0
    least = np.minimum.reduceat(np.where(observed, s.values, np.inf), firsts, axis=0)
    largest = np.maximum.reduceat(np.where(observed, s.values, -np.inf), firsts, axis=0)
    last = np.take_along_axis(s.values, last_rows(s, observed), axis=0)
    found = np.stack([last, total / np.maximum(count, 1), least, largest], -1).astype(np.float64)
    found = np.where((count > 0)[..., None], found, np.nan)
    columns = np.concatenate([found, np.log1p(count)[..., None]], -1).reshape(len(s), -1)
    names = tuple(f"{name} {statistic}" for name in s.features for statistic in STATISTICS)
    return Summaries(s.static_features + names, np.hstack([static_numbers(s), columns]))


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


def trace_summaries(s: Sequences, amounts: Array) -> tuple[Array, Array, Array]:
    """Amounts for the columns of `summarize`, traced back to what the columns were computed from.

    The amount for a last, least or largest value goes to the event that has it, and the amount for a mean in equal
    parts to all observations. The amount for the number of observations belongs to no single event.

    Args:
        s: the sequences that were summarized.
        amounts: (S, columns), in the order of the columns of `summarize`.

    Returns:
        (S, K) for static features, (N, F) for values, (S, F) for numbers of observations.
    """
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    static, of_columns = np.split(amounts, [len(s.static_features)], axis=1)
    of_last, of_mean, of_least, of_largest, of_count = of_columns.reshape(
        len(s), s.num_features, -1
    ).transpose(2, 0, 1)
    count = np.add.reduceat(observed, s.offsets[:-1], axis=0, dtype=np.int64)
    values = np.repeat(of_mean / np.maximum(count, 1), s.lengths, axis=0) * observed
    features = np.broadcast_to(np.arange(s.num_features), count.shape)
    for amount, rows in (
        (of_last, last_rows(s, observed)),
        (of_least, _rows_of_least(s, np.where(observed, s.values, np.inf))),
        (of_largest, _rows_of_least(s, np.where(observed, -s.values, np.inf))),
    ):
        values[rows, features] += np.where(count > 0, amount, 0.0)
    return static, values, of_count


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
