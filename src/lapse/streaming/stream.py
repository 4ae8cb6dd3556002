"""A trained model behind a state per id: events in, answers out, one at a time."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lapse.arguments import check_choice, check_count
from lapse.heads import NonFiniteError
from lapse.kernels.setting import chosen_backend
from lapse.models import Steppable
from lapse.models.base import check_finite
from lapse.models.step import stepper_of
from lapse.sequences.ragged import Array
from lapse.streaming.answers import Answer, Answers
from lapse.streaming.arena import BAD_TIME, BAD_VALUE, LATE, POLICIES, TAKEN, Arena, Events, Layout
from lapse.streaming.clock import Clock
from lapse.streaming.native import NativeEngine, NotServed
from lapse.streaming.probe import check_agreement
from lapse.streaming.reference import ReferenceEngine
from lapse.streaming.residents import Residents
from lapse.streaming.values import Values

MOST_AT_ONCE = 4096  # events of one call of an engine: enough to fill it, and few enough to stay in the cache

NUMBERS = "fiub"  # kinds of arrays

Late = Literal["refuse", "drop", "clamp"]
Time = float | str | datetime | np.datetime64
Given = Mapping[str, Any] | Sequence[Any] | Array


class Stream:
    """A model that takes events one at a time, for thousands of ids, and answers after each.

    ```python
    stream = lapse.Stream(model)
    answer = stream.push("pump 3", time=12.5, values={"pressure": 2.1})
    answer["prediction"]
    ```

    The answers are those of `model.predict` for the events so far. The weights are copied when the stream is made, and
    an event costs one native call where the compiled kernels cover the model; elsewhere PyTorch does the same more
    slowly.
    All methods may be called from several threads; events of one id are taken in the order of the calls.

    Args:
        model: a trained model that reads forward only, or an ensemble of such models that `lapse fit` wrote.
        max_ids: for how many ids a state is kept. When one more comes, the id without an event for the longest time is
            forgotten; should it come again, it begins anew.
        late: what becomes of an event that is older than the last one of its id. "refuse" raises ValueError, "drop"
            leaves it out and answers None, "clamp" takes it as if it had come at the time of the last one.
        on_evict: called with every id that is forgotten, after the call that made it so.

    """

    def __init__(
        self,
        model: Steppable,
        *,
        max_ids: int = 100_000,
        late: Late = "refuse",
        on_evict: Callable[[Hashable], None] | None = None,
    ) -> None:
        check_count("max_ids", max_ids)
        check_choice("late", late, POLICIES)
        if on_evict is not None and not callable(on_evict):
            raise TypeError(f"on_evict must be a function of an id, got {on_evict!r}")
        self.late, self.max_ids = late, max_ids
        self.step = stepper_of(copy.deepcopy(model)).cpu().eval().requires_grad_(False)
        self.head, schema = self.step.head, self.step.schema
        self._clock = Clock(schema.unit)
        self._values = Values("feature", schema.features)
        self._static = Values("static feature", schema.static)
        self._layout = Layout(self.step)
        self._dtype = np.dtype(str(self.step.dtype).removeprefix("torch."))
        self._residents = self._nobody()
        self._first_row = self._row_for(None) if self._may_begin_anywhere else None
        self._engine = self._choose_engine()
        self._lock = threading.Lock()
        self._on_evict = on_evict
        self._one = self._events(1)
        self._one_row, self._one_output = self._one.values[0], self._one.output[0]

    @property
    def native(self) -> bool:
        """Whether the compiled engine is used."""
        return isinstance(self._engine, NativeEngine)

    @property
    def ids(self) -> list[Hashable]:
        """The ids that have a state, the one without an event for the longest time first."""
        with self._lock:
            return list(self._residents)

    @property
    def evicted(self) -> int:
        """How many ids were forgotten so far to make room for others."""
        return self._residents.evicted

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, id: Hashable) -> bool:
        return id in self._residents

    @property
    def nbytes(self) -> int:
        """The memory that the states take, in bytes."""
        return self._residents.arena.nbytes

    def open(self, id: Hashable, *, start: Time | None = None, static: Given | None = None) -> None:
        """Say what is known of an id before its first event. Ids without anything to say need not be opened.

        Args:
            id: the id; one that has a state already begins anew.
            start: when its time began, if that was before its first event.
            static: its static features, by name or in order.
        """
        row = self._row_for(self._static.numbers(static) if static is not None else None)
        began = math.nan if start is None else self._clock.number(start)
        if start is not None and not math.isfinite(began):
            raise ValueError(f"start must be a finite time, got {start!r}")
        with self._lock:
            slot = self._residents.enter(id, None)
            self._residents.arena.rows[slot], self._residents.arena.times[slot] = row, began
            self._residents.settle()
        self._tell()

    def push(self, id: Hashable, time: Time, values: Given) -> Answer | None:
        """Take an event and answer: what `predict` would say of the id's events so far.

        Args:
            id: which sequence it belongs to; any hashable object.
            time: when it happened: a number in the unit of the training table, or a date.
            values: what was observed: numbers in the order of the model's features, or by name; NaN or None for what
                was not observed.

        Returns:
            The answer; None if the event came too late and `late` is "drop".
        """
        events = self._one
        with self._lock:
            self._read(values, self._one_row)
            events.when[0] = time if type(time) is float else self._clock.number(time)
            residents = self._residents
            new = () if id in residents else (id,)
            events.slots[0] = residents.enter(id, self._first_row_of(new))
            if not self._engine.take(residents.arena, events) or events.status[0] != TAKEN:
                residents.undo(new)
                if events.status[0] == LATE and self.late == "drop":
                    return None
                raise self._refusal(events, [id])
            residents.settle()
            raw = self._one_output.copy()
        if residents.forgotten:
            self._tell()
        return Answer(self.head, raw)

    def push_many(self, ids: Sequence[Hashable], times: Any, values: Any) -> Answers:
        """Take many events, of any ids in any order, and answer each.

        They are taken in groups. If one is refused, its group and those after it are not taken, and the error says so.

        Args:
            ids: N ids.
            times: (N,), when each happened.
            values: (N, F) numbers, NaN where nothing was observed; or N values as `push` takes them.
        """
        _check_ids(ids)
        when = self._clock.numbers(times)
        numbers = self._read_many(values)
        if not len(ids) == len(when) == len(numbers):
            raise ValueError(
                f"got {len(ids)} ids, {len(when)} times and {len(numbers)} values, expected as many of each"
            )
        raw = np.full((len(ids), self.head.width), np.nan, self._dtype)
        taken = np.zeros(len(ids), bool)
        size = min(MOST_AT_ONCE, self.max_ids)  # so that no id of a group is forgotten within it
        for first in range(0, len(ids), size):
            part = slice(first, first + size)
            events = self._events(len(when[part]))
            events.when[:], events.values[:] = when[part], numbers[part]
            with self._lock:
                self._take_group(ids[part], events, first)
            taken[part] = events.status == TAKEN
            raw[part][taken[part]] = events.output[taken[part]]
            self._tell()
        return Answers(self.head, raw, taken)

    def ask(self, id: Hashable, time: Time) -> Answer:
        """What the model believes at a time after the last event of an id; asking changes nothing.

        Only a model that takes a gap in pieces can say that: `ode-lstm` with form="jump", `gru-d`, `ct-lstm`.

        Args:
            id: an id that had an event.
            time: when, not before its last event.
        """
        return Answer(self.head, self.ask_many([id], self._clock.number(time)).raw[0])

    def ask_many(self, ids: Sequence[Hashable], times: Any) -> Answers:
        """`ask` for many ids at once.

        Args:
            ids: N ids that had events.
            times: (N,), or one time for all of them.
        """
        _check_ids(ids)
        alone = np.ndim(times) == 0
        when = np.full(len(ids), self._clock.number(times)) if alone else self._clock.numbers(times)
        if len(ids) != len(when):
            raise ValueError(
                f"got {len(ids)} ids and {len(when)} times, expected as many of each, or one time"
            )
        with self._lock:
            slots = [self._known_slot(id) for id in ids]
            rows, last = self._residents.arena.rows[slots], self._residents.arena.times[slots]
        with np.errstate(over="ignore"):
            spans = (when - last).astype(np.float32)
        if not ((spans >= 0) & np.isfinite(spans)).all():
            k = int(np.flatnonzero(~((spans >= 0) & np.isfinite(spans)))[0])
            raise ValueError(
                f"{ids[k]!r} is asked at {when[k]:g}, and its last event was at {last[k]:g}; ask at a finite time "
                "after it"
            )
        with torch.no_grad():
            seen = self.step.between(torch.from_numpy(spans), self._layout.read(rows))
            output = self.step.outputs(seen, self._layout.static(rows))
        check_finite(output, ids)
        return Answers(self.head, output.numpy(), np.ones(len(output), bool))

    def forget(self, id: Hashable) -> None:
        """Drop the state of an id; nothing happens if there is none.

        Args:
            id: the id.
        """
        with self._lock:
            self._residents.leave(id)

    def snapshot(self, path: str | Path) -> None:
        """Write the states of all ids to one file, whole or not at all.

        Args:
            path: the file; one that is there is replaced.
        """
        from lapse.streaming import snapshot

        with self._lock:
            residents = self._residents
            arena, slots = residents.arena, residents.slots
            kept = snapshot.Kept(list(residents), arena.rows[slots], arena.times[slots], residents.evicted)
        snapshot.save(kept, self.step, Path(path))

    def restore(self, path: str | Path) -> None:
        """Go on from a snapshot: the answers are those that the stream would have given that wrote it, to the bit.

        Args:
            path: a file that `snapshot` wrote, of a stream of the same model.
        """
        from lapse.streaming import snapshot

        kept = snapshot.load(self.step, Path(path))
        with self._lock:
            residents = self._residents = self._nobody()
            residents.evicted = kept.evicted
            for id, row, time in zip(kept.ids, kept.rows, kept.times, strict=True):
                slot = residents.enter(id, row)
                residents.arena.times[slot] = time
            residents.settle()
        self._tell()

    # The rest is called with the lock held, or before there is any other thread.

    def _choose_engine(self) -> NativeEngine | ReferenceEngine:
        reference = ReferenceEngine(self.step, self._layout, self.late)
        if (choice := chosen_backend()) == "reference":
            return reference
        try:
            engine = NativeEngine(self.step, self._layout, self.late)
            check_agreement(engine, reference, self.step, self._layout)
        except NotServed as reason:
            if choice == "fused":
                raise RuntimeError(
                    f"no compiled stream for this model: {reason}; use backend('auto')"
                ) from reason
            return reference
        return engine

    def _nobody(self) -> Residents:
        return Residents(Arena(self._layout.width, self._layout.dtype, self.max_ids))

    def _events(self, count: int) -> Events:
        events = Events(count, self._values.size, self.head.width, self._dtype)
        self._engine.prepare(events)
        return events

    @property
    def _may_begin_anywhere(self) -> bool:
        """Whether an id may come without static features."""
        return all(column.optional for column in self.step.schema.static)

    def _row_for(self, static: list[float] | None) -> Array:
        """The row of an id before its first event."""
        if static is None and not self._may_begin_anywhere:
            needed = [column.name for column in self.step.schema.static if not column.optional]
            raise ValueError(
                f"the model needs {', '.join(needed)} of every id: open(id, static=...) before its first event, "
                'or "static" in the line of that event'
            )
        return self._layout.first_row(self.step, static)

    def _first_row_of(self, new: Sequence[Hashable]) -> Array | None:
        """What the rows of new ids begin with; ValueError if they need static features, or could never be found."""
        for id in new:
            if id != id:
                raise ValueError(
                    f"{id!r} does not equal itself, so that it cannot be the id of several events"
                )
        if new and self._first_row is None:
            self._row_for(None)  # raises, and says what is missing
        return self._first_row

    def _known_slot(self, id: Hashable) -> int:
        """The row of an id that had an event."""
        slot = self._residents.slot(id)
        if slot is None or not self._residents.arena.rows[slot, self._layout["events"].place]:
            raise KeyError(f"there was no event of {id!r} yet, or it was forgotten")
        return slot

    def _tell(self) -> None:
        """Report the ids that were forgotten; the callback runs without the lock, so that it may use the stream."""
        with self._lock:
            forgotten, self._residents.forgotten = self._residents.forgotten, []
        if self._on_evict is not None:
            for id in forgotten:
                self._on_evict(id)

    def _take_group(self, ids: Sequence[Hashable], events: Events, first: int) -> None:
        residents = self._residents
        new = [id for id in ids if id not in residents]
        row = self._first_row_of(new)
        slots = events.slots
        slots[:] = [residents.enter(id, row) for id in ids]
        arena = residents.arena
        rows, times = arena.rows[slots], arena.times[slots]
        if not self._engine.take(arena, events) or (events.status > LATE).any():
            # Those that came before one which diverged, and those of other ids, were taken.
            arena.rows[slots], arena.times[slots] = rows, times
            residents.undo(new)
            raise self._refusal(events, ids, first)
        residents.settle()

    def _read(self, values: Given, to: Array) -> None:
        """The numbers of one event."""
        kind = type(values)
        try:
            # NumPy would also take text and dates as numbers; a sum of them fails, or is neither of these two.
            if kind is list or kind is tuple:
                plain = type(sum(values)) in (float, int)
            else:
                plain = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in NUMBERS
            if plain and self._values.plain and len(values) == len(to):
                to[:] = values
                return
        except (TypeError, OverflowError, RuntimeWarning):  # the last of 1e39, where warnings are errors
            pass
        with np.errstate(over="ignore"):  # what becomes infinite is refused by the engine
            to[:] = self._values.numbers(values)  # or it raises, and says what is wrong

    def _read_many(self, values: Any) -> Array:
        """(N, size) numbers, which are infinite where the type of the model has no room for them."""
        with np.errstate(over="ignore"):
            plain = type(values) is np.ndarray and self._values.plain and values.dtype.kind in NUMBERS
            if plain and values.ndim == 2 and values.shape[1] == self._values.size:
                return values.astype(self._dtype, copy=False)  # type: ignore[no-any-return]
            if not hasattr(values, "__len__"):
                raise TypeError(
                    f"values must be numbers (N, {self._values.size}), or one per event, got {values!r}"
                )
            numbers = [self._values.numbers(one) for one in values]
            return np.array(numbers, self._dtype).reshape(-1, self._values.size)

    def _refusal(self, events: Events, ids: Sequence[Hashable], first: int = 0) -> Exception:
        """What is wrong with the first event that is refused."""
        bad = events.status != TAKEN if self.late != "drop" else events.status > LATE
        k = int(np.flatnonzero(bad)[0])
        status, time = int(events.status[k]), float(events.when[k])
        where = f"the event of {ids[k]!r} at {time:g}" + (f" (number {first + k})" if len(events) > 1 else "")
        taken = f"; the {first} events before its group were taken" if first else ""
        if status == LATE:
            last = float(self._residents.arena.times[events.slots[k]])
            return ValueError(
                f"{where} is older than the one before it, at {last:g}; late={self.late!r} refuses it{taken}"
            )
        if status == BAD_TIME:
            return ValueError(
                f"{where} has no time that can be counted; it, and the gap before it, must be finite in float32{taken}"
            )
        if status == BAD_VALUE:
            return ValueError(
                f"{where} has an infinite value, or one too large for {self._dtype}; what was not observed is NaN or "
                f"None{taken}"
            )
        return NonFiniteError(
            f"{where} makes the state or the answer NaN or infinite; it was left out, and all of its group with it"
            f"{taken}. Likely cause: values far from those of training (set clip= in the model)"
        )


def _check_ids(ids: Any) -> None:
    if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
        raise TypeError(f"ids must be a list with one id per event, got {ids!r}")
