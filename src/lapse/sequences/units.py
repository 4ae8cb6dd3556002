"""Units of time that dates can be counted in."""

from __future__ import annotations

from typing import Any

import numpy as np

# The length of each unit in nanoseconds.
NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86400 * 10**9,
    "W": 7 * 86400 * 10**9,
}


def counted_since_1970(dates: np.ndarray[Any, Any], unit: str) -> np.ndarray[Any, Any]:
    """Dates, none of them NaT, as float64 in a unit, also those for which int64 has no room in nanoseconds."""
    own, step = np.datetime_data(dates.dtype)
    if own not in NANOSECONDS or step != 1:
        own = "D" if own in ("Y", "M") else "ns"
        dates = dates.astype(f"M8[{own}]")
    found: np.ndarray[Any, Any] = dates.astype(np.int64) * float(NANOSECONDS[own]) / NANOSECONDS[unit]
    return found


def nanoseconds_since_1970(date: np.datetime64) -> int:
    """As one of Python's integers, which have room for every date."""
    return int(date.astype(np.int64)) * NANOSECONDS[np.datetime_data(date.dtype)[0]]
