"""Integrated gradients over values, gaps and static features (Sundararajan, Taly and Yan, 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lapse.arguments import check_count, check_kind
from lapse.explain.explanation import (
    Amounts,
    Explanation,
    chosen_events,
    chosen_names,
    explained,
    without_targets,
)
from lapse.models import SequenceModel
from lapse.sequences import Batch, Sequences
from lapse.sequences.ragged import Array, concatenated_ranges

STEPS = 64
# An answer that changes abruptly along the path, such as one that depends on the phase of a clock, needs more points.
FINER, MOST_STEPS = 4, 4096
TOLERANCE = 0.01  # the part of the change of an answer that may be lost
MOST_EVENTS = 100_000  # in one pass through the network; more would only need more memory


def integrated_gradients(
    model: SequenceModel, sequences: Sequences, answer: str | None = None, *, at: int = -1, steps: int = STEPS
) -> Explanation:
    """What each value, each gap and each static feature contributed to the answers of a network.

    The gradient of the answer is integrated along the straight line from the baseline to the sequence, and multiplied
    by the difference between the two; see `Explanation` for the baseline.

    Args:
        model: a trained model.
        sequences: what to explain the answers for; they are brought into the form of the training table first.
        answer: what to explain: the name of a class, a label or a number. None chooses: the second of two classes, the
            most probable of more, else the first number or label.
        at: for a model that answers at every event, the event whose answer is explained, counted from the end if
            negative.
        steps: in how many points the gradient is taken at first; more, where contributions do not add up.
    """
    check_count("steps", steps)
    check_kind("model", model, SequenceModel)
    asked = without_targets(sequences)
    conformed = model.schema.conform(asked)
    events = chosen_events(model.head, conformed, at)
    outputs = model.outputs(conformed)
    names = chosen_names(model.head, outputs if events is None else outputs[events], answer)
    weights = torch.stack([model.head.contrasts[name] for name in names])
    found = attribute(model, conformed, weights, events, steps)
    return explained(model.head, model.schema, asked, names, events, found)


def attribute(
    model: SequenceModel, conformed: Sequences, weights: Tensor, events: Array | None, steps: int
) -> Amounts:
    """Integrated gradients of weighted raw outputs, per input of the network.

    Sequences for which they do not add up are done again with more points, up to `MOST_STEPS`.

    Args:
        model: the network.
        conformed: sequences in the form that the network takes.
        weights: (S, width), with which the raw outputs of each sequence are summed.
        events: (S,), the row of the event whose answer is meant; None for one answer per sequence.
        steps: in how many points the gradient is taken.
    """
    places = None if events is None else events - conformed.offsets[:-1]
    found = _integrated(model, conformed, weights, places, steps)
    poor = np.flatnonzero(_shortfall(found, conformed, weights) > TOLERANCE)
    if not len(poor) or FINER * steps > MOST_STEPS:
        return found
    again = conformed[poor]
    chosen = None if places is None else again.offsets[:-1] + places[poor]
    better = attribute(model, again, weights[poor], chosen, FINER * steps)
    rows = concatenated_ranges(conformed.offsets[:-1][poor], again.lengths)
    found.values[rows], found.gaps[rows], found.static[poor] = better.values, better.gaps, better.static
    return found


def _shortfall(found: Amounts, s: Sequences, weights: Tensor) -> Array:
    """(S,), by which part of the change of the answer the amounts fail to add up; a small change counts as 0.1."""
    change = ((found.outputs - found.baselines) * weights).sum(1).numpy()
    of_events = np.add.reduceat(found.values.sum(1) + found.gaps, s.offsets[:-1])
    unit = weights.abs().amax(1).numpy()
    shortfall: Array = np.abs(change - of_events - found.static.sum(1)) / np.maximum(
        np.abs(change), 0.1 * unit
    )
    return shortfall


def _integrated(
    model: SequenceModel, s: Sequences, weights: Tensor, places: Array | None, steps: int
) -> Amounts:
    """Integrated gradients with this number of points; `places` is the event of each sequence, counted from 0."""
    asked = None if places is None else torch.from_numpy(places)
    with model.evaluating():
        parts = [_attributed(model, s, rows, weights, asked, steps) for rows in _chunks(s, steps)]
    values, gaps, static, outputs, baselines = (
        torch.cat(column).double().cpu() for column in zip(*parts, strict=True)
    )
    counts = np.zeros((len(s), s.num_features))
    return Amounts(values.numpy(), gaps.numpy(), static.numpy(), counts, outputs, baselines)


def _chunks(s: Sequences, steps: int) -> Iterator[Array]:
    """Positions of so many sequences at a time that their path has about `MOST_EVENTS` events."""
    number = np.cumsum(s.lengths * steps) // MOST_EVENTS
    yield from np.split(np.arange(len(s)), np.flatnonzero(np.diff(number)) + 1)


def _attributed(
    model: SequenceModel, s: Sequences, rows: Array, weights: Tensor, places: Tensor | None, steps: int
) -> tuple[Tensor, ...]:
    """The fields of `Amounts` for some of the sequences, as tensors."""
    device = next(model.parameters()).device
    points, shares = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(steps))
    # Each sequence stands in the batch once per point of its path, and twice more for the two ends.
    along = torch.cat([(points + 1) / 2, torch.tensor([0.0, 1.0])]).to(device)
    share = torch.cat([shares / 2, torch.zeros(2)]).to(device)
    batch = s.batch(np.repeat(rows, len(along))).to(device)
    inputs, differences = _path(model, batch, along.repeat(len(rows)))
    moved = replace(
        batch, values=inputs[0], timespans=inputs[1], static=inputs[2] if len(inputs) > 2 else None
    )
    output = model(moved)
    at = (
        None
        if places is None
        else (batch.rows.starts + places[rows].repeat_interleave(len(along))).to(device)
    )
    output = output if at is None else output[at]
    weighed = (output * weights[rows].to(output).repeat_interleave(len(along), 0)).sum(1)
    gradients = torch.autograd.grad(
        (weighed * share.repeat(len(rows)).to(output)).sum(), inputs, allow_unused=True
    )
    of_values, of_gaps, *of_static = [
        torch.zeros_like(difference) if gradient is None else gradient * difference
        for gradient, difference in zip(gradients, differences, strict=True)
    ]
    lengths = [int(length) for length in batch.lengths[:: len(along)]]
    static = (
        _summed(of_static[0], [1] * len(rows), len(along)) if of_static else output.new_zeros(len(rows), 0)
    )
    ends = output.detach().view(len(rows), len(along), -1)
    values, gaps = _summed(of_values, lengths, len(along)), _summed(of_gaps, lengths, len(along))
    return values, gaps, static, ends[:, -1], ends[:, -2]


def _path(model: SequenceModel, batch: Batch, along: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Values, gaps and static features at points between baseline and sequence, and the whole way between the two."""
    preprocessing, device = model.preprocessing, batch.values.device
    row = batch.rows.row.to(device)
    first = torch.zeros(batch.rows.size, dtype=torch.bool, device=device)
    first[batch.rows.starts.to(device)] = True
    gaps = batch.timespans.to(preprocessing.time_unit)
    ends = [batch.values.to(preprocessing.fill), gaps]
    # There is no event before the first one whose gap could be another.
    baselines = [
        preprocessing.fill.expand_as(batch.values),
        torch.where(first, gaps, preprocessing.time_unit),
    ]
    places = [along[row].unsqueeze(1), along[row]]
    if batch.static is not None:
        ends.append(batch.static.to(preprocessing.static_shift))
        baselines.append(preprocessing.static_shift.expand_as(batch.static))
        places.append(along.unsqueeze(1))
    ways = [end - baseline for end, baseline in zip(ends, baselines, strict=True)]
    inputs = [
        (baseline + place.to(way) * way).requires_grad_()
        for baseline, way, place in zip(baselines, ways, places, strict=True)
    ]
    return inputs, ways


def _summed(amounts: Tensor, lengths: list[int], copies: int) -> Tensor:
    """The sum over the copies of each sequence, whose rows lie end to end."""
    groups = amounts.split([copies * length for length in lengths])
    return torch.cat([group.view(copies, -1, *group.shape[1:]).sum(0) for group in groups])
