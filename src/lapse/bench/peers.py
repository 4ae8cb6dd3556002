"""Against other libraries, where they are installed: the closed-form CfC of ncps, and torchdiffeq."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch
from torch import Tensor

import lapse
from lapse import recurrent
from lapse.bench import sizes
from lapse.bench.race import Line, Settings, line
from lapse.bench.work import data, driven_ode_lstm, step_of, training_step


def against_cfc(s: Settings) -> Iterator[Line]:
    """ODE-LSTM against the closed-form CfC of ncps."""
    if importlib.util.find_spec("ncps") is None:
        return
    from ncps.torch import CfC

    x, spans = data()
    theirs = CfC(sizes.INPUT, sizes.HIDDEN)
    # It squeezes the gaps of each step, so that one gap per unit is what fits.
    wide = spans.unsqueeze(-1).expand(-1, -1, sizes.HIDDEN)
    runs = (
        step_of(driven_ode_lstm(), x, spans, "fused"),
        training_step(theirs, lambda: theirs(x, timespans=wide)[0][:, -1]),
    )
    yield line("ode-lstm: ncps CfC", "fused", "ncps CfC", runs, s, agreed="another function")


def against_torchdiffeq(s: Settings) -> Iterator[Line]:
    """Our adaptive solver against torchdiffeq's dopri5, one gap for all rows (theirs takes no other)."""
    if importlib.util.find_spec("torchdiffeq") is None:
        return
    from torchdiffeq import odeint

    field = recurrent.CTRNNCell(sizes.INPUT, sizes.HIDDEN).field
    y0 = torch.randn(sizes.BATCH, sizes.HIDDEN, generator=torch.Generator().manual_seed(0)).requires_grad_()
    drive = field.rest(y0).detach()
    solver = lapse.Adaptive(lapse.DOPRI5, rtol=1e-4, atol=1e-6)
    spans, ends = torch.ones(sizes.BATCH), torch.tensor([0.0, 1.0])

    def ours() -> Tensor:
        return solver(field, y0, spans, drive)

    def theirs() -> Tensor:
        solved: Tensor = odeint(
            lambda t, y: field(y, drive), y0, ends, rtol=1e-4, atol=1e-6, method="dopri5"
        )[-1]
        return solved

    torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-4)
    runs = (lambda: ours().sum().backward()), (lambda: theirs().sum().backward())
    yield line("adaptive: torchdiffeq", "Adaptive", "torchdiffeq dopri5", runs, s, agreed="ends to 1e-3")
