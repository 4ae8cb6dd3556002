"""The compiled library of another processor, run in an emulator: a stand-in for the one that is loaded here.

Python, torch and the reference stay on this processor. A call of the library becomes a piece of memory that holds its
arguments and all that they point to. `emulated.cpp`, which runs in the emulator, calls the library with it and sends
the memory back, from which results are copied to where they belong. Nothing outlives a call there: a plan or a stream
is made anew for each.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lapse.kernels import build, native, scan
from lapse.kernels.streams import StreamCall, StreamModel

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SYSROOT = "/usr/aarch64-linux-gnu"  # where Debian's cross-compiler keeps the C library
BYTES = {"f32": 4, "f64": 8}
# The addresses among the arguments that each pass looks at; after a forward pass the others may be of what is gone.
FORWARD = ("input", "spans", "output", "states", "final_states", "parameters", "packed", "tape")
BACKWARD = (
    *("input", "spans", "packed", "tape", "d_output", "d_final_states"),
    *("d_input", "d_spans", "d_states", "d_parameters"),
)


class Place(int):
    """Where something lies in the memory of a call."""


class Memory:
    """The memory of some calls: bytes, where addresses stand in them, the calls, and what is copied back."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.addresses: list[tuple[int, int]] = []
        self.calls: list[bytes] = []
        self.shared: list[tuple[int, Place, int]] = []
        self.zero = self.words([0])

    def put(self, data: bytes) -> Place:
        place = Place(len(self.bytes))
        self.bytes += data + bytes(-len(data) % 64)
        return place

    def share(self, address: int | None, size: int) -> Place | None:
        """A copy of memory of this process, which is copied back after the calls."""
        if not address:
            return None
        place = self.put(ctypes.string_at(address, size))
        self.shared.append((address, place, size))
        return place

    def words(self, values: Iterable[int | Place | None]) -> Place:
        """Numbers and addresses, one after the other."""
        values = list(values)
        place = self.put(struct.pack(f"{len(values)}q", *(value or 0 for value in values)))
        for i, value in enumerate(values):
            self.point(place + 8 * i, value)
        return place

    def point(self, where: int, what: int | Place | None) -> None:
        if isinstance(what, Place):
            self.addresses.append((where, what))

    def pointers(self, address: int | None, sizes: Sequence[int]) -> Place | None:
        """Copies of what an array of addresses points to."""
        if not address:
            return None
        array = (ctypes.c_void_p * len(sizes)).from_address(address)
        return self.words(self.share(each, size) for each, size in zip(array, sizes, strict=True))

    def fields(self, record: ctypes.Structure, **pointers: Place | None) -> Place:
        """A copy of a record, in which every address is one of `pointers`, or none."""
        place = self.put(bytes(record))
        for name, kind in record._fields_:  # type: ignore[misc]
            if kind is ctypes.c_void_p:
                where = place + getattr(type(record), name).offset
                self.bytes[where : where + 8] = bytes(8)
                self.point(where, pointers.get(name))
        return place

    def call(self, name: str, *arguments: int | Place, result: Place | None = None) -> Place:
        """Have a function called with the words at these places; the place of what it returns."""
        result = self.words([0]) if result is None else result
        given = [*arguments, *[self.zero] * (11 - len(arguments))]
        self.calls.append(struct.pack("40s12q", name.encode(), result, *given))
        return result

    def sent(self) -> bytes:
        pairs = [number for pair in self.addresses for number in pair]
        head = struct.pack("3q", len(self.bytes), len(self.addresses), len(self.calls))
        return head + bytes(self.bytes) + struct.pack(f"{len(pairs)}q", *pairs) + b"".join(self.calls)


class Described(NamedTuple):
    """A plan as Python describes it to the library."""

    ops: Any
    registers: Any
    parameters: Any
    states: Any
    input: Any
    unread: Any

    def made(self, memory: Memory, kind: str, result: Place | None = None) -> Place:
        """Have the plan made, with the arguments of `lapse_plan`."""
        arguments = []
        for array in self:
            arguments.append(memory.words([memory.put(bytes(array))]))
            if array is not self.input:
                arguments.append(memory.words([len(array)]))
        return memory.call(f"lapse_plan_{kind}", *arguments, result=result)

    def tensor_sizes(self) -> list[int]:
        """How many elements of each tensor of the program are read."""
        sizes: dict[int, int] = {}
        for p in self.parameters:
            end = p.offset + (p.segments * p.rows - 1) * p.stride + max(1, p.columns)
            sizes[p.tensor] = max(sizes.get(p.tensor, 0), end)
        return [sizes[i] for i in range(len(sizes))]


class Emulated:
    """The functions of the library that Python calls, each run in the emulator.

    Args:
        library: The library of the emulated processor.
        folder: Where the program that the emulator runs is put.

    Attributes:
        requests: How many times the emulator was asked.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        runner, source = folder / "emulated", Path(__file__).with_suffix(".cpp")
        subprocess.run([COMPILER, "-std=c++17", "-O1", str(source), "-o", str(runner)], check=True)
        command = [EMULATOR, "-L", SYSROOT, str(runner), str(library)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        here = native.library()  # for what has nothing to do with numbers
        assert here is not None
        self.lapse_operations, self.lapse_same = here.lapse_operations, here.lapse_same
        self.requests, self.lock = 0, threading.Lock()
        self.plans: list[Described] = []
        self.widths: dict[int, tuple[int, ...]] = {}
        self.streams: list[tuple[StreamModel, Memory, Place]] = []

    def close(self) -> None:
        self.process.communicate()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """`lapse_NAME_KIND`, a function for one number type, by the method `NAME`."""
        prefix, _, rest = name.partition("_")
        method, _, kind = rest.rpartition("_")
        if prefix != "lapse" or kind not in BYTES:
            raise AttributeError(name)
        return partial(getattr(self, method), kind)

    def run(self, memory: Memory) -> None:
        """Have the calls done, and copy back what is shared."""
        with self.lock:
            self.requests += 1
            found = self._answer(memory.sent(), len(memory.bytes))
        memory.bytes[:] = found
        for address, place, size in memory.shared:
            ctypes.memmove(address, found[place : place + size], size)

    def _answer(self, sent: bytes, size: int) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(sent)
        self.process.stdin.flush()
        found = self.process.stdout.read(size)
        assert len(found) == size, f"the emulator ended with {self.process.wait()}"
        return found

    def number(self, name: str) -> int:
        """What a function without arguments returns."""
        memory = Memory()
        result = memory.call(name)
        self.run(memory)
        return ctypes.c_int32.from_buffer(memory.bytes, result).value

    def layout(self) -> tuple[int, ...]:
        """The sizes and numbers that both sides must agree on."""
        found = (ctypes.c_int64 * len(native.LAYOUT))()
        memory = Memory()
        memory.call(
            "lapse_layout", memory.words([memory.share(ctypes.addressof(found), ctypes.sizeof(found))])
        )
        self.run(memory)
        return tuple(found)

    # The functions of the library, in the order of csrc/library.cpp.

    def plan(self, kind: str, *arguments: Any) -> int:
        ops, _, registers, _, parameters, _, states, _, port, unread, _ = arguments
        self.plans.append(Described(ops, registers, parameters, states, port._obj, unread))
        return len(self.plans)

    def free(self, kind: str, handle: ctypes.c_void_p) -> None:
        pass

    def sizes(self, kind: str, handle: ctypes.c_void_p, address: int) -> None:
        memory, (key, plan) = Memory(), self._described(handle)
        made = plan.made(memory, kind)
        memory.call(f"lapse_sizes_{kind}", made, memory.words([memory.share(address, 3 * 8)]))
        self.run(memory)
        self.widths[key] = tuple((ctypes.c_int64 * 3).from_address(address))

    def _described(self, handle: ctypes.c_void_p) -> tuple[int, Described]:
        assert handle.value is not None
        return handle.value, self.plans[handle.value - 1]

    def forward(self, kind: str, handle: ctypes.c_void_p, address: int) -> None:
        self._pass("forward", FORWARD, kind, handle, address)

    def backward(self, kind: str, handle: ctypes.c_void_p, address: int) -> None:
        self._pass("backward", BACKWARD, kind, handle, address)

    def _pass(self, name: str, used: Sequence[str], kind: str, handle: ctypes.c_void_p, address: int) -> None:
        memory, (key, plan) = Memory(), self._described(handle)
        call, made = native.Call.from_address(address), plan.made(memory, kind)
        place = memory.fields(call, **_pointees(memory, plan, call, used, BYTES[kind], *self.widths[key]))
        memory.call(f"lapse_{name}_{kind}", made, memory.words([place]))
        memory.call(f"lapse_free_{kind}", made)
        self.run(memory)
        found = native.Call.from_buffer(memory.bytes, place)
        call.finite, call.failed_step, call.failed_row = found.finite, found.failed_step, found.failed_row

    def apply(self, kind: str, function: int, source: Any, target: Any, count: Any) -> None:
        memory, size = Memory(), count.value * BYTES[kind]
        given = [function, memory.share(source.value, size), memory.share(target.value, size), count.value]
        memory.call(f"lapse_apply_{kind}", *(memory.words([word]) for word in given))
        self.run(memory)

    def stream(self, kind: str, address: int) -> int:
        model = StreamModel.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(StreamModel)))
        memory, item = Memory(), BYTES[kind]
        plans = [
            self.plans[handle - 1] for handle in (ctypes.c_int64 * model.layers).from_address(model.plans)
        ]
        handles = memory.words([0] * model.layers)
        for i, plan in enumerate(plans):
            plan.made(memory, kind, Place(handles + 8 * i))
        layers = (ctypes.c_void_p * model.layers).from_address(model.parameters)
        parameters = [
            memory.pointers(tensors, [size * item for size in plan.tensor_sizes()])
            for tensors, plan in zip(layers, plans, strict=True)
        ]
        maps = list((ctypes.c_int64 * (model.maps + 1)).from_address(model.map_sizes))
        place = memory.fields(
            model,
            **{
                name: memory.share(getattr(model, name), model.features * item)
                for name in ("fill", "shift", "scale")
            },
            **{
                name: memory.share(getattr(model, name), model.pools * 8)
                for name in ("pool_kinds", "pool_places")
            },
            plans=handles,
            parameters=memory.words(parameters),
            latest_columns=memory.share(model.latest_columns, model.latest_count * 8),
            certain=memory.share(model.certain, model.outputs * (1 + model.latest_count) * 8),
            map_sizes=memory.share(model.map_sizes, len(maps) * 8),
            map_weights=memory.pointers(
                model.map_weights, [a * b * item for a, b in itertools.pairwise(maps)]
            ),
            map_biases=memory.pointers(model.map_biases, [size * item for size in maps[1:]]),
        )
        made = memory.call(f"lapse_stream_{kind}", memory.words([place]))
        memory.shared.clear()  # a stream has weights of its own
        self.streams.append((model, memory, made))
        return len(self.streams)

    def end_stream(self, kind: str, handle: int) -> None:
        pass

    def take(self, kind: str, handle: int, address: int) -> int:
        model, kept, stream = self.streams[handle - 1]
        call, memory, item = StreamCall.from_address(address), copy.deepcopy(kept), BYTES[kind]
        sizes = {
            "arena": call.capacity * model.row * item,
            "times": call.capacity * 8,
            "slots": call.count * 8,
            "when": call.count * 8,
            "values": call.count * model.features * item,
            "output": call.count * model.outputs * item,
            "status": call.count * 4,
        }
        place = memory.fields(
            call, **{name: memory.share(getattr(call, name), n) for name, n in sizes.items()}
        )
        taken = memory.call(f"lapse_take_{kind}", stream, memory.words([place]))
        memory.call(f"lapse_end_stream_{kind}", stream)
        self.run(memory)
        return ctypes.c_int32.from_buffer(memory.bytes, taken).value

    def lapse_scan_layout(self) -> int:
        return self.number("lapse_scan_layout")

    def scan(self, kind: str, reference: Any) -> None:
        self._scan("scan", kind, reference)

    def scan_backward(self, kind: str, reference: Any) -> None:
        self._scan("scan_backward", kind, reference)

    def _scan(self, name: str, kind: str, reference: Any) -> None:
        call: scan._Call = reference._obj
        memory, rows = Memory(), dict.fromkeys(("lengths", "starts"), call.count * 8)
        steps = sum((ctypes.c_int64 * call.count).from_address(call.lengths))
        tensors = dict.fromkeys(("a", "b", "x", "d_x", "d_a", "d_b"), steps * 2 * call.channels * BYTES[kind])
        pointers = {name: memory.share(getattr(call, name), n) for name, n in (rows | tensors).items()}
        memory.call(f"lapse_{name}_{kind}", memory.words([memory.fields(call, **pointers)]))
        self.run(memory)


def _pointees(
    memory: Memory,
    plan: Described,
    call: native.Call,
    used: Sequence[str],
    item: int,
    packed_size: int,
    record_width: int,
    state_width: int,
) -> dict[str, Place | None]:
    """Copies of what the addresses point to that a pass uses."""
    lengths = list((ctypes.c_int64 * call.count).from_address(call.lengths))
    if call.every:
        tape = sum(-(-length // call.every) for length in lengths) * state_width
    else:
        tape = (call.count + sum(lengths)) * record_width
    widths = [port.row_stride for port in plan.states]
    tensors = {
        "input": call.size * plan.input.row_stride,
        "spans": call.size,
        "output": call.size * widths[0],
        "packed": packed_size,
        "tape": tape,
    }
    arrays = {
        "states": [call.count * width for width in widths],
        "final_states": [call.count * width for width in widths],
        "parameters": plan.tensor_sizes(),
    }
    found = {name: memory.share(getattr(call, name), call.count * 8) for name in ("lengths", "starts")}
    for name in used:
        address, what = getattr(call, name), name.removeprefix("d_")
        if what in tensors:
            found[name] = memory.share(address, tensors[what] * item)
        else:
            found[name] = memory.pointers(address, [size * item for size in arrays[what]])
    return found


def missing() -> str:
    """What is not there of what this needs; empty if all of it is."""
    absent = [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]
    if native.library() is None:
        absent.append("a C++ compiler for this processor")
    return ", ".join(absent)


def cross_compiled() -> Path:
    """The library for the emulated processor, compiled as on this one and kept in the same cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", COMPILER)
        patch.setenv("LAPSE_CPU", "DEFAULT")
        return build.build()
