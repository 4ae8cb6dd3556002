"""A cell against an independent transcription of its equations, row by row, over uneven gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lapse.recurrent import Cell

Vectors = tuple[np.ndarray, ...]

# A gap of 0, one that is lost beside 1, and long ones.
GAPS = (0.0, 1e-9, 0.03, 0.7, 2.5, 40.0, 1e4)


class Oracle(Protocol):
    """The equations of a cell for one row in NumPy, with the gap as a plain number.

    The state is a tuple of vectors in the cell's own order, the output first.
    """

    def initial(self) -> Vectors:
        """The state before the first observation."""
        ...

    def step(self, input: np.ndarray, state: Vectors, timespan: float, /) -> tuple[np.ndarray, Vectors]:
        """Take an observation after a gap: the output and the state."""
        ...

    def flow(self, state: Vectors, timespan: float, /) -> tuple[np.ndarray, Vectors]:
        """Let time pass: the output and the state."""
        ...


def check_equations(
    cell: Cell,
    oracle: Oracle,
    *,
    tolerance: float = 1e-12,
    gaps: Sequence[float] = GAPS,
    rows: int = 4,
    steps: int = 6,
    missing: float = 0.0,
    seed: int = 1,
) -> None:
    """Fail where a cell differs from the transcription of its equations: outputs, states, and `flow` after each step.

    Args:
        cell: The cell, in any precision.
        oracle: The transcription, with the same weights.
        tolerance: The error that is allowed, relative for what is larger than 1 and absolute for what is
            smaller.
        gaps: The gaps to try; each row takes them in an order of its own.
        rows: The number of rows.
        steps: The number of observations.
        missing: The share of features that are not observed, for a cell that takes missing features.
        seed: Decides the observations.
    """
    errors = largest_errors(cell, oracle, gaps=gaps, rows=rows, steps=steps, missing=missing, seed=seed)
    wrong = {name: error for name, error in errors.items() if not error < tolerance}
    assert not wrong, f"{type(cell).__name__} differs from its equations: {wrong}"


def largest_errors(
    cell: Cell,
    oracle: Oracle,
    *,
    gaps: Sequence[float] = GAPS,
    rows: int = 4,
    steps: int = 6,
    missing: float = 0.0,
    seed: int = 1,
) -> dict[str, float]:
    """By name of the output or state, the largest error over rows and steps; arguments as of `check_equations`."""
    weight = next(cell.parameters())
    random = np.random.default_rng(seed)
    values = torch.from_numpy(random.normal(size=(rows, steps, cell.input_size))).to(weight.dtype)
    observed = torch.from_numpy(random.random((rows, steps, cell.input_size)) >= missing)
    orders = np.stack([random.permutation(gaps)[:steps] for _ in range(rows)])
    spans = torch.from_numpy(orders).to(weight.dtype)
    # What must not be looked at is NaN.
    values = values.masked_fill(~observed, torch.nan) if cell.takes_missing else values
    inputs = cell.step_input(values, observed if cell.takes_missing else None)
    comparison = _Comparison(cell, oracle, rows)
    for t in range(steps):
        comparison.step(inputs[:, t], spans[:, t])
        comparison.flow(spans[:, t - 1])
    return comparison.errors


class _Comparison:
    def __init__(self, cell: Cell, oracle: Oracle, rows: int) -> None:
        self.cell, self.oracle, self.errors = cell, oracle, dict[str, float]()
        self.state = cell.initial_state(rows, dtype=next(cell.parameters()).dtype)
        self.expected = [oracle.initial() for _ in range(rows)]

    def step(self, input: Tensor, spans: Tensor) -> None:
        output, self.state = self.cell.step(input, self.state, spans)
        stepped = [
            self.oracle.step(x.double().numpy(), state, float(span))
            for x, state, span in zip(input, self.expected, spans, strict=True)
        ]
        self.expected = [state for _, state in stepped]
        self._note("", output, [output for output, _ in stepped], self.state, self.expected)

    def flow(self, spans: Tensor) -> None:
        output, state = self.cell.flow(self.state, spans)
        flowed = [self.oracle.flow(s, float(span)) for s, span in zip(self.expected, spans, strict=True)]
        self._note("flow ", output, [o for o, _ in flowed], state, [s for _, s in flowed])

    def _note(
        self,
        prefix: str,
        output: Tensor,
        expected: list[np.ndarray],
        state: tuple[Tensor, ...],
        rows: list[Vectors],
    ) -> None:
        self._compare(f"{prefix}output", output, expected)
        for k, name in enumerate(self.cell.state_names):
            self._compare(f"{prefix}{name}", state[k], [row[k] for row in rows])

    def _compare(self, name: str, ours: Tensor, theirs: list[np.ndarray]) -> None:
        expected = np.stack(theirs)
        given = ours.detach().double().numpy()
        if expected.shape[1] == 1:  # a number kept in parts, such as a clock, is their sum
            given = given.sum(-1, keepdims=True)
        assert given.shape == expected.shape, (
            f"{name} has {given.shape[1]} units, expected {expected.shape[1]}"
        )
        error = np.abs(given - expected) / np.maximum(1.0, np.abs(expected))
        self.errors[name] = max(self.errors.get(name, 0.0), float(error.max()))
