"""The public checks: they pass on what is right, and each fails on a cell that breaks its promise."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import lapse
from lapse.kernels import native
from lapse.kernels.builder import BEFORE, Builder
from lapse.recurrent import Gates, RNNDecayCell, State
from lapse.testing import check_cell, check_equations, check_layer, layer_checks
from lapse.testing.subject import layer_of
from toy_model import Drift, DriftCell, SlowDriftCell


def test_a_model_outside_lapse_is_checked_in_one_line() -> None:
    check_layer(Drift)
    check_cell(SlowDriftCell)


class BatchMean(DriftCell):
    """The state of a row depends on who else is in the batch."""

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return super().step(input - input.mean(0), state, timespan)


class Counting(DriftCell):
    """Remembers calls, outside its state."""

    calls = 0

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        self.calls += 1
        return super().step(input * self.calls, state, timespan)


class OtherOutput(DriftCell):
    """The output is not the first state."""

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        output, state = super().step(input, state, timespan)
        return 2 * output, state


class Jumps(DriftCell):
    """`flow` over no time moves the output."""

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0] + 1, (state[0] + 1,)


class Pieces(DriftCell):
    """Says that a gap may be passed in pieces, and forgets the first of them."""

    splits_gaps: ClassVar[bool] = True


class Detached(DriftCell):
    """A gradient is lost."""

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return super().step(input.detach(), state, timespan)


class Explodes(DriftCell):
    """Overflows on a long gap."""

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = torch.tanh(self.gates(input, state[0])) * torch.exp(timespan.unsqueeze(-1))
        return h, (h,)


class ForgetsTheInput(DriftCell):
    """Nothing depends on what was observed or when."""

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = torch.zeros_like(state[0]) * self.gates(input, state[0])
        return h, (h,)


class ListOfWeights(DriftCell):
    """A weight that is no parameter is not stored, and stays behind when the precision changes."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.hidden_weight = [torch.randn(())]

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return super().step(input * self.hidden_weight[0].to(input), state, timespan)


class WrongProgram(lapse.Cell):
    """Its program computes something else than its step."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = Gates(input_size, hidden_size)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] + timespan.unsqueeze(-1) * torch.tanh(self.gates(input, state[0]))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0], state

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, u, t = p.state(n), p.register(n), p.register(n)
        self.gates.program(p, "gates", u, [x], h | BEFORE)
        p.emit("Tanh", t, u)
        p.combine(1, h, h | BEFORE, [t], [0.9], "Integrate")


BROKEN = [
    (BatchMean, "batch_of_one_equals_its_row"),
    (Counting, "a_split_sequence_with_its_state_equals_the_whole"),
    (OtherOutput, "the_output_is_the_first_state"),
    (Jumps, "flow_over_no_time_keeps_the_output"),
    (Pieces, "a_gap_may_be_passed_in_pieces"),
    (Detached, "gradients"),
    (Explodes, "any_gap_gives_finite_results"),
    (ForgetsTheInput, "the_future_is_invisible"),
    (ListOfWeights, "state_dict_and_deepcopy_round_trip"),
    pytest.param(
        WrongProgram,
        "fused_and_reference_agree",
        marks=pytest.mark.skipif(native.library() is None, reason="no C++ compiler"),
    ),
]


@pytest.mark.parametrize(("cell", "promise"), BROKEN)
def test_a_broken_promise_is_found(cell: type[lapse.Cell], promise: str) -> None:
    checks = layer_checks(layer_of(cell))
    with pytest.raises((AssertionError, RuntimeError)):
        checks[promise]()


class IgnoresLengths(lapse.RNN):
    """A layer that goes on after the end of a row."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **options: object) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=DriftCell, **options)

    def forward(self, input: Tensor, hx: object = None, *, lengths: object = None, **given: object) -> object:
        return super().forward(input, hx, **given)


@pytest.mark.parametrize(
    "promise",
    ["padding_content_changes_nothing", "steps_past_the_end_are_not_computed", "wrong_arguments_raise"],
)
def test_a_layer_that_breaks_a_promise_is_found(promise: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        layer_checks(IgnoresLengths)[promise]()


def test_all_failures_are_told_at_once() -> None:
    with pytest.raises(AssertionError, match=r"\d+ of \d+ checks failed") as caught:
        check_cell(OtherOutput)
    assert "- the_output_is_the_first_state: AssertionError: the output of a step" in str(caught.value)


def test_the_checks_are_chosen_by_what_a_cell_says_of_itself() -> None:
    drift, gru_d = layer_checks(Drift), layer_checks(lapse.GRUD)
    assert "a_gap_may_be_passed_in_pieces" not in drift
    assert "a_gap_may_be_passed_in_pieces" in gru_d
    assert "flow_over_no_time_keeps_the_output" not in gru_d
    assert "padding_content_changes_nothing, features missing" in gru_d
    assert "bfloat16_follows_float64" not in layer_checks(lapse.PhasedLSTM)
    assert "fused_and_reference_agree" not in layer_checks(layer_of(partial(_WithoutProgram)))


class _WithoutProgram(lapse.Cell):
    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0], state

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0], state


class FadingRow:
    """RNN-Decay for one row, in NumPy."""

    def __init__(self, cell: RNNDecayCell, extra: float = 0.0) -> None:
        self.weights = {name: w.detach().double().numpy() for name, w in cell.state_dict().items()}
        self.extra = extra

    def initial(self) -> tuple[np.ndarray, ...]:
        return (np.zeros(len(self.weights["decay"])),)

    def step(
        self, input: np.ndarray, state: tuple[np.ndarray, ...], gap: float
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        w = self.weights
        faded, _ = self.flow(state, gap)
        h = (
            np.tanh(w["gates.weight_ih"] @ input + w["gates.weight_hh"] @ faded + w["gates.bias"])
            + self.extra
        )
        return h, (h,)

    def flow(self, state: tuple[np.ndarray, ...], gap: float) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        h = state[0] * np.exp(-np.log1p(np.exp(self.weights["decay"])) * gap)
        return h, (h,)


def test_a_cell_is_compared_with_a_transcription_of_its_equations() -> None:
    torch.manual_seed(0)
    cell = RNNDecayCell(3, 4).double()
    check_equations(cell, FadingRow(cell))
    with pytest.raises(AssertionError, match=r"RNNDecayCell differs from its equations: \{'output':"):
        check_equations(cell, FadingRow(cell, extra=1e-9))


def test_nothing_of_pytest_is_needed() -> None:
    code = "import sys, lapse.testing; assert 'pytest' not in sys.modules, 'pytest'"
    subprocess.run([sys.executable, "-c", code], check=True)
