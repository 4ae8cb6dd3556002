"""Estimators that fit in a second, and sequences whose answer is in their values."""

import numpy as np

from lapse import Sequences

QUICK = {"hidden_size": 4, "members": 1, "epochs": 2, "batch_size": 32}


def means(count=60, seed=0, features=2, missing=0.2):
    """Sequences of 3 to 9 events, and the mean of their first feature, which the targets are made of."""
    random = np.random.default_rng(seed)
    centre = random.normal(size=count)
    values, times = [], []
    for middle in centre:
        length = random.integers(3, 10)
        one = random.normal(size=(length, features)) * 0.3
        one[:, 0] += middle
        one[1:][random.random((length - 1, features)) < missing] = np.nan
        values.append(one)
        times.append(np.cumsum(random.exponential(size=length)))
    return Sequences.from_arrays(values, times, ids=[f"id{i}" for i in range(count)]), centre
