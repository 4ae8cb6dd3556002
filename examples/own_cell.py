"""A cell of your own: a GRU whose state fades through every gap."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lapse
from lapse.recurrent import Cell, State


class FadingGRUCell(Cell):
    """h⁻ = h ⊙ exp(−τ Δ), then a GRU: the state lives through the gap first and absorbs the observation after it."""

    splits_gaps = True  # a gap may be passed in pieces: what `flow` does twice is what it does at once

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gru = nn.GRUCell(input_size, hidden_size)
        self.rate = nn.Parameter(torch.zeros(hidden_size))

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] * torch.exp(-F.softplus(self.rate) * timespan.unsqueeze(-1))  # (B, H); one gap per row
        return h, (h,)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        faded, _ = self.flow(state, timespan)
        h = self.gru(input, faded)
        return h, (h,)


class FadingGRU(lapse.RNN):
    """The layer: everything that a layer of lapse can do, around the cell."""

    label = "Fading GRU"  # its name in tables and figures

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **options) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=FadingGRUCell, **options)


if __name__ == "__main__":
    layer = FadingGRU(input_size=3, hidden_size=8, num_layers=2)
    values, gaps = torch.randn(4, 10, 3), torch.rand(4, 10)
    lengths = torch.tensor([10, 7, 3, 1])
    output, h_n = layer(values, timespans=gaps, lengths=lengths)
    print(tuple(output.shape), tuple(h_n.shape))

    # Whatever lies beyond the length of a row has no effect, not even NaN.
    values[1, 7:] = torch.nan
    again, _ = layer(values, timespans=gaps, lengths=lengths)
    print("padding has no effect:", torch.equal(output, again))

    # A gap of 3 is a gap of 1 and then one of 2.
    cell = FadingGRUCell(3, 8)
    x, state = torch.randn(5, 3), (torch.randn(5, 8),)
    whole, _ = cell.step(x, state, torch.full((5,), 3.0))
    _, later = cell.flow(state, torch.full((5,), 1.0))
    pieces, _ = cell.step(x, later, torch.full((5,), 2.0))
    print("gaps in pieces:", torch.allclose(whole, pieces, atol=1e-6))
