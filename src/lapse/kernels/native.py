"""The compiled library, loaded with ctypes: its arguments, and programs made ready for it."""

from __future__ import annotations

import ctypes
import functools
import warnings
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from lapse.kernels.backward import Backward, Kind
from lapse.kernels.build import library_file
from lapse.kernels.compiler import Unavailable
from lapse.kernels.program import (
    BEFORE,
    MOST_SCALES,
    MOST_SEGMENTS,
    MOST_SOURCES,
    NONE,
    TRANSFORMS,
    Op,
    Parameter,
    Program,
)
from lapse.kernels.streams import StreamCall, StreamModel
from lapse.rows import Rows

NO_MEMORY, NO_PLACE = -2, -3  # kNoMemory and kNoPlace of csrc/library.cpp


class _Op(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32),
        ("reg", ctypes.c_int32 * 14),
        ("add", ctypes.c_int32 * 14),
        ("par", ctypes.c_int32 * 4),
        ("replay", ctypes.c_int32),
        ("num", ctypes.c_double * 8),
    )


def _int32(*names: str) -> tuple[tuple[str, type[ctypes.c_int32]], ...]:
    return tuple((name, ctypes.c_int32) for name in names)


class _Register(ctypes.Structure):
    _fields_ = _int32("size", "saved", "home")


class _Parameter(ctypes.Structure):
    _fields_ = _int32("tensor", "segments", "rows", "columns", "stride", "offset", "transform")


class _Port(ctypes.Structure):
    _fields_ = _int32("register", "segments", "row_stride", "segment_stride", "unit_stride")


class _Operation(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("count", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("made", "written", "read", "replayed", "optional")),
    )

    def kind(self, code: int) -> Kind:
        sets = (self.made, self.written, self.read, self.replayed, self.optional)
        return Kind(code, self.count, *(_members(bits) for bits in sets))


def _members(bits: int) -> tuple[int, ...]:
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


class Call(ctypes.Structure):
    """The arguments of one run, as `csrc/call.h` has them; `lapse.rows.Rows` come first, as in `csrc/rows.h`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "stride", "size", "room", "backward")),
        *((name, ctypes.c_void_p) for name in ("lengths", "starts")),
        *((name, ctypes.c_int64) for name in ("block", "threads", "every", "finite")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "input", "spans", "output", "states", "final_states", "parameters", "packed", "tape",
                "d_output", "d_final_states", "d_input", "d_spans", "d_states", "d_parameters", "parallel",
            )
        ),
        ("failed_step", ctypes.c_int64),
        ("failed_row", ctypes.c_int64),
    )  # fmt: skip

    def __init__(self, rows: Rows, block: int, threads: int, every: int = 0) -> None:
        lengths, starts = rows.lengths.data_ptr(), rows.starts.data_ptr()
        layout = rows.batch_size, rows.stride, rows.size, rows.room, rows.backward, lengths, starts
        super().__init__(*layout, block, threads, every)


# What both sides must agree on, as `lapse_layout` of csrc/library.cpp says: the sizes of arguments, and some numbers.
LAYOUT = (
    *(
        ctypes.sizeof(struct)
        for struct in (_Op, Call, _Register, _Parameter, _Port, _Operation, StreamModel, StreamCall)
    ),
    *(BEFORE, MOST_SOURCES, MOST_SEGMENTS, MOST_SCALES),
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None, with one line of notice, where they cannot be had."""
    try:
        return _loaded(library_file())
    except (Unavailable, OSError, AttributeError) as error:  # the last: it lacks a function
        warnings.warn(f"lapse runs without its fused kernels, several times slower: {error}", stacklevel=2)
        return None


def _loaded(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    layout = (ctypes.c_int64 * len(LAYOUT))()
    loaded.lapse_layout(layout)
    if tuple(layout) != LAYOUT:
        raise Unavailable(f"{path} was compiled with another layout: {tuple(layout)}, expected {LAYOUT}")
    loaded.lapse_same.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_int32)
    loaded.lapse_operations.restype = ctypes.POINTER(_Operation)
    for kind in ("f32", "f64"):
        for name in ("plan", "stream"):
            getattr(loaded, f"lapse_{name}_{kind}").restype = ctypes.c_void_p
        for name in ("free", "sizes", "forward", "backward", "apply", "end_stream"):
            getattr(loaded, f"lapse_{name}_{kind}").restype = None
        for name in ("stream", "end_stream"):
            getattr(loaded, f"lapse_{name}_{kind}").argtypes = (ctypes.c_void_p,)
        for name in ("sizes", "forward", "backward", "take"):
            getattr(loaded, f"lapse_{name}_{kind}").argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return loaded


@functools.cache
def operations(loaded: ctypes.CDLL) -> dict[str, Kind]:
    """What each operation of a library does with its operands, by its name."""
    count = ctypes.c_int32()
    table = loaded.lapse_operations(ctypes.byref(count))
    return {table[code].name.decode(): table[code].kind(code) for code in range(count.value)}


@functools.cache
def parallel() -> int:
    """Torch's own OpenMP entry, so that there is one pool of threads in the process; 0 where it has another kind."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return 0


class Plan:
    """A program made ready for one dtype."""

    def __init__(self, program: Program, dtype: torch.dtype) -> None:
        loaded = library()
        assert loaded is not None
        self.kind = "f32" if dtype == torch.float32 else "f64"
        self.library = loaded
        kinds = operations(loaded)
        backward = Backward(program, kinds)
        ops = (_Op * len(program.ops))(
            *(
                _op(op, kinds[op.name].code, add, replay)
                for op, add, replay in zip(program.ops, backward.add, backward.replay, strict=True)
            )
        )
        registers = (_Register * len(program.registers))(
            *(
                _Register(size, i in backward.saved, backward.homes[i])
                for i, size in enumerate(program.registers)
            )
        )
        parameters = (_Parameter * len(program.parameters))(*(_parameter(p) for p in program.parameters))
        states = (_Port * len(program.states))(*(_Port(*astuple(port)) for port in program.states))
        port = _Port(*astuple(program.input_port))
        unread = (ctypes.c_int32 * len(backward.unread))(*backward.unread)
        self.handle = ctypes.c_void_p(
            self.function("plan")(
                ops, len(program.ops), registers, len(program.registers), parameters, len(program.parameters),
                states, len(program.states), ctypes.byref(port), unread, len(backward.unread),
            )
        )  # fmt: skip
        sizes = (ctypes.c_int64 * 3)()
        self.function("sizes")(self.handle, ctypes.addressof(sizes))
        self.sizes = self.packed_size, self._record_width, self._state_width = (
            int(sizes[0]), int(sizes[1]), int(sizes[2]),
        )  # fmt: skip
        self._forward, self._backward = self.function("forward"), self.function("backward")
        self._free = self.function("free")

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self._free(self.handle)

    def function(self, name: str) -> Any:
        return getattr(self.library, f"lapse_{name}_{self.kind}")

    def tape_size(self, rows: Rows, every: int) -> int:
        """How many elements a tape has: a record of every step and of the initial state, or every so many states."""
        if every:
            return int((rows.lengths + every - 1).floor_divide(every).sum()) * self._state_width
        return (rows.batch_size + rows.count) * self._record_width

    def forward(self, call: Call) -> None:
        self._run(self._forward, call, "forward")

    def backward(self, call: Call) -> None:
        self._run(self._backward, call, "backward")

    def _run(self, run: Any, call: Call, name: str) -> None:
        run(self.handle, ctypes.addressof(call))
        if call.failed_step == NO_MEMORY:
            raise MemoryError(f"no memory for the {name} pass")
        if call.failed_step == NO_PLACE:
            raise ValueError(
                "rows reach beyond the tensors: lengths must be at least 1 and at most the steps there is room for"
            )


def _parameter(p: Parameter) -> _Parameter:
    transform = TRANSFORMS.index(p.transform)
    return _Parameter(p.tensor, p.segments, p.rows, p.columns, p.stride, p.offset, transform)


def _op(op: Op, code: int, add: list[bool], replay: bool) -> _Op:
    def filled(values: Any, length: int, rest: int) -> tuple[Any, ...]:
        assert len(values) <= length, f"{op.name}: too many operands"
        return (*values, *([rest] * (length - len(values))))

    return _Op(
        code,
        filled(op.registers, 14, NONE),
        filled(add, 14, 0),
        filled(op.parameters, 4, NONE),
        replay,
        filled(op.numbers, 8, 0),
    )
