"""What the constructor of `Sequences` checks: the kinds and shapes of its fields; and positions of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lapse.arguments import check_flag, check_kind

if TYPE_CHECKING:
    from lapse.sequences.ragged import Sequences

# The fields with one row per event, and those with one per sequence; `targets` belongs to one or the other.
STEP_FIELDS = ("values", "times", "observed")
SEQUENCE_FIELDS = ("ids", "groups", "weights", "starts", "static", "static_observed")
FLAT_FIELDS = ("times", "offsets", "ids", "groups", "weights", "starts")  # those with one axis


def check_kinds(s: Sequences) -> None:
    """Refuse fields of another kind than is documented."""
    for name in ("values", "times", "offsets"):
        check_kind(name, getattr(s, name), np.ndarray, "Sequences.from_arrays takes lists")
    if s.values.ndim != 2:
        raise ValueError(f"values must be (N, F), one row per event, got shape {s.values.shape}")
    check_flag("per_step", s.per_step)
    if not (s.unit is None or isinstance(s.unit, str)):
        raise TypeError(f"unit must be a word such as 'h', or None, got {s.unit!r}")


def check_shapes(s: Sequences) -> None:
    """Refuse fields whose shapes do not fit together."""
    for name in FLAT_FIELDS:
        if (array := getattr(s, name)) is not None and np.ndim(array) != 1:
            raise ValueError(f"{name} must have one axis, got shape {np.shape(array)}")
    n, count = len(s.times), len(s.offsets) - 1
    if count < 0 or s.offsets[0] != 0 or s.offsets[-1] != n or (np.diff(s.offsets) < 1).any():
        raise ValueError(
            f"offsets must rise from 0 to {n}, the number of events, with at least one event per sequence; "
            f"got {s.offsets!r}"
        )
    steps = {name: getattr(s, name) for name in STEP_FIELDS}
    whole = {name: getattr(s, name) for name in SEQUENCE_FIELDS}
    (steps if s.per_step else whole)["targets"] = s.targets
    for rows, group in ((n, steps), (count, whole)):
        for name, array in group.items():
            if array is not None and len(array) != rows:
                raise ValueError(
                    f"{name} has {len(array)} rows, expected {rows} ({n} events, {count} sequences)"
                )
    if s.values.shape[1] != len(s.features):
        raise ValueError(
            f"values must be (N, {len(s.features)}) for features {s.features}, got {s.values.shape}"
        )
    for names in (s.features, s.static_features):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"{twice[0]!r} names two features; columns are found by name, so give each its own"
            )


def positions(count: int, index: ArrayLike) -> NDArray[Any]:
    """(k,) int64, from positions (k,) or a mask (count,)."""
    found = np.asarray(index)
    if found.dtype == bool and found.shape == (count,):
        return np.flatnonzero(found)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise IndexError(
            f"positions must be whole numbers (k,) or a mask ({count},), got {found.dtype} of shape {found.shape}"
        )
    if found.size and not -count <= found.min() <= found.max() < count:
        raise IndexError(
            f"there are {count} to choose from, got positions from {found.min()} to {found.max()}"
        )
    return found.astype(np.int64)
