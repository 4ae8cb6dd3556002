"""What a stream keeps of its ids: one row of numbers per id, and the events of one call."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from lapse.encoders import Named
from lapse.models import Stepper
from lapse.sequences.ragged import Array

TAKEN, LATE, BAD_TIME, BAD_VALUE, DIVERGED = range(5)  # Status of csrc/stream.h
POLICIES = ("refuse", "drop", "clamp")  # the order is that of LatePolicy in csrc/stream.h
FIRST_ROWS = 64  # how many ids there is room for at first


class Part(NamedTuple):
    """A part of a row: where it begins, and its width."""

    place: int
    width: int


class Layout:
    """Where the parts of a row lie: the states of a stepper in their order, then what is known of an id from the start.

    That is `raw_static`, static features as given, NaN where not known, and what follows from them (`Stepper.fixed`).

    Args:
        step: the model, one event at a time.
    """

    def __init__(self, step: Stepper) -> None:
        states = step.start(1)
        static = step.preprocessing.scale.new_zeros(1, len(step.schema.static_inputs))
        fixed = {"raw_static": static} | (step.fixed(static) if static.shape[1] else {})
        self.types = {name: part.dtype for name, part in states.items()}
        self.dtype = np.dtype(str(_widest(self.types.values())).removeprefix("torch."))
        self.parts: dict[str, Part] = {}
        self.width = 0
        for name, part in (states | fixed).items():
            self.parts[name] = Part(self.width, part.shape[1])
            self.width += part.shape[1]

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    def first_row(self, step: Stepper, static: list[float] | None) -> Array:
        """(width,), the row of an id before its first event.

        Args:
            step: the model, one event at a time.
            static: its static features; None if nothing is known of it.
        """
        row: Array = np.zeros((1, self.width), self.dtype)
        with torch.no_grad():
            if count := self.parts["raw_static"].width:
                scale = step.preprocessing.scale
                given = scale.new_tensor([[math.nan] * count if static is None else static])
                self.write(row, {"raw_static": given} | step.begin(1, given) | step.fixed(given))
            else:
                self.write(row, step.begin(1))
        return row.reshape(-1)

    def read(self, rows: Array) -> Named:
        """The states, as `Step` takes them, of rows (N, width)."""
        return {
            name: torch.from_numpy(self._part(rows, name)).to(dtype) for name, dtype in self.types.items()
        }

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


def _widest(types: Iterable[torch.dtype]) -> torch.dtype:
    return functools.reduce(torch.promote_types, types)


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
