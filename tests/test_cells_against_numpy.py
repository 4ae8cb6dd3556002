"""Every cell equals an independent transcription of its equations, row by row, over uneven gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from lapse import recurrent
from lapse.solvers import EULER, HEUN, RK4, FixedStep, Solver

ROWS, STEPS, INPUT, HIDDEN = 4, 6, 3, 5

# A gap of 0, one that is lost beside 1, and long ones. An explicit step multiplies the rounding errors of a long gap
# by powers of rate · gap, so its longest gap is one where it is still stable.
ANY_GAP = (0.0, 1e-9, 0.03, 0.7, 2.5, 40.0, 1e4)
EXPLICIT_GAP = (0.0, 1e-9, 0.03, 0.4, 1.1, 2.5)


@dataclass(frozen=True)
class Case:
    cell: type[recurrent.Cell]
    oracle: type[oracles.Oracle]
    solve: oracles.Solve | None = None
    solver: Solver | None = None  # None: the cell's default
    gaps: tuple[float, ...] = ANY_GAP
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, dtype: torch.dtype) -> recurrent.Cell:
        torch.manual_seed(0)
        options = self.options if self.solver is None else {**self.options, "solver": self.solver}
        make: Callable[..., recurrent.Cell] = self.cell
        cell = make(INPUT, HIDDEN, **options).to(dtype)
        with torch.no_grad():
            for weight in (*cell.parameters(), *(b for n, b in cell.named_buffers() if n == "input_mean")):
                weight.copy_(torch.randn(weight.shape, dtype=torch.float64) * 0.6)
        return cell

    def transcribe(self, cell: recurrent.Cell) -> oracles.Oracle:
        weights = {name: w.detach().double().numpy() for name, w in cell.state_dict().items()}
        return self.oracle(weights, HIDDEN, self.solve)


class HalfOpen(oracles.PhasedLSTM):
    ratio_on, leak = 0.5, 0.01


PAPER_RK4, PAPER_EULER = FixedStep(RK4, steps=3), FixedStep(EULER, steps=4)
CASES = {
    "ode-lstm": Case(recurrent.ODELSTMCell, oracles.ODELSTM, oracles.exponential(4)),
    "ode-lstm, paper": Case(
        recurrent.ODELSTMCell, oracles.ODELSTM, oracles.euler(4), PAPER_EULER, EXPLICIT_GAP
    ),
    "ode-lstm autonomous": Case(
        recurrent.AutonomousODELSTMCell, oracles.AutonomousODELSTM, oracles.euler(4), None, EXPLICIT_GAP
    ),
    "ct-rnn": Case(recurrent.CTRNNCell, oracles.CTRNN, oracles.exponential(4)),
    "ct-rnn, paper": Case(recurrent.CTRNNCell, oracles.CTRNN, oracles.rk4(3), PAPER_RK4, EXPLICIT_GAP),
    "ct-rnn, heun": Case(
        recurrent.CTRNNCell, oracles.CTRNN, oracles.heun(5), FixedStep(HEUN, steps=5), EXPLICIT_GAP
    ),
    "ode-rnn": Case(recurrent.ODERNNCell, oracles.ODERNN, oracles.rk4(3), None, EXPLICIT_GAP),
    "ode-rnn jump": Case(recurrent.JumpODERNNCell, oracles.JumpODERNN, oracles.rk4(3), None, EXPLICIT_GAP),
    "lstm": Case(recurrent.AugmentedLSTMCell, oracles.AugmentedLSTM),
    "ct-gru": Case(recurrent.CTGRUCell, oracles.CTGRU),
    "rnn-decay": Case(recurrent.RNNDecayCell, oracles.RNNDecay),
    "bidirectional": Case(
        recurrent.CoupledLSTMODERNNCell, oracles.CoupledLSTMODERNN, oracles.rk4(3), None, EXPLICIT_GAP
    ),
    "gru-d": Case(recurrent.GRUDCell, oracles.GRUD),
    "phased-lstm": Case(recurrent.PhasedLSTMCell, oracles.PhasedLSTM),
    "phased-lstm, open half the time": Case(
        recurrent.PhasedLSTMCell, HalfOpen, options={"ratio_on": 0.5, "leak": 0.01}
    ),
    "gru-ode": Case(recurrent.GRUODECell, oracles.GRUODE, oracles.exponential(4)),
    "gru-ode, paper": Case(recurrent.GRUODECell, oracles.GRUODE, oracles.euler(4), PAPER_EULER, EXPLICIT_GAP),
    "ct-lstm": Case(recurrent.CTLSTMCell, oracles.CTLSTM),
}


def observations(case: Case, dtype: torch.dtype, seed: int, missing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Values (B, T, I), which of them are observed (B, T, I), and gaps (B, T): each row its own order of gaps."""
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(size=(ROWS, STEPS, INPUT)))
    observed = torch.from_numpy(rng.random((ROWS, STEPS, INPUT)) >= missing)
    gaps = np.stack([rng.permutation(case.gaps)[:STEPS] for _ in range(ROWS)])
    return values.to(dtype), observed, torch.from_numpy(gaps).to(dtype)


def relative_error(ours: Tensor, theirs: np.ndarray) -> float:
    """Relative for what is larger than 1, absolute for what is smaller."""
    scale = np.maximum(1.0, np.abs(theirs))
    return float(np.max(np.abs(ours.detach().double().numpy() - theirs) / scale))


def worst_error(case: Case, dtype: torch.dtype, seed: int, missing: float = 0.0) -> dict[str, float]:
    """The largest relative error over rows and steps, of the outputs, of each state, and of ``flow`` after each."""
    cell = case.make(dtype)
    oracle = case.transcribe(cell)
    values, observed, gaps = observations(case, dtype, seed, missing)
    # Poison what must not be looked at.
    values = values.masked_fill(~observed, torch.nan)
    inputs = cell.step_input(values, observed if cell.takes_missing else None)
    state = cell.initial_state(ROWS, dtype=dtype)
    expected = [oracle.initial() for _ in range(ROWS)]
    errors: dict[str, float] = {}

    def compare(name: str, ours: Tensor, theirs: list[np.ndarray]) -> None:
        if name.endswith("clock"):  # in two parts, and what they are together is what counts
            ours = ours.double().sum(-1, keepdim=True)
        assert ours.shape == (ROWS, len(theirs[0])), name
        errors[name] = max(errors.get(name, 0.0), relative_error(ours, np.stack(theirs)))

    for t in range(STEPS):
        output, state = cell.step(inputs[:, t], state, gaps[:, t])
        stepped = [
            oracle.step(inputs[row, t].double().numpy(), expected[row], float(gaps[row, t]))
            for row in range(ROWS)
        ]
        expected = [row_state for _, row_state in stepped]
        compare("output", output, [row_output for row_output, _ in stepped])
        for k, name in enumerate(cell.state_names):
            compare(name, state[k], [row_state[k] for row_state in expected])

        later, flowed = cell.flow(state, gaps[:, t - 1])
        theirs = [oracle.flow(expected[row], float(gaps[row, t - 1])) for row in range(ROWS)]
        compare("flow output", later, [row_output for row_output, _ in theirs])
        for k, name in enumerate(cell.state_names):
            compare(f"flow {name}", flowed[k], [row_state[k] for _, row_state in theirs])
    return errors


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_float64(name: str, seed: int) -> None:
    errors = worst_error(CASES[name], torch.float64, seed)
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_float32(name: str, seed: int) -> None:
    errors = worst_error(CASES[name], torch.float32, seed)
    assert max(errors.values()) < 1e-6, errors


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("missing", [0.4, 0.9, 1.0])
def test_gru_d_with_missing_features(missing: float, dtype: torch.dtype, tolerance: float) -> None:
    errors = worst_error(CASES["gru-d"], dtype, 4, missing)
    assert max(errors.values()) < tolerance, errors


def test_phased_lstm_opens_and_closes() -> None:
    """All three branches of the gate, at absolute times before, at and long after the shift."""
    case = CASES["phased-lstm"]
    cell = case.make(torch.float64)
    assert isinstance(cell, recurrent.PhasedLSTMCell)
    oracle = case.transcribe(cell)
    assert isinstance(oracle, oracles.PhasedLSTM)
    times = torch.cat([torch.linspace(0, 10, 1001), torch.linspace(1e3, 1e3 + 3, 301)]).double()
    openness = cell.openness(times.unsqueeze(-1)).detach().numpy()
    expected = np.array([[oracle.openness(unit, float(t)) for unit in range(HIDDEN)] for t in times])
    np.testing.assert_allclose(
        openness, expected, rtol=0, atol=1e-11
    )  # a clock of 1e3 rounds by 1e-13, times 40
    assert openness.max() > 0.9
    open_share = (openness > cell.leak).mean()
    assert 0.04 < open_share < 0.06  # ratio_on


def test_every_cell_is_covered() -> None:
    exported = {c for c in vars(recurrent).values() if isinstance(c, type) and issubclass(c, recurrent.Cell)}
    assert {case.cell for case in CASES.values()} == exported - {recurrent.Cell}
