"""A recurrent model outside lapse, complete in this file, with a setting that its program depends on."""

from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from lapse import RNN, Cell
from lapse.kernels.builder import BEFORE, Builder
from lapse.recurrent import Gates, State
from lapse.recurrent.rnn import LayerOptions


class DriftCell(Cell):
    """h_i = h_{i−1} + k Δ_i tanh(W x_i + R h_{i−1} + b), with a constant pace k."""

    def __init__(self, input_size: int, hidden_size: int, *, pace: float = 0.5) -> None:
        super().__init__(input_size, hidden_size)
        self.pace = pace
        self.gates = Gates(input_size, hidden_size)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] + self.pace * timespan.unsqueeze(-1) * torch.tanh(self.gates(input, state[0]))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0], state

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, u, t = p.state(n), p.register(n), p.register(n)
        self.gates.program(p, "gates", u, [x], h | BEFORE)
        p.emit("Tanh", t, u)
        p.combine(1, h, h | BEFORE, [t], [self.pace], "Integrate")


class Drift(RNN):
    """A layer of `DriftCell`."""

    label: ClassVar[str] = "Drift of my own"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        pace: float = 0.5,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(DriftCell, pace=pace)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)


class SlowDriftCell(DriftCell):
    """A subclass: it inherits the program, which is not for it, so that the reference loop runs it."""


class SlowDrift(RNN):
    """A layer of `SlowDriftCell`, without anything of its own."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=SlowDriftCell, **options)
