"""One column of a table as numbers, with errors that name the row: values, words, and times of every kind."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from lapse.sequences.arrays import check_exact
from lapse.sequences.ragged import Array, plain
from lapse.sequences.units import NANOSECONDS

MOST_CATEGORIES = 100  # each becomes an input of the model; a column with more is an identifier or free text


def first_bad(mask: Array) -> int | None:
    found = np.flatnonzero(mask)
    return int(found[0]) if found.size else None


def number_column(series: nw.Series[Any]) -> Array:
    """(N,) float64, NaN for null; anything that is not a real number is an error that names the row."""
    if series.dtype.is_integer() or series.dtype.is_float():
        return np.asarray(series.to_numpy(), np.float64)
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:
        return np.asarray(series.cast(nw.Float64).to_numpy(), np.float64)
    raw = series.to_numpy()
    found = pd.to_numeric(pd.Series(raw, dtype=object), errors="coerce").to_numpy()
    is_number = ~pd.isna(found) & ~np.iscomplex(found)
    if (bad := first_bad(~is_number & ~pd.isna(raw))) is not None:
        raise ValueError(
            f"column {series.name!r} has {plain(raw[bad])!r} in row {bad}, expected numbers; "
            "convert it, use null for what was not observed, or leave it out"
        )
    return np.asarray(found.real, np.float64)


def value_column(series: nw.Series[Any]) -> tuple[Array, tuple[str, ...] | None]:
    """(N,) float64 numbers and None; or for a column of words the position of each word and the sorted words.

    Text is taken for words if none of it is a number: a single "n/a" among numbers is a mistake to be named.
    """
    raw = np.asarray(series.to_list(), object) if _may_be_words(series) else None
    if raw is None or not (_is_category(series) or _only_words(raw)):
        return number_column(series), None
    known = ~pd.isna(raw)
    words, codes = np.unique(raw[known].astype(str), return_inverse=True)
    if len(words) > MOST_CATEGORIES:
        raise ValueError(
            f"column {series.name!r} holds {len(words)} different words, expected at most {MOST_CATEGORIES} "
            f"categories, such as {words[0]!r}; gather rare ones under one word, or leave the column out"
        )
    numbers = np.full(len(raw), np.nan)
    numbers[known] = codes
    return numbers, tuple(str(word) for word in words)


def _is_category(series: nw.Series[Any]) -> bool:
    return isinstance(series.dtype, nw.Categorical | nw.Enum)


def _may_be_words(series: nw.Series[Any]) -> bool:
    return _is_category(series) or series.dtype in (nw.String, nw.Object)


def _only_words(raw: Array) -> bool:
    numbers = pd.to_numeric(pd.Series(raw, dtype=object), errors="coerce")
    return bool(numbers.isna().all()) and not bool(pd.isna(raw).all())


def time_column(series: nw.Series[Any], unit: str | None) -> tuple[Array, dict[str, str | None]]:
    """(N,) float64 times, NaN for null; and for dates the `origin` and `zone` that `Sequences` keeps of them.

    Dates are counted from the earliest one in exact integers, so that a nanosecond stays a nanosecond.
    """
    if series.dtype == nw.Date:
        series = series.cast(nw.Datetime("ms"))
    if isinstance(series.dtype, nw.Datetime):
        return _from_dates(series, _nanoseconds(unit, series, "dates"))
    if isinstance(series.dtype, nw.Duration):
        return _from_durations(series, _nanoseconds(unit, series, "durations")), {}
    return _plain(series), {}


def _nanoseconds(unit: str | None, series: nw.Series[Any], what: str) -> int:
    if unit not in NANOSECONDS:
        raise ValueError(
            f"time column {series.name!r} holds {what}, so the unit of time must be told: got unit={unit!r}, "
            f"expected one of {list(NANOSECONDS)}"
        )
    return NANOSECONDS[unit]


def _from_dates(series: nw.Series[Any], unit: int) -> tuple[Array, dict[str, str | None]]:
    stamps = series.drop_nulls().to_numpy()  # in UTC, in the resolution of the column
    if not len(stamps):
        return _in_place(series, stamps), {}
    first = stamps.min()
    # Unsigned, because two dates may be further apart than a signed number of nanoseconds can tell.
    since = (stamps - first).view(np.uint64)
    zone = series.dtype.time_zone  # type: ignore[attr-defined]
    return _in_place(series, _in_units(since, stamps.dtype, unit)), {"origin": str(first), "zone": zone}


def _from_durations(series: nw.Series[Any], unit: int) -> Array:
    spans = series.drop_nulls().to_numpy()
    return _in_place(series, _in_units(spans.view(np.int64), spans.dtype, unit))


def _in_units(ticks: Array, resolution: np.dtype[Any], unit: int) -> Array:
    """Whole ticks as float64 numbers of units. Of two units of time, the longer is a whole multiple of the other."""
    tick = NANOSECONDS[np.datetime_data(resolution)[0]]
    numbers: Array = ticks * float(tick // unit) if tick >= unit else ticks / float(unit // tick)
    return numbers


def _in_place(series: nw.Series[Any], present: Array) -> Array:
    """(N,) float64, with NaN where the column is null."""
    times = np.full(len(series), np.nan)
    times[~np.asarray(series.is_null().to_numpy(), bool)] = present
    return times


def _plain(series: nw.Series[Any]) -> Array:
    if series.dtype.is_integer() and len(series):
        check_exact(f"time column {series.name!r}", int(series.min() or 0), int(series.max() or 0))
    return number_column(series)
