"""Honest splits: by sequence, by group, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from lapse.arguments import check_count, check_flag
from lapse.extras import extra
from lapse.sequences.arrays import real_numbers
from lapse.sequences.ragged import Array, Sequences
from lapse.sequences.units import NANOSECONDS, nanoseconds_since_1970


def by_sequence(s: Sequences, fractions: Sequence[float], seed: int, stratify: bool) -> tuple[Sequences, ...]:
    check_flag("stratify", stratify)
    order = _shuffled(len(s), seed)
    if stratify:
        order = _interleaved_classes(order, _classes(s))
    parts = dealt(order, fractions, "sequences")
    return tuple(s.take(np.sort(part)) for part in parts)


def by_group(s: Sequences, fractions: Sequence[float], seed: int) -> tuple[Sequences, ...]:
    if s.groups is None:
        raise ValueError(
            "these sequences have no groups; name their column with group= when reading the table"
        )
    names, member = np.unique(s.groups, return_inverse=True)
    order = _shuffled(len(names), seed)
    parts = dealt(order, fractions, "groups")
    return tuple(s.take(np.flatnonzero(np.isin(member, part))) for part in parts)


def _shuffled(count: int, seed: int) -> Array:
    check_count("seed", seed, 0)
    return np.random.default_rng(seed).permutation(count)


def by_time(s: Sequences, at: tuple[Any, ...]) -> tuple[Sequences, ...]:
    edges = [-np.inf, *(time_number(s, moment) for moment in at), np.inf]
    if not at or any(a >= b for a, b in pairwise(edges)):
        raise ValueError(f"expected one or more boundaries in increasing order, got {at}")
    first, last = s.times[s.offsets[:-1]], s.times[s.offsets[1:] - 1]
    parts = [(first >= a) & (last < b) for a, b in pairwise(edges)]
    for part, (a, b) in zip(parts, pairwise(edges), strict=True):
        if not part.any():
            raise ValueError(
                f"no sequence lies wholly between times {a} and {b} (data run from {first.min()} "
                f"to {last.max()}); move the boundary, or cut the sequences there with cut_at"
            )
    return tuple(s.take(np.flatnonzero(part)) for part in parts)


def cut(s: Sequences, at: Any) -> tuple[Sequences, Sequences]:
    moment = time_number(s, at)
    before = s.times < moment
    return _rows(s, before, None), _rows(s, ~before, _last_before(s, before))


def _rows(s: Sequences, keep: Array, starts: Array | None) -> Sequences:
    lengths = np.add.reduceat(keep, s.offsets[:-1], dtype=np.int64)
    index = np.flatnonzero(lengths)
    if not index.size:
        raise ValueError(
            "the cut leaves no event on one side; data times are absolute, in the table's own origin"
        )
    piece = s.gather(np.flatnonzero(keep), lengths[index], index)
    return piece if starts is None else replace(piece, starts=starts[index])


def _last_before(s: Sequences, before: Array) -> Array:
    """When each later piece's clock starts: its last event before the cut, or its own start."""
    firsts = s.offsets[:-1]
    count = np.add.reduceat(before, firsts, dtype=np.int64)
    own = s.times[firsts] if s.starts is None else s.starts
    return np.where(count > 0, s.times[firsts + np.maximum(count - 1, 0)], own)


def dealt(order: Array, fractions: Sequence[float], what: str) -> list[Array]:
    """`order` cut into consecutive parts of these fractions; every part has at least one."""
    shares = real_numbers(fractions, "fractions")
    if shares.ndim != 1 or len(shares) == 0 or (shares <= 0).any() or not np.isclose(shares.sum(), 1.0):
        raise ValueError(f"fractions must be positive and sum to 1, got {fractions}")
    edges = np.rint(np.cumsum(shares) * len(order)).astype(int)
    parts = np.split(order, edges[:-1])
    if any(len(part) == 0 for part in parts):
        raise ValueError(
            f"{len(order)} {what} cannot be split into parts of {tuple(fractions)}: one would be empty; "
            "use larger fractions or more data"
        )
    return parts


def _classes(s: Sequences) -> Array:
    if s.targets is None or s.per_step or s.targets.ndim != 1 or s.targets.dtype.kind != "i":
        raise ValueError("stratify needs one class per sequence as target; split without it")
    return s.targets


def _interleaved_classes(order: Array, classes: Array) -> Array:
    """`order` with each class spread evenly, so that any stretch of it has about the same share of each."""
    shuffled = classes[order]
    position = np.empty(len(order))
    for label in np.unique(shuffled):
        members = np.flatnonzero(shuffled == label)
        position[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(position, kind="stable")]


def time_number(s: Sequences, moment: Any) -> float:
    """A boundary as a number in the sequences' unit; dates count from the table's origin, in the table's zone."""
    if isinstance(moment, int | float | np.number) and not isinstance(moment, bool):
        if not np.isfinite(moment):
            raise ValueError(f"a boundary must be a finite time, got {moment!r}")
        return float(moment)
    if s.origin is None or s.unit not in NANOSECONDS:
        raise ValueError(f"these sequences have no dates, so the boundary must be a number, got {moment!r}")
    since = nanoseconds_since_1970(_universal(moment, s.zone)) - nanoseconds_since_1970(
        np.datetime64(s.origin)
    )
    return since / NANOSECONDS[s.unit]


def as_dates(s: Sequences, times: Array) -> Any:
    """Times of these sequences as dates of the table's own zone; as they are if the table had no dates."""
    if s.origin is None or s.unit not in NANOSECONDS:
        return times
    with extra("tables"):
        import pandas as pd
    with np.errstate(over="ignore"):
        since = times * float(NANOSECONDS[s.unit])
    # NumPy would write a date for which it has no room as another one, or as none.
    origin, ends = nanoseconds_since_1970(np.datetime64(s.origin)), (pd.Timestamp.min, pd.Timestamp.max)
    first, last = (float(nanoseconds_since_1970(end.to_datetime64()) - origin) for end in ends)
    if (beyond := np.flatnonzero(~((since > first) & (since < last)))).size:
        raise ValueError(
            f"{times[beyond[0]]:g} {s.unit} after {s.origin} is no date that a table can hold; those are of "
            f"the years {ends[0].year} to {ends[1].year}"
        )
    dates = pd.DatetimeIndex(np.datetime64(s.origin, "ns") + np.rint(since).astype("timedelta64[ns]"))
    return dates if s.zone is None else dates.tz_localize("UTC").tz_convert(s.zone)


def _universal(moment: Any, zone: str | None) -> np.datetime64:
    """A date as UTC; one without a zone is read in the table's, and a zone makes no sense to a table without."""
    with extra("tables"):
        import pandas as pd
    try:
        stamp = pd.Timestamp(moment)
        if stamp is pd.NaT:
            raise ValueError("it is no date at all")
        if zone is None and stamp.tz is not None:
            raise ValueError("the dates of these sequences have no time zone; leave it out here too")
        local = stamp.tz_localize(zone) if zone is not None and stamp.tz is None else stamp
        universal: np.datetime64 = (local if local.tz is None else local.tz_convert(None)).to_datetime64()
        return universal
    except (TypeError, ValueError) as error:
        raise ValueError(f"a boundary must be a date or a number, got {moment!r}: {error}") from error
