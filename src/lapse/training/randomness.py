"""Random draws that belong to one training alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def own_random(*numbers: int) -> Iterator[None]:
    """Inside, torch draws what these numbers decide; afterwards its global generator is where it was before.

    Dropout can only draw from torch's global generator. With the seed, the epoch and the number of the batch as
    `numbers`, a resumed training draws what the unbroken one would have drawn, and the user's own draws stay the same.

    Args:
        numbers: what decides the draws; none may be negative.
    """
    seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(seed))
        yield
