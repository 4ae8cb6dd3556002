"""Times as numbers and as dates, in the unit that a model counts in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from numbers import Real
from typing import Any

import numpy as np

from lapse.sequences.ragged import Array
from lapse.sequences.units import NANOSECONDS, counted_since_1970


class Clock:
    """Brings times into the unit of the training table. Numbers are in that unit; dates are counted from 1970.

    Args:
        unit: the unit of the training table; None if nobody said, and then there are no dates.
    """

    def __init__(self, unit: str | None) -> None:
        self.unit = unit

    def number(self, time: Any) -> float:
        """One time as a number.

        Args:
            time: a number, or a date: `datetime`, `numpy.datetime64` or text as in ISO 8601. A date without a time zone
                is in UTC.
        """
        try:
            if isinstance(time, Real) and not isinstance(time, bool):
                return float(time)
            moment = _moment(time)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"time must be a number or a date, got {time!r}") from error
        return float(self._counted(np.array([moment]))[0])

    def numbers(self, times: Any) -> Array:
        """(N,) float64, many times as numbers.

        Args:
            times: (N,) numbers or dates.
        """
        array = np.asarray(times)
        if array.ndim != 1:
            raise ValueError(f"times must have one axis, one time per event, got the shape {array.shape}")
        if array.dtype.kind == "M":
            return self._counted(array)
        if array.dtype.kind in "iuf":
            return array.astype(np.float64)
        return np.array([self.number(time) for time in times], np.float64)

    def _counted(self, dates: Array) -> Array:
        if self.unit not in NANOSECONDS:
            raise ValueError(
                f"the model was trained on times with unit={self.unit!r}, so that dates cannot be counted; give numbers"
            )
        if np.isnat(dates).any():
            raise ValueError("time must be a number or a date, got NaT")
        return counted_since_1970(dates, self.unit)


def _moment(time: Any) -> np.datetime64:
    """A date as NumPy has it, in UTC; TypeError or ValueError for what is none."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, datetime) and time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    if not isinstance(time, date | np.datetime64):
        raise TypeError
    # NumPy finds the unit that has room for it: nanoseconds end in 2262.
    return np.datetime64(time)
