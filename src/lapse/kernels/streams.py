"""The arguments of the compiled stream, as `csrc/stream.h` has them."""

from __future__ import annotations

import ctypes
from typing import Any


def _fields(kind: Any, *names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names)


class StreamModel(ctypes.Structure):
    """A whole model: preprocessing, layers, pooling and readout, and where they keep their states."""

    _fields_ = (
        *_fields(ctypes.c_int64, "features", "outputs", "row", "missing", "input"),
        *_fields(ctypes.c_void_p, "fill", "shift", "scale"),
        *_fields(ctypes.c_double, "clip", "time_unit"),
        *_fields(ctypes.c_int64, "layers"),
        *_fields(ctypes.c_void_p, "plans", "parameters"),
        *_fields(ctypes.c_int64, "pools"),
        *_fields(ctypes.c_void_p, "pool_kinds", "pool_places"),
        *_fields(
            ctypes.c_int64, "events", "static_place", "static_size", "sees_inputs", "summaries", "offset"
        ),
        *_fields(ctypes.c_int64, "latest", "latest_count"),
        *_fields(ctypes.c_void_p, "latest_columns", "certain"),
        *_fields(ctypes.c_int64, "maps"),
        *_fields(ctypes.c_void_p, "map_sizes", "map_weights", "map_biases"),
    )


class StreamCall(ctypes.Structure):
    """The events of one call, and what becomes of them."""

    _fields_ = (
        *_fields(ctypes.c_void_p, "arena", "times"),
        *_fields(ctypes.c_int64, "capacity", "count", "late"),
        *_fields(ctypes.c_void_p, "slots", "when", "values", "output", "status"),
    )
