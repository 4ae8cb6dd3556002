"""The paper's mathematics, asserted: lemmas, Definition 1, the three theorems, the adjoint."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from lapse.gradients import (
    euler_jacobian,
    field_jacobian,
    forget_bias_for,
    held_stages_jacobian,
    judge,
    log_product_norms,
    runge_kutta_jacobian,
    state_jacobian,
)
from lapse.gradients.adjoint import adjoint_gap, memory_gap
from lapse.gradients.jacobians import jacobians_along, lemma_gap
from lapse.gradients.theorems import (
    REGIMES,
    THEOREM1_SOLVERS,
    growth,
    irregular_batch,
    lag_flow,
    make_layer,
    memory_flow,
    memory_jacobian,
    memory_jacobian_through_output,
    memory_start,
    refinement,
    regime_cell,
    slope,
    solution_jacobians,
    start_near_zero,
)
from lapse.models.registry import layers
from lapse.recurrent import (
    AugmentedLSTMCell,
    Cell,
    CTRNNCell,
    GRUDCell,
    JumpODELSTMCell,
    ODELSTMCell,
    ODERNNCell,
)
from lapse.solvers import DOPRI5, EULER, HEUN, RK4, Adaptive, Adjoint, FixedStep, Tableau

CELLS = {"damped": CTRNNCell, "undamped": ODERNNCell}
SIGMA_1 = 0.7310585786300049


def driven(
    kind: str, tableau: Tableau, *, size: int = 6, rows: int = 5
) -> tuple[Cell, Tensor, Tensor, Tensor]:
    """A cell of one step of a method, away from symmetric weights, with inputs, states and spans."""
    torch.manual_seed(3)
    cell = CELLS[kind](2, size, solver=FixedStep(tableau, steps=1)).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    x, h = torch.randn(rows, 2, dtype=torch.float64), torch.randn(rows, size, dtype=torch.float64)
    return cell, x, h, torch.rand(rows, dtype=torch.float64) * 3


@pytest.mark.parametrize("kind", CELLS)
def test_lemma_1_is_the_jacobian_of_an_euler_step(kind):
    cell, x, h, spans = driven(kind, EULER)
    measured = state_jacobian(cell, x, (h,), spans)
    closed = euler_jacobian(cell.field, h, cell.field.drive(x), spans)
    torch.testing.assert_close(closed, measured, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("tableau", [EULER, HEUN, RK4, DOPRI5], ids=lambda t: t.name)
def test_corrected_lemma_2_is_the_jacobian_of_a_runge_kutta_step(kind, tableau):
    cell, x, h, spans = driven(kind, tableau)
    measured = state_jacobian(cell, x, (h,), spans)
    closed = runge_kutta_jacobian(tableau, cell.field, h, cell.field.drive(x), spans)
    torch.testing.assert_close(closed, measured, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("tableau", [HEUN, RK4, DOPRI5], ids=lambda t: t.name)
def test_printed_lemma_2_misses_the_stages_from_the_second_order_on(tableau):
    """Its error is T²/2 · J² for small T: a hundred times smaller for a ten times shorter step, and never 0."""
    cell, x, h, _ = driven("damped", tableau, rows=1)
    drive, field = cell.field.drive(x), cell.field
    spans = torch.tensor([1e-3, 1e-2, 1.0], dtype=torch.float64)
    error = lemma_gap(tableau, field, h.expand(3, -1), drive.expand(3, -1), spans).relative_error
    assert 85 < error[1] / error[0] < 115
    (jacobian,) = field_jacobian(field, h, drive)
    square = float(torch.linalg.matrix_norm(jacobian @ jacobian, 2))
    assert float(error[0]) == pytest.approx(0.5e-6 * square, rel=0.05)
    assert error[2] > 0.1


def test_printed_lemma_2_is_right_for_euler():
    cell, x, h, spans = driven("damped", EULER)
    drive = cell.field.drive(x)
    printed = held_stages_jacobian(EULER, cell.field, h, drive, spans)
    torch.testing.assert_close(printed, euler_jacobian(cell.field, h, drive, spans))


@pytest.mark.parametrize("name", layers())
def test_state_jacobian_is_that_of_finite_differences(name):
    cell = make_layer(name, 3, 4).cells[0]
    torch.manual_seed(1)
    state = tuple(torch.rand(2, size, dtype=torch.float64) for size in cell.state_sizes)
    x = cell.step_input(torch.randn(2, 3, dtype=torch.float64), None)
    spans = torch.tensor([0.3, 1.7], dtype=torch.float64)
    names = [n for n in cell.state_names if n not in ("clock", "since", "last")]
    jacobian = state_jacobian(cell, x, state, spans, of=names, wrt=names)
    places = [cell.state_names.index(n) for n in names]
    direction = [torch.randn_like(state[p]) for p in places]

    def moved(by: float) -> Tensor:
        parts = list(state)
        for p, d in zip(places, direction, strict=True):
            parts[p] = parts[p] + by * d
        return torch.cat([cell.step(x, tuple(parts), spans)[1][p] for p in places], -1).detach()

    expected = (moved(1e-6) - moved(-1e-6)) / 2e-6
    got = (jacobian @ torch.cat(direction, -1).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_state_jacobian_works_for_adaptive_steps_and_names_wrong_states():
    cell = CTRNNCell(2, 3, solver=Adaptive()).double()
    x, h = torch.randn(2, 2, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    assert state_jacobian(cell, x, (h,), torch.ones(2, dtype=torch.float64)).shape == (2, 3, 3)
    with pytest.raises(ValueError, match=r"wrt must name states of CTRNNCell, \['h'\], got \['c'\]"):
        state_jacobian(cell, x, (h,), torch.ones(2), wrt=["c"])


def test_definition_1_counts_units_and_its_signed_sum_can_cancel():
    angle = math.pi / 4
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    verdict = judge(turn)
    # A rotation loses nothing, and by the definition one of its units vanishes while the other explodes.
    assert verdict.vanishing.tolist() == [True, False]
    assert verdict.exploding.tolist() == [False, True]
    assert float(verdict.spectral_norm) == pytest.approx(1.0)


def test_one_factor_of_sigma_1_is_vanishing_for_any_epsilon_below_0_269():
    factor = SIGMA_1 * torch.eye(3)
    assert judge(factor, epsilon=0.268).vanishing.all()
    assert not judge(factor, epsilon=0.27).vanishing.any()
    assert not judge(factor, epsilon=0.268).exploding.any()


@pytest.mark.parametrize(
    ("jacobian", "epsilon", "message"),
    [(torch.ones(2, 3), 0.1, "square"), (torch.eye(2), 0.0, "epsilon must lie between 0 and 1")],
)
def test_judge_refuses(jacobian, epsilon, message):
    with pytest.raises(ValueError, match=message):
        judge(jacobian, epsilon)


def test_products_survive_what_a_float_cannot_hold():
    logs = log_product_norms([1e-3 * torch.eye(2, dtype=torch.float64)] * 256)
    assert float(logs[-1]) == pytest.approx(256 * math.log(1e-3))
    with pytest.raises(ValueError, match="at least one"):
        log_product_norms([])


@pytest.mark.parametrize(("name", "size"), [("gru-d", 3), ("phased-lstm", 6)])
def test_jacobians_along_leave_clocks_out(name, size):
    cell = make_layer(name, 2, 3).cells[0]
    jacobians = jacobians_along(cell, **irregular_batch(1, 4, 2))
    assert [tuple(j.shape) for j in jacobians] == [(size, size)] * 3


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("solver", ["rk4", "adaptive"])
def test_theorem_1_the_exponent_is_xi_under_any_accurate_solver(regime, solver):
    result = growth(regime, solver, [0.5, 1.0, 2.0, 3.0, 4.0])
    assert result.fitted == pytest.approx(result.xi, rel=0.02, abs=1e-4)


def test_theorem_1_euler_vanishes_and_explodes_too_and_adds_a_growth_of_its_own():
    spans = [0.5, 1.0, 2.0, 4.0]
    assert growth("vanish", "euler", spans).norms[-1] < 0.2
    assert growth("explode", "euler", spans).norms[-1] > 5
    # A pure rotation: |1 + iT/n|^n = (1 + T²/n²)^{n/2} > 1 at n = 16 sub-steps.
    expected = (1 + (4.0 / 16) ** 2) ** 8
    assert float(growth("rotate", "euler", spans).norms[-1]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("regime", ["vanish", "explode"])
@pytest.mark.parametrize(("tableau", "steps"), [(EULER, (64, 128, 256, 512)), (RK4, (8, 16, 32, 64))])
def test_theorem_2_refinement_converges_to_e_to_the_t_xi(regime, tableau, steps):
    result = refinement(regime, FixedStep(tableau), steps, timespan=4.0)
    assert result.limit == pytest.approx(math.exp(4.0 * REGIMES[regime][1]))
    assert result.order == pytest.approx(tableau.order, rel=0.05)
    assert result.error[-1] < 0.01


@pytest.mark.parametrize("regime", ["vanish", "explode"])
def test_theorem_2_the_exponent_of_fine_euler_steps_is_xi_within_2_percent(regime):
    cell = regime_cell(regime, FixedStep(EULER, steps=512))
    spans = [1.0, 2.0, 3.0, 4.0]
    norms = torch.linalg.matrix_norm(solution_jacobians(cell, spans), 2)
    assert slope(torch.tensor(spans), norms.log()) == pytest.approx(REGIMES[regime][1], rel=0.02)


def test_theorem_2_away_from_rest_the_factor_is_the_ratio_of_the_slopes():
    """A scalar dh/dt = g(h) has dh(T)/dh(0) = g(h(T))/g(h(0)): exact, with ∂f/∂h changing along the way."""
    torch.manual_seed(0)
    cell = CTRNNCell(1, 1, solver=Adaptive(rtol=1e-10, atol=1e-12)).double()
    start, span = torch.tensor([0.8]).double(), torch.tensor([1.5]).double()
    x = torch.zeros(1, 1).double()
    with torch.no_grad():
        cell.field.gates.bias.fill_(0.7)
    jacobian = solution_jacobians(cell, [1.5], start)
    _, (end,) = cell.step(x, (start.expand(1, -1),), span)
    drive = cell.field.drive(x)
    ratio = cell.field(end, drive) / cell.field(start.expand(1, -1), drive)
    torch.testing.assert_close(jacobian.squeeze(), ratio.detach().squeeze(), rtol=1e-7, atol=0)


def test_an_adaptive_solver_at_rest_steps_over_the_jacobian():
    """A state at rest has no error to control: one step, and a Jacobian that is 28 % off."""
    cell = regime_cell("vanish", THEOREM1_SOLVERS["adaptive"])
    norm = torch.linalg.matrix_norm(solution_jacobians(cell, [4.0], torch.zeros(2))[0], 2)
    assert float(norm) / math.exp(-2.0) == pytest.approx(1.28, abs=0.01)


def ode_lstm(size: int = 8) -> ODELSTMCell:
    torch.manual_seed(0)
    return ODELSTMCell(4, size).double()


@pytest.mark.parametrize("kind", [ODELSTMCell, JumpODELSTMCell])
@pytest.mark.parametrize("gap", [0.0, 0.1, 1.0, 1000.0])
def test_theorem_3_the_memory_keeps_sigma_of_the_forget_bias_whatever_the_gap(gap, kind):
    torch.manual_seed(0)
    cell = kind(4, 8).double()
    start_near_zero(cell)
    torch.manual_seed(2)
    state = tuple(torch.randn(3, 8, dtype=torch.float64) for _ in range(2))
    inputs, gaps = torch.randn(2, 3, 4, dtype=torch.float64), torch.full((2, 3), gap, dtype=torch.float64)
    expected = 0.7310586 * torch.eye(8, dtype=torch.float64).expand(3, -1, -1)
    direct = memory_jacobian(cell, inputs[0], state, gaps[0])
    through_output = memory_jacobian_through_output(cell, inputs, state, gaps)
    torch.testing.assert_close(direct, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(through_output, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(judge(direct).row_sums, expected.sum(-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("bias", "after_32", "after_256"), [(1.0, 4.4e-5, 1.5e-35), (3.0, 0.21, 4.0e-6), (5.0, 0.81, 0.18)]
)
def test_theorem_3_through_many_steps_only_a_high_forget_bias_is_near_constant(bias, after_32, after_256):
    memory = memory_flow(bias, 256)
    torch.testing.assert_close(memory.norms, memory.expected, rtol=1e-9, atol=0)
    assert float(memory.norms[31]) == pytest.approx(after_32, rel=0.05)
    assert float(memory.norms[255]) == pytest.approx(after_256, rel=0.05)


def test_through_output_is_the_chain_of_two_steps():
    """dc₂/dc₀ by autograd is (dc₂/dc₁ with h₁ a function of c₁) · dc₁/dc₀, at weights that are not 0."""
    cell = ode_lstm()
    torch.manual_seed(2)
    h, c = (torch.randn(1, 8, dtype=torch.float64) for _ in range(2))
    inputs, gaps = torch.randn(2, 1, 4, dtype=torch.float64), torch.rand(2, 1, dtype=torch.float64)

    def two_steps(c: Tensor) -> Tensor:
        _, state = cell.step(inputs[0], (h, c), gaps[0])
        return cell.step(inputs[1], state, gaps[1])[1][1][0]

    expected = torch.func.jacrev(two_steps)(c)[:, 0]
    first = memory_jacobian(cell, inputs[0], (h, c), gaps[0])[0]
    got = memory_jacobian_through_output(cell, inputs, (h, c), gaps)[0] @ first
    torch.testing.assert_close(got, expected.detach(), rtol=1e-8, atol=1e-10)


def test_the_librarys_own_start_is_only_near_the_theorem():
    start = memory_start(1.0, 20, near_zero=False, hidden_size=16)
    assert 0.5 < start.direct_min < SIGMA_1 < start.direct_max < 0.95
    exact = memory_start(1.0, 20, near_zero=True, hidden_size=16)
    assert exact.direct_min == pytest.approx(SIGMA_1, abs=1e-9)
    assert exact.direct_max == pytest.approx(SIGMA_1, abs=1e-9)
    # Much more arrives than the memory path alone can carry: it comes through h.
    assert exact.flow > 5 * SIGMA_1**20


def test_theorem_3_needs_an_lstm():
    start_near_zero(AugmentedLSTMCell(2, 3))
    with pytest.raises(TypeError, match="GRUDCell has none"):
        start_near_zero(GRUDCell(2, 3))


def test_forget_bias_for_a_lag():
    assert forget_bias_for(256) == pytest.approx(4.71, abs=0.01)
    bias = torch.tensor(forget_bias_for(100, keep=0.5), dtype=torch.float64)
    assert float(torch.sigmoid(bias) ** 100) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="lag must be at least 1"):
        forget_bias_for(0)


@cache
def flow_at_lag_100() -> dict[str, float]:
    """Median over 4 starts × 8 sequences of log10 |dL/ds|, 100 observations back: 32 units, mean gap 1."""
    result = {}
    for name in layers():
        flows = [lag_flow(make_layer(name, 4, 32, seed=seed), name, 100, seed=seed) for seed in range(4)]
        result[name] = float(torch.cat([flow.by_gap[1.0][:, 100] for flow in flows]).log10().median())
    return result


# Measured: bidirectional 2.8, ode-rnn 2.7, ct-gru 0.2, phased-lstm −0.6, ode-lstm −1.6, ct-rnn −8.3, lstm −8.6,
# ct-lstm −10.2, gru-ode −12.5, gru-d −17.0, rnn-decay −51.2.
@pytest.mark.parametrize("name", ["ct-rnn", "ct-lstm", "gru-ode", "gru-d", "rnn-decay"])
def test_ordering_these_lose_the_error_that_the_ode_lstm_keeps(name):
    flow = flow_at_lag_100()
    assert flow["ode-lstm"] > -2.5
    assert flow[name] < flow["ode-lstm"] - 5


def test_ordering_the_ode_rnn_explodes():
    flow = flow_at_lag_100()
    assert flow["ode-rnn"] > 1.5
    assert abs(flow["ode-rnn"]) > abs(flow["ode-lstm"])


@pytest.mark.parametrize("name", ["ct-gru", "phased-lstm"])
def test_ordering_these_keep_the_error_where_the_paper_says_they_lose_it(name):
    assert abs(flow_at_lag_100()[name]) < 1


def test_ordering_a_plain_lstm_with_forget_bias_1_loses_it():
    assert flow_at_lag_100()["lstm"] < -7


def test_make_layer_and_regimes_name_what_there_is():
    with pytest.raises(ValueError, match="model must be one of ode-rnn"):
        make_layer("elman", 1, 1)
    with pytest.raises(ValueError, match="regime must be one of vanish"):
        regime_cell("boom", FixedStep())


def test_the_adjoint_drifts_as_the_horizon_grows_and_tightens_with_the_tolerance():
    short, long = adjoint_gap(1.0, 1e-3), adjoint_gap(16.0, 1e-3)
    assert short.error < 2e-3
    assert long.error > 20 * short.error
    assert long.error_of_steps < 2e-3  # the tolerance alone is not to blame
    assert adjoint_gap(8.0, 1e-7).error < 0.01 * adjoint_gap(8.0, 1e-3).error
    # It does not cure the vanishing: it makes it worse.
    assert long.start_norm_adjoint < long.start_norm < 1e-3


def test_the_adjoint_keeps_the_same_memory_for_any_number_of_steps():
    few, many = memory_gap(FixedStep(RK4, 4)), memory_gap(FixedStep(RK4, 64))
    assert few.adjoint == many.adjoint < few.backprop
    assert 15 < many.backprop / few.backprop < 16.5


def test_state_jacobian_is_not_offered_through_the_adjoint():
    cell = CTRNNCell(1, 2, solver=Adjoint(FixedStep())).double()
    h = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        state_jacobian(cell, torch.zeros(1, 1, dtype=torch.float64), (h,), torch.ones(1, dtype=torch.float64))
