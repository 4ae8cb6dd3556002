"""Random sequences for the tests, and what it means for two to be the same."""

import numpy as np

from lapse import Sequences
from lapse.sequences.ragged import FIELD_NAMES


def ragged(lengths: list[int], features: int = 2, seed: int = 0, missing: float = 0.0) -> Sequences:
    random = np.random.default_rng(seed)
    values = [random.normal(3.0, 2.0, (n, features)) for n in lengths]
    for array in values:
        array[random.random(array.shape) < missing] = np.nan
    values[0][0] = 1.0  # no feature is wholly unobserved
    return Sequences.from_arrays(
        values,
        [np.cumsum(random.random(n)) for n in lengths],
        targets=random.integers(0, 3, len(lengths)),
        static=random.random((len(lengths), 2)),
        groups=[f"g{i % 4}" for i in range(len(lengths))],
        ids=[f"id{i}" for i in range(len(lengths))],
        unit="h",
    )


def same(a: Sequences, b: Sequences) -> None:
    for name in FIELD_NAMES:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=name)
        else:
            assert left == right, name
