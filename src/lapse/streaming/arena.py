"""What a stream keeps of its ids: one row of numbers per id, and the events of one call."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from lapse.encoders import Named
from lapse.models import Step
from lapse.sequences.ragged import Array

TAKEN, LATE, BAD_TIME, BAD_VALUE, DIVERGED = range(5)  # Status of csrc/stream.h
POLICIES = ("refuse", "drop", "clamp")  # the order is that of LatePolicy in csrc/stream.h
FIRST_ROWS = 64  # how many ids there is room for at first


class Part(NamedTuple):
    """A part of a row: where it begins, and its width."""

    place: int
    width: int


class Layout:
    """Where the parts of a row lie: the states of `Step` in their order, then what follows from static features.

    The last parts are `raw_static` (as given, NaN where not known), `static_seen` (preprocessed) and `offset` (what
    they add to the raw outputs); their width is 0 where a model has no use for them.

    Args:
        step: the model, one event at a time.
    """

    def __init__(self, step: Step) -> None:
        model = step.model
        static = len(model.schema.static_inputs)
        sizes = step.state_sizes | {
            "raw_static": static,
            "static_seen": 2 * static if model.readout.sees_static else 0,
            "offset": 0 if model.tabular is None else model.head.width,
        }
        self.states = tuple(step.state_sizes)
        self.parts: dict[str, Part] = {}
        self.width = 0
        for name, width in sizes.items():
            self.parts[name] = Part(self.width, width)
            self.width += width

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    def first_row(self, step: Step, static: list[float] | None) -> Array:
        """(width,), the row of an id before its first event.

        Args:
            step: the model, one event at a time.
            static: its static features; None if nothing is known of it.
        """
        model, scale = step.model, step.model.preprocessing.scale
        row: Array = np.zeros((1, self.width), scale.numpy().dtype)
        with torch.no_grad():
            if not (count := self.parts["raw_static"].width):
                self.write(row, step.begin(1))
                return row.reshape(-1)
            given = scale.new_tensor([[math.nan] * count if static is None else static])
            numbers, known = given.nan_to_num(), ~given.isnan()
            self.write(row, {"raw_static": given} | step.begin(1, given))
            if (
                self.parts["static_seen"].width
                and (seen := model.preprocessing.static(numbers, known)) is not None
            ):
                self.write(row, {"static_seen": seen})
            if model.tabular is not None:
                self.write(row, {"offset": model.tabular(numbers, known)})
        return row.reshape(-1)

    def read(self, rows: Array) -> Named:
        """The states, as `Step` takes them, of rows (N, width)."""
        return {name: torch.from_numpy(self._part(rows, name)) for name in self.states}

    def static(self, rows: Array) -> torch.Tensor | None:
        """(N, K), the raw static features of rows; None if the model has none."""
        return torch.from_numpy(self._part(rows, "raw_static")) if self.parts["raw_static"].width else None

    def write(self, rows: Array, named: Named) -> None:
        """Put parts (N, ...), by their names, into rows."""
        for name, tensor in named.items():
            self._part(rows, name)[:] = tensor.numpy()

    def _part(self, rows: Array, name: str) -> Array:
        place, width = self.parts[name]
        return rows[:, place : place + width]


class Arena:
    """Rows for ids, as many as there is need for.

    Args:
        width: the number of elements of a row.
        dtype: their type.
        most: the most rows that there may ever be.
    """

    def __init__(self, width: int, dtype: np.dtype[np.floating], most: int) -> None:
        self.most = most
        self.rows: Array = np.zeros((min(FIRST_ROWS, most), width), dtype)
        self.times: Array = np.full(len(self.rows), np.nan)  # of the last event
        self.free = list(range(len(self.rows)))[::-1]
        self._locate()

    def _locate(self) -> None:
        self.addresses = (self.rows.ctypes.data, self.times.ctypes.data, len(self.rows))

    def take(self) -> int:
        """The number of a free row; there is one as long as fewer than `most` are taken."""
        if not self.free:
            self._grow()
        return self.free.pop()

    def _grow(self) -> None:
        before = len(self.rows)
        count = min(2 * before, self.most)
        self.rows = np.concatenate(
            [self.rows, np.zeros((count - before, self.rows.shape[1]), self.rows.dtype)]
        )
        self.times = np.concatenate([self.times, np.full(count - before, np.nan)])
        self.free.extend(range(before, count)[::-1])
        self._locate()

    @property
    def nbytes(self) -> int:
        """How much memory the rows take."""
        return int(self.rows.nbytes + self.times.nbytes)


class Events:
    """The events of one call, and what becomes of them.

    Args:
        count: how many events there are.
        features: the number of values of an event.
        outputs: the number of raw outputs.
        dtype: the type of values and outputs.
    """

    def __init__(self, count: int, features: int, outputs: int, dtype: np.dtype[np.floating]) -> None:
        self.slots: Array = np.zeros(count, np.int64)  # the rows of the arena
        self.when: Array = np.zeros(count)
        self.values: Array = np.zeros((count, features), dtype)  # NaN where nothing was observed
        self.output: Array = np.zeros((count, outputs), dtype)
        self.status: Array = np.zeros(count, np.int32)
        self.call: Any = None  # what an engine made of them

    def __len__(self) -> int:
        return len(self.slots)
