"""Mixed memory: ODE-LSTM's forms are instances of it, and it keeps a layer's promises with any cell."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lapse
from lapse import recurrent
from lapse.recurrent.fields import DrivenCell, MLPField, RelaxingField
from lapse.solvers import EULER, Exponential, FixedStep
from lapse.testing import layer_checks


class Free(recurrent.Cell):
    """A cell that follows the ODE of the autonomous ODE-LSTM, whatever is observed."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.field = MLPField(hidden_size)
        self.solver = FixedStep(EULER, steps=4)

    def step(self, input: Tensor, state: recurrent.State, timespan: Tensor) -> tuple[Tensor, recurrent.State]:
        return self.flow(state, timespan)

    def flow(self, state: recurrent.State, timespan: Tensor) -> tuple[Tensor, recurrent.State]:
        h = self.solver(self.field, state[0], timespan)
        return h, (h,)


class Relaxing(DrivenCell):
    """A cell that follows the ODE of the ODE-LSTM's jump form."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(
            input_size, hidden_size, RelaxingField(input_size, hidden_size), Exponential(steps=4)
        )


# The form of the ODE-LSTM, that of the mixed memory, and the cell in it.
ODE_LSTMS = [
    ("driven", "driven", recurrent.CTRNNCell),
    ("autonomous", "carried", Free),
    ("jump", "jump", Relaxing),
]


@pytest.mark.parametrize(("ode_form", "form", "flow"), ODE_LSTMS)
def test_ode_lstm_is_a_mixed_memory(ode_form: Any, form: Any, flow: Any) -> None:
    torch.manual_seed(0)
    ode_lstm = lapse.ODELSTM(3, 5, form=ode_form, forget_bias=3.0, dtype=torch.float64)
    mixed = lapse.MixedMemory(3, 5, flow=flow, form=form, dtype=torch.float64)
    weights = {name.replace("field.", "flowing.field."): w for name, w in ode_lstm.state_dict().items()}
    mixed.load_state_dict(weights)  # every weight of the one, and no other
    x, gaps = torch.randn(4, 7, 3, dtype=torch.float64), 2 * torch.rand(4, 7, dtype=torch.float64)
    gaps[:, 0] = 0
    with lapse.backend("reference"):
        expected, ours = (layer(x, timespans=gaps) for layer in (ode_lstm, mixed))
    assert torch.equal(ours[0], expected[0])
    assert all(map(torch.equal, ours[1], expected[1]))
    cells = ode_lstm.stack[0], mixed.stack[0]
    flowed = [cell.flow(tuple(s[0] for s in ours[1]), gaps[:, 1])[0] for cell in cells]
    assert torch.equal(*flowed)


FLOWS = {"ltc": recurrent.LTCCell, "rnn-decay": recurrent.RNNDecayCell}
PROMISES = [
    pytest.param(check, id=f"{promise}-{name} {form}")
    for name, flow in FLOWS.items()
    for form in lapse.MixedMemory.forms
    for promise, check in layer_checks(partial(lapse.MixedMemory, flow=flow, form=form)).items()
    if promise in ("gradients", "padding_content_changes_nothing", "batch_of_one_equals_its_row")
    or promise in ("the_future_is_invisible", "any_gap_gives_finite_results")
]


@pytest.mark.parametrize("check", PROMISES)
def test_promises(check: Any) -> None:
    check()


def test_a_cell_with_a_memory_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="a cell whose only state is h, and CTLSTMCell has h, c, target"):
        lapse.MixedMemory(2, 3, flow=recurrent.CTLSTMCell)


@pytest.mark.parametrize("options", [{"backbone_layers": 0}, {"backbone_layers": 3}])
@pytest.mark.parametrize("activation", ["lecun", "silu", "tanh"])
def test_backbones_of_any_depth_are_fused(options: dict[str, Any], activation: str) -> None:
    options = {**options, "backbone_units": 6, "backbone_activation": activation}
    for form in lapse.CfCMixedMemory.forms:
        make = partial(lapse.CfCMixedMemory, form=form, **options)
        with lapse.backend("fused"):
            make(1, 1)(torch.ones(1, 1, 1))
        layer_checks(make)["fused_and_reference_agree"]()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone_units": 0}, "backbone_units must be at least 1"),
        ({"backbone_activation": "sine"}, "backbone_activation must be one of lecun, silu, tanh, relu, gelu"),
        ({"backbone_dropout": 1.0}, "backbone_dropout must be at least 0 and below 1"),
    ],
)
def test_wrong_backbones_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lapse.CfC(2, 3, **options)


def test_the_backbone_drops_units_in_training_only() -> None:
    torch.manual_seed(0)
    layer, x = lapse.CfC(2, 3, backbone_dropout=0.5), torch.randn(2, 4, 2)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert "dropout=0.5" in repr(layer)
