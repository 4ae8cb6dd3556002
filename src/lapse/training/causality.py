"""A check before training: a model that answers at every event must not have seen the events after it.

On Walker2d nine targets out of ten are the next input, so a model that looks ahead by one event wins by cheating. The
check runs the model itself: its outputs up to an event must stay the same, whatever comes after that event.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapse.models.base import Model
from lapse.rows import Rows
from lapse.sequences import Batch, Sequences

# Enough to show every kind of looking ahead, and cheap enough for a check before every training.
ROWS, STEPS = 8, 32
# Batches of different shape may be rounded differently. A model that looks ahead differs by orders of magnitude more,
# since what comes later is changed by several times its own size.
TOLERANCE = 1e-4


class SeesTheFuture(ValueError):
    """A model that answers at every event uses events that have not happened yet."""


def check_causality(model: Model[Any], sequences: Sequences) -> None:
    """Raise `SeesTheFuture` if the model's answers change with inputs, gaps or lengths that come later.

    Args:
        model: a model that answers at every event; it is left in the mode it was in.
        sequences: the data of which a few of the longer sequences are used, in the form that the model takes.
    """
    batch = _sample(sequences).to(next(model.parameters()).device)
    with model.evaluating():
        for step in _steps_to_check(batch):
            _check_up_to(model, batch, step)


def _sample(sequences: Sequences) -> Batch:
    """A few of the longer sequences, cut to a length at which running the model is cheap."""
    longest = np.argsort(sequences.lengths, kind="stable")[-ROWS:]
    return _cut(sequences.batch(longest), STEPS)


def _cut(batch: Batch, steps: int) -> Batch:
    """The batch with no more than the first `steps` events of each sequence, and without targets."""
    kept = (batch.rows.step < steps).to(batch.values.device)
    return dataclasses.replace(
        batch,
        values=batch.values[kept],
        timespans=batch.timespans[kept],
        times=batch.times[kept],
        observed=None if batch.observed is None else batch.observed[kept],
        rows=Rows.flat(batch.lengths.clamp(max=steps)),
        targets=None,
    )


def _steps_to_check(batch: Batch) -> list[int]:
    last = batch.rows.steps - 2  # at least one step comes later
    return sorted({0, last // 2, last}) if last >= 0 else []


@torch.no_grad()
def _check_up_to(model: Model[Any], batch: Batch, step: int) -> None:
    going_on = batch.lengths > step + 1  # a sequence that ends before has nothing that comes later

    def answers_of(batch: Batch) -> Tensor:
        rows, output = batch.rows, model(batch)
        answers: Tensor = output[((rows.step <= step) & going_on[rows.row]).to(output.device)]
        return answers

    answers = answers_of(batch)
    for what, changed in _other_futures(batch, step).items():
        difference = float((answers - answers_of(changed)).abs().nan_to_num().max())
        if difference > TOLERANCE * (1.0 + float(answers.abs().nan_to_num().max())):
            raise SeesTheFuture(
                f"model {model.config.model!r} sees the future: its answers up to step {step} change by "
                f"{difference:.3g} with {what} after it, so its results at every step would be worthless. Use a "
                "model that reads forward only (bidirectional=False, no normalisation over time)"
            )


def _other_futures(batch: Batch, step: int) -> dict[str, Batch]:
    """The batch with what comes after `step` changed, in each way that could show in earlier answers."""
    random = torch.Generator().manual_seed(step)
    later = (batch.rows.step > step).to(batch.values.device)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=random).to(like)

    size = 1.0 + batch.values.abs().amax()
    values = torch.where(later[:, None], batch.values + 5 * size * noise(batch.values), batch.values)
    added = torch.where(later, batch.timespans * 2 + noise(batch.timespans).abs(), 0.0)
    times = batch.times + batch.rows.unpad(batch.rows.pad(added.double()).cumsum(1))
    futures = {
        "the inputs": dataclasses.replace(batch, values=values),
        "the gaps": dataclasses.replace(batch, timespans=batch.timespans + added, times=times),
        "the number of events": _cut(batch, step + 1),
    }
    if batch.observed is not None:
        observed = torch.where(later[:, None], ~batch.observed, batch.observed)
        futures["the features that are observed"] = dataclasses.replace(batch, observed=observed)
    return futures
