"""Our ODE-LSTM against the authors' own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import lapse
from lapse import recurrent
from lapse.bench import sizes
from lapse.bench.race import Line, Settings, line
from lapse.bench.work import data, driven_ode_lstm, step_of, training_step


class AuthorsODELSTM(nn.Module):
    """The authors' PyTorch ODE-LSTM in plain torch: an LSTMCell, then three sub-steps of an autonomous MLP field."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(sizes.INPUT, sizes.HIDDEN)
        self.field = nn.Sequential(
            nn.Linear(sizes.HIDDEN, sizes.HIDDEN), nn.Tanh(), nn.Linear(sizes.HIDDEN, sizes.HIDDEN)
        )
        self.advance = {"euler": self.euler, "rk4": self.rk4}[method]

    def euler(self, y: Tensor, h: Tensor) -> Tensor:
        moved: Tensor = y + h * self.field(y)
        return moved

    def rk4(self, y: Tensor, h: Tensor) -> Tensor:
        k1 = self.field(y)
        k2 = self.field(y + k1 * h * 0.5)
        k3 = self.field(y + k2 * h * 0.5)
        k4 = self.field(y + k3 * h)
        moved: Tensor = y + h * (k1 + 2 * k2 + 2 * k3 + k4) / 6.0
        return moved

    def forward(self, x: Tensor, spans: Tensor) -> Tensor:
        h, c = x.new_zeros(len(x), sizes.HIDDEN), x.new_zeros(len(x), sizes.HIDDEN)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            for _ in range(3):
                h = self.advance(h, spans[:, t].view(-1, 1) / 3)
            outputs.append(h)
        return torch.stack(outputs, 1)

    def copy_to(self, ours: lapse.ODELSTM) -> None:
        cell = ours.cells[0]
        assert isinstance(cell, recurrent.AutonomousODELSTMCell)
        with torch.no_grad():
            cell.gates.weight_ih.copy_(self.cell.weight_ih)
            cell.gates.weight_hh.copy_(self.cell.weight_hh)
            cell.gates.bias.copy_(self.cell.bias_ih + self.cell.bias_hh)
            cell.field.inner.load_state_dict(self.field[0].state_dict())
            cell.field.outer.load_state_dict(self.field[2].state_dict())


def against_authors(s: Settings) -> Iterator[Line]:
    """Our ODE-LSTM in both forms against the authors' own, which is autonomous."""
    x, spans = data()
    for method, aim in (("euler", "at least 4"), ("rk4", "at least 10")):
        theirs = AuthorsODELSTM(method)
        tableau = lapse.EULER if method == "euler" else lapse.RK4
        same = lapse.ODELSTM(sizes.INPUT, sizes.HIDDEN, form="autonomous", solver=lapse.FixedStep(tableau, 3))
        theirs.copy_to(same)
        torch.testing.assert_close(same(x, timespans=spans)[0], theirs(x, spans), rtol=1e-4, atol=1e-5)
        rival = training_step(theirs, lambda m=theirs: m(x, spans)[:, -1])  # type: ignore[misc]
        own = step_of(driven_ode_lstm(), x, spans, "fused")
        name = f"authors' {method} 3"
        yield line(f"ode-lstm: {name}", "fused, driven", name, (own, rival), s, aim, "another function")
        runs = step_of(same, x, spans, "fused"), rival
        yield line(
            f"ode-lstm autonomous: {name}", f"fused, {method} 3", name, runs, s, agreed="outputs to 1e-4"
        )
