"""One column of a table as numbers, with errors that name the row: values, and times of every kind."""

from __future__ import annotations

from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from lapse.sequences.ragged import Array, plain
from lapse.sequences.units import NANOSECONDS

EXACT = 2**53  # whole numbers above this are not all float64


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
            "convert it, turn its categories into numeric columns, or leave it out"
        )
    return numbers


def date_column(series: nw.Series[Any], unit: str | None) -> tuple[Array, str | None]:
    """(N,) float64 times, and for dates the one that is 0; NaN for null.

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
