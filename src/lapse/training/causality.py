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

from lapse.models import SequenceModel
from lapse.sequences import Batch, Sequences

ROWS, STEPS = (
    8,
    32,
)  # enough to show every kind of looking ahead, and cheap enough for a check before every training
# Batches of different shape may be rounded differently. A model that looks ahead differs by orders of magnitude more,
# since what comes later is changed by several times its own size.
TOLERANCE = 1e-4


class SeesTheFuture(ValueError):
    """A model that answers at every event uses events that have not happened yet."""


def check_causality(model: SequenceModel, sequences: Sequences) -> None:
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
    rows = np.argsort(sequences.lengths, kind="stable")[-ROWS:]
    batch = sequences.batch(rows)
    timed = ("values", "timespans", "observed", *(("targets",) if sequences.per_step else ()))
    whole: dict[str, Any] = {name: getattr(batch, name) for name in timed}
    shorter = {name: tensor[:, :STEPS] for name, tensor in whole.items() if tensor is not None}
    return dataclasses.replace(batch, lengths=batch.lengths.clamp(max=STEPS), **shorter)


def _steps_to_check(batch: Batch) -> list[int]:
    last = int(batch.lengths.max()) - 2  # at least one step comes later
    return sorted({0, last // 2, last}) if last >= 0 else []


@torch.no_grad()
def _check_up_to(model: SequenceModel, batch: Batch, step: int) -> None:
    # A row that ends before has nothing that comes later.
    going_on = batch.lengths > step + 1
    answers = model(batch)[going_on, : step + 1]
    for what, changed in _other_futures(batch, step).items():
        others = model(changed)[going_on, : step + 1]
        difference = float((answers - others).abs().nan_to_num().max())
        if difference > TOLERANCE * (1.0 + float(answers.abs().nan_to_num().max())):
            raise SeesTheFuture(
                f"model {model.config.model!r} sees the future: its answers up to step {step} change by "
                f"{difference:.3g} with {what} after it, so its results at every step would be worthless. Use a "
                "model that reads forward only (bidirectional=False, no normalisation over time)"
            )


def _other_futures(batch: Batch, step: int) -> dict[str, Batch]:
    """The batch with what comes after `step` changed, in each way that could show in earlier answers."""
    random = torch.Generator().manual_seed(step)
    later = torch.arange(batch.values.shape[1], device=batch.values.device) > step

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=random).to(like)

    size = 1.0 + batch.values.abs().amax()
    values = torch.where(later[:, None], batch.values + 5 * size * noise(batch.values), batch.values)
    gaps = torch.where(later, batch.timespans * 3 + noise(batch.timespans).abs(), batch.timespans)
    futures = {
        "the inputs": dataclasses.replace(batch, values=values),
        "the gaps": dataclasses.replace(batch, timespans=gaps),
        "the number of events": dataclasses.replace(batch, lengths=batch.lengths.clamp(max=step + 1)),
    }
    if batch.observed is not None:
        observed = torch.where(later[:, None], ~batch.observed, batch.observed)
        futures["the features that are observed"] = dataclasses.replace(batch, observed=observed)
    return futures
