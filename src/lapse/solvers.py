"""ODE solvers that take one time span a row.

A solver is called as ``solver(field, y0, timespans, *drive)``: every row of ``y0`` (B, H) lives through its own
span of ``timespans`` (B,) under dy/dt = field(y, *drive). ``drive`` are tensors with one row per row of ``y0``
that stay constant during the solve (the held input of a cell). Fields have no explicit time argument: a field
that needs the time carries a clock in its state, so the tableaux below need no nodes c.

Which one:

- ``FixedStep(RK4, steps=3)``: the same number of sub-steps for every row; cheap, explicit.
- ``Exponential(steps=4)``: for damped fields; the linear part is exact, so no gap is too long.
- ``Adaptive(DOPRI5)``: its own step size for every row, to a tolerance.
- ``Adjoint(solver)``: any explicit solver above with gradients by the adjoint method: constant memory, lossy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Field = Callable[..., Tensor]
Visit = Callable[[Tensor, Tensor, Tensor, tuple[Tensor, ...]], None]


@runtime_checkable
class Solver(Protocol):
    """What cells ask of a solver: move every row through its own span."""

    def __call__(self, f: Any, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor: ...


@dataclass(eq=False)
class SolverError(RuntimeError):
    """A row could not be solved: which one, how far it came, and what to do."""

    row: int
    reached: float
    timespan: float
    step_size: float
    reason: str
    remedy: str
    step: int | None = None  # of the row, where a sequence was walked

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        return (
            f"row {self.row}{step}: {self.reason} at time {self.reached:.6g} of its span of {self.timespan:.6g} "
            f"(step size {self.step_size:.3g}). {self.remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), dataclasses.astuple(self)  # an exception is rebuilt from its positional arguments

    def at_row(self, row: int) -> SolverError:
        """The same failure under the row number that the caller knows."""
        return dataclasses.replace(self, row=row)

    def at_step(self, step: int) -> SolverError:
        return dataclasses.replace(self, step=step)


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge–Kutta method: stage weights ``a``, result weights ``b``, error weights ``error``.

    ``error`` is b minus the weights of the embedded method of lower order; None where there is none.
    """

    name: str
    order: int
    a: tuple[tuple[float, ...], ...] = field(repr=False)
    b: tuple[float, ...] = field(repr=False)
    error: tuple[float, ...] | None = field(repr=False, default=None)

    @property
    def reuses_last_stage(self) -> bool:
        """Whether the last stage is the first one of the next step ("first same as last")."""
        return self.a[-1] == self.b[:-1] and self.b[-1] == 0.0


EULER = Tableau("euler", 1, a=((),), b=(1.0,))
HEUN = Tableau("heun", 2, a=((), (1.0,)), b=(0.5, 0.5), error=(-0.5, 0.5))
RK4 = Tableau("rk4", 4, a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), b=(1 / 6, 1 / 3, 1 / 3, 1 / 6))
# Dormand & Prince (1980), "A family of embedded Runge-Kutta formulae", Table 2: RK5(4)7M.
DOPRI5 = Tableau(
    "dopri5",
    5,
    a=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
)


@dataclass(frozen=True)
class FixedStep:
    """``steps`` equal sub-steps of an explicit method through every row's span.

    Explicit steps on a damped field explode once rate · span / steps passes the method's stability limit (2 for
    Euler): a result that is not finite raises :class:`SolverError`, and :class:`Exponential` has no such limit.
    """

    tableau: Tableau = RK4
    steps: int = 3

    def __post_init__(self) -> None:
        _check_tableau(self.tableau)
        _check_count("steps", self.steps)

    def __call__(self, f: Field, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        _check_spans(y0, timespans)
        return _finite(self._solve(f, y0, timespans, drive), timespans, self.steps)

    def _solve(
        self, f: Field, y0: Tensor, timespans: Tensor, drive: tuple[Tensor, ...], visit: Visit | None = None
    ) -> Tensor:
        y, h = y0, (timespans / self.steps).unsqueeze(-1)  # (B, 1)
        for _ in range(self.steps):
            points, slopes = _stages(self.tableau, f, y, h, drive)
            if visit is not None:
                rows = torch.arange(len(y), device=y.device)
                _visit_stages(visit, self.tableau, points, h, rows, drive)
            y = y + h * _combine(self.tableau.b, slopes)
        return y


@dataclass(frozen=True)
class Exponential:
    """Exponential Runge–Kutta for damped fields: the linear part is solved exactly, so any gap is stable.

    The field gives its two parts as ``source, rate = field.semilinear(y, *drive)``.

    For dy/dt = s(y) − r(y) ⊙ y, one sub-step of length h is, with z = r·h,

        order 1:  y₁ = e^{−z} y + h φ(z) s,      s = s(y),  r = r(y),      φ(z) = (1 − e^{−z}) / z
        order 2:  the same from y, with the means of s and r at y and at y₁

    Either is a convex combination of y and s/r, hence bounded for any span; order 1 at Euler's cost, order 2 at
    Heun's. Order 1 is ETD1 of Cox & Matthews (2002). Order 2 is the Magnus method of a linear equation whose
    coefficients move; their ETD2RK is as cheap, but where the rate changes with the state (GRU-ODE) it divides the
    change by the first rate, and explodes on a long gap if that was small.
    """

    steps: int = 4
    order: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        _check_count("steps", self.steps)
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {self.order!r}")

    def __call__(self, f: Any, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        _check_spans(y0, timespans)
        if not hasattr(f, "semilinear"):
            raise TypeError(
                f"Exponential needs a damped field with a `semilinear` method, got {type(f).__name__}; "
                "use FixedStep or Adaptive for a field without damping"
            )
        y, h = y0, (timespans / self.steps).unsqueeze(-1)  # (B, 1)
        for _ in range(self.steps):
            y = self._step(f, y, h, drive)
        return _finite(y, timespans, self.steps)

    def _step(self, f: Any, y: Tensor, h: Tensor, drive: tuple[Tensor, ...]) -> Tensor:
        source, rate = f.semilinear(y, *drive)
        y1 = _relax(y, h, source, rate)
        if self.order == 1:
            return y1
        source1, rate1 = f.semilinear(y1, *drive)
        return _relax(y, h, (source + source1) / 2, (rate + rate1) / 2)


@dataclass(frozen=True)
class Adaptive:
    """An embedded method with its own step size for every row; a row that has arrived costs nothing more.

    A step is accepted when the root mean square of error / (atol + rtol · |y|) over the row's units is at most 1.
    Time is counted as a fraction of each row's span, so spans of 1e-9 and 1e6 share a batch. The step sizes are
    constants for differentiation: gradients, also those of the spans, are those of the accepted steps.
    """

    tableau: Tableau = DOPRI5
    rtol: float = 1e-4  # float32 carries 7 digits; tighter tolerances want float64
    atol: float = 1e-6
    max_steps: int = 1000

    def __post_init__(self) -> None:
        _check_tableau(self.tableau)
        _check_count("max_steps", self.max_steps)
        if self.tableau.error is None:
            raise ValueError(
                f"{self.tableau.name} has no embedded error estimate; use DOPRI5 or HEUN, or FixedStep"
            )
        if not (self.rtol >= 0 and self.atol >= 0 and self.rtol + self.atol > 0):
            raise ValueError(
                f"rtol and atol must be non-negative and not both 0, got {self.rtol} and {self.atol}"
            )

    def __call__(self, f: Field, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        _check_spans(y0, timespans)
        return self._solve(f, y0, timespans, drive)

    def _solve(
        self, f: Field, y0: Tensor, timespans: Tensor, drive: tuple[Tensor, ...], visit: Visit | None = None
    ) -> Tensor:
        if not len(y0):
            return y0.clone()
        rows = torch.arange(len(y0), device=y0.device)
        arrived: list[tuple[Tensor, Tensor]] = []
        y, spans, slope = y0, timespans, f(y0, *drive)
        # The fraction of its span that each row has ahead, in float64 where there is one: near the start of a
        # long span a step can be too small to be seen beside 1 in float32.
        clock = torch.float32 if y0.device.type == "mps" else torch.float64
        remaining = torch.ones_like(timespans, dtype=clock)
        step = self._first_step(y, spans, slope).to(clock)
        for _ in range(self.max_steps):
            h = spans * step.to(spans.dtype)
            y, slope, accepted, ratio = self._attempt(f, y, h, slope, rows, drive, visit)
            remaining = torch.where(accepted, remaining - step, remaining)
            step = torch.minimum(step * self._growth(ratio), remaining)
            ahead = remaining > 0
            if not bool(ahead.all()):
                done, keep = (~ahead).nonzero().squeeze(1), ahead.nonzero().squeeze(1)
                arrived.append((rows[done], y.index_select(0, done)))
                if not len(keep):
                    return _reassemble(arrived)
                y, spans, slope = (t.index_select(0, keep) for t in (y, spans, slope))
                rows, remaining, step = rows[keep], remaining[keep], step[keep]
                drive = tuple(d.index_select(0, keep) for d in drive)
            # A last step may be that short, when the one before ended a rounding error ahead of the end.
            stuck = (step <= torch.finfo(clock).eps) & (step < remaining)
            if bool(stuck.any()):
                self._fail(
                    int(stuck.nonzero()[0]),
                    rows,
                    spans,
                    remaining,
                    step,
                    "the step size fell to nothing, so the field is not finite or too steep",
                )
        self._fail(0, rows, spans, remaining, step, f"not there after {self.max_steps} steps")
        raise AssertionError("unreachable")

    def _attempt(
        self,
        f: Field,
        y: Tensor,
        spans: Tensor,
        slope: Tensor,
        rows: Tensor,
        drive: tuple[Tensor, ...],
        visit: Visit | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One try of every row: the new state and slope where accepted, the old ones elsewhere."""
        h = spans.unsqueeze(-1)
        points, slopes = _stages(self.tableau, f, y, h, drive, slope)
        y1 = y + h * _combine(self.tableau.b, slopes)
        ratio = self._error_ratio(y, y1, h, slopes)
        accepted = ratio <= 1  # False for NaN
        if not bool(accepted.all()) and not _all_finite(y1, *slopes):
            # torch.where would hide a rejected row's NaN from the value but not from the gradient: the same
            # steps again, of length 0 for the rejected rows, leave no trace of them.
            h = torch.where(accepted, spans, 0.0).unsqueeze(-1)
            points, slopes = _stages(self.tableau, f, y, h, drive, slope)
            y1 = y + h * _combine(self.tableau.b, slopes)
        if visit is not None:
            _visit_stages(
                visit, self.tableau, points, torch.where(accepted.unsqueeze(-1), h, 0.0), rows, drive
            )
        y1 = torch.where(accepted.unsqueeze(-1), y1, y)
        if self.tableau.reuses_last_stage:
            slope1 = torch.where(accepted.unsqueeze(-1), slopes[-1], slope)
        else:
            slope1 = f(y1, *drive)
        return y1, slope1, accepted, ratio

    @torch.no_grad()
    def _error_ratio(self, y: Tensor, y1: Tensor, h: Tensor, slopes: Sequence[Tensor]) -> Tensor:
        assert self.tableau.error is not None
        error = h * _combine(self.tableau.error, slopes)
        ratio = _rms(error / self._allowed(torch.maximum(y.abs(), y1.abs())))
        return torch.where(
            torch.isfinite(y1).all(-1), ratio, torch.inf
        )  # beside an infinite y1 no error is large

    def _allowed(self, size: Tensor) -> Tensor:
        # Not 0 where atol and the state are: a unit that stays at 0 has an error of 0, and 0 / 0 would reject it.
        return max(self.atol, torch.finfo(size.dtype).tiny) + self.rtol * size

    @torch.no_grad()
    def _first_step(self, y: Tensor, spans: Tensor, slope: Tensor) -> Tensor:
        """The step whose error is a hundredth of what is allowed, if all derivatives are like the first."""
        change = _rms(slope * spans.unsqueeze(-1) / self._allowed(y.abs()))
        step = (0.01 / torch.nan_to_num(change, nan=torch.inf)) ** (1 / self.tableau.order)
        return torch.clamp(step, min=1e-6, max=1.0)

    def _growth(self, ratio: Tensor) -> Tensor:
        """By how much the next step may differ; a failed estimate (NaN) counts as far too large."""
        ratio = torch.nan_to_num(ratio, nan=torch.inf, posinf=torch.inf)
        return torch.clamp(0.9 * ratio ** (-1 / self.tableau.order), min=0.2, max=10.0)

    def _fail(
        self, i: int, rows: Tensor, spans: Tensor, remaining: Tensor, step: Tensor, reason: str
    ) -> None:
        span = float(spans[i].detach())
        raise SolverError(
            row=int(rows[i]),
            reached=span * (1 - float(remaining[i])),
            timespan=span,
            step_size=span * float(step[i]),
            reason=reason,
            remedy="Raise max_steps, loosen rtol and atol, use float64, count time in a larger unit, "
            "or use Exponential if the field is damped.",
        )


@dataclass(frozen=True)
class Adjoint:
    """The adjoint method: the same forward solve, gradients by a second solve backward in time.

    Memory does not grow with the number of steps, because nothing of the forward pass but its end is kept. The
    price: the backward solve runs the state in reverse, where a damped field is unstable, so its gradients leave
    those of the steps taken as spans grow (section 3 of the paper): for a CT-RNN with τ = 1 and the default
    tolerances they are off by 0.1 % over a span of 5, by 18 % over 10 and worthless over 20. The field must be an
    ``nn.Module``: its parameters are where gradients go. First derivatives only.
    """

    solver: FixedStep | Adaptive

    def __post_init__(self) -> None:
        if not isinstance(self.solver, FixedStep | Adaptive):
            raise TypeError(f"Adjoint wraps FixedStep or Adaptive, got {type(self.solver).__name__}")

    def __call__(self, f: nn.Module, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        if not isinstance(f, nn.Module):
            raise TypeError(
                f"the adjoint method needs the field as an nn.Module to find its parameters, got "
                f"{type(f).__name__}; gradients of anything else it uses would be silently lost"
            )
        _check_spans(y0, timespans)
        parameters = tuple(p for p in f.parameters() if p.requires_grad)
        solve: Callable[..., Tensor] = _AdjointSolve.apply
        y = solve(self.solver, f, parameters, y0, timespans, drive, *drive, *parameters)
        return _finite(y, timespans, _steps(self.solver))


class _AdjointSolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        solver: FixedStep | Adaptive,
        f: nn.Module,
        parameters: tuple[Tensor, ...],
        y0: Tensor,
        timespans: Tensor,
        drive: tuple[Tensor, ...],
        *_tracked: Tensor,
    ) -> Tensor:
        y = solver._solve(f, y0, timespans, drive)
        ctx.solver, ctx.f, ctx.parameters = solver, f, parameters
        ctx.save_for_backward(y, timespans, *drive)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, timespans, *drive = ctx.saved_tensors
        backward = _Backward(ctx.f, ctx.parameters, tuple(drive))
        span_grad = (grad * ctx.f(y, *drive)).sum(-1)
        state = ctx.solver._solve(
            backward.field, torch.cat([y, grad], -1), timespans, tuple(drive), backward.visit
        )
        y0_grad = _finite(state, timespans, _steps(ctx.solver))[:, y.shape[-1] :]
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
    """The gradients of ``inputs`` from that of the slope; None for those the field does not use."""
    if not inputs or not slope.requires_grad:
        return (None,) * len(inputs)
    grads: tuple[Tensor | None, ...] = torch.autograd.grad(slope, inputs, weight, allow_unused=True)
    return grads


def readable(tensor: Tensor) -> bool:
    """Whether a check may look at the tensor's values: not while a graph is traced, nor for a vmapped tensor."""
    if torch.compiler.is_compiling():
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True


def _stages(
    tableau: Tableau, f: Field, y: Tensor, h: Tensor, drive: tuple[Tensor, ...], first: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """The points at which a step looks at the field, and the slopes it finds there; ``first`` if known already."""
    points, slopes = [y], [f(y, *drive) if first is None else first]
    for weights in tableau.a[1:]:
        points.append(y + h * _combine(weights, slopes))
        slopes.append(f(points[-1], *drive))
    return points, slopes


def _combine(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    terms = [(w, k) for w, k in zip(weights, slopes, strict=True) if w != 0.0]
    total = terms[0][0] * terms[0][1]
    for w, k in terms[1:]:
        total = torch.add(total, k, alpha=w)
    return total


def _visit_stages(
    visit: Visit, tableau: Tableau, points: list[Tensor], h: Tensor, rows: Tensor, drive: tuple[Tensor, ...]
) -> None:
    for weight, point in zip(tableau.b, points, strict=True):
        if weight != 0.0:
            visit(point, weight * h, rows, drive)


def _reassemble(arrived: list[tuple[Tensor, Tensor]]) -> Tensor:
    rows = torch.cat([rows for rows, _ in arrived])
    return torch.cat([y for _, y in arrived]).index_select(0, torch.argsort(rows))


def _all_finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def _relax(y: Tensor, h: Tensor, source: Tensor, rate: Tensor) -> Tensor:
    """dy/dt = source − rate · y, solved exactly over ``h`` for a constant source and rate."""
    z = rate * h
    return torch.exp(-z) * y + h * _phi(z) * source


def _phi(z: Tensor) -> Tensor:
    """(1 − e^{−z}) / z, with its limit and its gradient at 0."""
    small = z.abs() < torch.finfo(z.dtype).eps ** (1 / 3)  # where the series errs by less than a rounding
    safe = torch.where(small, 1.0, z)
    return torch.where(small, 1 - z / 2 + z * z / 6, -torch.expm1(-safe) / safe)


def _check_tableau(tableau: object) -> None:
    if not isinstance(tableau, Tableau):
        raise TypeError(f"tableau must be a Tableau, such as RK4 or DOPRI5 of lapse.solvers, got {tableau!r}")


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")


def _check_spans(y0: Tensor, timespans: Tensor) -> None:
    # A (B, 1) tensor would broadcast to a wrong answer, so this check stays even in the inner loop.
    if y0.dim() != 2 or timespans.shape != y0.shape[:1]:
        raise ValueError(
            f"a solver takes y0 (B, H) and timespans (B,), got {tuple(y0.shape)} and {tuple(timespans.shape)}"
        )


def _steps(solver: FixedStep | Adaptive) -> int:
    return solver.steps if isinstance(solver, FixedStep) else 1


def _finite(y: Tensor, timespans: Tensor, steps: int) -> Tensor:
    if readable(y) and not bool(torch.isfinite(y).all()):
        row = int((~torch.isfinite(y)).any(-1).nonzero()[0])
        raise not_finite(row, float(timespans[row].detach()), steps)
    return y


def not_finite(row: int, span: float, steps: int) -> SolverError:
    """The failure of a solve in ``steps`` sub-steps that arrived at a state which is not finite."""
    return SolverError(
        row=row,
        reached=span,
        timespan=span,
        step_size=span / steps,
        reason="the state is not finite",
        remedy="Its start, its input or the weights are not finite already, or the steps are too long for the "
        "field: take more steps, use Exponential (damped fields, any gap) or Adaptive, or clip the gradients.",
    )


# One ready-made solver a name, for command lines and configs; any other setting is one constructor call away.
SOLVERS: dict[str, Solver] = {
    "euler": FixedStep(EULER, steps=4),
    "heun": FixedStep(HEUN, steps=4),
    "rk4": FixedStep(RK4, steps=3),
    "dopri5": Adaptive(DOPRI5),
    "dopri5-adjoint": Adjoint(Adaptive(DOPRI5)),
    "exponential": Exponential(steps=4),
    "exponential2": Exponential(steps=4, order=2),
}
