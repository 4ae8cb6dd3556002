"""A sample of the random calls of `fuzz_kernels`, and what they have found."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

import fuzz_kernels
from fuzz_kernels import CELLS, Case, Difference, as_test, check, draw, smaller
from lapse.kernels import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")


@pytest.mark.parametrize("seed", range(60))
def test_sample(seed: int) -> None:
    check(draw(10**6 + seed))


def test_a_tableau_whose_weights_do_not_add_up() -> None:
    """The share of the outer bias was that of a whole step."""
    solver = "FixedStep(Tableau('drawn', 1, a=((),), b=(0.2,)), 5)"
    with pytest.raises(RuntimeError, match="no fused kernel"):
        check(Case(cell="JumpODERNNCell", seed=35, solver=solver, lengths=(2,)))


def test_a_softplus_beyond_20_is_that_of_torch() -> None:
    check(Case("CTLSTMCell", seed=85, hidden_size=5, num_layers=2, lengths=(30,), weights=0.5, inputs=10.0))


def test_a_stage_that_only_an_unused_stage_looks_at() -> None:
    """It was computed for nobody, and its adjoint never came."""
    a = "((), (0.25,), (0.0, 0.5), (0.0, 0.25, 0.25), (0.5, 0.0, 0.0, 0.0))"
    check(
        Case(
            "GRUODECell",
            seed=1,
            solver=f"FixedStep(Tableau('drawn', 1, a={a}, b=(0.5, 0.0, 0.0, 0.0, 0.5)), 1)",
        )
    )


def test_a_state_that_grows_to_the_end_of_float32_may_end_at_either_step() -> None:
    """It is 3.40e38 in row 33 at step 3, where float32 ends at 3.4028e38."""
    check(
        Case(
            "ODELSTMCell",
            seed=6005290,
            solver="FixedStep(EULER, 5)",
            hidden_size=8,
            num_layers=2,
            bidirectional=True,
            lengths=(6,) * 65,
            room=3,
            dtype="float32",
            gaps="any",
            inputs=10.0,
            start=True,
        )
    )


def test_every_cell_is_drawn() -> None:
    assert {draw(seed).cell for seed in range(200)} == set(CELLS)


def test_a_fault_is_found_made_smaller_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = native.Plan.forward

    def wrong(self: native.Plan, call: native.Call) -> None:
        forward(self, call)
        torch.frombuffer((ctypes.c_double * 1).from_address(call.output), dtype=torch.float64)[0] += 1

    monkeypatch.setattr(native.Plan, "forward", wrong)
    case = Case("RNNDecayCell", seed=1, hidden_size=8, input_size=3, lengths=(5, 4, 9), start=True)
    with pytest.raises(Difference, match="output: off by"):
        check(case)
    small = smaller(case)
    assert as_test(small) == ("def test_case_1() -> None:\n    check(Case(cell='RNNDecayCell', seed=1))\n")


def test_the_command_says_what_it_tried() -> None:
    command = [sys.executable, fuzz_kernels.__file__, "--cases", "3", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "tried 3, failed 0 (seeds 5 to 7)\n"
