"""From the features of a sequence's events to one row of features for the whole sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lapse.encoders import Features, Observations


class Pool(nn.Module, ABC):
    """One way to reduce the features of all events to those of their sequence, of the same width.

    Args:
        size: the width of the features.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @abstractmethod
    def forward(self, features: Features, mask: Tensor) -> Tensor:
        """(B, size), from features and the mask (B, T) that is true for events and false for padding."""


class Last(Pool):
    """The features after the last event."""

    def forward(self, features: Features, mask: Tensor) -> Tensor:
        return features.final


class Mean(Pool):
    """The mean over all events."""

    def forward(self, features: Features, mask: Tensor) -> Tensor:
        steps = steps_of(features).masked_fill(~mask.unsqueeze(-1), 0.0)
        return steps.sum(1) / mask.sum(1, keepdim=True)


class Max(Pool):
    """The largest value of each feature over all events."""

    def forward(self, features: Features, mask: Tensor) -> Tensor:
        return steps_of(features).masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)


class Attention(Pool):
    """A mean over all events in which each event has a learned weight: softmax over events of w · features.

    It starts as the plain mean, with all weights equal.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.score = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, features: Features, mask: Tensor) -> Tensor:
        steps = steps_of(features).masked_fill(~mask.unsqueeze(-1), 0.0)
        score: Tensor = self.score(steps).masked_fill(~mask.unsqueeze(-1), -torch.inf)
        return (steps * score.softmax(1)).sum(1)


POOLS: dict[str, type[Pool]] = {"last": Last, "mean": Mean, "max": Max, "attention": Attention}


class Pooling(nn.Module):
    """Several pools side by side.

    Args:
        words: names from `POOLS` with "+" between them, such as "last" or "last+mean+max".
        size: the width of the features.

    Attributes:
        output_size: the width of the result.
    """

    def __init__(self, words: str, size: int) -> None:
        super().__init__()
        self.pools = nn.ModuleList(POOLS[word](size) for word in words.split("+"))
        self.output_size = size * len(self.pools)

    def forward(self, features: Features, observations: Observations) -> Tensor:
        mask = observations.mask
        return torch.cat([pool(features, mask) for pool in self.pools], -1)


def steps_of(features: Features) -> Tensor:
    """The features per event (B, T, D), which not every encoder has."""
    if features.steps is None:
        raise ValueError(
            "the encoder gives no features per event, so it can only answer once per sequence, with pooling='last'"
        )
    return features.steps
