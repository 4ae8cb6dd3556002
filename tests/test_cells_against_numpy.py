"""Every cell equals an independent transcription of its equations, row by row, over uneven gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import oracles
from lapse import recurrent
from lapse.solvers import EULER, HEUN, RK4, Exponential, FixedStep, Solver
from lapse.testing import check_equations
from lapse.testing.equations import GAPS

INPUT, HIDDEN = 3, 5

# An explicit step multiplies the rounding errors of a long gap by powers of rate · gap, so its longest gap is one
# where it is still stable.
EXPLICIT_GAP = (0.0, 1e-9, 0.03, 0.4, 1.1, 2.5)
# A gate that opens with rate · gap multiplies the rounding errors of the rate by the gap.
GATED_GAP = (0.0, 1e-9, 0.03, 0.2, 0.4, 1.1)
SMALL = {"backbone_units": 6}


@dataclass(frozen=True)
class Case:
    cell: type[recurrent.Cell]
    oracle: type[oracles.Oracle]
    solve: oracles.Solve | None = None
    solver: Solver | None = None  # None: the cell's default
    gaps: tuple[float, ...] = GAPS
    options: dict[str, Any] = field(default_factory=dict)
    rounding: float = (
        1.0  # more where the state is a sum over the whole path, with the rounding of all its terms
    )

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
    "ode-lstm jump": Case(recurrent.JumpODELSTMCell, oracles.JumpODELSTM, oracles.exponential(4)),
    "ode-lstm jump, euler": Case(
        recurrent.JumpODELSTMCell, oracles.JumpODELSTM, oracles.euler(4), PAPER_EULER, EXPLICIT_GAP
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
    "cfc": Case(recurrent.CfCCell, oracles.CfC, gaps=GATED_GAP, options=SMALL),
    "cfc, three layers": Case(
        recurrent.CfCCell,
        oracles.SiLUCfC,
        gaps=GATED_GAP,
        options={**SMALL, "backbone_layers": 3, "backbone_activation": "silu"},
    ),
    "cfc, no backbone": Case(recurrent.CfCCell, oracles.CfC, gaps=GATED_GAP, options={"backbone_layers": 0}),
    "cfc no-gate": Case(recurrent.NoGateCfCCell, oracles.NoGateCfC, gaps=GATED_GAP, options=SMALL),
    "cfc pure": Case(recurrent.PureCfCCell, oracles.PureCfC, options=SMALL),
    "cfc-mm": Case(recurrent.CfCMemoryCell, oracles.CfCMemory, gaps=GATED_GAP, options=SMALL),
    "cfc-mm carried": Case(
        recurrent.CarriedCfCMemoryCell, oracles.CarriedCfCMemory, gaps=GATED_GAP, options=SMALL
    ),
    "driven memory": Case(
        recurrent.DrivenMemoryCell,
        oracles.DrivenMemory,
        oracles.exponential(4),
        options={"flow": recurrent.CTRNNCell},
    ),
    "jump memory": Case(
        recurrent.JumpMemoryCell,
        oracles.JumpMemory,
        oracles.exponential(4),
        options={"flow": recurrent.CTRNNCell},
    ),
    "carried memory": Case(
        recurrent.CarriedMemoryCell,
        oracles.CarriedMemory,
        oracles.exponential(4),
        options={"flow": recurrent.CTRNNCell},
    ),
    "neural-cde": Case(
        recurrent.NeuralCDECell, oracles.NeuralCDE, oracles.rk4(1), None, EXPLICIT_GAP, {"width": 6}, 8.0
    ),
    "ltc": Case(recurrent.LTCCell, oracles.LTC),
    "ltc, exponential": Case(
        recurrent.LTCCell, oracles.ExponentialLTC, oracles.exponential(4), Exponential(4)
    ),
}


def check(case: Case, dtype: torch.dtype, seed: int, missing: float = 0.0) -> None:
    cell = case.make(dtype)
    tolerance = case.rounding * (1e-12 if dtype == torch.float64 else 1e-6)
    check_equations(
        cell, case.transcribe(cell), tolerance=tolerance, gaps=case.gaps, missing=missing, seed=seed
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_equations(name: str, seed: int, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, seed)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@pytest.mark.parametrize("missing", [0.4, 0.9, 1.0])
@pytest.mark.parametrize("name", ["gru-d", "neural-cde"])
def test_missing_features(name: str, missing: float, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, 4, missing)


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
