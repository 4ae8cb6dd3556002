"""RNN-Decay: an RNN whose state fades through every gap."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import DASHED, Look
from lapse.recurrent.cell import Cell, Gates, State, softplus_inverse
from lapse.recurrent.rnn import RNN, LayerOptions


class RNNDecayCell(Cell):
    """RNN-Decay: the state fades exponentially through the gap, each unit at its own learned rate.

        h⁻ = h_{i−1} ⊙ e^{−τ Δ_i},   h_i = tanh(W x_i + R h⁻ + b);     y_i = h_i;     τ = softplus(decay)

    Source: the baseline of Rubanova et al. (2019). The authors of the ODE-LSTM subtract τΔ from the state
    instead, which is not a decay. Rates start at 1, as the damping of the CT-RNN does.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
    """

    splits_gaps: ClassVar[bool] = True

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = Gates(input_size, hidden_size)
        self.decay = nn.Parameter(torch.full((hidden_size,), softplus_inverse(1.0)))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, _ = self.flow(state, timespan)
        h = torch.tanh(self.gates(input, h))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] * torch.exp(-F.softplus(self.decay) * timespan.unsqueeze(-1))
        return h, (h,)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, faded, u = p.state(n), p.register(n), p.register(n)
        p.emit("Decay", h | BEFORE, faded, parameters=[p.vector("decay", n, transform="softplus")])
        self.gates.program(p, "gates", u, [x], faded)
        p.emit("Tanh", h, u)


class RNNDecay(RNN):
    """An RNN whose state fades through every gap (`lapse.recurrent.RNNDecayCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "RNN-Decay"
    look: ClassVar[Look] = Look("#999933", "#bcbc5e", DASHED)

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=RNNDecayCell, **options)
