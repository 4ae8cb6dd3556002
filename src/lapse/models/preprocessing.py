"""From a raw batch to what an encoder sees: missing values filled, features scaled and clipped, time in one unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lapse.encoders import Observations
from lapse.sequences import Batch, Sequences
from lapse.sequences.ragged import Array


class Statistics(NamedTuple):
    """What is measured of each column of the training data: three arrays with one number per column."""

    fill: Array  # what stands for a missing value
    shift: Array  # what is subtracted
    scale: Array  # by what is then divided


def unscaled(values: Array, observed: Array | None) -> Statistics:
    """Columns stay as they are; a missing value is the mean."""
    fill, _, scale = standard(values, observed)
    return Statistics(fill, np.zeros_like(fill), np.ones_like(scale))


def standard(values: Array, observed: Array | None) -> Statistics:
    """Columns get mean 0 and standard deviation 1; a missing value is the mean.

    The sums are taken in float64 and in two passes, so that a large offset costs no digits.
    """
    weight = np.ones(values.shape, bool) if observed is None else observed
    count = np.maximum(weight.sum(axis=0), 1)
    mean = np.sum(values, axis=0, where=weight, dtype=np.float64) / count
    variance = np.sum((values - mean) ** 2, axis=0, where=weight) / count
    # Rounding leaves a constant column a spread of a few units in the last place, and dividing by that gives noise.
    constant = np.sqrt(variance) <= 1e-6 * np.abs(mean)
    scale = np.where(constant, 1.0, np.sqrt(variance))
    return Statistics(mean.astype(np.float32), mean.astype(np.float32), scale.astype(np.float32))


def robust(values: Array, observed: Array | None) -> Statistics:
    """Columns get median 0 and the quartiles of a standard normal distribution; a missing value is the median.

    A few wild values have no effect. A column of which more than half is one value has no quartiles to speak of: its
    scale is the standard deviation.
    """
    columns = [
        _robust_column(values[:, k : k + 1], None if observed is None else observed[:, k : k + 1])
        for k in range(values.shape[1])
    ]
    median, scale = np.array(columns, np.float32).reshape(-1, 2).T
    return Statistics(median, median, scale)


def _robust_column(values: Array, observed: Array | None) -> tuple[float, float]:
    """Median and scale of a column (N, 1)."""
    seen = values if observed is None else values[observed]
    low, median, high = (
        np.quantile(seen.astype(np.float64), (0.25, 0.5, 0.75)) if seen.size else (0.0, 0.0, 0.0)
    )
    if high > low:
        return median, (high - low) / QUARTILES_APART
    return median, float(standard(values, observed).scale[0])


QUARTILES_APART = 1.3489795  # the distance between the quartiles of a standard normal distribution
SCALINGS: dict[str, Callable[[Array, Array | None], Statistics]] = {
    "none": unscaled,
    "standard": standard,
    "robust": robust,
}


class Preprocessing(nn.Module):
    """The one place where raw values and gaps become numbers that a network can take.

        x = clip((x_raw − shift) / scale),   with x_raw = fill where nothing was observed
        gap = gap_raw / time_unit

    Static features are treated in the same way, except that an unknown one is 0 after scaling. All of it is measured
    on the training split by `measure`, and stored with the weights of a model; before that, nothing is changed.

    Args:
        input_size: the number of features.
        static_size: the number of static features.
        missing: whether features may be missing, so that an encoder is told which were observed.
        scaling: how shift and scale are measured, one of `SCALINGS`: "none", "standard" (mean and standard deviation)
            or "robust" (median and quartiles, on which a few wild values have no effect).
        clip: the largest absolute value after scaling; larger ones are set to it. None sets no limit.
        time_unit: what a gap of 1 is for the network: a number in the unit of the training table, "median" for the
            median gap of the training split, or None for the unit of the table itself.
    """

    fill: Tensor
    shift: Tensor
    scale: Tensor
    static_shift: Tensor
    static_scale: Tensor
    time_unit: Tensor

    def __init__(
        self,
        input_size: int,
        static_size: int = 0,
        *,
        missing: bool = False,
        scaling: str = "standard",
        clip: float | None = None,
        time_unit: float | str | None = "median",
    ) -> None:
        super().__init__()
        self.missing, self.scaling, self.clip, self.chosen_unit = missing, scaling, clip, time_unit
        self.register_buffer("fill", torch.zeros(input_size))
        self.register_buffer("shift", torch.zeros(input_size))
        self.register_buffer("scale", torch.ones(input_size))
        self.register_buffer("static_shift", torch.zeros(static_size))
        self.register_buffer("static_scale", torch.ones(static_size))
        self.register_buffer("time_unit", torch.ones(()))

    def measure(self, train: Sequences) -> None:
        """Take everything from the training split, and from nothing else.

        Args:
            train: the training split, in the form that the schema gives it.
        """
        statistics = SCALINGS[self.scaling]
        found = statistics(train.values, train.observed)
        for buffer, array in zip((self.fill, self.shift, self.scale), found, strict=True):
            buffer.copy_(torch.as_tensor(array))
        if train.static is not None:
            _, shift, scale = statistics(train.static, train.static_observed)
            self.static_shift.copy_(torch.as_tensor(shift))
            self.static_scale.copy_(torch.as_tensor(scale))
        if self.chosen_unit is not None:
            self.time_unit.fill_(
                train.median_gap if self.chosen_unit == "median" else float(self.chosen_unit)
            )

    @property
    def filled(self) -> Tensor:
        """(F,) what a missing value is after scaling: 0, except where nothing is shifted."""
        return (self.fill - self.shift) / self.scale

    def forward(self, batch: Batch) -> Observations:
        self._check_width(batch)
        values, observed = self.events(batch.values, batch.observed)
        static = None if batch.static is None else self.static(batch.static, batch.static_observed)
        return Observations(values, observed, self.spans(batch.timespans), batch.rows, static)

    def events(self, raw: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Values and flags as `Observations` has them, from those of a table.

        Args:
            raw: (N, F).
            observed: (N, F) bool; None if everything was observed.
        """
        raw = raw.to(self.scale.dtype)
        if observed is not None:
            raw = torch.where(observed, raw, self.fill)
        values = self._clipped((raw - self.shift) / self.scale)
        if not self.missing:
            return values, None
        return values, torch.ones_like(values) if observed is None else observed.to(values.dtype)

    def spans(self, timespans: Tensor) -> Tensor:
        """Gaps of a table in the model's unit of time."""
        return timespans.to(self.scale.dtype) / self.time_unit

    def static(self, raw: Tensor, known: Tensor | None) -> Tensor | None:
        """(B, 2 · K): every static feature, 0 where it is not known, and a flag for whether it is known.

        Args:
            raw: (B, K).
            known: (B, K) bool; None if everything is known.
        """
        if not len(self.static_scale):
            return None
        static = self._clipped((raw.to(self.scale.dtype) - self.static_shift) / self.static_scale)
        flags = torch.ones_like(static) if known is None else known.to(static)
        return torch.cat([static.masked_fill(flags == 0, 0.0), flags], -1)

    def _clipped(self, values: Tensor) -> Tensor:
        return values if self.clip is None else values.clamp(-self.clip, self.clip)

    def _check_width(self, batch: Batch) -> None:
        widths = (batch.values.shape[-1], 0 if batch.static is None else batch.static.shape[-1])
        expected = (len(self.scale), len(self.static_scale))
        if widths != expected:
            raise ValueError(
                f"the batch has {widths[0]} features and {widths[1]} static ones, the model was built for "
                f"{expected[0]} and {expected[1]}; bring the sequences into its form first: model.conform(sequences)"
            )
