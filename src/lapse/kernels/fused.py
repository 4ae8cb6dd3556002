"""The fused loop behind `unroll`: a cell's program run over all steps at once, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapse.arguments import check_count
from lapse.kernels import native, passes
from lapse.kernels.contract import CellLike, State, zero_state
from lapse.kernels.passes import Job
from lapse.kernels.programs import CellProgram, program_of
from lapse.kernels.reference import initial_state
from lapse.kernels.reference import unroll as unroll_reference
from lapse.kernels.setting import Choices, Setting
from lapse.rows import Rows
from lapse.torch_private import ordinary_call, ordinary_tensor

_every: Choices[int] = Choices(0)


class recompute(Setting[int]):
    """Keep only every k-th state for the backward pass and compute the steps between again, to save memory.

    Used as `with lapse.kernels.recompute(every=64):`. Memory falls by about k, for one more forward pass. It holds for
    every thread of the process.

    Args:
        every: The number of steps k from one state that is kept to the next.
    """

    def __init__(self, every: int) -> None:
        check_count("every", every)
        super().__init__(_every, every)


def kept_every() -> int:
    """How many steps lie between two states that are kept for the backward pass; 0 to keep every step."""
    return _every.get()


class Fused:
    """The fused loop, for every cell that has a program."""

    def covers(self, cell: CellLike, input: Tensor, state: State, timespans: Tensor) -> bool:
        return self._tensors(*program_of(cell), input, state, timespans) is not None

    def __call__(
        self, cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
    ) -> tuple[Tensor, State] | None:
        written, parts = program_of(cell)
        if state is None:
            # Where a cell starts from zeros, no state is passed: the library makes them by itself.
            zeros = getattr(cell.initial_state, "__func__", None) is zero_state
            state = () if zeros else initial_state(cell, input, rows)
        tensors = self._tensors(written, parts, input, state, timespans)
        if tensors is None or written.program is None or not _fits(rows, input, state, timespans):
            return None
        job = Job.of(written.program, written.plan(input.dtype), rows, len(state), kept_every())
        run: Any = _Unroll.apply
        # Within `apply` gradients are always off.
        taped = torch.is_grad_enabled()
        output, *final = run(cell, job, taped, input, timespans, *state, *tensors)
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
    count = rows.batch_size
    return input.shape[0] == rows.size == timespans.shape[0] and all(s.shape[0] == count for s in state)


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cell: CellLike, job: Job, taped: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        differentiable = taped and any(ctx.needs_input_grad)
        tape_size = job.plan.tape_size(job.rows, job.every) if differentiable else 0
        found = passes.forward(job, tape_size, inputs)
        ctx.cell, ctx.job, ctx.call = cell, job, found.call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, found.kept)
        return found.output, *found.final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        ordinary = ordinary_call() and all(g is None or ordinary_tensor(g, kept.dtype) for g in grads)
        if torch.is_grad_enabled() or not ordinary:
            found = _backward_reference(ctx.cell, ctx.job, inputs, grads, wanted)
        else:
            call = native.Call.from_buffer_copy(ctx.call)
            found = passes.backward(ctx.job, call, kept, inputs, grads, wanted)
        return None, None, None, *found


class _Loop(nn.Module):
    def __init__(self, cell: CellLike) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        output, state = unroll_reference(self.cell, *arguments)
        return output, *state


def _backward_reference(
    cell: CellLike,
    job: Job,
    inputs: list[Tensor],
    grads: tuple[Tensor | None, ...],
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    """The same gradients through the reference loop: what double backward and batched gradients need."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        if not create_graph:
            inputs = [t.detach().requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]
        x, spans, state, tensors = inputs[0], inputs[1], inputs[2 : 2 + job.states], inputs[2 + job.states :]
        # A tensor that the cell computes from its parameters gets no gradient here: those of the parameters hold it.
        own = dict(cell.named_parameters()) | dict(cell.named_buffers())
        named = {
            f"cell.{name}": t for name, t in zip(job.program.tensors, tensors, strict=True) if name in own
        }
        outputs = torch.func.functional_call(
            _Loop(cell), named, (x, tuple(state) or None, spans, job.rows), strict=False
        )
        sources = [t for t, w in zip(inputs, wanted, strict=True) if w]
        # An output may need no gradient, as a clock that depends on the gaps alone, or may be one that nobody has used.
        kept = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
        if not kept:
            return [None] * len(wanted)
        ends, pull = [o for o, _ in kept], [g for _, g in kept]
        pulled = iter(torch.autograd.grad(ends, sources, pull, create_graph=create_graph, allow_unused=True))
    return [next(pulled) if w else None for w in wanted]
