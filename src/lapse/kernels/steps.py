"""The step of every fused cell, put together from the operations of ``lapse.kernels.program``.

One function a cell, in the order of its docstring's equations. They return None for a solver that the operations do
not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

from lapse import cells
from lapse.cells import Cell
from lapse.kernels.program import BEFORE, NONE, Program
from lapse.solvers import Exponential, FixedStep, Solver, Tableau

MOST_STAGES = 7  # of a tableau: num[] of an operation has room for that many weights


class Field(Protocol):
    """The right-hand side of an ODE, as operations."""

    def prepare(self, p: Program, steps: int, order: int) -> None:
        """What all sub-steps of a gap share, for an exponential integrator of this order."""

    def slope(self, p: Program, y: int, steps: int) -> int:
        """A register with dy/dt at ``y``."""
        ...

    def exponential(self, p: Program, y: int, out: int, steps: int) -> bool:
        """One exponential sub-step; False if the field has none of the order asked for."""
        ...


class TanhField:
    """s ⊙ tanh(drive + R h) − τ ⊙ h; without τ if not ``damped``."""

    def __init__(self, p: Program, size: int, name: str, drive: int, damped: bool) -> None:
        self.size, self.drive = size, drive
        self.weight = p.matrix(f"{name}.gates.weight_hh", size, size)
        self.scale = p.vector(f"{name}.scale", size)
        self.rate = p.vector(f"{name}.decay", size, transform="softplus") if damped else NONE
        self.order = 0

    def prepare(self, p: Program, steps: int, order: int) -> None:
        self.order = order
        if self.rate == NONE:
            return
        self.e, self.gain = p.register(self.size), p.register(self.size)
        p.emit("Damping", self.e, self.gain, parameters=[self.rate, self.scale], numbers=[steps])

    def _inner(self, p: Program, y: int) -> int:
        u = p.register(self.size)
        p.linear(u, (y, self.weight), base=self.drive)
        return u

    def slope(self, p: Program, y: int, steps: int) -> int:
        u, k = self._inner(p, y), p.register(self.size)
        silent = (1,) if self.rate == NONE else ()
        p.emit("TanhSlope", u, y, k, parameters=[self.scale, self.rate], numbers=[steps], silent=silent)
        return k

    def exponential(self, p: Program, y: int, out: int, steps: int) -> bool:
        if self.rate == NONE:
            return False
        u = self._inner(p, y)
        first = out if self.order == 1 else p.register(self.size)
        p.emit("TanhExponential", u, y, first, self.e, self.gain)
        if self.order == 2:
            u1 = self._inner(p, first)
            p.emit("TanhCorrection", u1, first, out, u, self.gain)
        return True


class GRUField:
    """(1 − z) ⊙ (g − h), driven by reset, update and candidate."""

    def __init__(self, p: Program, size: int, name: str, drive: int) -> None:
        self.size, self.drive = size, drive
        self.gates = p.matrix(f"{name}.gates.weight_hh", size, size, segments=2)
        self.candidate = p.matrix(f"{name}.candidate.weight_hh", size, size)
        self.order = 0

    def prepare(self, p: Program, steps: int, order: int) -> None:
        self.order = order

    def _inner(self, p: Program, y: int) -> tuple[int, int]:
        gates, reset, candidate = p.register(self.size, 2), p.register(self.size), p.register(self.size)
        p.linear(gates, (y, self.gates), base=self.drive)
        p.emit("Reset", gates, y, reset)
        p.linear(candidate, (reset, self.candidate), base=self.drive + 2)
        return gates + 1, candidate

    def slope(self, p: Program, y: int, steps: int) -> int:
        update, candidate = self._inner(p, y)
        k = p.register(self.size)
        p.emit("GRUSlope", update, candidate, y, k, numbers=[steps])
        return k

    def exponential(self, p: Program, y: int, out: int, steps: int) -> bool:
        if self.order != 1:
            return False
        update, candidate = self._inner(p, y)
        p.emit("GRUExponential", update, candidate, y, out, numbers=[steps])
        return True


def solve(p: Program, solver: Solver, field: Field, size: int, y: int, out: int) -> bool:
    """Move register ``y`` through the gap into ``out``; False if the operations do not cover the solver."""
    if type(solver) is Exponential:
        field.prepare(p, solver.steps, solver.order)
    elif not explicit(solver):
        return False
    p.solver_steps = solver.steps
    for i in range(solver.steps):
        end = out if i == solver.steps - 1 else p.register(size)
        if isinstance(solver, FixedStep):
            runge_kutta(p, solver, field, size, y, end)
        elif not field.exponential(p, y, end, solver.steps):
            return False
        y = end
    p.emit("Check", out)
    return True


def explicit(solver: Solver) -> TypeGuard[FixedStep]:
    """Whether the operations cover it as a tableau."""
    return type(solver) is FixedStep and len(solver.tableau.b) <= MOST_STAGES


def stages_of(tableau: Tableau) -> list[tuple[tuple[float, ...], float]]:
    """Each stage's weights of earlier slopes, and its own weight in the step."""
    stages = list(zip(tableau.a, tableau.b, strict=True))
    while stages[-1][1] == 0.0:  # there for error estimates and for the next step of an adaptive solver
        stages.pop()
    return stages


def looked_at(stages: list[tuple[tuple[float, ...], float]], i: int, last: bool = False) -> bool:
    """Whether a later stage has a weight for the slope of stage ``i``, or the step itself unless it is the last."""
    return (stages[i][1] != 0.0 and not last) or any(weights[i] != 0.0 for weights, _ in stages[i + 1 :])


def runge_kutta(p: Program, solver: FixedStep, field: Field, size: int, y: int, out: int) -> None:
    slopes: list[int] = []
    stages = stages_of(solver.tableau)
    for i, (weights, _) in enumerate(stages):
        if not looked_at(stages, i):
            slopes.append(NONE)
            continue
        point = y
        if any(weights):
            point = p.register(size)
            combine(p, solver.steps, point, y, slopes, weights)
        slopes.append(field.slope(p, point, solver.steps))
    combine(p, solver.steps, out, y, slopes, [b for _, b in stages])


def solve_mlp(p: Program, solver: Solver, name: str, y: int, out: int) -> bool:
    """Move ``y`` along dh/dt = V tanh(U h + a) + b into ``out``; False if the operations do not cover the solver.

    Followed as u = U h + a, for which du/dt = U V tanh(u) + U b: a stage then costs one product, with U V, where h
    itself would need two. The end is h + V ∫ tanh(u) + b Δ, with the integral as the solver sums it up.
    """
    if not explicit(solver):
        return False
    n, steps, stages = p.size(y), solver.steps, stages_of(solver.tableau)
    feedback = p.matrix(f"{name}.feedback", n, n)
    feedback_bias = p.vector(f"{name}.feedback_bias", n)
    u, integral, gap = p.register(n), NONE, p.register(1)
    p.linear(u, (y, p.matrix(f"{name}.inner.weight", n, n)), bias=p.vector(f"{name}.inner.bias", n))
    p.solver_steps = steps
    for step in range(steps):
        slopes: list[int] = []
        tanhs: list[int] = []
        for i, (weights, _) in enumerate(stages):
            if not looked_at(stages, i):
                slopes.append(NONE)
                tanhs.append(NONE)
                continue
            point, t = u, p.register(n)
            if any(weights):
                point = p.register(n)
                combine(p, steps, point, u, slopes, weights)
            p.emit("Tanh", t, point)
            tanhs.append(t)
            slopes.append(p.register(n) if looked_at(stages, i, last=step == steps - 1) else NONE)
            if slopes[-1] != NONE:
                p.linear(slopes[-1], (t, feedback), bias=feedback_bias)
                p.emit("PlainSlope", slopes[-1], numbers=[steps])
        own = [b for _, b in stages]
        start, integral = integral, p.register(n)
        combine(p, steps, integral, start, tanhs, own, "Integrate")
        if step < steps - 1:
            start, u = u, p.register(n)
            combine(p, steps, u, start, slopes, own)
    p.emit("Gap", gap)
    outer, bias = p.matrix(f"{name}.outer.weight", n, n), p.matrix(f"{name}.outer.bias", n, 1)
    p.linear(out, (integral, outer), (gap, bias), base=y)
    p.emit("Check", out)
    return True


def combine(
    p: Program,
    steps: int,
    out: int,
    y: int,
    slopes: Sequence[int],
    weights: Sequence[float],
    op: str = "Combine",
) -> None:
    used = [(k, w) for k, w in zip(slopes, weights, strict=True) if w != 0.0]
    p.emit(op, out, y, *(k for k, _ in used), numbers=[steps, *(w for _, w in used)])


def gates(p: Program, y: int, name: str, count: int, sources: Sequence[int], h: int = NONE) -> None:
    """``count`` maps y = W x + R h + b side by side; ``sources`` are the registers that x is made of."""
    size, widths = p.size(y), [p.size(x) for x in sources]
    terms, offset = [], 0
    for x, n in zip(sources, widths, strict=True):
        stride = sum(widths)
        terms.append(
            (x, p.matrix(f"{name}.weight_ih", size, n, segments=count, stride=stride, offset=offset))
        )
        offset += n
    if h != NONE:
        terms.append((h, p.matrix(f"{name}.weight_hh", size, size, segments=count)))
    p.linear(y, *terms, bias=p.vector(f"{name}.bias", size, count))


def lstm(p: Program, sources: Sequence[int], h0: int, c0: int, c: int, h: int) -> None:
    """An LSTM's update of (h0, c0) into (h, c)."""
    n = p.size(c)
    g = p.register(n, 4)
    gates(p, g, "gates", 4, sources, h0)
    p.emit("LSTM", g, g + 1, g + 2, g + 3, c0, c, h, p.register(n))


def ode_lstm(cell: cells.ODELSTMCell) -> Program | None:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, c, proposal, drive = p.state(n), p.state(n), p.register(n), p.register(n)
    lstm(p, [p.input_register], h | BEFORE, c | BEFORE, c, proposal)
    gates(p, drive, "field.gates", 1, [proposal])
    field = TanhField(p, n, "field", drive, damped=True)
    return p if solve(p, cell.solver, field, n, h | BEFORE, h) else None


def augmented_lstm(cell: cells.AugmentedLSTMCell) -> Program:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, c, gap = p.state(n), p.state(n), p.register(1)
    p.emit("Gap", gap)
    lstm(p, [p.input_register, gap], h | BEFORE, c | BEFORE, c, h)
    return p


def autonomous_ode_lstm(cell: cells.AutonomousODELSTMCell) -> Program | None:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, c, proposal = p.state(n), p.state(n), p.register(n)
    lstm(p, [p.input_register], h | BEFORE, c | BEFORE, c, proposal)
    return p if solve_mlp(p, cell.solver, "field", proposal, h) else None


def driven(cell: cells.CTRNNCell | cells.ODERNNCell) -> Program | None:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, drive = p.state(n), p.register(n)
    gates(p, drive, "field.gates", 1, [p.input_register])
    field = TanhField(p, n, "field", drive, damped=isinstance(cell, cells.CTRNNCell))
    return p if solve(p, cell.solver, field, n, h | BEFORE, h) else None


def gru_ode(cell: cells.GRUODECell) -> Program | None:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, drive = p.state(n), p.register(n, 3)
    gates(p, drive, "field.gates", 2, [p.input_register])
    gates(p, drive + 2, "field.candidate", 1, [p.input_register])
    return p if solve(p, cell.solver, GRUField(p, n, "field", drive), n, h | BEFORE, h) else None


def jump_ode_rnn(cell: cells.JumpODERNNCell) -> Program | None:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, flowed, jump = p.state(n), p.register(n), p.register(n)
    if not solve_mlp(p, cell.solver, "field", h | BEFORE, flowed):
        return None
    gates(p, jump, "jump", 1, [p.input_register], flowed)
    p.emit("Tanh", h, jump)
    return p


def coupled(cell: cells.CoupledLSTMODERNNCell) -> Program | None:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, c, short, ode = (p.state(n) for _ in range(4))
    drive = p.register(n)
    gates(p, drive, "field.gates", 1, [p.input_register, short | BEFORE])
    lstm(p, [p.input_register, ode | BEFORE], short | BEFORE, c | BEFORE, c, short)
    field = TanhField(p, n, "field", drive, damped=False)
    if not solve(p, cell.solver, field, n, ode | BEFORE, ode):
        return None
    p.emit("Add", h, short, ode)
    return p


def rnn_decay(cell: cells.RNNDecayCell) -> Program:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, faded, u = p.state(n), p.register(n), p.register(n)
    p.emit("Decay", h | BEFORE, faded, parameters=[p.vector("decay", n, transform="softplus")])
    gates(p, u, "gates", 1, [p.input_register], faded)
    p.emit("Tanh", h, u)
    return p


def ct_lstm(cell: cells.CTLSTMCell) -> Program:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, c, target, rate, gate = (p.state(n) for _ in range(5))
    c1, h1, g = p.register(n), p.register(n), p.register(n, 7)
    p.emit("MemoryDecay", c | BEFORE, target | BEFORE, rate | BEFORE, gate | BEFORE, c1, h1)
    gates(p, g, "gates", 7, [p.input_register], h1)
    p.emit("MemoryUpdate", *range(g, g + 7), c1, target | BEFORE, h, c, target, rate, gate)
    return p


def phased_lstm(cell: cells.PhasedLSTMCell) -> Program:
    n, p = cell.hidden_size, Program(cell.input_size)
    h, c, clock = p.state(n), p.state(n), p.state(2)
    phase, c1, h1 = p.register(n), p.register(n), p.register(n)
    p.emit("Clock", clock, clock | BEFORE)
    p.emit(
        "Phase", phase, clock, parameters=[p.vector("log_period", n, transform="exp"), p.vector("shift", n)]
    )
    lstm(p, [p.input_register], h | BEFORE, c | BEFORE, c1, h1)
    numbers = [cell.ratio_on, cell.leak]
    p.emit("PhasedBlend", phase, c | BEFORE, h | BEFORE, c1, h1, c, h, numbers=numbers)
    return p


def gru_d(cell: cells.GRUDCell) -> Program:
    n, i = cell.hidden_size, cell.input_size
    p = Program(i, input_segments=2)
    h, last, since = p.state(n), p.state(i), p.state(i)
    x, m = p.input_register, p.input_register + 1
    since1, x_hat, fading, h1, candidate = (p.register(size) for size in (i, i, n, n, n))
    reset, g = p.register(n), p.register(n, 2)
    p.emit("Tick", since1, since | BEFORE)
    weight = p.matrix("hidden_decay.weight", n, i)
    p.linear(fading, (since1, weight), bias=p.vector("hidden_decay.bias", n))
    p.emit("Fade", fading, h | BEFORE, h1)
    vectors = [p.vector(name, i) for name in ("input_decay_weight", "input_decay_bias", "input_mean")]
    p.emit("Impute", x, m, since1, last | BEFORE, x_hat, last, since, parameters=vectors)
    gates(p, g, "gates", 2, [x_hat, m], h1)
    p.emit("Reset", g + 1, h1, reset)
    gates(p, candidate, "candidate", 1, [x_hat, m], reset)
    p.emit("Blend", g, candidate, h1, h)
    return p


def ct_gru(cell: cells.CTGRUCell) -> Program | None:
    n, count, p = cell.hidden_size, len(cell.log_timescales), Program(cell.input_size)
    if count > 32:  # kMostScales
        return None
    x, number = p.input_register, [count]
    scales = [p.vector("log_timescales", count)]
    h, traces = p.state(n), p.interleaved_state(n, count)
    traces1, h1, read, q, g = (
        p.register(n, count),
        p.register(n),
        p.register(n),
        p.register(n),
        p.register(n, 2),
    )
    p.emit("TraceDecay", traces | BEFORE, traces1, h1, parameters=scales, numbers=number)
    gates(p, g, "gates", 2, [x], h1)
    p.emit("TraceRead", g, traces1, read, parameters=scales, numbers=number)
    u = p.register(n)
    gates(p, u, "candidate", 1, [x], read)
    p.emit("Tanh", q, u)
    p.emit("TraceStore", g + 1, q, traces1, traces, h, parameters=scales, numbers=number)
    for op in p.ops:
        places = {"TraceDecay": (0, 1), "TraceRead": (1,), "TraceStore": (2, 3)}.get(op.name, ())
        op.groups = op.groups or dict.fromkeys(places, count)
    return p


STEPS: dict[type[Cell], Callable[[Any], Program | None]] = {
    cells.ODELSTMCell: ode_lstm,
    cells.AutonomousODELSTMCell: autonomous_ode_lstm,
    cells.AugmentedLSTMCell: augmented_lstm,
    cells.CTRNNCell: driven,
    cells.ODERNNCell: driven,
    cells.JumpODERNNCell: jump_ode_rnn,
    cells.CoupledLSTMODERNNCell: coupled,
    cells.GRUODECell: gru_ode,
    cells.GRUDCell: gru_d,
    cells.CTGRUCell: ct_gru,
    cells.RNNDecayCell: rnn_decay,
    cells.CTLSTMCell: ct_lstm,
    cells.PhasedLSTMCell: phased_lstm,
}
