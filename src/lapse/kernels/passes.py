"""The forward and the backward pass of the compiled loop: what eager calls and the registered operators share."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lapse.kernels import native
from lapse.kernels.program import Program
from lapse.kernels.workspace import borrow
from lapse.rows import Rows
from lapse.solvers import SolverError, not_finite

BLOCK_ROWS = 64  # a block's step stays in the second-level cache; products of fewer rows are slower
SMALL_CALL = 2_000_000  # multiplications; below this a second thread costs more than it brings


class Job(NamedTuple):
    """What a pass needs beside its tensors.

    The backward pass needs what the forward pass had: the layout of the tape depends on threads and blocks, and torch's
    number of threads may have changed since.

    Args:
        program: The program of the cell.
        plan: The program made ready for one number type.
        rows: Where the steps lie.
        states: How many states the rows start from: none if they start from zeros.
        every: How many steps lie between two states that are kept for the backward pass; 0 to keep every step.
        threads: How many threads share the work.
        block: How many rows go through all their steps together.
    """

    program: Program
    plan: native.Plan
    rows: Rows
    states: int
    every: int
    threads: int
    block: int

    @staticmethod
    def of(program: Program, plan: native.Plan, rows: Rows, states: int, every: int) -> Job:
        """A job for as many threads as torch has, if there is enough to do for them."""
        count = rows.batch_size
        threads = torch.get_num_threads()
        if threads > 1 and _is_small(rows, program.multiplications):
            threads = 1
        block = min(BLOCK_ROWS, -(-count // threads))
        threads = min(threads, -(-count // block))
        return Job(program, plan, rows, states, every and min(every, rows.steps), threads, block)

    def call(self) -> native.Call:
        """The library's arguments, those that are no tensors of the caller."""
        call = native.Call(self.rows, self.block, self.threads, self.every)
        call.parallel = native.parallel()
        return call


class Result(NamedTuple):
    """What a forward pass returns.

    Args:
        output: (M, H), zeros in the padding.
        final: The state of each row after its last step.
        kept: What the backward pass needs: the packed weights and, behind them, the tape.
        call: The arguments of the library, as the backward pass takes them.
    """

    output: Tensor
    final: list[Tensor]
    kept: Tensor
    call: native.Call


def forward(job: Job, tape_size: int, inputs: Sequence[Tensor]) -> Result:
    """Run all rows from their first step to their last.

    Args:
        job: What is to be done.
        tape_size: The number of elements of the tape; 0 if there is no backward pass.
        inputs: The input (M, I), the gaps (M,), the states before the first step and the tensors of the program.
    """
    plan, dtype, call = job.plan, inputs[0].dtype, job.call()
    x, spans, *rest = [tensor.contiguous() for tensor in inputs]
    start, weights = rest[: job.states], rest[job.states :]
    widths = [port.row_stride for port in job.program.states]
    places, rows = job.rows.size, job.rows.batch_size
    kept = borrow(plan.packed_size + tape_size, dtype)
    output = borrow(places * widths[0], dtype).view(places, -1)
    final = [torch.empty(rows, n, dtype=dtype) for n in widths]
    states, ends, parameters = _pointers(start), _pointers(final), _pointers(weights)
    call.input, call.spans, call.output = x.data_ptr(), spans.data_ptr(), output.data_ptr()
    call.states = ctypes.addressof(states) if start else None
    call.final_states, call.parameters = ctypes.addressof(ends), ctypes.addressof(parameters)
    call.packed = kept.data_ptr()
    call.tape = call.packed + plan.packed_size * dtype.itemsize if tape_size else None
    plan.forward(call)
    if call.failed_step >= 0:
        raise _failure(job, spans, call.failed_row, call.failed_step)
    return Result(output, final, kept, call)


def backward(
    job: Job,
    call: native.Call,
    kept: Tensor,
    inputs: Sequence[Tensor],
    pulls: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of what went into a forward pass.

    Args:
        job: The job of the forward pass.
        call: The arguments of the library, as the forward pass left them; a copy, since they are changed here.
        kept: What the forward pass kept.
        inputs: What went into it. They need not lie where they lay: hooks on saved tensors may have moved them.
        pulls: The gradients of the output and of each final state; None where nothing depends on one.
        wanted: Which of `inputs` are to have a gradient.
    """
    x, spans = inputs[0].contiguous(), inputs[1].contiguous()
    call.input, call.spans, call.packed = x.data_ptr(), spans.data_ptr(), kept.data_ptr()
    call.tape = call.packed + job.plan.packed_size * kept.dtype.itemsize
    grads = [None if g is None else _contiguous(g) for g in pulls]
    results = [
        torch.empty_like(t, memory_format=torch.contiguous_format) if w else None
        for t, w in zip(inputs, wanted, strict=True)
    ]
    call.d_output, call.d_input, call.d_spans = (_pointer(t) for t in (grads[0], *results[:2]))
    weights = 2 + job.states
    ends, states, parameters = (_pointers(t) for t in (grads[1:], results[2:weights], results[weights:]))
    call.d_final_states, call.d_parameters = ctypes.addressof(ends), ctypes.addressof(parameters)
    call.d_states = ctypes.addressof(states) if any(wanted[2:weights]) else None
    job.plan.backward(call)
    return results


def _is_small(rows: Rows, per_step: int) -> bool:
    """Whether a call has too few multiplications for several threads; lengths are summed only if need be."""
    if rows.batch_size * per_step > SMALL_CALL:  # every row has a step
        return False
    return rows.size * per_step <= SMALL_CALL or rows.count * per_step <= SMALL_CALL


def _failure(job: Job, spans: Tensor, row: int, walked: int) -> SolverError:
    """What the reference says of a solve that ended in a state that is not finite."""
    at = torch.tensor(row), torch.tensor(walked)
    span, step = float(spans[job.rows.place(*at)]), int(job.rows.step_of(*at))
    return not_finite(row, span, job.program.solver_steps).at_step(step)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[_pointer(t) for t in tensors])


def _contiguous(grad: Tensor) -> Tensor:
    """A layer's transposition comes back as a strided gradient: its copy needs no fresh memory."""
    return grad if grad.is_contiguous() else borrow(grad.numel(), grad.dtype).view(grad.shape).copy_(grad)
