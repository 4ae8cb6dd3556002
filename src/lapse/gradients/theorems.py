"""Theorems 1, 2 and 3 of the paper as experiments: what they say, computed on the library's own cells.

Time has no unit of its own here: "one unit" is whatever the damping τ = 1 is counted in. Spans and gaps below are in
that unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapse.gradients.flow import error_flow
from lapse.gradients.jacobians import state_jacobian
from lapse.models import registry
from lapse.recurrent import ODELSTM, RNN, Cell, CTRNNCell, State
from lapse.solvers import DOPRI5, EULER, RK4, Adaptive, FixedStep, Solver

# Not 0: step control looks at the error of the state alone, and a state at rest has none, so that an adaptive solver
# crosses any span in one step there and its Jacobian is off by as much as that step is too long.
NEAR_REST = 1e-3

# Two units with these recurrent weights, τ = 1 and no input, near h = 0, where the field is linear: its Jacobian is
# R − 1, with both eigenvalues' real part ξ. "rotate" is the case that Theorem 1 leaves out: the state moves, and the
# Jacobian is orthogonal, so that nothing is lost.
REGIMES: dict[str, tuple[list[list[float]], float]] = {
    "vanish": ([[0.5, 0.0], [0.0, 0.5]], -0.5),
    "stay": ([[1.0, 0.0], [0.0, 1.0]], 0.0),
    "rotate": ([[1.0, 1.0], [-1.0, 1.0]], 0.0),
    "explode": ([[1.5, 0.0], [0.0, 1.5]], 0.5),
}

# The three kinds of solver that Theorem 1 speaks of.
THEOREM1_SOLVERS: dict[str, Solver] = {
    "euler": FixedStep(EULER, steps=16),
    "rk4": FixedStep(RK4, steps=16),
    "adaptive": Adaptive(DOPRI5, rtol=1e-8, atol=1e-12),
}


def regime_cell(regime: str, solver: Solver) -> CTRNNCell:
    """The ODE-RNN of Eq. 1 (τ = 1) with the two-unit weights of one of ``REGIMES``, in float64."""
    if regime not in REGIMES:
        raise ValueError(f"regime must be one of {', '.join(REGIMES)}, got {regime!r}")
    cell = CTRNNCell(1, 2, solver=solver).double()
    # The damping's start is rounded to float32, which would show as an error of 1e-8 in ξ.
    decay = torch.full((2,), math.log(math.expm1(1.0)), dtype=torch.float64)
    with torch.no_grad():
        cell.field.gates.weight_hh.copy_(torch.tensor(REGIMES[regime][0], dtype=torch.float64))
        cell.field.get_parameter("decay").copy_(decay)
    return cell


def solution_jacobians(cell: Cell, spans: Sequence[float], start: Tensor | None = None) -> Tensor:
    """dh(T)/dh(0) of a cell with one state and no input, for every span T, (len(spans), H, H), by autograd."""
    count = len(spans)
    timespans = torch.tensor(spans, dtype=torch.float64)
    h = torch.full((cell.hidden_size,), NEAR_REST, dtype=torch.float64) if start is None else start.double()
    input = torch.zeros(count, cell.input_size, dtype=torch.float64)
    return state_jacobian(cell, input, (h.expand(count, -1).contiguous(),), timespans)


@dataclass(frozen=True)
class Growth:
    """Theorem 1: spectral norm of dh(T)/dh(0) over spans, and the exponent fitted to it."""

    regime: str
    solver: str
    spans: Tensor  # (S,)
    norms: Tensor  # (S,)
    xi: float  # the exponent of the exact solution

    @property
    def fitted(self) -> float:
        """The slope of ln ‖dh(T)/dh(0)‖ against T, least squares."""
        return slope(self.spans, self.norms.log())


def growth(regime: str, solver: str, spans: Sequence[float]) -> Growth:
    """Error flow of the ODE-RNN in one regime under one kind of solver."""
    jacobians = solution_jacobians(regime_cell(regime, THEOREM1_SOLVERS[solver]), spans)
    norms = torch.linalg.matrix_norm(jacobians, 2)
    return Growth(regime, solver, torch.tensor(spans, dtype=torch.float64), norms, REGIMES[regime][1])


@dataclass(frozen=True)
class Refinement:
    """Theorem 2: the factor of n sub-steps against the factor e^{Tξ} of the exact solution, as n grows."""

    regime: str
    method: str
    steps: Tensor  # (K,)
    norms: Tensor  # (K,)
    limit: float

    @property
    def error(self) -> Tensor:
        """Relative distance from the limit, (K,)."""
        return (self.norms / self.limit - 1).abs()

    @property
    def order(self) -> float:
        """The fitted order of convergence: the error falls as n to minus this."""
        return -slope(self.steps.log(), self.error.log())


def refinement(regime: str, solver: FixedStep, steps: Sequence[int], timespan: float = 4.0) -> Refinement:
    """The method of ``solver`` with ever more sub-steps over one span: n → ∞ converges to e^{Tξ}, it cures nothing."""
    norms = []
    for count in steps:
        cell = regime_cell(regime, FixedStep(solver.tableau, count))
        jacobian = solution_jacobians(cell, [timespan], torch.zeros(2))[0]
        norms.append(torch.linalg.matrix_norm(jacobian, 2))
    limit = math.exp(timespan * REGIMES[regime][1])
    counts = torch.tensor(steps, dtype=torch.float64)
    return Refinement(regime, solver.tableau.name, counts, torch.stack(norms), limit)


def slope(x: Tensor, y: Tensor) -> float:
    """Of the straight line through the points, least squares."""
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def has_lstm_gates(cell: Cell) -> bool:
    """Whether a cell writes to a memory through an LSTM's gates."""
    return hasattr(getattr(cell, "gates", None), "memorise")


def start_near_zero(cell: Any, *, forget_bias: float = 1.0) -> None:
    """The assumption of Theorem 3 taken at its word: R_z, R_i, R_f, W_f and b_f exactly 0, but for the constant.

    The paper adds the constant 1 to b_f; here it is where the forget bias starts (`lapse.recurrent.cell.LSTMGates`).
    """
    if not has_lstm_gates(cell):
        raise TypeError(
            f"Theorem 3 speaks of an LSTM's gates, and {type(cell).__name__} has none; "
            "use an LSTM, for example `lapse.recurrent.ODELSTMCell`"
        )
    size, gates = cell.hidden_size, cell.gates
    with torch.no_grad():
        gates.weight_hh[: 3 * size] = 0.0  # the rows of i, f and z
        gates.weight_ih[size : 2 * size] = 0.0
        gates.bias[size : 2 * size] = forget_bias


def memory_jacobian(cell: Cell, input: Tensor, state: State, timespan: Tensor) -> Tensor:
    """dc_{t+1}/dc_t with h_t held: diag(f_{t+1}) in every LSTM that leaves its memory alone, (B, H, H)."""
    return state_jacobian(cell, input, state, timespan, of=["c"], wrt=["c"])


def memory_jacobian_through_output(cell: Cell, inputs: Tensor, state: State, timespans: Tensor) -> Tensor:
    """dc_{t+1}/dc_t as the supplement has it, (B, H, H): h_t counts as a function of c_t, through that step's output.

    Two observations, ``inputs`` (2, B, I) and ``timespans`` (2, B). The supplement writes ∂h_t/∂c_t = o_t; in
    Algorithm 1 it is o_t ⊙ (1 − tanh² c_t) and then the ODE's response to its input, which is what is measured here:
    ∂c₂/∂c₁ + ∂c₂/∂h₁ · ∂h₁/∂c₁, where the last is solved from the first step's dependence on its memory.
    """
    _, middle = cell.step(inputs[0], state, timespans[0])
    middle = tuple(part.detach() for part in middle)
    direct = memory_jacobian(cell, inputs[1], middle, timespans[1])
    from_output = state_jacobian(cell, inputs[1], middle, timespans[1], of=["c"], wrt=["h"])
    # h₁ sees c₁ only; dh₁/dc₀ = dh₁/dc₁ · dc₁/dc₀ and dc₁/dc₀ = diag(f₁) is invertible.
    before = {
        part: state_jacobian(cell, inputs[0], state, timespans[0], of=[part], wrt=["c"]) for part in "hc"
    }
    through: Tensor = from_output @ before["h"] @ torch.linalg.inv(before["c"])
    return direct + through


def irregular_batch(
    rows: int, steps: int, input_size: int, *, mean_gaps: Sequence[float] = (1.0,), seed: int = 0
) -> dict[str, Tensor]:
    """Standard normal inputs at random times, float64: gaps are exponential, so observations come as a Poisson process.

    ``mean_gaps`` are in units of time; rows take them in turn, ``rows`` of each.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor(mean_gaps, dtype=torch.float64).repeat_interleave(rows).unsqueeze(1)
    uniform = torch.rand(rows * len(mean_gaps), steps, generator=generator, dtype=torch.float64)
    input = torch.randn(rows * len(mean_gaps), steps, input_size, generator=generator, dtype=torch.float64)
    return {"input": input, "timespans": -torch.log1p(-uniform) * scale}


def make_layer(model: str, input_size: int, hidden_size: int, *, seed: int = 0) -> RNN:
    """A layer of the registry in float64 with the weights it starts from, in the form that the paper analyses.

    Args:
        model: The name of the model.
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        seed: Decides the weights.
    """
    layer = registry.find_layer(model)
    make: Callable[..., RNN] = layer  # every entry brings its own cell
    form = {name: value for name, value in layer.paper_options.items() if name == "form"}
    torch.manual_seed(seed)
    return make(input_size, hidden_size, **form).double()


@dataclass(frozen=True)
class LagFlow:
    """Figure 1's quantity for one model: |dL/ds| k steps before the loss, by mean gap, (rows, lags + 1) each."""

    model: str
    by_gap: Mapping[float, Tensor]

    def median(self, gap: float) -> Tensor:
        """Over the rows, (lags + 1,)."""
        return self.by_gap[gap].median(0).values

    def quartiles(self, gap: float) -> tuple[Tensor, Tensor]:
        flow = self.by_gap[gap]
        return torch.quantile(flow, 0.25, dim=0), torch.quantile(flow, 0.75, dim=0)


def lag_flow(
    layer: RNN,
    name: str,
    lags: int,
    *,
    mean_gaps: Sequence[float] = (1.0,),
    rows: int = 8,
    seed: int = 0,
    state: str | None = None,
) -> LagFlow:
    """Error flow over ``lags`` steps at random irregular gaps: of the whole state, or of one state by its name."""
    batch = irregular_batch(rows, lags + 1, layer.input_size, mean_gaps=mean_gaps, seed=seed)
    flow = error_flow(layer, batch, generator=torch.Generator().manual_seed(seed))
    by_lag = flow.by_lag(None if state is None else f"cells.0.{state}")
    return LagFlow(name, dict(zip(mean_gaps, by_lag.split(rows), strict=True)))


@dataclass(frozen=True)
class MemoryFlow:
    """Theorem 3 through L steps: the norm of dc_{t+L}/dc_t at the theorem's weights, beside σ(bias)^L."""

    forget_bias: float
    norms: Tensor  # (L,), for 1 … L steps

    @property
    def expected(self) -> Tensor:
        steps = torch.arange(1, len(self.norms) + 1, dtype=torch.float64)
        return torch.sigmoid(torch.tensor(self.forget_bias, dtype=torch.float64)) ** steps


def memory_flow(forget_bias: float, lags: int, *, hidden_size: int = 8, seed: int = 0) -> MemoryFlow:
    """dc_{t+L}/dc_t of an ODE-LSTM that starts as Theorem 3 assumes, over random gaps: the memory sees none of them."""
    torch.manual_seed(seed)
    layer = ODELSTM(4, hidden_size, form="driven", forget_bias=forget_bias).double()
    (cell,) = layer.cells
    assert isinstance(cell, Cell)
    start_near_zero(cell, forget_bias=forget_bias)
    batch = irregular_batch(1, lags, 4, seed=seed)
    state = cell.initial_state(1, dtype=torch.float64)
    # All of c is moved at once and followed with what h makes of it: at these weights dc'/dc is diagonal, so that one
    # vector reads every unit.
    moved = torch.cat([torch.zeros_like(state[0]), torch.ones_like(state[1])], -1)[0]
    norms = []
    for x, gap in zip(batch["input"].unbind(1), batch["timespans"].unbind(1), strict=True):
        moved = state_jacobian(cell, x, state, gap)[0] @ moved
        state = tuple(part.detach() for part in cell.step(x, state, gap)[1])
        norms.append(moved[hidden_size:].abs().max())
    return MemoryFlow(forget_bias, torch.stack(norms))


@dataclass(frozen=True)
class MemoryStart:
    """How near Theorem 3 an ODE-LSTM starts: its memory path over one step, and what reaches far back."""

    forget_bias: float
    start: str
    direct_min: float  # of the forget gate dc'/dc, over units
    direct_max: float
    row_sum_min: float  # of dc'/dc with the path through h, as in the supplement
    row_sum_max: float
    lag: int
    flow: float  # |dL/ds| of the whole state at that lag, median row
    memory_flow: float  # |dL/dc|


def memory_start(
    forget_bias: float, lag: int, *, near_zero: bool, hidden_size: int = 128, seed: int = 0
) -> MemoryStart:
    """With the weights the library starts from, or (``near_zero``) those that the theorem assumes."""
    torch.manual_seed(seed)
    layer = ODELSTM(4, hidden_size, form="driven", forget_bias=forget_bias).double()
    (cell,) = layer.cells
    assert isinstance(cell, Cell)
    if near_zero:
        start_near_zero(cell, forget_bias=forget_bias)
    direct, through = _memory_step(cell, seed)
    flows = [
        lag_flow(layer, "ode-lstm", lag, seed=seed, state=state).median(1.0)[lag] for state in (None, "c")
    ]
    gates, sums = direct.diagonal().aminmax(), through.sum(-1).aminmax()
    return MemoryStart(
        forget_bias=forget_bias,
        start="theorem" if near_zero else "library",
        direct_min=float(gates.min),
        direct_max=float(gates.max),
        row_sum_min=float(sums.min),
        row_sum_max=float(sums.max),
        lag=lag,
        flow=float(flows[0]),
        memory_flow=float(flows[1]),
    )


def _memory_step(cell: Cell, seed: int, after: int = 20) -> tuple[Tensor, Tensor]:
    """dc'/dc (H, H) some observations into a sequence: with h held, and through it."""
    batch = irregular_batch(1, after + 2, cell.input_size, seed=seed)
    input, timespans = batch["input"].unbind(1), batch["timespans"].unbind(1)
    state = cell.initial_state(1, dtype=torch.float64)
    for x, gap in zip(input[:after], timespans[:after], strict=True):
        state = tuple(part.detach() for part in cell.step(x, state, gap)[1])
    direct = memory_jacobian(cell, input[after], state, timespans[after])
    pair = torch.stack(input[after:]), torch.stack(timespans[after:])
    return direct[0], memory_jacobian_through_output(cell, pair[0], state, pair[1])[0]


def forget_bias_for(lag: int, keep: float = 0.1) -> float:
    """The forget bias at which a share ``keep`` of the error is left after ``lag`` steps: σ(b)^lag = keep."""
    if lag < 1 or not 0 < keep < 1:
        raise ValueError(f"lag must be at least 1 and keep between 0 and 1, got {lag} and {keep}")
    factor = keep ** (1 / lag)
    return math.log(factor / (1 - factor))
