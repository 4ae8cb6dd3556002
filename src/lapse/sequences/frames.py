"""Tables in: pandas, polars and pyarrow frames, wide or long, read column by column into `Sequences`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from lapse.arguments import as_names, check_flag
from lapse.sequences.arrays import EventColumns, assemble, check_not_empty, split_missing, target_array
from lapse.sequences.columns import first_bad, number_column, time_column, value_column
from lapse.sequences.ragged import Array, Sequences, plain

Frame = nw.DataFrame[Any]


def read_wide(
    frame: Any,
    id: str,
    time: str,
    values: str | Sequence[str],
    target: str | Sequence[str] | None,
    per_step: bool,
    static: str | Sequence[str],
    group: str | None,
    weight: str | None,
    per_id: Any,
    unit: str | None,
) -> Sequences:
    table = _open(frame, "the table")
    check_flag("per_step", per_step)
    features, statics = as_names("values", values), as_names("static", static)
    targets = as_names("target", () if target is None else target)
    if not features:
        raise ValueError("values names no column, expected at least one feature")
    _require(table, [id, time, *features, *(targets if per_step else ())], "the table")
    ids, sequence = _identify(table, id)
    times, dates = time_column(table[time], unit)
    columns, words = _read_values([table[name] for name in features])
    whole = _PerSequence(table, id, ids, sequence, per_id)
    rows = EventColumns(sequence, times, columns)
    rest: dict[str, Any] = whole.others(statics, group, weight)
    rest["categories"] |= words
    if per_step and targets:
        rows.targets, rest["classes"] = _target([table[name] for name in targets])
    elif targets:
        rest["targets"], rest["classes"] = whole.target(targets)
    return assemble(rows, whole.ids, features=features, target_names=targets, unit=unit, **dates, **rest)


def read_long(
    frame: Any,
    id: str,
    time: str,
    variable: str,
    value: str,
    variables: Sequence[str] | None,
    target: str | None,
    static: str | Sequence[str],
    group: str | None,
    weight: str | None,
    per_id: Any,
    unit: str | None,
) -> Sequences:
    table = _open(frame, "the table")
    _require(table, [id, time, variable, value], "the table")
    ids, sequence = _identify(table, id)
    times, dates = time_column(table[time], unit)
    features, column = _variables(table[variable], variables)
    rows = _pivot(sequence, times, column, number_column(table[value]), len(features))
    whole = _PerSequence(table, id, ids, sequence, per_id)
    rest = whole.others(as_names("static", static), group, weight)
    if target is not None:
        rest["targets"], rest["classes"] = whole.target((target,))
        rest["target_names"] = (target,)
    return assemble(rows, whole.ids, features=features, unit=unit, **dates, **rest)


def _read_values(columns: list[nw.Series[Any]]) -> tuple[Array, dict[str, tuple[str, ...]]]:
    """(N, F) float64 with NaN for what was not observed, and the words of each column that holds words."""
    read = [value_column(series) for series in columns]
    words = {str(s.name): words for s, (_, words) in zip(columns, read, strict=True) if words is not None}
    return np.column_stack([numbers for numbers, _ in read]), words


def _pivot(sequence: Array, times: Array, column: Array, value: Array, width: int) -> EventColumns:
    """One row for each (sequence, time); a variable that comes again then opens a further row."""
    order = np.lexsort((column, times, sequence))
    sequence, times, column, value = sequence[order], times[order], column[order], value[order]
    same_event = (np.diff(sequence) == 0) & (np.diff(times) == 0)
    repeat = _run_position(same_event & (np.diff(column) == 0))
    order = np.lexsort((repeat, times, sequence))
    sequence, times, column, value, repeat = (a[order] for a in (sequence, times, column, value, repeat))
    new = np.ones(len(times), bool)
    # A NaN time equals nothing, so it opens a row of its own, which the checks then name.
    new[1:] = (np.diff(sequence) != 0) | ~(np.diff(times) == 0) | (np.diff(repeat) != 0)
    wide = np.full((np.count_nonzero(new), width), np.nan)
    wide[np.cumsum(new) - 1, column] = value
    return EventColumns(sequence[new], times[new], wide)


def _run_position(continues: Array) -> Array:
    """0, 1, 2, ... along each run of `continues`, starting anew where it is False."""
    position = np.arange(len(continues) + 1)
    starts = np.concatenate([[True], ~continues])[: len(position)]
    return position - np.maximum.accumulate(np.where(starts, position, 0))


class _PerSequence:
    """The columns with one value per sequence, from the events' own table or from the table of ids."""

    def __init__(self, table: Frame, id: str, ids: Array, sequence: Array, per_id: Any) -> None:
        self.table, self.ids, self.id = table, ids, id
        self.sequence: Array | None = sequence
        self.where = "the table"
        if per_id is not None:
            self.where, self.sequence = "the table of ids", None
            self.table, self.ids = _aligned(_open(per_id, self.where), id, ids)
        else:
            # The first row of each sequence stands for it, once `column` has seen that all its rows agree.
            self.first = np.zeros(len(ids), np.int64)
            self.first[sequence[::-1]] = np.arange(len(sequence))[::-1]

    def column(self, name: str) -> nw.Series[Any]:
        _require(self.table, [name], self.where)
        series = self.table[name]
        if self.sequence is None:
            return series
        codes, _ = pd.factorize(series.to_pandas())  # in which words may be in the fast form of Arrow
        if (bad := np.flatnonzero(codes != codes[self.first][self.sequence])).size:
            row = bad[0]
            raise ValueError(
                f"column {name!r} changes within id {plain(self.ids[self.sequence[row]])!r} (row {row}), "
                f"expected one value per sequence; for a target that changes, pass per_step=True"
            )
        return series[self.first.tolist()]

    def target(self, names: tuple[str, ...]) -> tuple[Array, tuple[Any, ...] | None]:
        return _target([self.column(name) for name in names])

    def others(self, statics: tuple[str, ...], group: str | None, weight: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {"static_features": statics, "categories": {}}
        if statics:
            table, found["categories"] = _read_values([self.column(name) for name in statics])
            found["static"], found["static_observed"] = split_missing(table)
        if group is not None:
            found["groups"] = self._groups(group)
        if weight is not None:
            found["weights"] = number_column(self.column(weight))
        return found

    def _groups(self, name: str) -> Array:
        groups = self.column(name).to_numpy()
        if (bad := first_bad(pd.isna(groups))) is not None:
            raise ValueError(
                f"id {plain(self.ids[bad])!r} has no group (column {name!r} is null); give it one"
            )
        return np.asarray(groups)


def _open(frame: Any, what: str) -> Frame:
    try:
        return nw.from_native(frame, eager_only=True)
    except TypeError as error:
        raise TypeError(
            f"{what} is a {type(frame).__module__}.{type(frame).__name__}, expected a pandas, polars or "
            "pyarrow table (a lazy frame must be collected first)"
        ) from error


def _require(table: Frame, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in table.columns]
    if not missing:
        return
    close = difflib.get_close_matches(str(missing[0]), [str(c) for c in table.columns], n=1)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(f"{what} has no column {missing[0]!r}{guess}; its columns are {list(table.columns)}")


def _identify(table: Frame, id: str) -> tuple[Array, Array]:
    """The ids, sorted so that the order of rows does not matter, and the number of each row's id."""
    check_not_empty(len(table))
    raw = table[id].to_numpy()
    if (bad := first_bad(pd.isna(raw))) is not None:
        raise ValueError(f"row {bad} has no id (column {id!r} is null there); drop it or give it an id")
    sequence, ids = pd.factorize(raw, sort=True)
    return np.asarray(ids), np.asarray(sequence, np.int64)


def _aligned(per_id: Frame, id: str, ids: Array) -> tuple[Frame, Array]:
    """The table of ids in the order of `ids`, refusing an id that only one of the two tables has."""
    _require(per_id, [id], "the table of ids")
    raw = per_id[id].to_numpy()
    index = pd.Index(raw)
    if (bad := first_bad(index.duplicated())) is not None:
        raise ValueError(
            f"the table of ids has id {plain(raw[bad])!r} twice (row {bad}), expected one row each"
        )
    if (bad := first_bad(~index.isin(ids))) is not None:
        raise ValueError(
            f"id {plain(raw[bad])!r} (row {bad} of the table of ids) has no rows in the table of events; "
            "leave it out of the table of ids"
        )
    position = index.get_indexer(pd.Index(ids))
    if (bad := first_bad(position < 0)) is not None:
        raise ValueError(
            f"id {plain(ids[bad])!r} is not in the table of ids; add it there or drop its events"
        )
    return per_id[position.tolist()], ids


def _variables(series: nw.Series[Any], variables: Sequence[str] | None) -> tuple[tuple[str, ...], Array]:
    raw = series.to_numpy()
    if (bad := first_bad(pd.isna(raw))) is not None:
        raise ValueError(
            f"row {bad} names no variable (column {series.name!r} is null there); drop it or name it"
        )
    if variables is None:
        codes, found = pd.factorize(raw, sort=True)
        return tuple(str(name) for name in found), np.asarray(codes)
    known = _distinct(variables)
    codes = pd.Index(known).get_indexer(pd.Index(raw))
    if (bad := first_bad(codes < 0)) is not None:
        raise ValueError(
            f"row {bad} has variable {plain(raw[bad])!r}, expected one of {known}; drop its rows or add it"
        )
    return tuple(str(name) for name in known), np.asarray(codes)


def _distinct(variables: object) -> list[Any]:
    """The names of variables as a list; words or numbers, as the column has them."""
    if isinstance(variables, str) or not isinstance(variables, Iterable):
        raise TypeError(f"variables must be a list of names, got {variables!r}")
    found = list(variables)
    if twice := [name for name in found if found.count(name) > 1]:
        raise ValueError(f"variables names {twice[0]!r} twice; give each its own name")
    return found


def _target(columns: list[nw.Series[Any]]) -> tuple[Array, tuple[Any, ...] | None]:
    """Numbers as they are, words and booleans as class indices; several columns side by side; NaN for null."""
    if len(columns) > 1:
        return target_array(np.column_stack([number_column(series) for series in columns])), None
    series = columns[0]
    if series.dtype.is_numeric():
        null = bool(series.is_null().any())
        return target_array(number_column(series) if null else series.to_numpy()), None
    codes, classes = pd.factorize(np.asarray(series.to_list(), object), sort=True)
    null = bool((codes < 0).any())
    return target_array(np.where(codes < 0, np.nan, codes) if null else codes), tuple(classes)
