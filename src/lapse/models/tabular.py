"""A linear map of well-made columns: regularised regression on a table, as a part of a network."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lapse.heads import Head, Targets
from lapse.sequences.ragged import Array

SKEWED = 2.5  # a column is long-tailed if its 99th percentile is this many times its median
TAIL = 1.0  # per cent of the values at each end that are set to the percentile
BEYOND = 3.0  # standard deviations after which a square no longer grows
ALWAYS_KNOWN = 0.999
STEPS = 60  # of the solver at most; it has mostly settled before
SETTLED = 1e-6  # change of the loss or of a weight below which the solver stops
RIDGES = (6.0, 60.0, 600.0)
MOST_ROWS = 1000  # more do not change which ridge is best, and take longer


class Columns(nn.Module):
    """Columns of a table as a linear map likes them: without tails, centred, scaled, with flags and squares.

    Long-tailed columns without negative values are taken as log(1 + x / typical). The ends beyond the 1st and the 99th
    percentile are cut off. A missing value is 0, which is the mean; a flag per column that is ever missing says
    so. Every column and flag comes with its square, so that "too low or too high" can be said too. All of it is
    measured on the training split.

    Args:
        size: the number of columns.

    Attributes:
        output_size: the number of columns that come out.
    """

    typical: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    scale: Tensor
    share: Tensor
    flag_scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.output_size = 4 * size
        for name in ("typical", "low", "mean", "share", "flag_scale"):
            self.register_buffer(name, torch.zeros(size))
        self.register_buffer("high", torch.ones(size))
        self.register_buffer("scale", torch.ones(size))

    def measure(self, table: Array) -> None:
        """Take everything from the training split.

        Args:
            table: (S, size), NaN where a value is missing.
        """
        known = ~np.isnan(table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column without any value
            middle, top = _percentiles(table, (50, 99))
            positive = np.nanmean(np.where(table > 0, table, np.nan), axis=0)
            skewed = (np.nanmin(table, axis=0) >= 0) & (top > SKEWED * middle) & (positive > 0)
            typical = np.where(skewed, np.where(middle > 0, middle, positive), 0.0)
            logged = np.where(skewed, np.log1p(table / np.where(skewed, typical, 1.0)), table)
            low, high = _percentiles(logged, (TAIL, 100 - TAIL))
            cut = np.clip(logged, low, high)
            mean, spread = np.nanmean(cut, axis=0), np.nanstd(cut, axis=0)
        share = known.mean(axis=0)
        flag_scale = np.where(share < ALWAYS_KNOWN, 1 / np.maximum(np.sqrt(share * (1 - share)), 0.05), 0.0)
        scale = np.where(spread > 1e-6 * np.maximum(np.abs(mean), 1e-30), spread, 1.0)
        found = {"typical": typical, "low": low, "high": high, "mean": mean, "scale": scale}
        found |= {"share": share, "flag_scale": flag_scale}
        for name, array in found.items():
            getattr(self, name).copy_(torch.as_tensor(np.nan_to_num(array)))

    def forward(self, values: Tensor, known: Tensor) -> Tensor:
        """(B, 4 · size): values, flags, and the squares of both.

        Args:
            values: (B, size) in the units of the table; anything finite where not known.
            known: (B, size) bool.
        """
        skewed = self.typical > 0
        logged = torch.log1p(values.clamp(min=0) / torch.where(skewed, self.typical, 1.0))
        cut = torch.where(skewed, logged, values).clamp(self.low, self.high)
        scaled = ((cut - self.mean) / self.scale).masked_fill(~known, 0.0)
        flags = (known.to(scaled.dtype) - self.share) * self.flag_scale
        both = torch.cat([scaled, flags], -1)
        return torch.cat([both, both.clamp(-BEYOND, BEYOND) ** 2 - 1], -1)


def _percentiles(table: Array, levels: tuple[float, float]) -> Array:
    """(2, size), of the known values of each column; many times as fast as NumPy where a column has no NaN."""
    found = np.empty((2, table.shape[1]))
    full = ~np.isnan(table).any(axis=0)
    found[:, full] = np.percentile(table[:, full], levels, axis=0)
    found[:, ~full] = np.nanpercentile(table[:, ~full], levels, axis=0)
    return found


class TabularReadout(nn.Module):
    """Raw outputs from columns of a table by a linear map with a penalty of its own on large weights.

    The penalty is ½ · ridge / S · |w|² for S training sequences, as in ridge or regularised logistic regression.

    Args:
        size: the number of columns of the table.
        output_size: the number of raw outputs.
        ridge: how strong the penalty is.
    """

    sequences: Tensor

    def __init__(self, size: int, output_size: int, ridge: float) -> None:
        super().__init__()
        self.ridge = ridge
        self.columns = Columns(size)
        self.linear = nn.Linear(self.columns.output_size, output_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("sequences", torch.ones(()))

    def solve(self, table: Array, head: Head, targets: Targets) -> None:
        """Measure the columns on the training split, then find the weights that are best without any other part.

        This is ridge regression, or regularised logistic regression, as the head has it. Training goes on from there.

        Args:
            table: (M, size), NaN where a value is missing.
            head: what is asked, measured on the training split.
            targets: the targets of the M rows.
        """
        self.columns.measure(table)
        self.sequences.fill_(len(table))
        with torch.no_grad():
            columns = self.columns(*self._numbers(table))
        optimizer = torch.optim.LBFGS(
            self.parameters(), max_iter=STEPS, tolerance_change=SETTLED, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            total = head.loss(self.linear(columns), targets).sum() / targets.weights.sum() + self.penalty
            total.backward()
            return total

        with torch.enable_grad():
            optimizer.step(loss)
        optimizer.zero_grad()

    @torch.no_grad()
    def outputs(self, table: Array) -> Tensor:
        """(M, output_size), the raw outputs for a table.

        Args:
            table: (M, size), NaN where a value is missing.
        """
        output: Tensor = self.linear(self.columns(*self._numbers(table)))
        return output

    def _numbers(self, table: Array) -> tuple[Tensor, Tensor]:
        known = torch.from_numpy(~np.isnan(table))
        return torch.from_numpy(np.nan_to_num(table)).to(self.linear.weight.dtype), known

    def forward(self, static: Tensor, known: Tensor | None) -> Tensor:
        """(B, output_size), from static features.

        Args:
            static: (B, size) in the units of the table; anything finite where not known.
            known: (B, size) bool; None if everything is known.
        """
        known = torch.ones_like(static, dtype=torch.bool) if known is None else known
        output: Tensor = self.linear(self.columns(static.to(self.linear.weight.dtype), known))
        return output

    @property
    def penalty(self) -> Tensor:
        """What is added to the mean loss in training."""
        return 0.5 * self.ridge / self.sequences * self.linear.weight.square().sum()


class Ridge(NamedTuple):
    """How strong a penalty is, and the summed loss with it on rows that were left out."""

    strength: float
    loss: float


def best_ridge(table: Array, head: Head, targets: Targets, ridges: Sequence[float] = RIDGES) -> Ridge:
    """The ridge with the least loss on rows that were left out, in three parts.

    Args:
        table: (M, columns), NaN where a value is missing.
        head: what is asked, measured on the training split.
        targets: the targets of the M rows.
        ridges: what to choose from.
    """
    order = np.random.default_rng(0).permutation(len(table))[:MOST_ROWS]
    parts = np.array_split(order, 3)
    losses = dict.fromkeys(ridges, 0.0)
    for ridge in ridges:
        for part in parts:
            others = np.setdiff1d(order, part)
            readout = TabularReadout(table.shape[1], head.width, ridge)
            readout.solve(table[others], head, _rows(targets, others))
            losses[ridge] += float(head.loss(readout.outputs(table[part]), _rows(targets, part)).sum())
    return min((Ridge(*pair) for pair in losses.items()), key=lambda ridge: ridge.loss)


def _rows(targets: Targets, rows: Array) -> Targets:
    return Targets(*(column[torch.from_numpy(rows)] for column in targets))
