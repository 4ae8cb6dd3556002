"""How far the answers of an exported file are from those of its model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lapse.export.formats import Run
from lapse.export.forms import Form
from lapse.models import Stepper
from lapse.sequences import Batch, Sequences

SEQUENCES, EVENTS = 8, 12  # the number of random sequences, and the most events that one of them has


@torch.no_grad()
def largest_difference(step: Stepper, form: Form, run: Run) -> float:
    """The largest difference between an answer of a file and that of its model, on random sequences.

    Numbers in the table's own units count in units of their own size where they are larger than 1.

    Args:
        step: one event of the whole model.
        form: what was exported.
        run: runs the file.
    """
    sequences = random_sequences(step)
    expected = step.head.answer(step.whole(sequences)).flatten(1)
    found = _answers(step, form, run, sequences.batch(range(len(sequences))))
    return float(((found - expected).abs() / expected.abs().clamp(min=1)).max())


def random_sequences(step: Stepper, seed: int = 0) -> Sequences:
    """Random sequences such as the model may be asked about: of any length, with holes where training had some.

    Args:
        step: one event of the whole model.
        seed: decides them.
    """
    schema, scales = step.schema, step.preprocessing
    random = np.random.default_rng(seed)
    lengths = random.integers(1, EVENTS + 1, SEQUENCES)
    optional = np.array([column.optional for column in schema.features for _ in column.inputs])
    spread = {
        name: getattr(scales, name).numpy() for name in ("shift", "scale", "static_shift", "static_scale")
    }
    values, count = [], len(schema.static_inputs)
    for length in lengths:
        drawn = spread["shift"] + spread["scale"] * random.normal(size=(length, len(schema.inputs)))
        values.append(np.where(optional & (random.random(drawn.shape) < 0.3), np.nan, drawn))
    static = spread["static_shift"][:count] + spread["static_scale"][:count] * random.normal(
        size=(SEQUENCES, count)
    )
    gaps = [random.exponential(float(scales.time_unit), length) for length in lengths]
    return Sequences.from_arrays(
        values,
        [np.cumsum(each) for each in gaps],
        static=static if count else None,
        features=schema.inputs,
        static_features=schema.static_inputs,
        unit=schema.unit,
    )


def _answers(step: Stepper, form: Form, run: Run, batch: Batch) -> Tensor:
    """The file's answers, one row per answer of the model."""
    padded = batch.padded()
    values = padded.values
    if padded.observed is not None:
        values = values.masked_fill(~padded.observed, torch.nan)
    static = {} if batch.static is None else {"static": batch.static}
    if form.facts["form"] == "sequence":
        given = {"values": values, "timespans": padded.timespans, "lengths": batch.lengths}
        answer = run(given | static)["answer"]
        return batch.rows.unpad(answer) if step.head.per_step else answer
    state, found = step.start(len(batch)), []
    for t in range(values.shape[1]):
        outputs = run({"values": values[:, t], "timespan": padded.timespans[:, t]} | state | static)
        state = {name: outputs[f"next_{name}"] for name in state}
        found.append(outputs["answer"])
    answers = torch.stack(found, 1)  # (B, T, C)
    if step.head.per_step:
        return batch.rows.unpad(answers)
    return answers[torch.arange(len(batch)), batch.lengths - 1]
