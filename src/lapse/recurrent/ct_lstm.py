"""CT-LSTM: the continuous-time LSTM of the neural Hawkes process."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import DASHED, Look
from lapse.recurrent.cell import Cell, LSTMGates, State
from lapse.recurrent.rnn import RNN, LayerOptions


class CTLSTMCell(Cell):
    """Continuous-time LSTM of the neural Hawkes process: the memory decays toward a target of its own.

        c(t) = c̄_{i−1} + (c_{i−1} − c̄_{i−1}) e^{−δ_{i−1} Δ_i},        h(t) = o_{i−1} ⊙ tanh(c(t))
        i, f, o, ī, f̄ = σ(W x_i + R h(t) + b),   z = tanh(·),   δ_i = softplus(·)
        c_i = f ⊙ c(t) + i ⊙ z,        c̄_i = f̄ ⊙ c̄_{i−1} + ī ⊙ z,        y_i = h_i = o_i ⊙ tanh(c_i)

    Source: Mei & Eisner (2017), Eqs. 5–7. The update starts from the decayed c(t), which the ODE-LSTM authors'
    code leaves out. Both forget gates start with `forget_bias`, as those of the other LSTMs here.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the biases of both forget gates start.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c", "target", "rate", "gate")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("c",)
    splits_gaps: ClassVar[bool] = True

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        # In the order i, f, z, o as everywhere, then ī, f̄, δ.
        self.gates = LSTMGates(input_size, hidden_size, forget_bias, count=7)
        with torch.no_grad():
            self.gates.bias[5 * hidden_size : 6 * hidden_size].fill_(forget_bias)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, (_, c, target, _, _) = self.flow(state, timespan)
        i, f, z, o, i_target, f_target, rate = self.gates(input, h).chunk(7, -1)
        z = torch.tanh(z)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * z
        target = torch.sigmoid(f_target) * target + torch.sigmoid(i_target) * z
        gate = torch.sigmoid(o)
        h = gate * torch.tanh(c)
        return h, (h, c, target, F.softplus(rate), gate)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        _, c, target, rate, gate = state
        c = target + (c - target) * torch.exp(-rate * timespan.unsqueeze(-1))
        h = gate * torch.tanh(c)
        return h, (h, c, target, rate, gate)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, target, rate, gate = (p.state(n) for _ in range(5))
        c1, h1, g = p.register(n), p.register(n), p.register(n, 7)
        p.emit("MemoryDecay", c | BEFORE, target | BEFORE, rate | BEFORE, gate | BEFORE, c1, h1)
        self.gates.program(p, "gates", g, [x], h1)
        p.emit("MemoryUpdate", *range(g, g + 7), c1, target | BEFORE, h, c, target, rate, gate)


class CTLSTM(RNN):
    """Continuous-time LSTM of the neural Hawkes process (`lapse.recurrent.CTLSTMCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        forget_bias: Where the biases of both forget gates start.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "CT-LSTM"
    # Tol's sand, darkened: the original is too pale for a line.
    look: ClassVar[Look] = Look("#C9A227", "#dfbd52", DASHED)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        forget_bias: float = 1.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(CTLSTMCell, forget_bias=forget_bias)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
