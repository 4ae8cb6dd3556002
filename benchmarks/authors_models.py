"""A rival of the ODE-LSTM as the authors' published code has it, where that is not what its source describes.

It is here to see how much of a figure of the paper that explains (`studies/reasons.toml`), and for nothing else:

    PYTHONPATH=benchmarks lapse study studies/reasons.toml -o results/reasons
"""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from lapse import RNN, Cell
from lapse.recurrent import Gates, State
from lapse.recurrent.rnn import LayerOptions


class SubtractedDecayCell(Cell):
    """RNN-Decay with a decay that is subtracted: after a long gap the state is far from 0, not near it.

        h_i = tanh(W x_i + R h_{i−1} + b) − τ Δ_i;     y_i = h_i

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = Gates(input_size, hidden_size)
        self.rate = nn.Parameter(torch.full((hidden_size,), 0.1))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = torch.tanh(self.gates(input, state[0])) - self.rate * timespan.unsqueeze(-1)
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] - self.rate * timespan.unsqueeze(-1)
        return h, (h,)


class SubtractedDecay(RNN):
    """A layer of `SubtractedDecayCell`."""

    label: ClassVar[str] = "RNN-Decay, subtracted"

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=SubtractedDecayCell, **options)
