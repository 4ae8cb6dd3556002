"""Augmented LSTM: an LSTM that is given the gap as one more input."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from lapse.kernels import Kernel
from lapse.kernels.builder import BEFORE, Builder
from lapse.kernels.torch_lstm import TorchLSTM
from lapse.palette import DOTTED, Look
from lapse.recurrent.cell import Cell, LSTMGates, State
from lapse.recurrent.rnn import RNN, LayerOptions


class AugmentedLSTMCell(Cell):
    """Augmented LSTM: an ordinary LSTM that is given the gap as one more input, [x_i, Δ_i].

        (c_i, h_i) = LSTM([x_i, Δ_i], (c_{i−1}, h_{i−1})),    Eqs. 2–7;               y_i = h_i

    Source: the baseline of Lechner & Hasani (2020). Nothing happens between observations. Where the fused loop
    does not run (no compiler, other devices), torch's own LSTM does the work.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the bias of the forget gate starts.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("h", "c")
    kernels: ClassVar[tuple[Kernel, ...]] = (TorchLSTM(),)

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size + 1, hidden_size, forget_bias)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, h = self.gates.memorise(torch.cat([input, timespan.unsqueeze(-1)], -1), h, c)
        return h, (h, c)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0], state

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, gap = p.state(n), p.state(n), p.register(1)
        p.emit("Gap", gap)
        self.gates.memorise_program(p, "gates", [x, gap], (h | BEFORE, c | BEFORE), c, h)


class AugmentedLSTM(RNN):
    """An LSTM that is given the gap as one more input (`lapse.recurrent.AugmentedLSTMCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        forget_bias: Where the bias of the forget gate starts.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "Augmented LSTM"
    look: ClassVar[Look] = Look("#7F7F7F", "#a6a6a6", DOTTED)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        forget_bias: float = 1.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(AugmentedLSTMCell, forget_bias=forget_bias)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
