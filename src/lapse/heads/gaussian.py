"""Numbers with an uncertainty of their own."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from lapse.heads import metrics as of
from lapse.heads.base import Targets
from lapse.heads.columns import ScaledHead, mean_over_known
from lapse.heads.metrics import Array, Metric
from lapse.sequences import Sequences

INTERVAL = 0.9  # the central interval whose coverage is reported
HALF_WIDTH = 1.6448536269514722  # of that interval, in standard deviations
# Standard deviations between a thousandth and a thousand times the targets' spread: without bounds, one target that
# is predicted exactly makes the loss minus infinity.
LOG_STD = math.log(1e3)
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


# The metrics of (M, 2K): means, then standard deviations.


def nll(answer: Array, targets: Array) -> float:
    """The mean negative log likelihood of the known numbers."""
    mean, std = _parts(answer)
    return float(np.nanmean(0.5 * ((targets - mean) / std) ** 2 + np.log(std) + HALF_LOG_2PI))


def mse(answer: Array, targets: Array) -> float:
    return of.mse(_parts(answer)[0], targets)


def mae(answer: Array, targets: Array) -> float:
    return of.mae(_parts(answer)[0], targets)


def r2(answer: Array, targets: Array) -> float:
    return of.r2(_parts(answer)[0], targets)


def coverage_error(answer: Array, targets: Array) -> float:
    """How many percentage points the coverage of the central interval is away from what it promises."""
    mean, std = _parts(answer)
    half = HALF_WIDTH * std
    return abs(of.coverage(mean - half, mean + half, targets) - 100 * INTERVAL)


def _parts(answer: Array) -> tuple[Array, Array]:
    mean, std = np.split(answer, 2, axis=1)
    return mean, std


class Gaussian(ScaledHead):
    """K numbers, each with a learned mean and standard deviation; the loss is the negative log likelihood.

    The 2K raw outputs are the K means, then the K logarithms of the standard deviations.

    Args:
        names: what each column is called, K words.
        scale: whether targets are learned in units of their own spread in training.
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names among "nll" (in the table's own units), "mse", "mae", "r2" and "coverage_error" (how many
            percentage points the coverage of the central 90 % interval is away from 90).
    """

    available = (
        Metric("nll", False, nll),
        Metric("mse", False, mse),
        Metric("mae", False, mae),
        Metric("r2", True, r2),
        Metric("coverage_error", False, coverage_error, unit="%", decimals=1),
    )
    baseline_name = "mean"

    @property
    def width(self) -> int:
        return 2 * len(self.names)

    @property
    def question(self) -> str:
        count = len(self.names)
        return f"{'a number' if count == 1 else f'{count} numbers'} with standard deviation"

    @property
    def answer_names(self) -> tuple[str, ...]:
        means = tuple(self.column_name(name) for name in self.names)
        return means + tuple(f"{name}_std" for name in means)

    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        mean, log_std = _halves(output)
        standardized = (self.scaled(targets.values) - mean) * torch.exp(-log_std)
        return mean_over_known(0.5 * standardized**2 + log_std + HALF_LOG_2PI, targets.known)

    def answer(self, output: Tensor) -> Tensor:
        """(M, 2K): means, then standard deviations, in the table's own units."""
        mean, log_std = _halves(output)
        return torch.cat([self.unscaled(mean), log_std.exp() * self.target_scale], -1)

    def point(self, output: Tensor) -> Tensor:
        """The means."""
        return self.answer(output)[:, : len(self.names)]

    def predict(self, output: Tensor) -> dict[str, Array]:
        """`prediction` and `prediction_std`; with several columns `prediction_NAME` and `prediction_NAME_std`."""
        return self.answer_columns(output)

    def trivial(self, train: Sequences) -> Tensor:
        columns = self.known_columns(train)
        mean = self.scaled(torch.stack([column.mean() for column in columns]))
        std = torch.stack([column.std(correction=0) for column in columns]) / self.target_scale
        return torch.cat([mean, std.clamp(min=math.exp(-LOG_STD)).log()])

    def certain(self, values: Tensor) -> Tensor:
        """Standard deviations of one unit: nothing says how sure a repeated value is."""
        means = self.scaled(values)
        return torch.cat([means, torch.zeros_like(means)], -1)

    def calibration(self, output: Tensor, targets: Targets) -> Tensor:
        """Standard deviations are multiplied so that the central interval holds its share of the known targets."""
        mean, log_std = _halves(output)
        distance = ((self.scaled(targets.values) - mean) * torch.exp(-log_std)).abs()
        added = torch.zeros(self.width)
        for k, known in enumerate(targets.known.unbind(1)):
            if bool(known.any()):
                share = min(INTERVAL * (1 + 1 / int(known.sum())), 1.0)
                reached = np.quantile(distance[known, k].double().cpu().numpy(), share)
                added[len(self.names) + k] = math.log(max(reached, 1e-3) / HALF_WIDTH)
        return added.to(output)


def _halves(output: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = output.chunk(2, -1)
    return mean, log_std.clamp(-LOG_STD, LOG_STD)
