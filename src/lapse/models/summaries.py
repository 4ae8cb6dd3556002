"""What a table of features would say of each variable of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from lapse.encoders import Named, Observations
from lapse.rows import Rows

SUMMARIES_PER_FEATURE = 5


def summaries(observations: Observations) -> Tensor:
    """(B, 5 · F): last, mean, least and largest observed value, and log(1 + number) of observations, per feature.

    These are what a table of features for logistic regression or boosting would hold. A feature that was not observed
    at all has 0 in all of them, which after scaling is its typical value.
    """
    rows, values = observations.rows, observations.values
    observed = torch.ones_like(values) if observations.observed is None else observations.observed
    seen = observed > 0
    count = rows.sum(observed)
    mean = rows.sum(values * observed) / count.clamp(min=1)
    least = -rows.max((-values).masked_fill(~seen, -torch.inf))
    largest = rows.max(values.masked_fill(~seen, -torch.inf))
    last = values.gather(0, latest_observed(seen, rows).index_select(0, rows.last.to(values.device)))
    return _side_by_side(last, mean, least, largest, count)


def start_summaries(values: Tensor) -> Named:
    """The states before the first event from which `step_summaries` goes on.

    Args:
        values: (B, F), the first event of each sequence; only its shape, number type and device matter.
    """
    zeros, infinite = torch.zeros_like(values), torch.full_like(values, torch.inf)
    return {
        "summary_last": zeros,
        "summary_total": zeros,
        "summary_least": infinite,
        "summary_largest": -infinite,
        "summary_count": zeros,
    }


def step_summaries(values: Tensor, observed: Tensor | None, state: Named) -> tuple[Tensor, Named]:
    """The summaries (B, 5 · F) of the events so far, and the new states.

    Args:
        values: (B, F), one more event of each sequence, preprocessed.
        observed: (B, F) of 0 and 1; None if features were never missing in training.
        state: the states after the event before.
    """
    observed = torch.ones_like(values) if observed is None else observed
    seen = observed > 0
    after = {
        "summary_last": torch.where(seen, values, state["summary_last"]),
        "summary_total": state["summary_total"] + values * observed,
        "summary_least": torch.where(
            seen, torch.minimum(state["summary_least"], values), state["summary_least"]
        ),
        "summary_largest": torch.where(
            seen, torch.maximum(state["summary_largest"], values), state["summary_largest"]
        ),
        "summary_count": state["summary_count"] + observed,
    }
    return summaries_of(after), after


def summaries_of(state: Named) -> Tensor:
    """The summaries (B, 5 · F) of the events so far.

    Args:
        state: states that `step_summaries` returned, maybe among others.
    """
    names = ("last", "total", "least", "largest", "count")
    last, total, least, largest, count = (state[f"summary_{name}"] for name in names)
    return _side_by_side(last, total / count.clamp(min=1), least, largest, count)


def _side_by_side(last: Tensor, mean: Tensor, least: Tensor, largest: Tensor, count: Tensor) -> Tensor:
    found = torch.stack([last, mean, least, largest], -1).masked_fill((count == 0).unsqueeze(-1), 0.0)
    return torch.cat([found.flatten(1), count.log1p()], -1)


def latest_observed(observed: Tensor, rows: Rows) -> Tensor:
    """(N, F): the place of the latest observed value of each feature at each event; before any, of the first event.

    Args:
        observed: (N, F) bool.
        rows: where the events of each sequence lie.
    """
    # Not `len`, which would fix the number of events in an exported graph.
    places = torch.arange(observed.shape[0], device=observed.device).unsqueeze(1)
    first = rows.starts[rows.row].to(observed.device).unsqueeze(1)
    # A sequence begins after all those before it, so that its first place is larger than all of theirs.
    return torch.where(observed, places, first).cummax(0).values
