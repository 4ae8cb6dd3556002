"""The adjoint method against back-propagation through the steps: error of the gradient, and memory.

The paper argues that the adjoint method does not help with vanishing gradients and is lossy besides: it solves the
state backward in time instead of remembering it. Both can be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lapse.recurrent.fields import DampedTanhField
from lapse.solvers import DOPRI5, Adaptive, Adjoint, FixedStep, Solver, SolverError


@dataclass(frozen=True)
class AdjointGap:
    """One comparison. Errors are relative, over the gradients of the start, the input and every weight together."""

    timespan: float
    rtol: float
    error: float  # of the adjoint against the steps taken: how lossy the way back is; NaN where it cannot be solved
    error_of_steps: (
        float  # of the steps' own gradient against a tight solution: what the tolerance alone costs
    )
    start_norm: float  # |dL/dh(0)| for |dL/dh(T)| = 1, by the steps
    start_norm_adjoint: float


def damped_field(hidden_size: int, seed: int = 0) -> DampedTanhField:
    """The paper's right-hand side with τ = 1 and the weights it starts from, in float64."""
    torch.manual_seed(seed)
    return DampedTanhField(hidden_size, hidden_size).double()


def adjoint_gap(
    timespan: float, rtol: float, *, hidden_size: int = 16, rows: int = 4, seed: int = 0
) -> AdjointGap:
    """Both gradients of the same adaptive solve over one span."""
    field = damped_field(hidden_size, seed)
    solver = Adaptive(DOPRI5, rtol=rtol, atol=rtol / 100, max_steps=10_000)
    tight = Adaptive(DOPRI5, rtol=1e-11, atol=1e-13, max_steps=10_000)
    steps = _gradients(solver, field, timespan, rows, seed)
    exact = _gradients(tight, field, timespan, rows, seed)
    try:
        adjoint = _gradients(Adjoint(solver), field, timespan, rows, seed)
    except SolverError:  # the state, run in reverse, left every bound: that is the finding
        adjoint = [torch.full_like(grad, math.nan) for grad in steps]
    return AdjointGap(
        timespan,
        rtol,
        relative_error(adjoint, steps),
        relative_error(steps, exact),
        float(steps[0].norm(dim=-1).mean()),
        float(adjoint[0].norm(dim=-1).mean()),
    )


def _gradients(solver: Solver, field: DampedTanhField, timespan: float, rows: int, seed: int) -> list[Tensor]:
    """Of a unit vector against h(T): at h(0), at the held input, at the weights."""
    generator = torch.Generator().manual_seed(seed)
    size = len(field.scale)
    h, x, unit = (torch.randn(rows, size, generator=generator, dtype=torch.float64) for _ in range(3))
    h, x = (0.5 * h).requires_grad_(), x.requires_grad_()
    spans = torch.full((rows,), timespan, dtype=torch.float64)
    loss = (solver(field, h, spans, field.drive(x)) * unit / unit.norm(dim=-1, keepdim=True)).sum()
    return list(torch.autograd.grad(loss, [h, x, *field.parameters()]))


def relative_error(got: list[Tensor], expected: list[Tensor]) -> float:
    """‖got − expected‖ / ‖expected‖ over all tensors as one vector."""
    a, b = (torch.cat([part.flatten() for part in parts]) for parts in (got, expected))
    return float((a - b).norm() / b.norm())


def saved_bytes(solver: Solver, *, timespan: float = 1.0, hidden_size: int = 16, rows: int = 4) -> int:
    """What a solve keeps for its backward pass, weights apart: exact, where a process's peak would be a guess."""
    field = damped_field(hidden_size)
    weights = {p.untyped_storage().data_ptr() for p in field.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage that is freed and used again would be counted once

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    h = torch.zeros(rows, hidden_size, dtype=torch.float64, requires_grad=True)
    spans = torch.full((rows,), timespan, dtype=torch.float64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        solver(field, h, spans, field.rest(h))
    return sum(kept.values())


@dataclass(frozen=True)
class MemoryGap:
    """Bytes kept for the backward pass by a number of sub-steps, back-propagated and by the adjoint."""

    steps: int
    backprop: int
    adjoint: int


def memory_gap(solver: FixedStep) -> MemoryGap:
    """Both ways over the same fixed steps."""
    return MemoryGap(solver.steps, saved_bytes(solver), saved_bytes(Adjoint(solver)))
