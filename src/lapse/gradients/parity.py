"""The smallest problem with a long-term dependency: the parity of a bit stream that comes as events.

A run of equal bits is one event: the bit, after a gap of the run's length (the paper's event-coded XOR task, drawn here
so that the theory's figures need no data). One label, at the end. A bit lasts one unit of time: in the paper's own
unit, where the whole stream lasts one, τ = 1 has no time to make anything vanish.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.gradients.flow import error_flow
from lapse.gradients.surfaces import Surface, loss_surface
from lapse.recurrent import RNN


@dataclass(frozen=True)
class ParityEvents:
    """A batch of event-coded bit streams and their parities."""

    input: Tensor  # (B, T, 1), the bits as −1 and 1
    timespans: Tensor  # (B, T), in bits
    lengths: Tensor  # (B,)
    target: Tensor  # (B,), 0 or 1

    @property
    def arguments(self) -> dict[str, Tensor]:
        """What the layer is called with."""
        return {"input": self.input, "timespans": self.timespans, "lengths": self.lengths}


def parity_events(rows: int, bits: int = 32, *, generator: torch.Generator | None = None) -> ParityEvents:
    """Random bit streams with their runs packed to events."""
    stream = torch.randint(0, 2, (rows, bits), generator=generator)
    ends = torch.ones(rows, bits, dtype=torch.bool)
    ends[:, :-1] = stream[:, 1:] != stream[:, :-1]
    lengths = ends.sum(1)
    width = int(lengths.max())
    # Runs come in order of time: the k-th end of a row is its k-th event.
    row, place = ends.nonzero(as_tuple=True)
    event = ends.cumsum(1)[row, place] - 1
    input, last = torch.zeros(rows, width, 1), torch.full((rows, width + 1), -1.0)
    input[row, event, 0] = 2.0 * stream[row, place] - 1.0
    last[row, event + 1] = place.float()
    timespans = last.diff(dim=1).clamp_min(0.0)
    return ParityEvents(input, timespans, lengths, stream.sum(1) % 2)


class ParityClassifier(nn.Module):
    """A layer and an affine readout of each row's last output: two logits."""

    def __init__(self, layer: RNN) -> None:
        super().__init__()
        self.layer = layer
        self.readout = nn.Linear(layer.hidden_size, 2)

    def forward(self, input: Tensor, timespans: Tensor, lengths: Tensor) -> Tensor:
        output, _ = self.layer(input, timespans=timespans, lengths=lengths)
        last = output[torch.arange(len(lengths)), lengths - 1]
        logits: Tensor = self.readout(last)
        return logits

    def loss(self, events: ParityEvents) -> Tensor:
        """Cross-entropy in nats; 0.693 is a guess."""
        return F.cross_entropy(self(**events.arguments), events.target)


def teaching_signal(model: ParityClassifier, events: ParityEvents) -> Tensor:
    """The loss's gradient at the state, counted back from the label, where it is 1: the median over the streams.

    As far back as three quarters of the streams reach, so that the median is over most of them.
    """
    flow = error_flow(model, events.arguments, loss=lambda logits: F.cross_entropy(logits, events.target))
    lags = flow.by_lag()
    reach = int(events.lengths.double().quantile(0.25))
    return (lags / lags[:, :1])[:, :reach].nanmedian(0).values


def parity_surface(model: ParityClassifier, events: ParityEvents, seed: int, points: int = 15) -> Surface:
    """The loss on ``events`` around the model's weights."""
    generator = torch.Generator().manual_seed(seed)
    return loss_surface(model, lambda: model.loss(events), points=points, generator=generator)
