"""Times as numbers and as dates, in the unit that a model counts in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from lapse.sequences.ragged import Array
from lapse.sequences.units import NANOSECONDS


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
        if isinstance(time, int | float | np.number):
            return float(time)
        if isinstance(time, str):
            time = datetime.fromisoformat(time)
        if isinstance(time, datetime):
            time = np.datetime64(time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time, "ns")
        if not isinstance(time, np.datetime64):
            raise TypeError(f"time must be a number or a date, got {time!r}")
        return float(self._counted(np.array([time]))[0])

    def numbers(self, times: Any) -> Array:
        """(N,) float64, many times as numbers.

        Args:
            times: (N,) numbers or dates.
        """
        array = np.asarray(times)
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
        nanoseconds: Array = dates.astype("datetime64[ns]").astype(np.int64)
        return nanoseconds / NANOSECONDS[self.unit]
