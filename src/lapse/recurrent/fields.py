"""The right-hand sides of the ODEs: what the hidden state does while time passes, and the cell that only follows one.

A field is called as `field(y, drive)` with the state (B, H) and the share of the held input (B, ...), which its
`drive` method computes once per solve. A damped field also gives its two parts, `semilinear`, to the
exponential integrator. `program` writes a whole solve as operations of the fused loop.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.kernels.builder import BEFORE, NONE, Builder, NotCovered, explicit_solver
from lapse.recurrent.cell import Cell, Gates, State, softplus_inverse
from lapse.solvers import FixedStep, Solver, as_solver


class DrivenField(Protocol):
    """What a cell that is driven by its observations asks of a field."""

    def drive(self, input: Tensor) -> Tensor:
        """The share of the held input, which stays the same during a solve."""
        ...

    def rest(self, state: Tensor) -> Tensor:
        """`drive` without any input, one row per row of `state`."""
        ...

    def __call__(self, state: Tensor, drive: Tensor) -> Tensor:
        """dh/dt."""
        ...


class TanhField(nn.Module):
    """dh/dt = s ⊙ tanh(W x + R h + b): Eq. 1 of the paper without its damping.

    Args:
        input_size: The width of x.
        hidden_size: The width of the state h.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gates = Gates(input_size, hidden_size)
        self.scale = nn.Parameter(torch.ones(hidden_size))

    def drive(self, input: Tensor) -> Tensor:
        """The share of the held input, W x + b."""
        return self.gates.drive(input)

    def rest(self, state: Tensor) -> Tensor:
        """`drive` without any input, one row per row of `state`."""
        return self.gates.rest(state)

    def source(self, state: Tensor, drive: Tensor) -> Tensor:
        """s ⊙ tanh(drive + R h)."""
        return self.scale * torch.tanh(drive + self.gates.recur(state))

    @property
    def damping(self) -> Tensor:
        """The damping τ of each unit: none here."""
        return torch.zeros_like(self.scale)

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        return self.source(state, drive)

    def program(self, p: Builder, name: str, solver: Solver, y: int, out: int, drive: int) -> None:
        """Write a solve from the register `y` to `out`, driven by the register `drive`.

        Args:
            p: The program of the cell.
            name: The name of this field in the cell.
            solver: The solver of the cell.
            y: The register with the start.
            out: The register for the end.
            drive: The register with the share of the held input.
        """
        p.solve(solver, _TanhSlopes(p, p.size(out), name, drive, damped=False), y, out)


class DampedTanhField(TanhField):
    """dh/dt = s ⊙ tanh(W x + R h + b) − τ ⊙ h: Eq. 1, with one damping τ = softplus(decay) > 0 per unit.

    The authors' code has one constant τ = 1; the supplement's proofs write τ per unit. Here it is learned per
    unit and starts at 1.

    Args:
        input_size: The width of x.
        hidden_size: The width of the state h.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.decay = nn.Parameter(torch.full((hidden_size,), softplus_inverse(1.0)))

    @property
    def damping(self) -> Tensor:
        """The damping τ of each unit."""
        return F.softplus(self.decay)

    def semilinear(self, state: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """The source and the rate τ of dh/dt = source − τ ⊙ h."""
        return self.source(state, drive), F.softplus(self.decay)

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        source, rate = self.semilinear(state, drive)
        return source - rate * state

    def program(self, p: Builder, name: str, solver: Solver, y: int, out: int, drive: int) -> None:
        p.solve(solver, _TanhSlopes(p, p.size(out), name, drive, damped=True), y, out)


class RelaxingField(DampedTanhField):
    """A `DampedTanhField` that starts as dh/dt = τ ⊙ (tanh(W x + R h + b) − h) with time constants of all sizes.

    Every unit goes towards a target of its own at a rate of its own. The rates start between 0.1 and 10 per unit of
    time, evenly on a logarithmic scale, since units of one rate cannot tell short gaps from long ones. The biases start
    within ±1, since all targets would be the same without them. Targets lie within ±1, as the outputs of an LSTM do, so
    that no gap takes the state out of its usual range.

    Args:
        input_size: The width of x.
        hidden_size: The width of the state h.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        rates = 10.0 ** (2 * (torch.arange(hidden_size) + 0.5) / hidden_size - 1)
        with torch.no_grad():
            self.decay.copy_(rates + torch.log(-torch.expm1(-rates)))  # whose softplus they are
            self.scale.copy_(rates)
            self.gates.bias.uniform_(-1.0, 1.0)


class _TanhSlopes:
    """s ⊙ tanh(drive + R h) − τ ⊙ h as operations; without τ if not `damped`."""

    def __init__(self, p: Builder, size: int, name: str, drive: int, damped: bool) -> None:
        self.size, self.drive = size, drive
        self.weight = p.matrix(f"{name}.gates.weight_hh", size, size)
        self.scale = p.vector(f"{name}.scale", size)
        self.rate = p.vector(f"{name}.decay", size, transform="softplus") if damped else NONE
        self.order = 0

    def begin(self, p: Builder, steps: int, order: int) -> None:
        if self.rate == NONE:
            raise NotCovered("the exponential integrator needs a damped field")
        self.order = order
        self.e, self.gain = p.register(self.size), p.register(self.size)
        p.emit("Damping", self.e, self.gain, parameters=[self.rate, self.scale], numbers=[steps])

    def _inner(self, p: Builder, y: int) -> int:
        u = p.register(self.size)
        p.linear(u, (y, self.weight), base=self.drive)
        return u

    def slope(self, p: Builder, y: int, steps: int) -> int:
        u, k = self._inner(p, y), p.register(self.size)
        silent = (1,) if self.rate == NONE else ()
        p.emit("TanhSlope", u, y, k, parameters=[self.scale, self.rate], numbers=[steps], silent=silent)
        return k

    def exponential(self, p: Builder, y: int, out: int, steps: int) -> None:
        u = self._inner(p, y)
        first = out if self.order == 1 else p.register(self.size)
        p.emit("TanhExponential", u, y, first, self.e, self.gain)
        if self.order == 2:
            u1 = self._inner(p, first)
            p.emit("TanhCorrection", u1, first, out, u, self.gain)


class MLPField(nn.Module):
    """dh/dt = V tanh(U h + a) + b: autonomous, with one hidden layer as wide as the state.

    The weights start as those of `nn.Linear` do, as in the authors' PyTorch code. With biases of 0 the origin
    would be an unstable equilibrium, where an empty state stays for ever and its gradient explodes with the
    length of the gap.

    Args:
        hidden_size: The width of the state h.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, hidden_size)
        self.outer = nn.Linear(hidden_size, hidden_size)

    def forward(self, state: Tensor) -> Tensor:
        slope: Tensor = self.outer(torch.tanh(self.inner(state)))
        return slope

    @property
    def feedback(self) -> Tensor:
        """U V: how tanh(U h + a) moves U h + a itself, together with `feedback_bias` U b."""
        return self.inner.weight @ self.outer.weight

    @property
    def feedback_bias(self) -> Tensor:
        return self.inner.weight @ self.outer.bias

    def program(self, p: Builder, name: str, solver: Solver, y: int, out: int) -> None:
        """Write a solve from the register `y` to `out`.

        It follows u = U h + a, for which du/dt = U V tanh(u) + U b: a stage then costs one product, with U V,
        where h itself would need two. The end is h + V ∫ tanh(u) + b Δ, with the integral as the solver sums it
        up.

        Args:
            p: The program of the cell.
            name: The name of this field in the cell.
            solver: The solver of the cell, which must be explicit.
            y: The register with the start.
            out: The register for the end.
        """
        explicit = explicit_solver(solver)
        if not math.isclose(sum(explicit.tableau.b), 1.0):
            raise NotCovered("b Δ is the share of b only if the weights of a step add up to 1")
        n, steps = p.size(y), explicit.steps
        inner = _InnerVariable(p, n, name, explicit)
        u, integral, gap = p.register(n), NONE, p.register(1)
        p.linear(u, (y, p.matrix(f"{name}.inner.weight", n, n)), bias=p.vector(f"{name}.inner.bias", n))
        p.solver_steps = steps
        for step in range(steps):
            slopes, tanhs = inner.stages(p, u, last=step == steps - 1)
            start, integral = integral, p.register(n)
            p.combine(steps, integral, start, tanhs, inner.weights, "Integrate")
            if step < steps - 1:
                start, u = u, p.register(n)
                p.combine(steps, u, start, slopes, inner.weights)
        p.emit("Gap", gap)
        outer, bias = p.matrix(f"{name}.outer.weight", n, n), p.matrix(f"{name}.outer.bias", n, 1)
        p.linear(out, (integral, outer), (gap, bias), base=y)
        p.emit("Check", out)


class _InnerVariable:
    """u = U h + a of an `MLPField` as operations."""

    def __init__(self, p: Builder, size: int, name: str, solver: FixedStep) -> None:
        self.size, self.steps, self.tableau = size, solver.steps, solver.tableau
        self.weights = [weight for _, weight in solver.tableau.stages]
        self.feedback = p.matrix(f"{name}.feedback", size, size)
        self.feedback_bias = p.vector(f"{name}.feedback_bias", size)

    def stages(self, p: Builder, u: int, *, last: bool) -> tuple[list[int], list[int]]:
        """Write the stages of one sub-step from the register `u`: the slopes of u and tanh(u), as far as needed."""
        slopes: list[int] = []
        tanhs: list[int] = []
        for i, (weights, _) in enumerate(self.tableau.stages):
            if not self.tableau.looks_at(i):
                slopes.append(NONE)
                tanhs.append(NONE)
                continue
            point, t = u, p.register(self.size)
            if any(weights):
                point = p.register(self.size)
                p.combine(self.steps, point, u, slopes, weights)
            p.emit("Tanh", t, point)
            tanhs.append(t)
            slopes.append(self._slope(p, t) if self.tableau.looks_at(i, in_last_step=last) else NONE)
        return slopes, tanhs

    def _slope(self, p: Builder, t: int) -> int:
        slope = p.register(self.size)
        p.linear(slope, (t, self.feedback), bias=self.feedback_bias)
        p.emit("PlainSlope", slope, numbers=[self.steps])
        return slope


def solver_for(field: object, solver: Solver | str | None, default: Solver) -> Solver:
    """The solver of a cell, refused here if it could only fail later.

    Args:
        field: The right-hand side that it will solve.
        solver: A solver, its word, or None.
        default: The solver if none is given.
    """
    chosen = default if solver is None else as_solver(solver)
    if getattr(chosen, "needs_damping", False) and not hasattr(field, "semilinear"):
        raise ValueError(
            f"{type(chosen).__name__} needs a damped field, and this model's has none; use FixedStep or Adaptive"
        )
    return chosen


class DrivenCell(Cell):
    """A cell whose state follows a field, driven by the observation that is held over the gap before it.

    Between observations no input is held (Table 1 of the paper has none there): the field moves with x = 0.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        field: The right-hand side.
        solver: How it is solved.
    """

    def __init__(self, input_size: int, hidden_size: int, field: DrivenField, solver: Solver) -> None:
        super().__init__(input_size, hidden_size)
        self.field = field
        self.solver = solver

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        h = self.solver(self.field, h, timespan, self.field.drive(input))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        h = self.solver(self.field, h, timespan, self.field.rest(h))
        return h, (h,)


def driven_program(cell: DrivenCell, field: TanhField, p: Builder) -> None:
    """Write the step of a cell that follows a `TanhField`."""
    x, h, drive = p.input(cell.input_size), p.state(cell.hidden_size), p.register(cell.hidden_size)
    field.gates.program(p, "field.gates", drive, [x])
    field.program(p, "field", cell.solver, h | BEFORE, h, drive)
