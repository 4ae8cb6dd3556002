"""Every model against our own reference loop, and ODE-LSTM and LSTM against torch's own LSTM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

import lapse
from lapse.bench import sizes
from lapse.bench.race import Line, Settings, line
from lapse.bench.work import agree, data, driven_ode_lstm, step_of, training_step
from lapse.kernels.programs import has_program
from lapse.models import registry


def variants(models: Sequence[str] = ()) -> dict[str, tuple[type[lapse.RNN], Mapping[str, Any]]]:
    """Models in each of their forms, and with the solver that the paper gives them: class and options by name.

    Args:
        models: The names of the models; all recurrent ones of the registry if empty.
    """
    found: dict[str, tuple[type[lapse.RNN], Mapping[str, Any]]] = {}
    for name in models or registry.layers():
        layer = registry.find_layer(name)
        for form in layer.forms or ("",):
            options = {"form": form} if form else {}
            found[f"{name} {form}".strip()] = layer, options
        if solver := layer.paper_options.get("solver"):
            label = " ".join(word for word in (name, layer.paper_options.get("form"), solver) if word)
            found[label] = layer, dict(layer.paper_options)
    return found


def against_reference(s: Settings) -> Iterator[Line]:
    """Every fused cell against our own reference loop; a cell without a program against `nn.LSTM`."""
    x, spans = data()
    for name, (kind, options) in variants(s.models).items():
        make: Callable[..., lapse.RNN] = kind
        layer = make(sizes.INPUT, sizes.HIDDEN, **options)
        ours = step_of(layer, x, spans)
        if has_program(layer.cells[0]):
            runs = ours, step_of(layer, x, spans, "reference")
            agreed = agree(layer, x, spans)
            yield line(f"{name}: reference", "fused", "reference loop", runs, s, "at least 2.5", agreed)
        else:
            lstm = nn.LSTM(sizes.INPUT, sizes.HIDDEN, batch_first=True)
            runs = ours, training_step(lstm, lambda lstm=lstm: lstm(x)[0][:, -1])  # type: ignore[misc]
            yield line(f"{name}: nn.LSTM", "reference loop", "nn.LSTM", runs, s, agreed="another function")


def against_lstm(s: Settings) -> Iterator[Line]:
    """`nn.LSTM`'s time over ODE-LSTM's, which does 2.2 times its arithmetic, and over that of our own LSTM."""
    x, spans = data()
    theirs = nn.LSTM(sizes.INPUT, sizes.HIDDEN, batch_first=True)
    runs = (
        step_of(driven_ode_lstm(), x, spans, "fused"),
        training_step(theirs, lambda: theirs(x)[0][:, -1]),
    )
    yield line(
        "ode-lstm: nn.LSTM", "fused", "nn.LSTM", runs, s, "at least 0.77 (1.3x its time)", "another function"
    )
    ours, theirs = (
        lapse.AugmentedLSTM(sizes.INPUT, sizes.HIDDEN),
        nn.LSTM(sizes.INPUT + 1, sizes.HIDDEN, batch_first=True),
    )
    w_ih, w_hh, b_ih, b_hh = (p.detach() for p in theirs.parameters())
    ours.cells[0].load_state_dict(
        {"gates.weight_ih": w_ih, "gates.weight_hh": w_hh, "gates.bias": b_ih + b_hh}
    )
    wide = torch.cat([x, spans.unsqueeze(-1)], -1)
    torch.testing.assert_close(ours(x, timespans=spans)[0], theirs(wide)[0], rtol=1e-4, atol=1e-5)
    runs = step_of(ours, x, spans, "fused"), training_step(theirs, lambda: theirs(wide)[0][:, -1])
    yield line("lstm: nn.LSTM", "fused", "nn.LSTM", runs, s, agreed="outputs to 1e-4")
