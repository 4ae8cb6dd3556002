"""What a table of features would say of each variable of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from lapse.encoders import Observations

SUMMARIES_PER_FEATURE = 5


def summaries(observations: Observations) -> Tensor:
    """(B, 5 · F): last, mean, least and largest observed value, and log(1 + number) of observations, per feature.

    These are what a table of features for logistic regression or boosting would hold. A feature that was not observed
    at all has 0 in all of them, which after scaling is its typical value.
    """
    values = observations.values
    observed = observations.mask.unsqueeze(-1).expand_as(values)
    if observations.observed is not None:
        observed = observed & (observations.observed > 0)
    count = observed.sum(1)
    mean = values.masked_fill(~observed, 0.0).sum(1) / count.clamp(min=1)
    least = values.masked_fill(~observed, torch.inf).amin(1)
    largest = values.masked_fill(~observed, -torch.inf).amax(1)
    steps = torch.arange(values.shape[1], device=values.device).view(1, -1, 1)
    last = values.gather(1, torch.where(observed, steps, 0).amax(1, keepdim=True)).squeeze(1)
    found = torch.stack([last, mean, least, largest], -1).masked_fill((count == 0).unsqueeze(-1), 0.0)
    return torch.cat([found.flatten(1), count.to(values.dtype).log1p()], -1)
