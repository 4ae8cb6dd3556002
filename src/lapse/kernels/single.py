"""One observation at a time: the fused step without gradients, for streams.

What does not change from event to event is done once: the program, the packed weights, the arguments' layout. A call
looks whether the cell and its weights are still what they were, bit by bit, fills in a few pointers and returns new
states.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lapse.kernels import native
from lapse.kernels.contract import CellLike, State
from lapse.kernels.fused import Fused
from lapse.kernels.programs import has_program, program_of
from lapse.kernels.reference import compute_weights
from lapse.kernels.setting import chosen_backend, not_covered
from lapse.rows import Rows
from lapse.solvers import not_finite
from lapse.torch_private import ordinary_call, ordinary_tensor

_FUSED = Fused()


class _Ready:
    """A cell made ready for steps of one batch size and dtype."""

    def __init__(self, cell: CellLike, rows: int, dtype: torch.dtype) -> None:
        self.written, parts = program_of(cell)
        program, tensors = self.written.program, self.written.tensors(parts)
        assert program is not None
        assert tensors is not None
        self.rows, self.dtype = rows, dtype
        self.solver_steps = program.solver_steps
        self.plan = self.written.plan(dtype)
        # Whatever the program's tensors are computed from is among these.
        self.holders = [
            (i, place, _reader(vars(part)[place]))
            for i, part in enumerate(parts)
            for place in ("_parameters", "_buffers")
            if vars(part)[place]
        ]
        weights = self._weights(parts)
        self.copies = [t.detach().contiguous().clone() for t in weights]
        self.at = [t.data_ptr() for t in weights]
        self.whole = all(t.is_contiguous() for t in weights)
        count, bytes_of = len(weights), [t.numel() * t.itemsize for t in weights]
        self.buffers: list[ctypes.Array[Any]] = [
            (ctypes.c_void_p * count)(*self.at),
            (ctypes.c_void_p * count)(*[t.data_ptr() for t in self.copies]),
            (ctypes.c_int64 * count)(*bytes_of),
        ]
        self.comparison = (*[ctypes.addressof(buffer) for buffer in self.buffers], count)
        self.same = self.plan.library.lapse_same
        self.lock = threading.Lock()  # two threads may step one cell; the arguments below are for one call
        widths = [port.row_stride for port in program.states]
        self.shapes = [(rows, program.input_port.row_stride), (rows,), *((rows, n) for n in widths)]
        self.packed = torch.empty(self.plan.packed_size, dtype=dtype)
        self.unpacked: list[Tensor] | None = [t.contiguous() for t in tensors]
        self.parameters = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in self.unpacked])
        count = len(program.states)
        self.states, self.final = (ctypes.c_void_p * count)(), (ctypes.c_void_p * count)()
        self.output = torch.empty(rows, widths[0], dtype=dtype)
        self.layout = Rows.padded(rows, 1)
        self.call = call = native.Call(self.layout, rows, 1)
        call.states, call.final_states = ctypes.addressof(self.states), ctypes.addressof(self.final)
        call.output, call.packed = self.output.data_ptr(), self.packed.data_ptr()
        call.parameters = ctypes.addressof(self.parameters)

    def _weights(self, parts: list[nn.Module]) -> list[Tensor]:
        weights: list[Tensor] = []
        for i, place, read in self.holders:
            weights += read(vars(parts[i])[place])
        return weights

    def serves(self, cell: CellLike, input: Tensor) -> bool:
        """Whether the cell is what it was, down to the bits of its weights: not every change counts a version up."""
        parts = self.written.parts_of(cell)
        if len(input) != self.rows or input.dtype is not self.dtype or not self.whole:
            return False
        if parts is None or self.written.altered(parts):
            return False
        try:
            weights = self._weights(parts)
            if list(map(Tensor.data_ptr, weights)) != self.at or not all(map(Tensor.is_contiguous, weights)):
                return False
        except (KeyError, TypeError):  # one is missing, or None
            return False
        return bool(self.same(*self.comparison))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        final = tuple([torch.empty_like(s) for s in state])
        call, states, ends = self.call, self.states, self.final
        call.input, call.spans = input.data_ptr(), timespan.data_ptr()
        for i, old in enumerate(state):
            states[i], ends[i] = old.data_ptr(), final[i].data_ptr()
        self.plan.forward(call)
        if self.unpacked:  # the first step has packed them
            self.unpacked = call.parameters = None
        if call.failed_step >= 0:
            raise not_finite(call.failed_row, float(timespan[call.failed_row]), self.solver_steps)
        return final[0], final


def _reader(held: dict[str, Tensor | None]) -> Callable[[dict[str, Any]], Iterable[Tensor]]:
    """How to read the tensors of a part: all at once, unless one is None, as an absent bias is."""
    keys = [key for key, tensor in held.items() if tensor is not None]
    return dict.values if len(keys) == len(held) else lambda held: [held[key] for key in keys]


_ready: WeakKeyDictionary[CellLike, _Ready] = WeakKeyDictionary()


def step(cell: CellLike, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
    """`cell.step` by the fused path where no gradient is asked for and a kernel covers the call.

    Args:
        cell: The cell.
        input: One observation per row, as `cell.step_input` gives it.
        state: The state after the previous observation.
        timespan: The time since the previous observation, (B,).
    """
    choice = chosen_backend()
    ready = None if choice == "reference" else _ready_for(cell, input, state, timespan)
    if ready is not None:
        with ready.lock:
            return ready.step(input, state, timespan)
    if choice == "fused":
        raise not_covered(cell)
    compute_weights(cell)
    return cell.step(input, state, timespan)


def _ready_for(cell: CellLike, input: Tensor, state: State, timespan: Tensor) -> _Ready | None:
    if torch.is_grad_enabled() or not has_program(cell) or not ordinary_call():
        return None
    ready = _ready.get(cell)
    if ready is None or not ready.serves(cell, input):
        if not _FUSED.covers(cell, input, state, timespan):
            return None
        ready = _ready[cell] = _Ready(cell, len(input), input.dtype)
    given = (input, timespan, *state)
    if [t.shape for t in given] != ready.shapes:
        return None
    for tensor in given:
        if not ordinary_tensor(tensor, ready.dtype) or not tensor.is_contiguous():
            return None
    return ready
