"""The compiled engine: a whole model in one native call, its weights frozen and packed once."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapse.kernels import native
from lapse.kernels.programs import program_of
from lapse.kernels.streams import StreamCall, StreamModel
from lapse.models import Step, Stepper
from lapse.models.pooling import Last, Pool
from lapse.streaming.arena import POLICIES, Arena, Events, Layout

NOWHERE = -1


class NotServed(Exception):
    """The compiled engine does not cover a model, and why."""


class NativeEngine:
    """Takes events with the compiled library: preprocessing, all layers, pooling and readout in one call.

    Args:
        step: the model, one event at a time. Its weights are copied.
        layout: where the parts of a row lie.
        late: what becomes of events that come too late: "refuse", "drop" or "clamp".
    """

    def __init__(self, step: Stepper, layout: Layout, late: str) -> None:
        if not isinstance(step, Step):
            raise NotServed(f"{step.described} is left to torch")
        loaded = native.library()
        if loaded is None:
            raise NotServed("the compiled kernels cannot be had")
        kinds = {torch.float32: "f32", torch.float64: "f64"}
        if step.dtype not in kinds:
            raise NotServed(f"weights are {step.dtype}, expected float32 or float64")
        self._late = POLICIES.index(late)
        self._kept: list[Any] = []  # what the native side points to
        make, self._take, self._end = (
            getattr(loaded, f"lapse_{name}_{kinds[step.dtype]}") for name in ("stream", "take", "end_stream")
        )
        described = self._describe(step, layout)
        self._handle = make(ctypes.addressof(described))
        if not self._handle:
            raise MemoryError("no memory for the weights of a stream")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._end(self._handle)

    def prepare(self, events: Events) -> None:
        """Make the arguments of calls with these events, which may be many.

        Args:
            events: the events; only where their arrays lie matters.
        """
        call = StreamCall()
        call.count, call.late = len(events), self._late
        for name in ("slots", "when", "values", "output", "status"):
            setattr(call, name, getattr(events, name).ctypes.data)
        events.call = call, ctypes.addressof(call)

    def take(self, arena: Arena, events: Events) -> bool:
        """Take the events, none of them if one is refused; whether they were. `events.status` says why not.

        Args:
            arena: the rows of all ids.
            events: the events, prepared; outputs and status are filled in.
        """
        call, address = events.call
        call.arena, call.times, call.capacity = arena.addresses
        taken: int = self._take(self._handle, address)
        if taken < 0:
            raise MemoryError(f"no memory for {len(events)} events")
        return taken == 1

    def _describe(self, step: Step, layout: Layout) -> StreamModel:
        """The model as csrc/stream.h takes it."""
        model, d = step.model, StreamModel()
        d.features, d.outputs, d.row = len(model.schema.inputs), model.head.width, layout.width
        d.missing, d.sees_inputs = model.schema.missing, model.readout.sees_inputs
        for name in ("fill", "shift", "scale"):
            setattr(d, name, self._tensor(getattr(model.preprocessing, name)))
        clip = model.preprocessing.clip
        d.clip, d.time_unit = math.inf if clip is None else clip, float(model.preprocessing.time_unit)
        self._describe_layers(d, step)
        pools: list[Pool] = [Last(1)] if model.pooling is None else model.pooling.members
        if unknown := [pool for pool in pools if pool.stream_code is None]:
            raise NotServed(f"pooling by {type(unknown[0]).__name__.lower()} is left to torch")
        d.pools = len(pools)
        d.pool_kinds = self._integers([pool.stream_code or 0 for pool in pools])
        d.pool_places = self._integers([_first(layout, f"pool{i}_") for i in range(len(pools))])
        d.events = layout["events"].place
        d.static_place = _place(layout, "static_seen")
        d.static_size = 0 if d.static_place == NOWHERE else layout["static_seen"].width
        d.summaries, d.offset = _place(layout, "summary_last"), _place(layout, "offset")
        d.latest = _place(layout, "latest")
        if model.present is not None:
            columns = model.present.columns.tolist()
            d.latest_count, d.latest_columns = len(columns), self._integers(columns)
            d.certain = self._tensor(_affine(model.head.certain, len(columns)))
        self._describe_readout(d, step)
        return d

    def _describe_layers(self, d: StreamModel, step: Step) -> None:
        stack = step.model.encoder.stack
        if not stack:
            raise NotServed(f"{type(step.model.encoder).__name__} is not a stack of cells")
        handles, parameters = [], []
        for cell in stack:
            written, parts = program_of(cell)
            tensors = written.tensors(parts)
            if written.program is None or tensors is None:
                raise NotServed(f"{type(cell).__name__} has no program for the fused loop")
            plan = written.plan(step.dtype)
            self._kept.append(plan)
            handles.append(plan.handle.value)
            parameters.append(self._pointers([self._tensor(tensor) for tensor in tensors]))
            if not d.layers:
                d.input = written.program.input_port.row_stride
            d.layers += 1
        if d.input not in (d.features, 2 * d.features):
            raise NotServed(f"{type(stack[0]).__name__} takes {d.input} inputs for {d.features} features")
        d.plans, d.parameters = self._pointers(handles), self._pointers(parameters)

    def _describe_readout(self, d: StreamModel, step: Step) -> None:
        """The affine maps of the readout, with SiLU between any two of them."""
        readout = step.model.readout.map
        parts = list(readout) if isinstance(readout, nn.Sequential) else [readout]
        maps = [part for part in parts if isinstance(part, nn.Linear)]
        if [type(part) for part in parts] != [nn.Linear, *[nn.SiLU, nn.Linear] * (len(maps) - 1)]:
            raise NotServed(f"the readout {step.model.config.readout!r} is left to torch")
        d.maps = len(maps)
        d.map_sizes = self._integers([maps[0].in_features, *(part.out_features for part in maps)])
        d.map_weights = self._pointers([self._tensor(part.weight) for part in maps])
        d.map_biases = self._pointers([self._tensor(part.bias) for part in maps])

    # Addresses of what is kept as long as the engine.

    def _tensor(self, tensor: Tensor) -> int:
        kept = tensor.detach().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _integers(self, numbers: Sequence[int]) -> int:
        return self._tensor(torch.tensor(numbers, dtype=torch.int64))

    def _pointers(self, addresses: Sequence[int | None]) -> int:
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        self._kept.append(array)
        return ctypes.addressof(array)


def _place(layout: Layout, name: str) -> int:
    part = layout.parts.get(name)
    return part.place if part is not None and part.width else NOWHERE


def _first(layout: Layout, prefix: str) -> int:
    """Where the first of the parts with such a name begins; 0 if there is none, so that nobody looks."""
    return next((part.place for name, part in layout.parts.items() if name.startswith(prefix)), 0)


def _affine(function: Callable[[Tensor], Tensor], inputs: int) -> Tensor:
    """(outputs, 1 + inputs) float64: the constant of an affine function, and its factors."""
    constant = function(torch.zeros(1, inputs, dtype=torch.float64))
    factors = function(torch.eye(inputs, dtype=torch.float64)) - constant
    return torch.cat([constant, factors]).t()
