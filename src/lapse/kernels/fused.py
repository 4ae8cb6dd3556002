"""The fused loop behind ``unroll``: a cell's program run over all steps at once, forward and backward."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.cells import Cell, State
from lapse.kernels import native
from lapse.kernels.plain import plain_autograd
from lapse.kernels.program import Program
from lapse.kernels.reference import unroll as unroll_reference
from lapse.kernels.steps import STEPS
from lapse.kernels.workspace import borrow
from lapse.solvers import not_finite
from lapse.walk import Walk

BLOCK_ROWS = 64  # a block's step stays in the second-level cache; products of fewer rows are slower
SMALL_CALL = 2_000_000  # multiplications; below this a second thread costs more than it brings

_every: ContextVar[int] = ContextVar("lapse_recompute", default=0)


class recompute:
    """Keep only every k-th state for the backward pass, and compute the steps between again:
    ``with lapse.kernels.recompute(every=64):``. Memory falls by about k, for one more forward pass.
    """

    def __init__(self, every: int) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number of at least 1, got {every!r}")
        self._token = _every.set(every)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _every.reset(self._token)


class _Places:
    """A walk as the library reads it."""

    def __init__(self, walk: Walk) -> None:
        self.arrays = [_integers(values) for values in (walk.batch_sizes, walk.at_step, walk.at_row)]
        self.pointers = [array.ctypes.data for array in self.arrays]


def _integers(values: Sequence[int]) -> np.ndarray:
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    return np.array(values, np.int64)


@dataclass(frozen=True)
class _Job:
    """What a call needs beside its tensors."""

    cell: Cell
    program: Program
    plan: native.Plan
    walk: Walk
    places: _Places
    states: int
    every: int
    # Of the forward pass, for the backward pass too: the tape's layout depends on them, and torch's may have changed.
    threads: int
    block: int


class Fused:
    """The fused loop for one type of cell."""

    def covers(self, cell: Cell, input: Tensor, state: State, timespans: Tensor) -> bool:
        return self._tensors(cell, _prepare(cell), input, state, timespans) is not None

    def __call__(
        self, cell: Cell, input: Tensor, state: State, timespans: Tensor, walk: Walk
    ) -> tuple[Tensor, State] | None:
        prepared = _prepare(cell)
        tensors = self._tensors(cell, prepared, input, state, timespans)
        if tensors is None or prepared.program is None:
            return None
        plan, rows = prepared.plan(input.dtype), walk.batch_sizes[0]
        work = sum(walk.batch_sizes) * prepared.program.multiplications
        threads = torch.get_num_threads() if work > SMALL_CALL else 1
        block = min(BLOCK_ROWS, -(-rows // threads))
        threads = min(threads, -(-rows // block))
        every = min(_every.get(), len(walk.batch_sizes))
        job = _Job(cell, prepared.program, plan, walk, _Places(walk), len(state), every, threads, block)
        run: Any = _Unroll.apply
        output, *final = run(job, input, timespans, *state, *tensors)
        return output, tuple(final)

    def _tensors(
        self, cell: Cell, prepared: _Prepared, input: Tensor, state: State, timespans: Tensor
    ) -> list[Tensor] | None:
        """The tensors of the cell's program, if a kernel covers the call."""
        dtype = input.dtype
        if dtype not in (torch.float32, torch.float64) or not plain_autograd():
            return None
        if prepared.program is None or _altered(cell):
            return None
        try:
            tensors = tensors_of(cell, prepared.program)
        except AttributeError:  # a part was replaced by another kind
            return None
        if any(t.numel() != n for t, n in zip(tensors, prepared.program.tensor_sizes(), strict=True)):
            return None
        given = (input, timespans, *state, *tensors)
        return tensors if all(_plain(t, dtype) for t in given) and native.library() is not None else None


class _Prepared:
    """A cell's program for its settings, and the plans made of it."""

    def __init__(self, settings: tuple[object, ...], program: Program | None) -> None:
        self.settings, self.program = settings, program
        self._plans: dict[torch.dtype, native.Plan] = {}

    def plan(self, dtype: torch.dtype) -> native.Plan:
        assert self.program is not None
        if dtype not in self._plans:
            self._plans[dtype] = native.Plan(self.program, dtype)
        return self._plans[dtype]


# Beside the cells, not inside them: plans are pointers, which a copied or pickled cell must not take along.
_prepared: WeakKeyDictionary[Cell, _Prepared] = WeakKeyDictionary()


def _prepare(cell: Cell) -> _Prepared:
    kept = _prepared.get(cell)
    settings = settings_of(cell)
    if kept is None or kept.settings != settings:
        program = STEPS[type(cell)](cell)
        kept = _prepared[cell] = _Prepared(settings, program and program.finish())
    return kept


def settings_of(cell: Cell) -> tuple[object, ...]:
    """What a program is made for beside the shapes: it is made anew when one of these has been changed."""
    return tuple(getattr(cell, name, None) for name in ("solver", "ratio_on", "leak", "timescales"))


def program_of(cell: Cell) -> Program | None:
    """The cell's step as operations; None if they do not cover its solver."""
    return _prepare(cell).program


def plan_of(cell: Cell, dtype: torch.dtype) -> native.Plan:
    return _prepare(cell).plan(dtype)


def tensors_of(cell: Cell, program: Program) -> list[Tensor]:
    return [operator.attrgetter(name)(cell) for name, _ in program.tensors]


def _plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
        and tensor.dtype == dtype
        and tensor.is_cpu
        and tensor.layout == torch.strided
    )


def _altered(cell: Cell) -> bool:
    """Whether a part of the cell may do something else than its class in this library or in torch says."""
    return any(
        m._forward_hooks
        or m._forward_pre_hooks
        or m._backward_hooks
        or "parametrizations" in m._modules
        or not type(m).__module__.startswith(("lapse.cells", "torch.nn.modules"))
        for m in cell.modules()
    )


def _transformed(tensors: tuple[Tensor, ...], program: Program) -> list[Tensor]:
    functions = {"": lambda t: t, "softplus": F.softplus, "exp": torch.exp}
    return [functions[f](t.detach()).contiguous() for t, (_, f) in zip(tensors, program.tensors, strict=True)]


def packed_weights(cell: Cell, program: Program, plan: native.Plan) -> Tensor:
    """A cell's weights in the layout of the products, for the forward pass alone."""
    tensors = tuple(tensors_of(cell, program))
    packed = torch.empty(plan.packed_size, dtype=tensors[0].dtype)
    plan.pack(_transformed(tensors, program), packed, backward=False)
    return packed


def _untransform(grad: Tensor, tensor: Tensor, transform: str) -> Tensor:
    if transform == "softplus":
        return grad * torch.sigmoid(tensor)
    return grad * tensor.exp() if transform == "exp" else grad


class _Frame:
    """The arguments of one call of the library, and what keeps them alive."""

    def __init__(self, job: _Job, input: Tensor, timespans: Tensor) -> None:
        walk = job.walk
        sizes = walk.batch_sizes
        self.call = native.Call(len(sizes), sizes[0], job.block, job.threads, job.every)
        self.alive: list[Any] = [input, timespans]
        call = self.call
        call.width = len(walk.at_step) if walk.padded else 0
        call.batch_sizes, call.at_step, call.at_row = job.places.pointers
        call.input, call.spans = input.data_ptr(), timespans.data_ptr()
        call.parallel = native.parallel()

    def pointers(self, tensors: list[Tensor | None]) -> int:
        array = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
        self.alive += [array, tensors]
        return ctypes.addressof(array)


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: _Job, input: Tensor, timespans: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        x, spans = input.detach().contiguous(), timespans.detach().contiguous()
        state = [s.detach().contiguous() for s in rest[: job.states]]
        plan, dtype = job.plan, input.dtype
        differentiable = any(ctx.needs_input_grad)
        packed = borrow(plan.packed_size, dtype)
        plan.pack(_transformed(rest[job.states :], job.program), packed, backward=differentiable)
        frame = _Frame(job, x, spans)
        tape_size, scratch_size, _ = plan.sizes(frame.call)
        tape = borrow(tape_size if differentiable else 0, dtype)
        scratch = borrow(scratch_size, dtype)
        output = borrow(len(x) * job.cell.hidden_size, dtype).view(len(x), -1)
        final: list[Tensor | None] = [torch.empty_like(s) for s in state]
        call = frame.call
        call.output, call.packed, call.scratch = output.data_ptr(), packed.data_ptr(), scratch.data_ptr()
        call.states, call.final_states = frame.pointers([*state]), frame.pointers(final)
        call.tape = tape.data_ptr() if differentiable else None
        plan.forward(plan.handle, ctypes.addressof(call))
        if call.failed_step >= 0:
            span = float(spans[job.walk.at_step[call.failed_step] + job.walk.at_row[call.failed_row]])
            raise not_finite(call.failed_row, span, job.program.solver_steps)
        ctx.job = job
        ctx.save_for_backward(input, timespans, *rest, packed, tape)
        return output, *(f for f in final if f is not None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, packed, tape = ctx.saved_tensors
        job: _Job = ctx.job
        if torch.is_grad_enabled() or not plain_autograd() or not all(_plain(g, tape.dtype) for g in grads):
            return None, *_backward_reference(job, inputs, grads, ctx.needs_input_grad[1:])
        return None, *_backward_fused(job, inputs, grads, ctx.needs_input_grad[1:], packed, tape)


def _backward_fused(
    job: _Job,
    inputs: list[Tensor],
    grads: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
    packed: Tensor,
    tape: Tensor,
) -> list[Tensor | None]:
    x, spans = inputs[0].detach().contiguous(), inputs[1].detach().contiguous()
    tensors = inputs[2 + job.states :]
    contiguous = [_contiguous(g) for g in grads]
    frame, plan = _Frame(job, x, spans), job.plan
    call = frame.call
    call.input_gradient = int(wanted[0])
    _, _, scratch_size = plan.sizes(call)
    scratch = borrow(scratch_size, x.dtype)
    d_input = torch.empty_like(x) if wanted[0] else None
    d_spans = torch.empty_like(spans)
    d_states: list[Tensor | None] = [torch.empty_like(g) for g in contiguous[1:]]
    d_tensors = [
        torch.empty_like(t, memory_format=torch.contiguous_format) if w else None
        for t, w in zip(tensors, wanted[2 + job.states :], strict=True)
    ]
    call.packed, call.tape, call.scratch = packed.data_ptr(), tape.data_ptr(), scratch.data_ptr()
    call.d_output = contiguous[0].data_ptr()
    call.d_input = None if d_input is None else d_input.data_ptr()
    call.d_spans = d_spans.data_ptr()
    call.d_final_states, call.d_states = frame.pointers([*contiguous[1:]]), frame.pointers(d_states)
    call.d_parameters = frame.pointers(d_tensors)
    plan.backward(plan.handle, ctypes.addressof(call))
    d_parameters = [
        None if d is None else _untransform(d, t.detach(), transform)
        for d, t, (_, transform) in zip(d_tensors, tensors, job.program.tensors, strict=True)
    ]
    return [d_input, d_spans, *d_states, *d_parameters]


def _contiguous(grad: Tensor) -> Tensor:
    """A layer's transposition comes back as a strided gradient: its copy needs no fresh memory."""
    return grad if grad.is_contiguous() else borrow(grad.numel(), grad.dtype).view(grad.shape).copy_(grad)


class _Loop(nn.Module):
    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        output, state = unroll_reference(self.cell, *arguments)
        return output, *state


def _backward_reference(
    job: _Job, inputs: list[Tensor], grads: tuple[Tensor, ...], wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """The same gradients through the reference loop: what double backward and batched gradients need."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        if not create_graph:
            inputs = [t.detach().requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]
        x, spans, state, tensors = inputs[0], inputs[1], inputs[2 : 2 + job.states], inputs[2 + job.states :]
        # What a cell computes from its parameters has no gradient of its own here: theirs is whole.
        own = dict(job.cell.named_parameters()) | dict(job.cell.named_buffers())
        names = [name for name, _ in job.program.tensors]
        named = {f"cell.{name}": t for name, t in zip(names, tensors, strict=True) if name in own}
        outputs = torch.func.functional_call(
            _Loop(job.cell), named, (x, tuple(state), spans, job.walk), strict=False
        )
        sources = [t for t, w in zip(inputs, wanted, strict=True) if w]
        # A clock depends on the gaps alone.
        kept = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
        ends, pull = [o for o, _ in kept], [g for _, g in kept]
        pulled = iter(torch.autograd.grad(ends, sources, pull, create_graph=create_graph, allow_unused=True))
    return [next(pulled) if w else None for w in wanted]
