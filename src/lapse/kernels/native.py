"""The compiled library: built once on first use, kept in the user's cache folder, loaded with ctypes.

It has a plain C interface and includes nothing of torch or Python, so it builds in seconds and suits any version of
either. The file's name holds a hash of the sources, the flags, the compiler and the processor's level: whatever
changes makes another file, and files are put in place whole, so processes may race.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from lapse.kernels.program import CODES, NONE, TRANSFORMS, Program

SOURCES = Path(__file__).parent / "csrc"

# By the names of torch.backends.cpu.get_cpu_capability(), which looks at the processor this runs on. Elsewhere
# (ARM, old x86) the compiler's baseline: the sources use its vector types, not one processor's instructions.
LEVELS: dict[str, tuple[str, ...]] = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
    "DEFAULT": (),
}
# Every loop begins a line of code: the products are faster for it, the most where two threads share a core.
ALIGNED = ("-falign-functions=64", "-falign-loops=64")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", *ALIGNED, "-fPIC", "-shared", "-pthread", "-Wno-psabi")

NO_MEMORY = -2  # kNoMemory of csrc/run.cpp


class _Op(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32),
        ("reg", ctypes.c_int32 * 14),
        ("add", ctypes.c_int32 * 14),
        ("par", ctypes.c_int32 * 4),
        ("replay", ctypes.c_int32),
        ("num", ctypes.c_double * 8),
    )


class Call(ctypes.Structure):
    """The arguments of one run, as ``csrc/run.cpp`` has them."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("steps", "rows", "block", "threads", "every", "width", "finite")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "batch_sizes", "at_step", "at_row", "input", "spans", "output", "states", "final_states", "parameters",
                "packed", "tape", "d_output", "d_final_states", "d_input", "d_spans", "d_states", "d_parameters",
                "parallel",
            )
        ),
        ("failed_step", ctypes.c_int64),
        ("failed_row", ctypes.c_int64),
    )  # fmt: skip


class Unavailable(RuntimeError):
    """There is no compiled library, and why."""


def level() -> str:
    """The processor's level: "AVX512", "AVX2" or "DEFAULT"; the environment variable LAPSE_CPU overrides it."""
    name = os.environ.get("LAPSE_CPU") or torch.backends.cpu.get_cpu_capability()
    return name if name in LEVELS and platform.machine().lower() in ("x86_64", "amd64") else "DEFAULT"


def cache_folder() -> Path:
    """Where compiled libraries are kept: $LAPSE_CACHE, or the user's cache folder."""
    if folder := os.environ.get("LAPSE_CACHE"):
        return Path(folder)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lapse"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lapse"


def compiler() -> str:
    """The C++ compiler: $CXX, or the first one found."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(shlex.split(name)[0])):
            return path
    raise Unavailable("no C++ compiler found (c++, g++, clang++ or $CXX)")


def build() -> Path:
    """The library's file, compiled if it is not there yet."""
    cxx = compiler()
    flags = (*FLAGS, *LEVELS[level()], *shlex.split(os.environ.get("LAPSE_CXXFLAGS", "")))
    path = cache_folder() / f"kernels-{_fingerprint(cxx, flags)}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [cxx, *flags, str(SOURCES / "run.cpp"), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Unavailable(f"{cxx} failed: {(done.stderr.strip().splitlines() or ['no message'])[0]}")
            made.replace(path)
    except OSError as error:
        raise Unavailable(f"cannot write the compiled kernels: {error}") from error
    return path


def _fingerprint(cxx: str, flags: tuple[str, ...]) -> str:
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256("\0".join((version, platform.machine(), *flags)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None, with one line of notice, where they cannot be had."""
    try:
        loaded = ctypes.CDLL(str(build()))
    except (Unavailable, OSError) as error:
        warnings.warn(f"lapse runs without its fused kernels, several times slower: {error}", stacklevel=2)
        return None
    loaded.lapse_same.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_int32)
    for kind in ("f32", "f64"):
        getattr(loaded, f"lapse_plan_{kind}").restype = ctypes.c_void_p
        for name in ("free", "sizes", "forward", "backward", "apply"):
            getattr(loaded, f"lapse_{name}_{kind}").restype = None
        for name in ("sizes", "forward", "backward"):
            getattr(loaded, f"lapse_{name}_{kind}").argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return loaded


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
        ints = ctypes.c_int32
        ops = (_Op * len(program.ops))(*(_op(o) for o in program.ops))
        registers = _flat(
            [(size, int(i in program.saved), program.homes[i]) for i, size in enumerate(program.registers)]
        )
        parameters = _flat(
            [
                (p.tensor, p.segments, p.rows, p.columns, p.stride, p.offset, TRANSFORMS.index(p.transform))
                for p in program.parameters
            ]
        )
        states = _flat([_port(p) for p in program.states])
        port = _flat([_port(program.input_port)])
        unread = (ints * len(program.unread))(*program.unread)
        self.handle = ctypes.c_void_p(
            self.function("plan")(
                ops, len(program.ops), registers, len(program.registers), parameters, len(program.parameters),
                states, len(program.states), port, unread, len(program.unread),
            )
        )  # fmt: skip
        sizes = (ctypes.c_int64 * 3)()
        self.function("sizes")(self.handle, ctypes.addressof(sizes))
        self.packed_size, self._record_width, self._state_width = (int(n) for n in sizes)
        self._forward, self._backward = self.function("forward"), self.function("backward")
        self._free = self.function("free")

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self._free(self.handle)

    def function(self, name: str) -> Any:
        return getattr(self.library, f"lapse_{name}_{self.kind}")

    def tape_size(self, batch_sizes: list[int], every: int) -> int:
        """How many elements a tape has: a record of every step and of the initial state, or every so many states."""
        if every:
            return sum(batch_sizes[::every]) * self._state_width
        return (batch_sizes[0] + sum(batch_sizes)) * self._record_width

    def forward(self, call: Call) -> None:
        self._forward(self.handle, ctypes.addressof(call))
        if call.failed_step == NO_MEMORY:
            raise MemoryError("no memory for the forward pass")

    def backward(self, call: Call) -> None:
        self._backward(self.handle, ctypes.addressof(call))
        if call.failed_step == NO_MEMORY:
            raise MemoryError("no memory for the backward pass")


def _op(op: Any) -> _Op:
    def filled(values: Any, length: int, rest: int) -> tuple[Any, ...]:
        assert len(values) <= length, f"{op.name}: too many operands"
        return (*values, *([rest] * (length - len(values))))

    return _Op(
        CODES[op.name],
        filled(op.registers, 14, NONE),
        filled([int(a) for a in op.add], 14, 0),
        filled(op.parameters, 4, NONE),
        int(op.replay),
        filled([float(n) for n in op.numbers], 8, 0),
    )


def _port(port: Any) -> tuple[int, ...]:
    return port.register, port.segments, port.row_stride, port.segment_stride, port.unit_stride


def _flat(rows: list[tuple[int, ...]]) -> ctypes.Array[ctypes.c_int32]:
    values = [v for row in rows for v in row]
    return (ctypes.c_int32 * len(values))(*values)
