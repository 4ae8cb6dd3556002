"""Standardisation: mean 0 and standard deviation 1 over what was observed in the training split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lapse.sequences.ragged import Array, Sequences


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Shift and scale of each feature, measured once on training data and applied to every split.

    >>> scaler = Standardizer.fit(train)                 # doctest: +SKIP
    >>> train, test = scaler(train), scaler(test)        # doctest: +SKIP

    Values that were not observed take no part in the measurement and stay 0, which is the mean. A constant
    feature is only shifted; one never observed in training is left alone. Static features are treated the
    same.
    """

    features: tuple[str, ...]
    mean: Array  # (F,) float32
    scale: Array  # (F,) float32
    static_mean: Array | None = None  # (K,)
    static_scale: Array | None = None  # (K,)

    @classmethod
    def fit(cls, train: Sequences) -> Standardizer:
        mean, scale = _moments(train.values, train.observed)
        if train.static is None:
            return cls(train.features, mean, scale)
        return cls(train.features, mean, scale, *_moments(train.static, train.static_observed))

    def __call__(self, sequences: Sequences) -> Sequences:
        if sequences.features != self.features:
            raise ValueError(
                f"fitted on features {self.features}, got {sequences.features}; "
                "read both tables with the same values="
            )
        values = _applied(sequences.values, sequences.observed, self.mean, self.scale)
        if sequences.static is None or self.static_mean is None or self.static_scale is None:
            return replace(sequences, values=values)
        static = _applied(sequences.static, sequences.static_observed, self.static_mean, self.static_scale)
        return replace(sequences, values=values, static=static)


def _moments(values: Array, observed: Array | None) -> tuple[Array, Array]:
    """Mean and scale of each column, summed in float64 in two passes: large offsets cost no digits."""
    weight = np.ones(values.shape, bool) if observed is None else observed
    count = np.maximum(weight.sum(axis=0), 1)
    mean = np.sum(values, axis=0, where=weight, dtype=np.float64) / count
    variance = np.sum((values - mean) ** 2, axis=0, where=weight) / count
    # Rounding leaves a constant column a spread of a few units in the last place; dividing by that is noise.
    constant = np.sqrt(variance) <= 1e-6 * np.abs(mean)
    return mean.astype(np.float32), np.where(constant, 1.0, np.sqrt(variance)).astype(np.float32)


def _applied(values: Array, observed: Array | None, mean: Array, scale: Array) -> Array:
    shifted = (values - mean) / scale
    return shifted if observed is None else np.where(observed, shifted, np.float32(0.0))
