"""From flat columns in any order, or lists of arrays, to checked `Sequences`."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lapse.arguments import as_names, check_flag
from lapse.sequences.ragged import Array, Sequences, offsets_of, plain

BEYOND_FLOAT32 = 2.0**128 - 2.0**103  # the least number that float32 rounds to infinity
EXACT = 2**53  # whole numbers above this are not all float64


@dataclass
class EventColumns:
    """The columns of a table of events before sorting; `sequence` numbers the sequence of each row."""

    sequence: Array  # (N,) int64, 0..S-1
    times: Array  # (N,) float64
    values: Array  # (N, F) float, NaN where not observed
    targets: Array | None = None  # (N, ...), one per row


def assemble(rows: EventColumns, ids: Array, **rest: Any) -> Sequences:
    """Sort rows by sequence and time, split values into numbers and `observed`, and check the contents."""
    features = tuple(rest.get("features") or (f"feature {i}" for i in range(rows.values.shape[1])))
    lengths = np.bincount(rows.sequence, minlength=len(ids))
    check_rows(rows, ids, lengths, features)
    order = _order(rows)
    values, observed = split_missing(rows.values)
    if rows.targets is not None:
        rest |= {"targets": _ordered(rows.targets, order), "per_step": True}
    if rest.get("weights") is not None:
        rest["weights"] = _weights(rest["weights"], ids)
    sequences = Sequences(
        values=_ordered(values, order),
        times=_ordered(rows.times, order),
        offsets=offsets_of(lengths),
        observed=None if observed is None else _ordered(observed, order),
        ids=ids,
        **rest,
    )
    _check_clock(sequences)
    _check_static(sequences)
    return sequences


def _order(rows: EventColumns) -> Array | None:
    """A stable order by sequence, then time; None where the rows have it already, which saves the copies."""
    step, earlier = np.diff(rows.sequence), rows.times[1:] < rows.times[:-1]
    if not np.any((step < 0) | ((step == 0) & earlier)):
        return None
    order = np.argsort(rows.times, kind="stable")
    # A radix sort, digit by digit: NumPy has one for numbers of 16 bits, at a tenth of the time of any other sort.
    for shift in range(0, int(rows.sequence.max()).bit_length(), 16):
        digit = (rows.sequence[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order


def _ordered(array: Array, order: Array | None) -> Array:
    return array if order is None else array[order]


def split_missing(values: Array) -> tuple[Array, Array | None]:
    """float32 with zeros for NaN, and the mask of what was observed; None when that is everything."""
    numbers, missing = as_float32(values), np.isnan(values)
    if not missing.any():
        return numbers, None
    numbers[missing] = 0.0
    return numbers, ~missing


def as_float32(numbers: Array) -> Array:
    """The cast, without a warning of overflow: the checks that follow it see the infinity and name its place."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def check_not_empty(count: int) -> None:
    if count == 0:
        raise ValueError("the table is empty: expected at least one row; check the filter that made it")


def check_rows(rows: EventColumns, ids: Array, lengths: Array, features: tuple[str, ...]) -> None:
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


def _check_values(rows: EventColumns, ids: Array, features: tuple[str, ...]) -> None:
    too_large = (rows.values >= BEYOND_FLOAT32) | (rows.values <= -BEYOND_FLOAT32)
    if (bad := np.argwhere(too_large)).size:
        row, column = bad[0]
        raise ValueError(
            f"row {row} (id {plain(ids[rows.sequence[row]])!r}) has {rows.values[row, column]} "
            f"in {features[column]!r}, expected a finite number that float32 can hold ({len(bad)} such values); "
            "use NaN for what was not observed, or another unit"
        )


def _check_clock(s: Sequences) -> None:
    """Starts before the first events, and gaps that float32 can hold: a model gets them in that type."""
    first = s.times[s.offsets[:-1]]
    starts = first if s.starts is None else s.starts
    if (bad := np.flatnonzero(~((starts <= first) & np.isfinite(starts)))).size:
        i = bad[0]
        raise ValueError(
            f"sequence {i} starts at {starts[i]}, and its first event is at {first[i]}; "
            "a start must be finite and not after the first event"
        )
    if (longest := float(s.times.max()) - float(starts.min())) >= BEYOND_FLOAT32:
        raise ValueError(f"times span {longest:g}, more than float32 can hold; use a longer unit of time")


def _check_static(s: Sequences) -> None:
    if s.static is None or np.isfinite(s.static).all():
        return
    row, column = np.argwhere(~np.isfinite(s.static))[0]
    assert s.ids is not None
    raise ValueError(
        f"static feature {s.static_features[column]!r} of id {plain(s.ids[row])!r} is {s.static[row, column]}, "
        "expected a finite number that float32 can hold, or NaN for what is not known"
    )


def _weights(weights: Array, ids: Array) -> Array:
    """(S,) float32: finite, none negative, and at least one of them positive."""
    numbers = as_float32(weights)
    if (bad := np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))).size:
        raise ValueError(
            f"the weight of id {plain(ids[bad[0]])!r} is {weights[bad[0]]}, expected a finite number of at least 0"
        )
    if not numbers.any():
        raise ValueError("every weight is 0, expected at least one sequence that counts")
    return numbers


def read_arrays(
    values: Sequence[ArrayLike],
    times: Sequence[ArrayLike],
    targets: Any,
    per_step: bool,
    static: ArrayLike | None,
    starts: ArrayLike | None,
    ids: ArrayLike | None,
    groups: ArrayLike | None,
    weights: ArrayLike | None,
    features: Sequence[str],
    static_features: Sequence[str],
    unit: str | None,
) -> Sequences:
    check_flag("per_step", per_step)
    _check_one_per_sequence(values, times)
    clocks = [_times(t, i) for i, t in enumerate(times)]
    lengths = np.array([len(clock) for clock in clocks], np.int64)
    named = np.arange(len(times)) if ids is None else per_sequence_array(ids, "ids")
    rows = EventColumns(
        sequence=np.repeat(np.arange(len(times)), lengths),
        times=_flat(clocks),
        values=_flat([_columns(v, t, i) for i, (v, t) in enumerate(zip(values, clocks, strict=True))], 1),
        targets=_step_targets(targets, lengths) if per_step else None,
    )
    per_sequence = None if per_step or targets is None else target_array(_array(targets, "targets"))
    known, known_mask = (None, None) if static is None else split_missing(_static(static))
    rest: dict[str, Any] = {} if per_step else {"targets": per_sequence}
    return assemble(
        rows,
        named,
        static=known,
        static_observed=known_mask,
        starts=None if starts is None else real_numbers(starts, "starts"),
        groups=None if groups is None else per_sequence_array(groups, "groups"),
        weights=None if weights is None else real_numbers(weights, "weights"),
        features=as_names("features", features),
        static_features=as_names("static_features", static_features) or _numbered(known),
        unit=unit,
        **rest,
    )


def _check_one_per_sequence(values: Sequence[ArrayLike], times: Sequence[ArrayLike]) -> None:
    for name, given in (("values", values), ("times", times)):
        if isinstance(given, str) or not isinstance(given, Sized):
            raise TypeError(f"{name} must be a list with one array per sequence, got {given!r}")
    if len(values) != len(times):
        raise ValueError(
            f"{len(values)} arrays of values but {len(times)} of times; expected one of each per sequence"
        )


def _array(given: ArrayLike, what: str) -> Array:
    """As an array with at least one axis; what cannot be one is refused by name."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be read as an array: {error}") from error
    if found.ndim == 0:
        raise ValueError(f"{what} must have one entry per sequence, got {given!r}")
    return found


def per_sequence_array(given: ArrayLike, what: str) -> Array:
    """One label per sequence, (S,), none of them missing.

    Args:
        given: the labels.
        what: what to call them in an error.
    """
    found = _array(given, what)
    if found.ndim != 1:
        raise ValueError(f"{what} must be one per sequence, (S,), got shape {found.shape}")
    if missing := [i for i, label in enumerate(found.tolist()) if label is None or label != label]:
        raise ValueError(f"{what} must not be missing, got {found[missing[0]]} for sequence {missing[0]}")
    return found


def _numbered(static: Array | None) -> tuple[str, ...]:
    return () if static is None else tuple(f"static {i}" for i in range(static.shape[1]))


def real_numbers(array: ArrayLike, what: str) -> Array:
    """As float64; complex numbers, dates and words are refused instead of cut down to a number."""
    try:
        found = np.asarray(array)
        if found.dtype.kind not in "biufOUS":
            raise TypeError(f"dtype {found.dtype}")
        return found.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{what}: expected real numbers, got {error}") from error


def _times(times: ArrayLike, index: int) -> Array:
    what = f"the times of sequence {index}"
    clock = real_numbers(times, what)
    if clock.ndim != 1:
        raise ValueError(f"{what} have shape {clock.shape}, expected (T,): one per event")
    if (found := np.asarray(times)).dtype.kind in "iu" and found.size:
        check_exact(what, int(found.min()), int(found.max()))
    return clock


def check_exact(what: str, least: int, most: int) -> None:
    """Refuse whole numbers for times that float64 would round, and so could put at one moment."""
    if (largest := max(abs(least), abs(most))) > EXACT:
        raise ValueError(
            f"{what} has whole numbers up to {largest}, which float64 cannot tell "
            "apart; subtract a common start first"
        )


def _static(static: ArrayLike) -> Array:
    table = real_numbers(static, "static")
    if table.ndim != 2:
        raise ValueError(f"static has shape {table.shape}, expected (S, K): one row per sequence")
    return table


def _columns(values: ArrayLike, times: Array, index: int) -> Array:
    array = real_numbers(values, f"the values of sequence {index}")
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(times) != len(array):
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
    count = len(targets) if isinstance(targets, Sized) else repr(targets)
    if count != len(lengths):
        raise ValueError(f"per_step needs one array of targets per sequence: got {count} for {len(lengths)}")
    arrays = [_array(target, f"the targets of sequence {i}") for i, target in enumerate(targets)]
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) != length:
            raise ValueError(f"sequence {i} has {len(array)} targets for {length} events; expected one each")
    if len(widths := {array.shape[1:] for array in arrays}) > 1:
        raise ValueError(f"the targets of sequences differ in their shape: {sorted(widths)}; expected one")
    return target_array(np.concatenate(arrays) if arrays else np.zeros(0))


def target_array(targets: Array) -> Array:
    """int64 for whole numbers and booleans, float32 for the rest, in which NaN means that a target is not known."""
    if targets.dtype.kind in "iub":
        whole = targets.astype(np.int64)
        _check_targets(targets, whole == targets, "a whole number that int64 can hold")
        return whole
    if targets.dtype.kind != "f":
        raise ValueError(
            f"targets have dtype {targets.dtype}, expected numbers; encode words as class indices"
        )
    numbers = as_float32(targets)
    _check_targets(targets, ~np.isinf(numbers), "a number that float32 can hold, or NaN if it is not known")
    return numbers


def _check_targets(targets: Array, good: Array, expected: str) -> None:
    bad = np.flatnonzero(~good.reshape(len(targets), -1).all(axis=1))
    if bad.size:
        raise ValueError(f"target {bad[0]} is {targets[bad[0]]}, expected {expected}")
