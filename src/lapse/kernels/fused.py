"""The fused loop behind `unroll`: a cell's program run over all steps at once, forward and backward."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapse.kernels import native
from lapse.kernels.contract import CellLike, State, zero_state
from lapse.kernels.program import Program
from lapse.kernels.programs import CellProgram, program_of
from lapse.kernels.reference import initial_state
from lapse.kernels.reference import unroll as unroll_reference
from lapse.kernels.setting import Choices, Setting
from lapse.kernels.workspace import borrow
from lapse.rows import Rows
from lapse.solvers import SolverError, not_finite
from lapse.torch_private import ordinary_call, ordinary_tensor

BLOCK_ROWS = 64  # a block's step stays in the second-level cache; products of fewer rows are slower
SMALL_CALL = 2_000_000  # multiplications; below this a second thread costs more than it brings

_every: Choices[int] = Choices(0)


class recompute(Setting[int]):
    """Keep only every k-th state for the backward pass and compute the steps between again, to save memory.

    Used as `with lapse.kernels.recompute(every=64):`. Memory falls by about k, for one more forward pass. It holds for
    every thread of the process.

    Args:
        every: The number of steps k from one state that is kept to the next.
    """

    def __init__(self, every: int) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number of at least 1, got {every!r}")
        super().__init__(_every, every)


@dataclass(frozen=True)
class _Job:
    """What a call needs beside its tensors: the cell and its program, the rows, and how the work is divided."""

    cell: CellLike
    program: Program
    plan: native.Plan
    rows: Rows
    states: int
    taped: bool
    every: int
    # These hold for the backward pass too, because the layout of the tape depends on them; torch's may have changed.
    threads: int
    block: int

    def call(self) -> native.Call:
        """The arguments of the library, without the tensors of the caller."""
        call = native.Call(self.rows, self.block, self.threads, self.every)
        call.parallel = native.parallel()
        return call


class Fused:
    """The fused loop, for every cell that has a program."""

    def covers(self, cell: CellLike, input: Tensor, state: State, timespans: Tensor) -> bool:
        return self._tensors(*program_of(cell), input, state, timespans) is not None

    def __call__(
        self, cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
    ) -> tuple[Tensor, State] | None:
        written, parts = program_of(cell)
        if state is None:
            # The library makes zeros by itself.
            zeros = getattr(cell.initial_state, "__func__", None) is zero_state
            state = () if zeros else initial_state(cell, input, rows)
        tensors = self._tensors(written, parts, input, state, timespans)
        if tensors is None or written.program is None or not _fits(rows, input, state, timespans):
            return None
        plan, count = written.plan(input.dtype), len(rows)
        work = rows.count * written.program.multiplications
        threads = torch.get_num_threads() if work > SMALL_CALL else 1
        block = min(BLOCK_ROWS, -(-count // threads))
        threads = min(threads, -(-count // block))
        every = _every.get() and min(_every.get(), rows.steps)
        # Within `apply` gradients are always off.
        taped = torch.is_grad_enabled()
        job = _Job(cell, written.program, plan, rows, len(state), taped, every, threads, block)
        run: Any = _Unroll.apply
        output, *final = run(job, input, timespans, *state, *tensors)
        return output, tuple(final)

    def _tensors(
        self, written: CellProgram, parts: list[nn.Module], input: Tensor, state: State, timespans: Tensor
    ) -> list[Tensor] | None:
        """The tensors of the cell's program, if a kernel covers the call."""
        dtype = input.dtype
        if dtype not in (torch.float32, torch.float64) or not ordinary_call():
            return None
        tensors = written.tensors(parts)
        if tensors is None or written.program is None:
            return None
        ports = (written.program.input_port, *written.program.states)
        if any(t.shape[-1] != port.row_stride for t, port in zip((input, *state), ports, strict=False)):
            return None
        given = (input, timespans, *state, *tensors)
        return (
            tensors
            if all(ordinary_tensor(t, dtype) for t in given) and native.library() is not None
            else None
        )


def _fits(rows: Rows, input: Tensor, state: State, timespans: Tensor) -> bool:
    """Whether tensors have the places that the rows lie in, which the library trusts."""
    count = len(rows)
    return input.shape[0] == rows.size == timespans.shape[0] and all(s.shape[0] == count for s in state)


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[None if t is None else t.data_ptr() for t in tensors])


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, input: Tensor, timespans: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        x, spans = input.contiguous(), timespans.contiguous()
        state = [s.contiguous() for s in rest[: job.states]]
        plan, dtype, size = job.plan, input.dtype, job.plan.packed_size
        differentiable = job.taped and any(ctx.needs_input_grad)
        call = job.call()
        # What the backward pass needs too: the packed weights, and behind them the tape.
        tape_size = plan.tape_size(job.rows, job.every) if differentiable else 0
        kept = borrow(size + tape_size, dtype)
        widths = [port.row_stride for port in job.program.states]
        places, rows = job.rows.size, len(job.rows)
        output = borrow(places * widths[0], dtype).view(places, -1)
        final = [torch.empty(rows, n, dtype=dtype) for n in widths]
        weights = [t.contiguous() for t in rest[job.states :]]
        states, ends, parameters = _pointers(state), _pointers(final), _pointers(weights)
        call.input, call.spans, call.output = x.data_ptr(), spans.data_ptr(), output.data_ptr()
        call.states = ctypes.addressof(states) if state else None
        call.final_states, call.parameters = ctypes.addressof(ends), ctypes.addressof(parameters)
        call.packed = kept.data_ptr()
        call.tape = call.packed + size * dtype.itemsize if differentiable else None
        plan.forward(call)
        if call.failed_step >= 0:
            raise _failure(job, spans, call.failed_row, call.failed_step)
        ctx.job, ctx.call = job, call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input, timespans, *rest, kept)
        return output, *final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, kept = ctx.saved_tensors
        job: _Job = ctx.job
        ordinary = ordinary_call() and all(g is None or ordinary_tensor(g, kept.dtype) for g in grads)
        if torch.is_grad_enabled() or not ordinary:
            return None, *_backward_reference(job, inputs, grads, ctx.needs_input_grad[1:])
        x, spans = inputs[0].contiguous(), inputs[1].contiguous()
        # The tensors as they were saved need not lie where they lay: hooks may have moved them.
        call = native.Call.from_buffer_copy(ctx.call)
        call.input, call.spans, call.packed = x.data_ptr(), spans.data_ptr(), kept.data_ptr()
        call.tape = call.packed + job.plan.packed_size * kept.dtype.itemsize
        return None, *_backward_fused(job, call, inputs, grads, ctx.needs_input_grad[1:])


def _failure(job: _Job, spans: Tensor, row: int, walked: int) -> SolverError:
    """What the reference says of a solve that ended in a state that is not finite."""
    at = torch.tensor(row), torch.tensor(walked)
    span, step = float(spans[job.rows.place(*at)]), int(job.rows.step_of(*at))
    return not_finite(row, span, job.program.solver_steps).at_step(step)


def _backward_fused(
    job: _Job,
    call: native.Call,
    inputs: list[Tensor],
    grads: tuple[Tensor | None, ...],
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    pulls = [None if g is None else _contiguous(g) for g in grads]
    results = [
        torch.empty_like(t, memory_format=torch.contiguous_format) if w else None
        for t, w in zip(inputs, wanted, strict=True)
    ]
    d_input, d_spans = results[:2]
    d_states, d_tensors = results[2 : 2 + job.states], results[2 + job.states :]
    call.d_output = None if pulls[0] is None else pulls[0].data_ptr()
    call.d_input = None if d_input is None else d_input.data_ptr()
    call.d_spans = None if d_spans is None else d_spans.data_ptr()
    ends, states, parameters = _pointers(pulls[1:]), _pointers(d_states), _pointers(d_tensors)
    call.d_final_states, call.d_parameters = ctypes.addressof(ends), ctypes.addressof(parameters)
    call.d_states = ctypes.addressof(states) if any(wanted[2 : 2 + job.states]) else None
    job.plan.backward(call)
    return [d_input, d_spans, *d_states, *d_tensors]


def _contiguous(grad: Tensor) -> Tensor:
    """A layer's transposition comes back as a strided gradient: its copy needs no fresh memory."""
    return grad if grad.is_contiguous() else borrow(grad.numel(), grad.dtype).view(grad.shape).copy_(grad)


class _Loop(nn.Module):
    def __init__(self, cell: CellLike) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        output, state = unroll_reference(self.cell, *arguments)
        return output, *state


def _backward_reference(
    job: _Job, inputs: list[Tensor], grads: tuple[Tensor | None, ...], wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """The same gradients through the reference loop: what double backward and batched gradients need."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        if not create_graph:
            inputs = [t.detach().requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]
        x, spans, state, tensors = inputs[0], inputs[1], inputs[2 : 2 + job.states], inputs[2 + job.states :]
        # What a cell computes from its parameters has no gradient of its own here: theirs is whole.
        own = dict(job.cell.named_parameters()) | dict(job.cell.named_buffers())
        named = {
            f"cell.{name}": t for name, t in zip(job.program.tensors, tensors, strict=True) if name in own
        }
        outputs = torch.func.functional_call(
            _Loop(job.cell), named, (x, tuple(state) or None, spans, job.rows), strict=False
        )
        sources = [t for t, w in zip(inputs, wanted, strict=True) if w]
        # A clock depends on the gaps alone, and nobody may look at a final state.
        kept = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
        if not kept:
            return [None] * len(wanted)
        ends, pull = [o for o, _ in kept], [g for _, g in kept]
        pulled = iter(torch.autograd.grad(ends, sources, pull, create_graph=create_graph, allow_unused=True))
    return [next(pulled) if w else None for w in wanted]
