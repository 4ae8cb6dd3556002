"""A cell of your own: a gated unit whose state fades through every gap."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lapse
import lapse.testing
from lapse.recurrent import Cell, State


class FadingCell(Cell):
    """The state fades through the gap, and then absorbs as much of the observation as a gate lets in.

    h⁻ = h ⊙ exp(−τ Δ),   (z, g) = W [x, h⁻] + b,   h = (1 − σ(z)) ⊙ h⁻ + σ(z) ⊙ tanh(g)
    """

    splits_gaps = True  # a gap may be passed in pieces: what `flow` does twice is what it does at once

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = nn.Linear(input_size + hidden_size, 2 * hidden_size)
        self.rate = nn.Parameter(torch.zeros(hidden_size))

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] * torch.exp(-F.softplus(self.rate) * timespan.unsqueeze(-1))  # (B, H)
        return h, (h,)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        faded, _ = self.flow(state, timespan)
        z, g = self.gates(torch.cat([input, faded], -1)).chunk(2, -1)  # (B, H) each
        h = torch.lerp(faded, torch.tanh(g), torch.sigmoid(z))
        return h, (h,)


class Fading(lapse.RNN):
    """The layer: everything that a layer of lapse can do, around the cell."""

    label = "Fading"  # its name in tables and figures

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **options) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=FadingCell, **options)


if __name__ == "__main__":
    layer = Fading(input_size=3, hidden_size=8, num_layers=2)
    values, gaps = torch.randn(4, 10, 3), torch.rand(4, 10)
    output, h_n = layer(values, timespans=gaps, lengths=torch.tensor([10, 7, 3, 1]))
    print(tuple(output.shape), tuple(h_n.shape))

    # Padding, other rows of the batch and later steps have no effect; a gap of 3 is one of 1 and then one of 2; ...
    lapse.testing.check_layer(Fading)
    print(f"{len(lapse.testing.layer_checks(Fading))} promises kept")
