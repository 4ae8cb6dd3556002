"""The engine in plain PyTorch: any model that takes events one at a time, without a compiler."""

from __future__ import annotations

import math

import numpy as np
import torch

from lapse.models import Stepper
from lapse.sequences.ragged import Array
from lapse.solvers import SolverError
from lapse.streaming.arena import BAD_TIME, BAD_VALUE, DIVERGED, LATE, TAKEN, Arena, Events, Layout


class ReferenceEngine:
    """Takes events with a `Stepper`, all sequences of a call side by side.

    Args:
        step: the model, one event at a time.
        layout: where the parts of a row lie.
        late: what becomes of events that come too late: "refuse", "drop" or "clamp".
    """

    def __init__(self, step: Stepper, layout: Layout, late: str) -> None:
        self.step, self.layout, self.late = step, layout, late

    def prepare(self, events: Events) -> None:
        """Nothing; `NativeEngine.prepare` makes the arguments of its calls here."""

    @torch.no_grad()
    def take(self, arena: Arena, events: Events) -> bool:
        """Take the events, none of them if one is refused; whether they were. `events.status` says why not.

        Args:
            arena: the rows of all ids.
            events: the events; outputs and status are filled in.
        """
        gaps, times, waves = self._schedule(arena, events)
        allowed = (TAKEN, LATE) if self.late == "drop" else (TAKEN,)
        if not np.isin(events.status, allowed).all():
            return False
        for wave in range(waves.max(initial=-1) + 1):
            chosen = np.flatnonzero(waves == wave)
            # The events of an id after one that failed have gaps that are no longer right.
            lost = np.isin(events.slots[chosen], events.slots[events.status == DIVERGED])
            events.status[chosen[lost]] = DIVERGED
            if not lost.all():
                self._advance(arena, events, chosen[~lost], gaps, times)
        return True

    def _schedule(self, arena: Arena, events: Events) -> tuple[Array, Array, Array]:
        """The gap before each event, its time, and how many events of its sequence come before it in this call."""
        count, unit = len(events), self.step.preprocessing.time_unit.numpy()
        gaps, times, waves = np.zeros(count, np.float32), events.when.copy(), np.full(count, -1)
        newest: dict[int, float] = {}
        number: dict[int, int] = {}
        for k, slot in enumerate(events.slots.tolist()):
            before = newest.get(slot, float(arena.times[slot]))
            events.status[k] = self._judge(times[k], events.values[k], before)
            if events.status[k] == TAKEN and not math.isnan(before):
                times[k] = max(times[k], before)
                with np.errstate(over="ignore"):
                    gaps[k] = times[k] - before
                if not math.isfinite(gaps[k] / unit):
                    events.status[k] = BAD_TIME
            if events.status[k] == TAKEN:
                newest[slot], waves[k] = float(times[k]), number.get(slot, 0)
                number[slot] = int(waves[k]) + 1
        return gaps, times, waves

    def _judge(self, time: float, values: Array, before: float) -> int:
        if not np.isfinite(time):
            return BAD_TIME
        if np.isinf(values).any():
            return BAD_VALUE
        return LATE if time < before and self.late != "clamp" else TAKEN

    def _advance(self, arena: Arena, events: Events, chosen: Array, gaps: Array, times: Array) -> None:
        """Events of different sequences."""
        slots = events.slots[chosen]
        rows = arena.rows[slots]
        state, static = self.layout.read(rows), self.layout.static(rows)
        values = torch.from_numpy(events.values[chosen])
        try:
            seen, after = self.step.advance(values, torch.from_numpy(gaps[chosen]), state, static)
        except SolverError:
            if len(chosen) == 1:
                events.status[chosen] = DIVERGED
                return
            for one in chosen:  # one by one, to find those that failed
                self._advance(arena, events, np.array([one]), gaps, times)
            return
        output = self.step.outputs(seen, static).numpy()
        fine = np.isfinite(output).all(1)
        self.layout.write(rows, after)
        events.output[chosen] = output
        events.status[chosen] = np.where(fine, TAKEN, DIVERGED)
        arena.rows[slots[fine]], arena.times[slots[fine]] = rows[fine], times[chosen][fine]
