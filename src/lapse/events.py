"""Event coding: a series of symbols as runs, each with the time that passed while it lasted.

A run is one event, which carries the symbol and arrives when the run ends: 1, 1, 1, 1 is the symbol 1 at
time 4. So the gap before an event is the length of its run, the last time is the length of the series, and
nothing is lost. The paper draws it so (its figure "Dense and event-based coding"); the authors' code stamps
a run's *start*, which loses the length of the last run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


class Events(NamedTuple):
    """Runs of one or more series, end to end; series `i` is `offsets[i]:offsets[i + 1]`.

    symbols          (N,), the symbol of each run
    times            (N,) int64, when each run ends, counted in symbols from the start of its series
    offsets          (S + 1,) int64
    """

    symbols: Array
    times: Array
    offsets: Array


def encode_events(series: ArrayLike, *, offsets: ArrayLike | None = None) -> Events:
    """Run-length coding with time, of one series (T,), or of one per row (S, T).

    Series of different lengths are given end to end with `offsets` (S + 1,).

    >>> encode_events([1, 1, 1, 1, 0, 1])
    Events(symbols=array([1, 0, 1]), times=array([4, 5, 6]), offsets=array([0, 3]))
    """
    flat, edges = _flattened(series, offsets)
    firsts, lengths = edges[:-1], np.diff(edges)
    ends = np.zeros(len(flat), bool)
    if len(flat):
        np.not_equal(flat[1:], flat[:-1], out=ends[:-1])
    ends[edges[1:][lengths > 0] - 1] = True  # a run never crosses into the next series
    last = np.flatnonzero(ends)
    counts = np.searchsorted(last, edges)  # (S + 1,) runs that ended before each series
    times = last + 1 - np.repeat(firsts, np.diff(counts))
    return Events(flat[last], times, counts.astype(np.int64))


def decode_events(events: Events) -> list[Array]:
    """The series `encode_events` was given, one array each.

    >>> decode_events(Events(np.array([1, 0]), np.array([4, 5]), np.array([0, 2])))
    [array([1, 1, 1, 1, 0])]
    """
    firsts = events.offsets[:-1][np.diff(events.offsets) > 0]
    lengths = np.diff(events.times, prepend=0)
    lengths[firsts] = events.times[firsts]
    if (bad := np.flatnonzero(lengths <= 0)).size:
        raise ValueError(
            f"event {bad[0]} is at time {events.times[bad[0]]}, not after the one before it; "
            "the times of a series must increase, starting above 0"
        )
    flat = np.repeat(events.symbols, lengths)
    symbols_before = np.concatenate([[0], np.cumsum(lengths)])
    return np.split(flat, symbols_before[events.offsets[1:-1]])


def _flattened(given: ArrayLike, offsets: ArrayLike | None) -> tuple[Array, Array]:
    try:
        series = np.asarray(given)
    except ValueError as error:
        raise ValueError(
            f"series cannot be read as an array ({error}); give series of different lengths end to end, with offsets"
        ) from error
    if offsets is not None:
        edges = np.asarray(offsets)
        if (
            series.ndim != 1
            or edges.ndim != 1
            or edges.dtype.kind not in "iu"
            or not edges.size
            or edges[0] != 0
            or edges[-1] != len(series)
            or (np.diff(edges) < 0).any()
        ):
            raise ValueError(
                f"offsets must be whole numbers that rise from 0 to {series.size}, the length of a flat series; "
                f"got {offsets}"
            )
        return series, edges.astype(np.int64)
    if series.ndim not in (1, 2):
        raise ValueError(f"series must be one (T,), or one per row (S, T), got shape {series.shape}")
    rows = np.atleast_2d(series)
    return rows.ravel(), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
