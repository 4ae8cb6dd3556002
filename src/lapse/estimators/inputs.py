"""Whatever scikit-learn's users have as X, as `Sequences`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lapse.sequences import Sequences
from lapse.sequences.arrays import real_numbers
from lapse.sequences.ragged import Array

ACCEPTED = (
    "a lapse.Sequences, a table with the columns of ids and times named by id= and time=, a pandas table with "
    "(id, time) as its index, a list of (times, values), or an array (sequences, times) or (sequences, channels, times)"
)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are what; see `Sequences.from_frame`.

    Args:
        id: the column of ids.
        time: the column of times.
        values: the columns of features; None for all that have no other role.
        static: columns that do not change within a sequence.
        target: the columns to predict, if they are in the table.
        group: the column of groups.
        unit: the unit of time.
        per_step: whether targets are one per row.
    """

    id: str | None = None
    time: str | None = None
    values: Sequence[str] | None = None
    static: Sequence[str] = ()
    target: str | Sequence[str] | None = None
    group: str | None = None
    unit: str | None = None
    per_step: bool = False

    def read(self, frame: Any) -> Sequences:
        """The table as `Sequences`, with targets if it holds the target columns.

        Args:
            frame: a pandas, polars or pyarrow table.
        """
        frame = _with_index_as_columns(frame)
        names = _column_names(frame)
        if len(names) < 2:
            raise ValueError(
                f"X is a table with the columns {names}, expected one of ids and one of times at least"
            )
        id, time = self.id or names[0], self.time or names[1]
        targets = _listed(self.target)
        present = bool(targets) and set(targets) <= set(names)
        taken = {id, time, *targets, *_listed(self.static), *_listed(self.group)}
        values = self.values if self.values is not None else [name for name in names if name not in taken]
        return Sequences.from_frame(
            frame,
            id=id,
            time=time,
            values=values,
            target=self.target if present else None,
            per_step=self.per_step and present,
            static=self.static,
            group=self.group,
            unit=self.unit,
        )


def to_sequences(X: Any, columns: Columns) -> Sequences:
    """X in any accepted form as `Sequences`.

    Args:
        X: a `Sequences`, a table, a list of (times, values), or an array of regular series.
        columns: what the columns of a table are.
    """
    if isinstance(X, Sequences):
        return X
    if _is_table(X):
        return columns.read(X)
    if _are_pairs(X):
        return Sequences.from_arrays(
            [values for _, values in X], [times for times, _ in X], unit=columns.unit
        )
    return _from_regular(X)


def is_array(X: Any) -> bool:
    """Whether X can only be an array of regular series, since it is none of the other accepted forms.

    Args:
        X: whatever came.
    """
    return not (isinstance(X, Sequences) or _is_table(X) or _are_pairs(X))


def _is_table(X: Any) -> bool:
    return hasattr(X, "columns") or hasattr(X, "column_names")


def _are_pairs(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], tuple) and len(X[0]) == 2


def _from_regular(X: Any) -> Sequences:
    """Series with one value per channel at times 0, 1, 2, ...; NaN is not observed, and ends a shorter series."""
    try:
        array = real_numbers(X, "X")
    except ValueError as error:
        raise TypeError(f"X must be {ACCEPTED}; got {type(X).__name__}: {error}") from error
    if array.ndim == 2:
        array = array[:, None]
    if array.ndim != 3 or not array.size:
        raise ValueError(f"X must be {ACCEPTED}; got an array of shape {np.shape(X)}")
    lengths = _lengths_without_tail(array)
    return Sequences.from_arrays(
        [series[:, :length].T for series, length in zip(array, lengths, strict=True)],
        [np.arange(length) for length in lengths],
    )


def _lengths_without_tail(array: Array) -> Array:
    seen: Array = np.logical_not(np.isnan(array).all(axis=1))  # (S, T)
    ends = seen.shape[1] - seen[:, ::-1].argmax(axis=1)
    return np.where(seen.any(axis=1), ends, 1)


def _with_index_as_columns(frame: Any) -> Any:
    """A pandas panel, whose index is (id, time), with both as columns."""
    levels = getattr(getattr(frame, "index", None), "names", None)
    if levels is None or len(levels) != 2:
        return frame
    names = [
        name if name is not None else default for name, default in zip(levels, ("id", "time"), strict=True)
    ]
    return frame.rename_axis(names).reset_index()


def _column_names(frame: Any) -> list[str]:
    names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    if unnamed := [name for name in names if not isinstance(name, str)]:
        raise ValueError(
            f"the columns of a table must have names, and one is called {unnamed[0]!r}; a table holds one event per "
            "row, and a matrix with one series per row is given as an array"
        )
    return names


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)
