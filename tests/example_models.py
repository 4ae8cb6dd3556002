"""Small tables and models for the tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lapse import Sequences
from lapse.encoders import Observations
from lapse.models import SequenceModel
from lapse.rows import Rows

LENGTHS = (5, 1, 8)


def sequences(
    *,
    missing: bool = False,
    static: bool = False,
    per_step: bool = False,
    numbers: bool = False,
    count: int = 6,
) -> Sequences:
    """Some sequences of two features with classes, or the two features themselves, as targets."""
    random = np.random.default_rng(0)
    values = [random.normal(80, 10, (length, 2)) for length in random.integers(1, 8, count)]
    if numbers:
        targets: Any = [value + 1 for value in values] if per_step else [value[-1] for value in values]
    else:
        targets = [np.arange(len(value)) % 2 for value in values] if per_step else np.arange(count) % 2
    if missing:
        for value in values:
            value[len(value) // 2, 0] = np.nan
    extra: dict[str, Any] = {}
    if static:
        extra["static"] = np.where(np.arange(count) == 1, np.nan, np.arange(count))[:, None]
    times = [np.cumsum(random.exponential(2.0, len(value))) for value in values]
    return Sequences.from_arrays(values, times, targets=targets, per_step=per_step, unit="h", **extra)


def model_for(train: Sequences, seed: int = 0, head: Any = None, **settings: Any) -> SequenceModel:
    """An untrained model of few units."""
    torch.manual_seed(seed)
    return SequenceModel.for_data(train, head, **({"hidden_size": 4} | settings)).eval()


def observations(lengths: Sequence[int] = LENGTHS, static: bool = False) -> Observations:
    """Rows of three features, some of them missing, as an encoder is given them."""
    generator = torch.Generator().manual_seed(1)
    count = sum(lengths)
    return Observations(
        torch.randn(count, 3, generator=generator),
        (torch.rand(count, 3, generator=generator) < 0.7).float(),
        3 * torch.rand(count, generator=generator),
        Rows.flat(lengths),
        torch.randn(len(lengths), 4, generator=generator) if static else None,
    )
