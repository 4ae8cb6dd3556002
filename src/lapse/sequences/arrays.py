"""From flat columns in any order, or lists of arrays, to checked `Sequences`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lapse.sequences.ragged import Array, Sequences, offsets_of, plain


@dataclass
class Rows:
    """The columns of a table of events before sorting; `sequence` numbers the sequence of each row."""

    sequence: Array  # (N,) int64, 0..S-1
    times: Array  # (N,) float64
    values: Array  # (N, F) float, NaN where not observed
    targets: Array | None = None  # (N, ...), one per row


def assemble(rows: Rows, ids: Array, **rest: Any) -> Sequences:
    """Sort rows by sequence and time, split values into numbers and `observed`, and check the contents."""
    features = tuple(rest.get("features") or (f"feature {i}" for i in range(rows.values.shape[1])))
    lengths = np.bincount(rows.sequence, minlength=len(ids))
    check_rows(rows, ids, lengths, features)
    order = _order(rows)
    values, observed = split_missing(rows.values if order is None else rows.values[order])
    if rows.targets is not None:
        rest |= {"targets": rows.targets if order is None else rows.targets[order], "per_step": True}
    sequences = Sequences(
        values=values,
        times=rows.times if order is None else rows.times[order],
        offsets=offsets_of(lengths),
        observed=observed,
        ids=ids,
        **rest,
    )
    _check_starts(sequences)
    _check_static(sequences)
    return sequences


def _order(rows: Rows) -> Array | None:
    """A stable order by sequence, then time; None where the rows have it already, which saves the copies."""
    step, gap = np.diff(rows.sequence), np.diff(rows.times)
    if not np.any((step < 0) | ((step == 0) & (gap < 0))):
        return None
    return np.lexsort((rows.times, rows.sequence))


def split_missing(values: Array) -> tuple[Array, Array | None]:
    """float32 with zeros for NaN, and the mask of what was observed; None when that is everything."""
    observed = ~np.isnan(values)
    if observed.all():
        return values.astype(np.float32), None
    return np.where(observed, values, 0.0).astype(np.float32), observed


def check_not_empty(count: int) -> None:
    if count == 0:
        raise ValueError("the table is empty: expected at least one row; check the filter that made it")


def check_rows(rows: Rows, ids: Array, lengths: Array, features: tuple[str, ...]) -> None:
    check_not_empty(len(ids))
    if (empty := np.flatnonzero(lengths == 0)).size:
        raise ValueError(
            f"id {plain(ids[empty[0]])!r} has no rows ({empty.size} such ids); "
            "leave these ids out of the table of ids, or give each at least one event"
        )
    if (bad := np.flatnonzero(~np.isfinite(rows.times))).size:
        raise ValueError(
            f"row {bad[0]} (id {plain(ids[rows.sequence[bad[0]]])!r}) has time {rows.times[bad[0]]}, "
            f"expected a finite time ({bad.size} such rows); drop these rows or fill in their times"
        )
    _check_values(rows, ids, features)


def _check_values(rows: Rows, ids: Array, features: tuple[str, ...]) -> None:
    if (bad := np.argwhere(np.isinf(rows.values))).size:
        row, column = bad[0]
        raise ValueError(
            f"row {row} (id {plain(ids[rows.sequence[row]])!r}) has {rows.values[row, column]} "
            f"in {features[column]!r}, expected a finite number ({len(bad)} such values); "
            "use NaN for what was not observed"
        )


def _check_starts(s: Sequences) -> None:
    if s.starts is None:
        return
    first = s.times[s.offsets[:-1]]
    if (bad := np.flatnonzero(~(s.starts <= first))).size:
        i = bad[0]
        raise ValueError(
            f"sequence {i} starts at {s.starts[i]}, after its first event at {first[i]}; "
            "a start must be finite and not after the first event"
        )


def _check_static(s: Sequences) -> None:
    if s.static is None or np.isfinite(s.static).all():
        return
    row, column = np.argwhere(~np.isfinite(s.static))[0]
    assert s.ids is not None
    raise ValueError(
        f"static feature {s.static_features[column]!r} of id {plain(s.ids[row])!r} is {s.static[row, column]}, "
        "expected a finite number, or NaN for what is not known"
    )


def read_arrays(
    values: Sequence[ArrayLike],
    times: Sequence[ArrayLike],
    targets: Any,
    per_step: bool,
    static: ArrayLike | None,
    starts: ArrayLike | None,
    ids: ArrayLike | None,
    groups: ArrayLike | None,
    features: Sequence[str],
    static_features: Sequence[str],
    unit: str | None,
) -> Sequences:
    if len(values) != len(times):
        raise ValueError(
            f"{len(values)} arrays of values but {len(times)} of times; expected one of each per sequence"
        )
    lengths = np.array([len(np.asarray(t)) for t in times], np.int64)
    named = np.arange(len(times)) if ids is None else np.asarray(ids)
    rows = Rows(
        sequence=np.repeat(np.arange(len(times)), lengths),
        times=_flat([np.asarray(t, np.float64) for t in times]),
        values=_flat([_columns(v, t, i) for i, (v, t) in enumerate(zip(values, times, strict=True))], 1),
        targets=_step_targets(targets, lengths) if per_step else None,
    )
    per_sequence = None if per_step or targets is None else target_array(np.asarray(targets))
    known, known_mask = (None, None) if static is None else split_missing(np.asarray(static, np.float64))
    rest: dict[str, Any] = {} if per_step else {"targets": per_sequence}
    return assemble(
        rows,
        named,
        static=known,
        static_observed=known_mask,
        starts=None if starts is None else np.asarray(starts, np.float64),
        groups=None if groups is None else np.asarray(groups),
        features=tuple(features),
        static_features=tuple(static_features) or _numbered(known),
        unit=unit,
        **rest,
    )


def _numbered(static: Array | None) -> tuple[str, ...]:
    return () if static is None else tuple(f"static {i}" for i in range(static.shape[1]))


def _columns(values: ArrayLike, times: ArrayLike, index: int) -> Array:
    array = np.asarray(values, np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) != len(np.asarray(times)):
        raise ValueError(
            f"sequence {index} has values of shape {np.shape(values)} and times of shape {np.shape(times)}; "
            "expected (T, F) or (T,) beside (T,)"
        )
    return array


def _flat(arrays: list[Array], columns: int = 0) -> Array:
    if not arrays:
        return np.zeros((0, columns) if columns else 0)
    widths = {array.shape[1:] for array in arrays}
    if len(widths) > 1:
        raise ValueError(f"sequences differ in their number of features: {sorted(widths)}; expected one")
    return np.concatenate(arrays)


def _step_targets(targets: Any, lengths: Array) -> Array:
    if targets is None or len(targets) != len(lengths):
        count = "no" if targets is None else len(targets)
        raise ValueError(f"per_step needs one array of targets per sequence: got {count} for {len(lengths)}")
    arrays = [np.asarray(target) for target in targets]
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) != length:
            raise ValueError(f"sequence {i} has {len(array)} targets for {length} events; expected one each")
    return target_array(np.concatenate(arrays) if arrays else np.zeros(0))


def target_array(targets: Array) -> Array:
    """int64 for whole numbers and booleans, float32 for the rest; anything else is refused."""
    if targets.dtype.kind in "iub":
        return targets.astype(np.int64)
    if targets.dtype.kind != "f":
        raise ValueError(
            f"targets have dtype {targets.dtype}, expected numbers; encode words as class indices"
        )
    bad = np.flatnonzero(~np.isfinite(targets.reshape(len(targets), -1)).all(axis=1))
    if bad.size:
        raise ValueError(
            f"target {bad[0]} is {targets[bad[0]]}, expected a finite number; drop rows without target"
        )
    return targets.astype(np.float32)
