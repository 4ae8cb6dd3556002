"""One column of a table as numbers, with errors that name the row: values, words, and times of every kind."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from lapse.sequences.ragged import Array, plain
from lapse.sequences.units import NANOSECONDS

EXACT = 2**53  # whole numbers above this are not all float64
MOST_CATEGORIES = 100  # each becomes an input of the model; a column with more is an identifier or free text


def first_bad(mask: Array) -> int | None:
    found = np.flatnonzero(mask)
    return int(found[0]) if found.size else None


def number_column(series: nw.Series[Any]) -> Array:
    """(N,) float64, NaN for null; text is an error that names the row."""
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:
        return np.asarray(series.cast(nw.Float64).to_numpy(), np.float64)
    raw = series.to_numpy()
    numbers = np.asarray(pd.to_numeric(pd.Series(raw, dtype=object), errors="coerce"), np.float64)
    if (bad := first_bad(np.isnan(numbers) & ~pd.isna(raw))) is not None:
        raise ValueError(
            f"column {series.name!r} has {plain(raw[bad])!r} in row {bad}, expected numbers; "
            "convert it, use null for what was not observed, or leave it out"
        )
    return numbers


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


def date_column(series: nw.Series[Any], unit: str | None) -> tuple[Array, str | None]:
    """(N,) float64 times, NaN for null; and for dates the one that is time 0.

    Dates are counted from the earliest one in exact integers, so that a nanosecond stays a nanosecond.
    """
    if isinstance(series.dtype, nw.Datetime):
        return _from_dates(series, _nanoseconds(unit, series, "dates"))
    if series.dtype == nw.Date:
        return _from_dates(series.cast(nw.Datetime("ms")), _nanoseconds(unit, series, "dates"))
    if isinstance(series.dtype, nw.Duration):
        return _from_durations(series, _nanoseconds(unit, series, "durations")), None
    return _plain(series), None


def _nanoseconds(unit: str | None, series: nw.Series[Any], what: str) -> int:
    if unit not in NANOSECONDS:
        raise ValueError(
            f"time column {series.name!r} holds {what}, so the unit of time must be told: got unit={unit!r}, "
            f"expected one of {list(NANOSECONDS)}"
        )
    return NANOSECONDS[unit]


def _from_dates(series: nw.Series[Any], unit: int) -> tuple[Array, str | None]:
    present = ~np.asarray(series.is_null().to_numpy(), bool)
    if not present.any():
        return np.full(len(present), np.nan), None
    resolution = series.dtype.time_unit  # type: ignore[attr-defined]
    # narwhals counts at most nanoseconds, down to milliseconds; pandas also knows whole seconds.
    counted: Any = resolution if resolution in ("ns", "us", "ms") else "ms"
    ticks = series.dt.timestamp(counted).drop_nulls().to_numpy().astype(np.int64)
    first = ticks.min()
    times = np.full(len(present), np.nan)
    times[present] = (ticks - first) * (NANOSECONDS[counted] / unit)
    return times, str(np.datetime64(int(first), counted))


def _from_durations(series: nw.Series[Any], unit: int) -> Array:
    present = ~np.asarray(series.is_null().to_numpy(), bool)
    times = np.full(len(present), np.nan)
    times[present] = series.drop_nulls().dt.total_nanoseconds().to_numpy().astype(np.int64) / unit
    return times


def _plain(series: nw.Series[Any]) -> Array:
    if series.dtype.is_integer() and len(series):
        largest = max(abs(int(series.min() or 0)), abs(int(series.max() or 0)))
        if largest > EXACT:
            raise ValueError(
                f"time column {series.name!r} has whole numbers up to {largest}, which float64 cannot tell "
                "apart; subtract a common start from the column first"
            )
    return number_column(series)
