"""Whether two engines give the same answers: a compiled path is used only where it does what the model does."""

from __future__ import annotations

import numpy as np
import torch

from lapse.models import Stepper
from lapse.sequences.ragged import Array
from lapse.streaming.arena import Arena, Events, Layout
from lapse.streaming.native import NativeEngine, NotServed
from lapse.streaming.reference import ReferenceEngine

ROWS, STEPS = 3, 4
TOLERANCE = 1e-4  # of float32, after a few events; what is computed differently is off by far more


def check_agreement(engine: NativeEngine, reference: ReferenceEngine, step: Stepper, layout: Layout) -> None:
    """Raise `NotServed` unless both engines answer a few made-up events alike.

    A part of a model may be a subclass that does something else, such as a cell with another `step_input`. Instead of
    asking every part what it is, this looks at what it does.

    Args:
        engine: the engine in question.
        reference: the engine that calls the model itself.
        step: the model, one event at a time.
        layout: where the parts of a row lie.
    """
    found, expected = (_outputs(one, step, layout) for one in (engine, reference))
    if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        raise NotServed("a part of the model does something of its own")


def _outputs(engine: NativeEngine | ReferenceEngine, step: Stepper, layout: Layout) -> Array:
    prepare, random = step.preprocessing, np.random.default_rng(0)
    features, unit = len(step.schema.inputs), float(prepare.time_unit)
    first = layout.first_row(step, None)
    arena = Arena(layout.width, first.dtype, ROWS)
    arena.rows[:] = first
    found = []
    for step_number in range(STEPS):
        events = Events(ROWS, features, step.head.width, first.dtype)
        engine.prepare(events)
        events.slots[:] = np.arange(ROWS)
        events.when[:] = unit * (step_number + np.arange(ROWS) / ROWS)
        events.values[:] = prepare.shift + prepare.scale * torch.from_numpy(
            random.normal(size=(ROWS, features))
        )
        if step.schema.missing:
            events.values[random.random(events.values.shape) < 0.3] = np.nan
        engine.take(arena, events)
        found.append(events.output.copy())
    return np.stack(found)
