"""From the features of a sequence's events to one row of features for the whole sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lapse.encoders import Features, Observations
from lapse.rows import Rows


class Pool(nn.Module, ABC):
    """One way to reduce the features of all events to those of their sequence, of the same width.

    Args:
        size: the width of the features.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @abstractmethod
    def forward(self, features: Features, rows: Rows) -> Tensor:
        """(B, size), from the features and where the events of each sequence lie."""


class Last(Pool):
    """The features after the last event."""

    def forward(self, features: Features, rows: Rows) -> Tensor:
        return features.final


class Mean(Pool):
    """The mean over all events."""

    def forward(self, features: Features, rows: Rows) -> Tensor:
        total = rows.sum(steps_of(features))
        return total / rows.lengths.unsqueeze(1).to(total)


class Max(Pool):
    """The largest value of each feature over all events."""

    def forward(self, features: Features, rows: Rows) -> Tensor:
        return rows.max(steps_of(features))


class Attention(Pool):
    """A mean over all events in which each event has a learned weight: softmax over events of w · features.

    It starts as the plain mean, with all weights equal.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.score = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, features: Features, rows: Rows) -> Tensor:
        steps = steps_of(features)
        score: Tensor = self.score(steps)  # (N, 1)
        largest = rows.max(score.detach())  # subtracted so that no exponential overflows
        weight = torch.exp(score - largest.index_select(0, rows.row.to(score.device)))
        return rows.sum(steps * weight) / rows.sum(weight)


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
        return torch.cat([pool(features, observations.rows) for pool in self.pools], -1)


def steps_of(features: Features) -> Tensor:
    """The features per event (N, D), which not every encoder has."""
    if features.steps is None:
        raise ValueError(
            "the encoder gives no features per event, so it can only answer once per sequence, with pooling='last'"
        )
    return features.steps
