"""The ids that have a state: who is there, who has to leave, and how a refused call is undone."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

from lapse.sequences.ragged import Array
from lapse.streaming.arena import Arena


class Residents:
    """The ids that have a row of an arena. When it is full, the id without an event for the longest time leaves.

    The calls of a stream end with `settle` if their events were taken, and with `undo` if they were refused.

    Args:
        arena: the rows.

    Attributes:
        evicted: how many ids had to leave so far.
        forgotten: those of them that nobody was told about yet.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena, self.evicted = arena, 0
        self.forgotten: list[Hashable] = []
        self._slots: OrderedDict[Hashable, int] = (
            OrderedDict()
        )  # the one without an event for the longest time first
        self._lost: list[tuple[Hashable, Array, float]] = []  # those that had to leave for this call

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, id: Hashable) -> bool:
        return id in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._slots)

    @property
    def slots(self) -> list[int]:
        """The rows of all ids, in their order."""
        return list(self._slots.values())

    def slot(self, id: Hashable) -> int | None:
        """The row of an id; None if it has none."""
        return self._slots.get(id)

    def enter(self, id: Hashable, first: Array | None) -> int:
        """The row of an id, which now is the newest of all; one that has no row gets one.

        Args:
            id: the id.
            first: what a new row begins with; None if the caller fills it in.
        """
        slot = self._slots.get(id)
        if slot is not None:
            self._slots.move_to_end(id)
            return slot
        if len(self._slots) >= self.arena.most:
            self._evict()
        slot = self._slots[id] = self.arena.take()
        if first is not None:
            self.arena.rows[slot] = first
        self.arena.times[slot] = math.nan
        return slot

    def leave(self, id: Hashable) -> None:
        """Free the row of an id, if it has one."""
        if (slot := self._slots.pop(id, None)) is not None:
            self.arena.free.append(slot)

    def settle(self) -> None:
        """The events of a call were taken: those who left for them are forgotten for good."""
        if self._lost:
            self.evicted += len(self._lost)
            self.forgotten += [id for id, _, _ in self._lost]
            self._lost.clear()

    def undo(self, new: Iterable[Hashable]) -> None:
        """The events of a call were refused: ids that came with them leave, those who left for them return.

        Args:
            new: the ids that had no row before the call.
        """
        for id in new:
            if id in self._slots and math.isnan(self.arena.times[self._slots[id]]):
                self.leave(id)
        while self._lost and len(self._slots) < self.arena.most:
            id, row, time = self._lost.pop()
            slot = self._slots[id] = self.arena.take()
            self._slots.move_to_end(id, last=False)
            self.arena.rows[slot], self.arena.times[slot] = row, time
        self.settle()

    def _evict(self) -> None:
        id, slot = self._slots.popitem(last=False)
        self._lost.append((id, self.arena.rows[slot].copy(), float(self.arena.times[slot])))
        self.arena.free.append(slot)
