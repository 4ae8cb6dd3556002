"""Events gathered into bins of one width: what `Sequences.bin` does."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from lapse.arguments import check_flag, is_number
from lapse.sequences.ragged import Array, Sequences
from lapse.sequences.units import NANOSECONDS, nanoseconds_since_1970

# A time that should lie on an edge, such as 3 bins of 0.1, may fall short of it by rounding. It belongs to the bin
# that begins there.
ROUNDING = 1e-9
MOST_BINS = 2**53  # larger whole numbers are not all float64


def gather_bins(s: Sequences, width: float | str, counts: bool) -> Sequences:
    """One event per bin that holds any: means of numbers, last values of categories, time at the end of the bin."""
    check_flag("counts", counts)
    size = width_in_unit(s, width)
    phase = _phase(s, size)
    number = _bin_numbers(s, size, phase)
    if (most := float(np.abs(number).max(initial=0))) > MOST_BINS:
        raise ValueError(
            f"a width of {width!r} makes bins up to number {most:g}, more than can be told apart; use a larger width"
        )
    sequence = np.repeat(np.arange(len(s)), s.lengths)
    firsts = _where_new(sequence, number)
    lasts = np.append(firsts, s.num_events)[1:] - 1
    lengths = np.bincount(sequence[firsts], minlength=len(s))
    values, count = _means(s, firsts)
    binned = s.gather(lasts, lengths, np.arange(len(s)))  # targets: that of the last event of the bin
    binned = replace(
        binned,
        # The end of its bin is when a mean is known. Rounding must not put it before the event itself.
        times=np.maximum((number[lasts] + 1) * size - phase, s.times[lasts]),
        values=values,
        observed=None if (count > 0).all() else count > 0,
    )
    return _with_counts(binned, count) if counts else binned


def trace_bins(s: Sequences, width: float, values: Array, gaps: Array) -> tuple[Array, Array]:
    """Amounts for the values and gaps of bins, traced back to the events in them.

    The amount for a mean goes in equal parts to its observations, and that for the gap before a bin to the gap before
    its first event.

    Args:
        s: the sequences that were binned, whose features are all numbers.
        width: the width of the bins, in their unit.
        values: (bins, F).
        gaps: (bins,).

    Returns:
        (N, F) for values, (N,) for gaps.
    """
    sequence = np.repeat(np.arange(len(s)), s.lengths)
    firsts = _where_new(sequence, _bin_numbers(s, width, _phase(s, width)))
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    count = np.add.reduceat(observed, firsts, axis=0, dtype=np.int64)
    sizes = np.diff(np.append(firsts, s.num_events))
    of_gaps = np.zeros(s.num_events)
    of_gaps[firsts] = gaps
    return np.repeat(values / np.maximum(count, 1), sizes, axis=0) * observed, of_gaps


def _bin_numbers(s: Sequences, size: float, phase: float) -> Array:
    """(N,), the number of the bin of each event."""
    return np.floor((s.times + phase) / size + ROUNDING)


def width_in_unit(s: Sequences, width: float | str) -> float:
    """The width as a number in the unit of `s`."""
    if isinstance(width, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)?\s*([a-zA-Z]+)\s*", width)
        if match is None or match[2] not in NANOSECONDS:
            raise ValueError(f"expected a width such as '1h', in one of {list(NANOSECONDS)}, got {width!r}")
        if s.unit not in NANOSECONDS:
            raise ValueError(
                f"these sequences count time in unit={s.unit!r}, so that {width!r} cannot be converted; "
                "give the width as a number in that unit, or read the table with unit=..."
            )
        width = float(match[1] or 1) * NANOSECONDS[match[2]] / NANOSECONDS[s.unit]
    if not (is_number(width) and width > 0):
        raise ValueError(f"the width of a bin must be positive and finite, got {width!r}")
    return float(width)


def _phase(s: Sequences, size: float) -> float:
    """How long before time 0 the bin around it began, so that bins of dates follow the calendar.

    Otherwise they would follow the earliest date of the table, and so depend on who else is in it.
    """
    if s.origin is None or s.unit not in NANOSECONDS:
        return 0.0
    step = max(1, round(size * NANOSECONDS[s.unit]))
    return nanoseconds_since_1970(np.datetime64(s.origin)) % step / NANOSECONDS[s.unit]


def _where_new(sequence: Array, number: Array) -> Array:
    """The first row of every bin."""
    new = np.ones(len(number), bool)
    new[1:] = (np.diff(sequence) != 0) | (np.diff(number) != 0)
    return np.flatnonzero(new)


def _means(s: Sequences, firsts: Array) -> tuple[Array, Array]:
    """(bins, F) values, 0 where nothing was observed, and how many observations each one stands for."""
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    count = np.add.reduceat(observed, firsts, axis=0, dtype=np.int64)
    total = np.add.reduceat(s.values, firsts, axis=0, dtype=np.float64)  # not observed is stored as 0
    values = (total / np.maximum(count, 1)).astype(np.float32)
    for column, name in enumerate(s.features):
        if name in s.categories:
            values[:, column] = _last_observed(s.values[:, column], observed[:, column], firsts)
    return values, count


def _last_observed(values: Array, observed: Array, firsts: Array) -> Array:
    rows = np.where(observed, np.arange(len(values)), -1)
    last = np.maximum.reduceat(rows, firsts)
    return np.where(last < 0, np.float32(0.0), values[last])


def _with_counts(s: Sequences, count: Array) -> Sequences:
    observed = None if s.observed is None else np.hstack([s.observed, np.ones(count.shape, bool)])
    return replace(
        s,
        values=np.hstack([s.values, count.astype(np.float32)]),
        observed=observed,
        features=(*s.features, *(f"{name} count" for name in s.features)),
    )
