"""From the features of a sequence's events to one row of features for the whole sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from lapse.encoders import Features, Named, Observations
from lapse.rows import Rows


class Pool(nn.Module, ABC):
    """One way to reduce the features of all events to those of their sequence, of the same width.

    `forward` takes all events at once, `start` and `step` take them one at a time; the results are the same.

    Args:
        size: the width of the features.

    Attributes:
        stream_code: the number by which the compiled stream knows it, `PoolKind` of csrc/stream.h; None if it does not.
    """

    stream_code: ClassVar[int | None] = None

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @abstractmethod
    def forward(self, features: Features, rows: Rows) -> Tensor:
        """(B, size), from the features and where the events of each sequence lie."""

    @abstractmethod
    def start(self, features: Tensor) -> Named:
        """The states before the first event, for features of the shape of `features` (B, size)."""

    @abstractmethod
    def step(self, features: Tensor, state: Named) -> tuple[Tensor, Named]:
        """(B, size) for the events so far, and the new states.

        Args:
            features: (B, size), the features after one more event.
            state: the states after the event before.
        """

    @abstractmethod
    def between(self, features: Tensor, state: Named) -> Tensor:
        """(B, size) for the events so far, when the features have moved on since the last of them.

        Args:
            features: (B, size), the features now.
            state: the states after the last event.
        """


class Last(Pool):
    """The features after the last event."""

    stream_code = 0

    def forward(self, features: Features, rows: Rows) -> Tensor:
        return features.final

    def start(self, features: Tensor) -> Named:
        return {}

    def step(self, features: Tensor, state: Named) -> tuple[Tensor, Named]:
        return features, {}

    def between(self, features: Tensor, state: Named) -> Tensor:
        return features


class Mean(Pool):
    """The mean over all events."""

    stream_code = 1

    def forward(self, features: Features, rows: Rows) -> Tensor:
        total = rows.sum(steps_of(features))
        return total / rows.lengths.unsqueeze(1).to(total)

    def start(self, features: Tensor) -> Named:
        return {"total": torch.zeros_like(features), "count": torch.zeros_like(features[:, :1])}

    def step(self, features: Tensor, state: Named) -> tuple[Tensor, Named]:
        total, count = state["total"] + features, state["count"] + 1
        return total / count, {"total": total, "count": count}

    def between(self, features: Tensor, state: Named) -> Tensor:
        return state["total"] / state["count"]


class Max(Pool):
    """The largest value of each feature over all events."""

    stream_code = 2

    def forward(self, features: Features, rows: Rows) -> Tensor:
        return rows.max(steps_of(features))

    def start(self, features: Tensor) -> Named:
        return {"largest": torch.full_like(features, -torch.inf)}

    def step(self, features: Tensor, state: Named) -> tuple[Tensor, Named]:
        largest = torch.maximum(state["largest"], features)
        return largest, {"largest": largest}

    def between(self, features: Tensor, state: Named) -> Tensor:
        return state["largest"]


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

    def start(self, features: Tensor) -> Named:
        nothing = torch.zeros_like(features[:, :1])
        return {
            "largest": torch.full_like(nothing, -torch.inf),
            "weight": nothing,
            "total": torch.zeros_like(features),
        }

    def step(self, features: Tensor, state: Named) -> tuple[Tensor, Named]:
        score: Tensor = self.score(features)  # (B, 1)
        largest = torch.maximum(state["largest"], score)
        fading, weight = torch.exp(state["largest"] - largest), torch.exp(score - largest)
        total = state["total"] * fading + features * weight
        weight = state["weight"] * fading + weight
        return total / weight, {"largest": largest, "weight": weight, "total": total}

    def between(self, features: Tensor, state: Named) -> Tensor:
        return state["total"] / state["weight"]


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

    def start(self, features: Tensor) -> Named:
        """The states before the first event: those of each pool, `pool0_total` and so on."""
        return {
            f"{prefix}{name}": part
            for prefix, pool in self._prefixed()
            for name, part in pool.start(features).items()
        }

    def step(self, features: Tensor, state: Named) -> tuple[Tensor, Named]:
        """(B, output_size) for the events so far, and the new states.

        Args:
            features: (B, size), the features after one more event.
            state: the states after the event before.
        """
        pooled: list[Tensor] = []
        after: Named = {}
        for prefix, pool in self._prefixed():
            found, new = pool.step(features, _own(state, prefix))
            pooled.append(found)
            after |= {f"{prefix}{name}": part for name, part in new.items()}
        return torch.cat(pooled, -1), after

    def between(self, features: Tensor, state: Named) -> Tensor:
        """(B, output_size) for the events so far, when the features have moved on since the last of them.

        Args:
            features: (B, size), the features now.
            state: the states after the last event.
        """
        pools = self._prefixed()
        return torch.cat([pool.between(features, _own(state, prefix)) for prefix, pool in pools], -1)

    @property
    def members(self) -> list[Pool]:
        """The pools in their order."""
        return [pool for pool in self.pools if isinstance(pool, Pool)]

    def _prefixed(self) -> list[tuple[str, Pool]]:
        return [(f"pool{i}_", pool) for i, pool in enumerate(self.members)]


def _own(state: Named, prefix: str) -> Named:
    return {name.removeprefix(prefix): part for name, part in state.items() if name.startswith(prefix)}


def steps_of(features: Features) -> Tensor:
    """The features per event (N, D), which not every encoder has."""
    if features.steps is None:
        raise ValueError(
            "the encoder gives no features per event, so it can only answer once per sequence, with pooling='last'"
        )
    return features.steps
