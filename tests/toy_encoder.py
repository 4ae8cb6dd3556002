"""An encoder outside lapse, complete in this file: no cell, no state, no loop over time."""

import torch
from torch import Tensor, nn

from lapse.encoders import Encoder, Features, Observations


class MeanOfInputs(Encoder):
    """The mean of a map of all inputs, in which an event counts the less the later it is."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        missing: bool,
        static_size: int,
        rate: float = 1.0,
    ) -> None:
        super().__init__()
        self.map = nn.Linear(input_size * (2 if missing else 1), hidden_size)
        self.rate, self.output_size = rate, hidden_size

    def forward(self, observations: Observations) -> Features:
        rows, weight = observations.rows, torch.exp(-self.rate * observations.times).unsqueeze(-1)
        final: Tensor = rows.sum(self.map(observations.inputs) * weight) / rows.sum(weight)
        return Features(None, final)
