"""A whole model for padded sequences, with the loop over time inside the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapse.encoders import Named
from lapse.models import Stepper
from lapse.torch_private import scan


class WholeSequence(nn.Module):
    """A whole model for padded sequences of any number and length: `answer = whole(values, timespans, lengths)`.

    The loop over time is one operation of the captured graph, around one step of the model. What is beyond the length
    of a sequence has no effect, NaN included.

    Args:
        step: one event of the whole model.
    """

    def __init__(self, step: Stepper) -> None:
        super().__init__()
        self.step = step
        # Not the tensors themselves, which a captured graph would keep.
        self.states = {name: (part.shape[1], part.dtype) for name, part in step.start(1).items()}

    def forward(
        self, values: Tensor, timespans: Tensor, lengths: Tensor, static: Tensor | None = None
    ) -> Tensor:
        """The answers (B, C), or (B, T, C) with zeros in the padding where there is one answer per event.

        Args:
            values: (B, T, F), in the units of the training table; NaN where nothing was observed.
            timespans: (B, T), the time before each event, in the unit of the training table.
            lengths: (B,) int64, how many events each sequence has, from 1 to T.
            static: (B, K), the static features, NaN where not known; None if the model has none.
        """
        seen = self._walk(values, timespans, static)
        if not self.step.head.per_step:
            rows = torch.arange(values.shape[0], device=values.device)
            return self.step.answer({name: part[rows, lengths - 1] for name, part in seen.items()}, static)
        batch, steps = values.shape[0], values.shape[1]
        if static is not None:
            static = static.unsqueeze(1).expand(-1, steps, -1).flatten(0, 1)
        answer = self.step.answer({name: part.flatten(0, 1) for name, part in seen.items()}, static)
        events = torch.arange(steps, device=values.device) < lengths.unsqueeze(1)
        return torch.where(events.unsqueeze(-1), answer.unflatten(0, (batch, steps)), 0.0)

    def _walk(self, values: Tensor, timespans: Tensor, static: Tensor | None) -> Named:
        """What the answers are made of after every event, (B, T, size) each."""

        def one(carried: tuple[Tensor, ...], event: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
            state = dict(zip(self.states, carried, strict=True))
            seen, after = self.step.advance(*event, state, static)
            # Copies, because a loop's outputs may not share memory with what it carries.
            return tuple(after[name] for name in self.states), tuple(
                seen[name].clone() for name in self.step.seen_names
            )

        start = tuple(
            values.new_zeros(values.shape[0], size, dtype=dtype) for size, dtype in self.states.values()
        )
        _, found = scan(one, start, (values.transpose(0, 1), timespans.transpose(0, 1)))
        return {name: part.transpose(0, 1) for name, part in zip(self.step.seen_names, found, strict=True)}
