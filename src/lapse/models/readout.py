"""From the features of a sequence, or of an event, to the raw outputs of a head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lapse.encoders import Observations
from lapse.models.summaries import SUMMARIES_PER_FEATURE, summaries
from lapse.sequences import Batch


def linear(input_size: int, output_size: int, hidden_size: int) -> nn.Module:
    """One affine map; `hidden_size` has no meaning for it."""
    return nn.Linear(input_size, output_size)


def mlp(input_size: int, output_size: int, hidden_size: int) -> nn.Module:
    """One layer of hidden units between two affine maps."""
    return nn.Sequential(nn.Linear(input_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, output_size))


# Each makes a module from the width of the features, the number of raw outputs, and the number of hidden units.
READOUTS: dict[str, Callable[[int, int, int], nn.Module]] = {"linear": linear, "mlp": mlp}


class Readout(nn.Module):
    """A map from the encoder's features, and whatever else it is to see, to raw outputs.

    Args:
        kind: the kind of map, one of `READOUTS`.
        feature_size: the width of the encoder's features, pooled where there is one answer per sequence.
        output_size: the number of raw outputs.
        hidden_size: the number of hidden units, for a kind that has any.
        static_size: the width of the static features that are to be seen; 0 for none.
        input_size: the width of the event's own inputs that are to be seen; 0 for none.
        summary_size: the number of features of which summaries are to be seen; 0 for none.
    """

    def __init__(
        self,
        kind: str,
        feature_size: int,
        output_size: int,
        hidden_size: int,
        *,
        static_size: int = 0,
        input_size: int = 0,
        summary_size: int = 0,
    ) -> None:
        super().__init__()
        self.sees_static, self.sees_inputs, self.sees_summaries = (
            size > 0 for size in (static_size, input_size, summary_size)
        )
        width = feature_size + static_size + input_size + SUMMARIES_PER_FEATURE * summary_size
        self.map = READOUTS[kind](width, output_size, hidden_size)

    def start_at_zero(self) -> None:
        """Set the last affine map to zero, so that the first raw outputs are 0."""
        last = [module for module in self.map.modules() if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, features: Tensor, observations: Observations) -> Tensor:
        """Raw outputs, (B, width) from features (B, D), or (B, T, width) from features (B, T, D)."""
        seen = [features]
        if self.sees_static:
            assert observations.static is not None, "the width of the static features was checked"
            static = observations.static
            per_step = features.dim() == 3
            seen.append(static.unsqueeze(1).expand(-1, features.shape[1], -1) if per_step else static)
        if self.sees_inputs:
            seen.append(observations.inputs)
        if self.sees_summaries:
            seen.append(summaries(observations))
        output: Tensor = self.map(torch.cat(seen, -1) if len(seen) > 1 else features)
        return output


class Present(nn.Module):
    """The latest observed values of some features at every event, in the units of the table.

    Args:
        columns: the positions of the features.
    """

    columns: Tensor

    def __init__(self, columns: list[int]) -> None:
        super().__init__()
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, batch: Batch, fill: Tensor) -> Tensor:
        """(B, T, columns).

        Args:
            batch: the raw batch.
            fill: (F,), what stands for a feature before it was observed.
        """
        values, observed = batch.values.to(fill.dtype), batch.observed
        if observed is not None:
            values = last_observed(torch.where(observed, values, fill), observed)
        return values.index_select(-1, self.columns)


def last_observed(values: Tensor, observed: Tensor) -> Tensor:
    """(B, T, F): at each event the latest observed value of each feature; before any, what the first event has.

    Args:
        values: (B, T, F).
        observed: (B, T, F) bool.
    """
    steps = torch.arange(values.shape[1], device=values.device).view(1, -1, 1)
    latest = torch.where(observed, steps, 0).cummax(1).values
    return values.gather(1, latest)
