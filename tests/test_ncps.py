"""CfC, LTC and the mixed memory give what `ncps`, their authors' library, gives with the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lapse

ncps = pytest.importorskip("ncps.torch")
wirings = pytest.importorskip("ncps.wirings")

INPUT, HIDDEN, ROWS, STEPS = 3, 5, 4, 6


def example() -> tuple[Tensor, Tensor]:
    """Inputs, and gaps that differ from row to row; none is 0, where their LTC divides by it."""
    random = np.random.default_rng(1)
    x = torch.from_numpy(random.normal(size=(ROWS, STEPS, INPUT)))
    return x, torch.from_numpy(random.choice([0.01, 0.5, 1.0, 3.0, 40.0], size=(ROWS, STEPS)))


def random_weights(module: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6)


def softplus_inverse(values: Tensor) -> Tensor:
    return values.expm1().log()


def cfc_weights(theirs: nn.Module) -> dict[str, Tensor]:
    """The weights of an ncps `CfCCell` by our names."""
    given = theirs.state_dict()
    heads = [name for name in ("ff1", "ff2", "time_a", "time_b") if f"{name}.weight" in given]
    weights = {
        f"heads.{kind}": torch.cat([given[f"{name}.{kind}"] for name in heads]) for kind in ("weight", "bias")
    }
    layers = sorted(
        int(name.split(".")[1]) for name in given if name.startswith("backbone.") and "weight" in name
    )
    for i, place in enumerate(layers):
        weights[f"backbone.weight_l{i}"] = given[f"backbone.{place}.weight"]
        weights[f"backbone.bias_l{i}"] = given[f"backbone.{place}.bias"]
    if "w_tau" in given:
        weights |= {"decay": softplus_inverse(given["w_tau"][0].abs()), "level": given["A"][0]}
    return weights


def outputs(theirs: nn.Module, x: Tensor, gaps: Tensor, state: Tensor) -> Tensor:
    """What a cell of ncps gives at every step."""
    found = []
    for t in range(x.shape[1]):
        output, state = theirs(x[:, t], state, gaps[:, t : t + 1])
        found.append(output)
    return torch.stack(found, 1)


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize(
    ("form", "mode", "activation"),
    [("gated", "default", "lecun_tanh"), ("no-gate", "no_gate", "silu"), ("pure", "pure", "lecun_tanh")],
)
def test_cfc(form: str, mode: str, activation: str, layers: int) -> None:
    theirs = ncps.CfCCell(INPUT, HIDDEN, mode, activation, backbone_units=7, backbone_layers=layers).double()
    random_weights(theirs)
    ours = lapse.CfC(
        INPUT,
        HIDDEN,
        form=form,  # type: ignore[arg-type]
        backbone_units=7,
        backbone_layers=layers,
        backbone_activation=activation.removesuffix("_tanh"),
        dtype=torch.float64,
    )
    ours.cells[0].load_state_dict(cfc_weights(theirs))
    x, gaps = example()
    expected = outputs(theirs, x, gaps, torch.zeros(ROWS, HIDDEN, dtype=torch.float64))
    torch.testing.assert_close(ours(x, timespans=gaps)[0], expected, rtol=1e-10, atol=1e-12)


def lstm_weights(theirs: nn.Module) -> dict[str, Tensor]:
    """The weights of an ncps `LSTMCell` by our names; its order is z, i, f, o, and its forget gate adds 1."""
    given = theirs.state_dict()

    def turned(values: Tensor) -> Tensor:
        z, i, f, o = values.chunk(4)
        return torch.cat([i, f, z, o])

    bias = turned(given["input_map.bias"])
    bias[HIDDEN : 2 * HIDDEN] += 1.0
    return {
        "gates.weight_ih": turned(given["input_map.weight"]),
        "gates.weight_hh": turned(given["recurrent_map.weight"]),
        "gates.bias": bias,
    }


def test_mixed_memory() -> None:
    theirs = ncps.CfC(INPUT, HIDDEN, mixed_memory=True, backbone_units=7, backbone_layers=2).double()
    random_weights(theirs)
    options = {"form": "carried", "backbone_units": 7, "backbone_layers": 2}
    ours = lapse.CfCMixedMemory(INPUT, HIDDEN, dtype=torch.float64, **options)  # type: ignore[arg-type]
    flowing = {f"flowing.{name}": weight for name, weight in cfc_weights(theirs.rnn_cell).items()}
    ours.cells[0].load_state_dict(lstm_weights(theirs.lstm) | flowing)
    x, gaps = example()
    h = c = torch.zeros(ROWS, HIDDEN, dtype=torch.float64)
    expected = []
    for t in range(STEPS):  # their own loop takes one gap for all rows
        h, c = theirs.lstm(x[:, t], (h, c))
        h, _ = theirs.rnn_cell(x[:, t], h, gaps[:, t : t + 1])
        expected.append(h)
    output, (_, c_n) = ours(x, timespans=gaps)
    torch.testing.assert_close(output, torch.stack(expected, 1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(c_n[0], c, rtol=1e-10, atol=1e-12)


def ltc_weights(theirs: nn.Module) -> dict[str, Tensor]:
    """The weights of an ncps `LTCCell` by our names; its map of the inputs is taken into the synapses."""
    given = theirs.state_dict()
    scale, shift = given["input_w"].unsqueeze(-1), given["input_b"].unsqueeze(-1)
    given["sensory_sigma"] = given["sensory_sigma"] * scale
    given["sensory_mu"] = (given["sensory_mu"] - shift) / scale
    weights = {
        "field.leak": softplus_inverse(given["gleak"]),
        "field.resting": given["vleak"],
        "field.capacitance": softplus_inverse(given["cm"]),
    }
    for ours, prefix in (("sensory", "sensory_"), ("recurrent", "")):
        weights |= {
            f"field.{ours}.weight": softplus_inverse(given[f"{prefix}w"]).T,
            f"field.{ours}.slope": given[f"{prefix}sigma"].T,
            f"field.{ours}.threshold": given[f"{prefix}mu"].T,
            f"field.{ours}.reversal": given[f"{prefix}erev"].T,
        }
    return weights


def test_ltc() -> None:
    torch.manual_seed(0)
    theirs = ncps.LTCCell(wirings.FullyConnected(HIDDEN), INPUT, epsilon=0.0).double()
    with torch.no_grad():
        theirs.input_w.copy_(torch.tensor([0.5, -1.5, 2.0]))
        theirs.input_b.copy_(torch.tensor([0.1, 0.0, -0.3]))
    ours = lapse.LTC(INPUT, HIDDEN, dtype=torch.float64)
    ours.cells[0].load_state_dict(ltc_weights(theirs))
    x, gaps = example()
    expected = outputs(theirs, x, gaps, torch.zeros(ROWS, HIDDEN, dtype=torch.float64))
    torch.testing.assert_close(ours(x, timespans=gaps)[0], expected, rtol=1e-10, atol=1e-12)


def test_the_synapses_start_where_theirs_do() -> None:
    torch.manual_seed(0)
    cell = lapse.LTC(30, 40).cells[0]
    theirs = ltc_weights(ncps.LTCCell(wirings.FullyConnected(40), 30))
    for name, parameter in cell.named_parameters():
        ours = parameter.detach()
        for bound in (torch.amin, torch.amax):
            torch.testing.assert_close(bound(ours), bound(theirs[name]), rtol=0.3, atol=0.3)
