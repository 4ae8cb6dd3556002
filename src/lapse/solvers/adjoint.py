"""The adjoint method: gradients by a second solve, backward in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from lapse.solvers.base import Configurable, Derivative, check_finite, check_spans
from lapse.solvers.tableaux import Visit


@runtime_checkable
class StagedSolver(Protocol):
    """A solver that can show the stages of its steps."""

    @property
    def sub_steps(self) -> int:
        """The number of sub-steps that a failure is reported with."""
        ...

    def integrate(
        self,
        f: Derivative,
        y0: Tensor,
        timespans: Tensor,
        drive: tuple[Tensor, ...],
        visit: Visit | None = None,
        /,
    ) -> Tensor: ...

    def setting_values(self) -> dict[str, Any]: ...

    def with_settings(self, **values: Any) -> Self: ...


@dataclass(frozen=True)
class Adjoint(Configurable):
    """The adjoint method: the same forward solve, gradients by a second solve backward in time.

    Memory does not grow with the number of steps, because nothing of the forward pass but its end is kept. The
    price: the backward solve runs the state in reverse, where a damped field is unstable, so its gradients
    depart from those of the steps taken as spans grow (section 3 of the paper): for a CT-RNN with τ = 1 and the
    default tolerances they are off by 0.1 % over a span of 5, by 18 % over 10 and worthless over 20. The field
    must be an `nn.Module`: its parameters are where gradients go. First derivatives only.

    Args:
        solver: The solver of both solves; it must show its stages, as `FixedStep` and `Adaptive` do.
    """

    solver: StagedSolver

    def __post_init__(self) -> None:
        if not isinstance(self.solver, StagedSolver):
            raise TypeError(f"Adjoint wraps FixedStep or Adaptive, got {type(self.solver).__name__}")

    @property
    def settings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the solver inside."""
        return tuple(self.solver.setting_values())

    @property
    def fixed_work(self) -> bool:  # type: ignore[override]
        """That of the solver inside."""
        return bool(getattr(self.solver, "fixed_work", True))

    def setting_values(self) -> dict[str, Any]:
        return self.solver.setting_values()

    def with_settings(self, **values: Any) -> Self:
        return type(self)(self.solver.with_settings(**values))

    def __call__(self, f: nn.Module, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        if not isinstance(f, nn.Module):
            raise TypeError(
                f"the adjoint method needs the field as an nn.Module to find its parameters, got "
                f"{type(f).__name__}; gradients of anything else it uses would be silently lost"
            )
        check_spans(y0, timespans)
        parameters = tuple(p for p in f.parameters() if p.requires_grad)
        solve: Callable[..., Tensor] = _AdjointSolve.apply
        y = solve(self.solver, f, parameters, y0, timespans, drive, *drive, *parameters)
        return check_finite(y, timespans, self.solver.sub_steps)


class _AdjointSolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        solver: StagedSolver,
        f: nn.Module,
        parameters: tuple[Tensor, ...],
        y0: Tensor,
        timespans: Tensor,
        drive: tuple[Tensor, ...],
        *_tracked: Tensor,
    ) -> Tensor:
        y = solver.integrate(f, y0, timespans, drive)
        ctx.solver, ctx.f, ctx.parameters = solver, f, parameters
        ctx.save_for_backward(y, timespans, *drive)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, timespans, *drive = ctx.saved_tensors
        backward = _Backward(ctx.f, ctx.parameters, tuple(drive))
        span_grad = (grad * ctx.f(y, *drive)).sum(-1)
        state = ctx.solver.integrate(
            backward.field, torch.cat([y, grad], -1), timespans, tuple(drive), backward.visit
        )
        y0_grad = check_finite(state, timespans, ctx.solver.sub_steps)[:, y.shape[-1] :]
        return (None, None, None, y0_grad, span_grad, None, *backward.drive_grads, *backward.parameter_grads)


class _Backward:
    """The backward problem: state and adjoint run in reverse; the other gradients are integrals along the way.

    Those integrals are summed with the solver's own weights at its accepted stages. As part of the state they
    would need a copy of every parameter for every row, because each row has its own steps.
    """

    def __init__(self, f: nn.Module, parameters: tuple[Tensor, ...], drive: tuple[Tensor, ...]) -> None:
        self.f, self.parameters = f, parameters
        self.drive_grads = [torch.zeros_like(d) for d in drive]
        self.parameter_grads = [torch.zeros_like(p) for p in parameters]

    def field(self, state: Tensor, *drive: Tensor) -> Tensor:
        y, a = state.chunk(2, -1)
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            slope = self.f(y, *drive)
            (pulled,) = _pull_back(slope, (y,), a)
        return torch.cat([-slope.detach(), torch.zeros_like(y) if pulled is None else pulled], -1)

    def visit(self, point: Tensor, weight: Tensor, rows: Tensor, drive: tuple[Tensor, ...]) -> None:
        y, a = point.chunk(2, -1)
        with torch.enable_grad():
            drive = tuple(d.detach().requires_grad_() for d in drive)
            slope = self.f(y, *drive)
            grads = _pull_back(slope, (*drive, *self.parameters), weight * a)
        for total, grad in zip(self.drive_grads, grads, strict=False):
            if grad is not None:
                total.index_add_(0, rows, grad)
        for total, grad in zip(self.parameter_grads, grads[len(drive) :], strict=True):
            if grad is not None:
                total += grad


def _pull_back(slope: Tensor, inputs: tuple[Tensor, ...], weight: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `inputs` from that of the slope; None for those the field does not use."""
    if not inputs or not slope.requires_grad:
        return (None,) * len(inputs)
    grads: tuple[Tensor | None, ...] = torch.autograd.grad(slope, inputs, weight, allow_unused=True)
    return grads
