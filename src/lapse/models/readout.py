"""From the features of a sequence, or of an event, to the raw outputs of a head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lapse.encoders import Observations
from lapse.models.summaries import SUMMARIES_PER_FEATURE, latest_observed, summaries
from lapse.sequences import Batch


def linear(input_size: int, output_size: int, hidden_size: int) -> nn.Module:
    """One affine map; `hidden_size` has no meaning for it."""
    return nn.Linear(input_size, output_size)


def mlp(input_size: int, output_size: int, hidden_size: int) -> nn.Module:
    """One layer of hidden units between two affine maps."""
    return nn.Sequential(nn.Linear(input_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, output_size))


def deep(input_size: int, output_size: int, hidden_size: int) -> nn.Module:
    """Two layers of hidden units between affine maps."""
    return nn.Sequential(
        nn.Linear(input_size, hidden_size),
        nn.SiLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.SiLU(),
        nn.Linear(hidden_size, output_size),
    )


class Residual(nn.Module):
    """An affine map, and one layer of hidden units that adds to it; the affine map starts at zero.

    Where most of the answer is linear in the features, hidden units alone take long to learn it.

    Args:
        input_size: the width of the features.
        output_size: the number of raw outputs.
        hidden_size: the number of hidden units.
    """

    def __init__(self, input_size: int, output_size: int, hidden_size: int) -> None:
        super().__init__()
        self.affine = nn.Linear(input_size, output_size)
        nn.init.zeros_(self.affine.weight)
        nn.init.zeros_(self.affine.bias)
        self.hidden = mlp(input_size, output_size, hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.affine(features) + self.hidden(features)
        return found


# Each makes a module from the width of the features, the number of raw outputs, and the number of hidden units.
READOUTS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "deep": deep,
    "residual": Residual,
}


class Readout(nn.Module):
    """A map from the encoder's features, and whatever else it is to see, to raw outputs.

    Args:
        kind: the kind of map, one of `READOUTS`.
        feature_size: the width of the encoder's features, pooled where there is one answer per sequence.
        output_size: the number of raw outputs.
        hidden_size: the number of hidden units, for a kind that has any.
        per_step: whether there is one answer per event, or one per sequence.
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
        per_step: bool = False,
        static_size: int = 0,
        input_size: int = 0,
        summary_size: int = 0,
    ) -> None:
        super().__init__()
        self.per_step = per_step
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
        """Raw outputs, (B, width) from pooled features (B, D), or (N, width) from features per event (N, D)."""
        seen = [features]
        if self.sees_static:
            assert observations.static is not None, "the width of the static features was checked"
            static = observations.static
            row = observations.rows.row.to(static.device) if self.per_step else None
            seen.append(static if row is None else static.index_select(0, row))
        if self.sees_inputs:
            seen.append(observations.inputs)
        if self.sees_summaries:
            seen.append(summaries(observations))
        return self.outputs(seen)

    def outputs(self, seen: list[Tensor]) -> Tensor:
        """Raw outputs (M, width) from all that is to be seen, (M, ...) each: features, static, inputs, summaries."""
        output: Tensor = self.map(torch.cat(seen, -1) if len(seen) > 1 else seen[0])
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
        """(N, columns).

        Args:
            batch: the raw batch.
            fill: (F,), what stands for a feature before it was observed.
        """
        values, observed = batch.values.to(fill.dtype), batch.observed
        if observed is not None:
            values = torch.where(observed, values, fill).gather(0, latest_observed(observed, batch.rows))
        return values.index_select(-1, self.columns)

    def start(self, values: Tensor, fill: Tensor) -> Tensor:
        """(B, columns), what stands for the features before the first event.

        Args:
            values: (B, F), the first event of each sequence; only its number of rows matters.
            fill: (F,), what stands for a feature before it was observed.
        """
        return fill.index_select(0, self.columns).expand(values.shape[0], -1)

    def latest(self, values: Tensor, observed: Tensor, before: Tensor) -> Tensor:
        """(B, columns), the latest observed values after one more event.

        Args:
            values: (B, F), one raw event per sequence.
            observed: (B, F) bool, which of them were observed.
            before: (B, columns), the latest observed values before it.
        """
        now, seen = (part.index_select(-1, self.columns) for part in (values, observed))
        return torch.where(seen, now.to(before.dtype), before)
