"""A solver can be stored as a word with its settings, and a word says what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lapse
from example_models import model_for, sequences
from lapse.solvers import (
    DOPRI5,
    EULER,
    RK4,
    Adaptive,
    Adjoint,
    Exponential,
    FixedStep,
    as_solver,
    find,
)

WORDS = {
    "rk4": FixedStep(RK4, 3),
    "rk4:8": FixedStep(RK4, 8),
    "euler:1": FixedStep(EULER, 1),
    "exponential:2": Exponential(2),
    "exponential:8:2": Exponential(8, order=2),
    "exponential2": Exponential(4, order=2),
    "dopri5:rtol=1e-05": Adaptive(DOPRI5, rtol=1e-5),
    "dopri5:atol=1e-09:max_steps=50": Adaptive(DOPRI5, atol=1e-9, max_steps=50),
    "dopri5-adjoint:rtol=0.001": Adjoint(Adaptive(DOPRI5, rtol=1e-3)),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_solver_and_its_word(word: str) -> None:
    assert find(word) == WORDS[word]
    assert WORDS[word].word == str(WORDS[word]) == word


@pytest.mark.parametrize("name", lapse.SOLVERS)
def test_ready_made_solvers_are_their_names(name: str) -> None:
    assert lapse.SOLVERS[name].word == name
    assert find(name) is lapse.SOLVERS[name]


def test_settings_go_in_order_or_by_name() -> None:
    assert find("exponential:4:2") == find("exponential:order=2") == find("exponential2")
    assert find("dopri5:1e-5") == find("dopri5:rtol=1e-5")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rk5", "solver must be one of 'euler', .* or 'package.module:NAME' of your own, got 'rk5'"),
        ("rk4:many", "solver 'rk4:many': settings are numbers, got 'many'"),
        ("rk4:0", "solver 'rk4:0': steps must be a whole number of at least 1, got 0"),
        ("rk4:3:2", "has no setting for '2'; its settings are steps, in this order or by name"),
        ("dopri5:tol=1", "has no setting for 'tol=1'; its settings are rtol, atol, max_steps"),
        ("no_such_module_anywhere:SOLVER", "cannot import 'no_such_module_anywhere'"),
    ],
)
def test_a_wrong_word_says_what_is_right(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find(word)


def test_a_solver_without_a_word_says_how_to_get_one() -> None:
    with pytest.raises(ValueError, match="has no word; put it into a module of your own"):
        _ = FixedStep(DOPRI5, 2).word
    assert str(FixedStep(DOPRI5, 2)).startswith("FixedStep(")
    assert str(Adjoint(FixedStep(RK4, 3))).startswith("Adjoint(")


def test_layers_and_cells_take_words() -> None:
    layer = lapse.CTRNN(2, 3, solver="exponential:2")
    assert layer.cells[0].solver == Exponential(2)
    assert lapse.recurrent.CTRNNCell(2, 3, solver="rk4:8").solver == FixedStep(RK4, 8)


OWN = """
from lapse.solvers import RK4, Exponential, FixedStep

FINE = FixedStep(RK4, 50)

class Halved:
    needs_damping = True

    def __call__(self, f, y0, timespans, /, *drive):
        return y0 / 2

HALVED = Halved()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_solvers.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_solvers"
    sys.modules.pop("own_solvers", None)


def test_solvers_of_ones_own_go_by_module_and_name(own_module: str) -> None:
    assert find(f"{own_module}:FINE") == FixedStep(RK4, 50)
    assert find(f"{own_module}:FINE:7") == FixedStep(RK4, 7)
    layer = lapse.CTRNN(2, 3, solver=f"{own_module}:HALVED")
    output, _ = layer(torch.randn(1, 2, 2), torch.ones(1, 1, 3))
    assert torch.equal(output, torch.tensor([[[0.5] * 3, [0.25] * 3]]))
    with pytest.raises(ValueError, match="has no setting for '3'; it has no settings"):
        find(f"{own_module}:HALVED:3")
    with pytest.raises(TypeError, match="solver must be a solver such as FixedStep"):
        find(f"{own_module}:Halved")


@pytest.mark.parametrize("make", [lapse.ODERNN, lapse.ODELSTM, lapse.CoupledLSTMODERNN])
def test_a_solver_that_needs_damping_is_refused_by_a_model_without(make: type, own_module: str) -> None:
    for word in ("exponential:4", f"{own_module}:HALVED"):
        with pytest.raises(ValueError, match="needs a damped field, and this model's has none"):
            make(2, 3, solver=word)


def test_a_stored_model_keeps_its_sub_steps(tmp_path: Path) -> None:
    """The sub-steps could not be stored before: "rk4" was always 3."""
    model_for(sequences(), model="ct-rnn", options={"solver": "rk4:8"}).save(tmp_path)
    loaded = lapse.models.SequenceModel.load(tmp_path)
    assert [part.solver for part in loaded.modules() if isinstance(part, lapse.Cell)] == [FixedStep(RK4, 8)]


def test_a_solver_object_in_a_config_is_asked_for_its_word() -> None:
    with pytest.raises(TypeError, match=r"a solver goes by its word here, such as 'rk4:8' \(`solver.word`\)"):
        lapse.models.ModelConfig(model="ct-rnn", options={"solver": FixedStep(RK4, 8)})


def test_a_tableau_is_not_a_solver() -> None:
    with pytest.raises(TypeError, match="rk4 is a tableau, not a solver"):
        as_solver(RK4)


def test_a_subclass_of_a_solver_takes_the_reference() -> None:
    class Shifted(FixedStep):
        def __call__(self, f: object, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
            return y0 + 1

    layer = lapse.CTRNN(2, 3, solver=Shifted(RK4, 2))
    output, _ = layer(torch.randn(1, 2, 2))
    assert torch.equal(output[0, :, 0], torch.tensor([1.0, 2.0]))
