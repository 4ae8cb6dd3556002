"""Units of time that dates can be counted in."""

from __future__ import annotations

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


def nanoseconds_since_1970(date: np.datetime64) -> int:
    """As one of Python's integers, which have room for every date."""
    return int(date.astype(np.int64)) * NANOSECONDS[np.datetime_data(date.dtype)[0]]
