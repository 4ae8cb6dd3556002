"""The contract of an encoder: events in, features out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lapse.recurrent import Cell
from lapse.rows import Rows

FROM_THE_TABLE = ("missing", "static_size")
"""The arguments of an encoder that follow from the table, so that no option may set them."""

Named = dict[str, Tensor]
"""States by name, one row per sequence."""


@dataclass(frozen=True)
class Observations:
    """B sequences of N events in all, end to end and preprocessed: what an encoder is given.

    An encoder that works on padded tensors makes them with `rows.pad`, and goes back with `rows.unpad`.

    Args:
        values: (N, F), scaled, and filled where nothing was observed; never NaN.
        observed: (N, F) of 0 and 1 in the type of `values`; None if features were never missing in training.
        timespans: (N,), the gap before each event, in the model's unit of time.
        rows: where the events of each sequence lie.
        static: (B, 2 · K), what does not change within a sequence, and whether it is known; None without any.
    """

    values: Tensor
    observed: Tensor | None
    timespans: Tensor
    rows: Rows
    static: Tensor | None = None

    @property
    def times(self) -> Tensor:
        """(N,), the time of each event since the clock of its sequence started, in the model's unit.

        It is summed in float64, since a sum of many float32 numbers loses digits.
        """
        summed = self.rows.pad(self.timespans.double()).cumsum(1)
        return self.rows.unpad(summed).to(self.timespans.dtype)

    @property
    def inputs(self) -> Tensor:
        """(N, F), or (N, 2 · F) where features may be missing: the values, and which were observed."""
        return with_flags(self.values, self.observed)


def with_flags(values: Tensor, observed: Tensor | None) -> Tensor:
    """The values (..., F), followed by which were observed if that is told: (..., 2 · F).

    Args:
        values: (..., F), filled where nothing was observed.
        observed: (..., F) of 0 and 1; None if features were never missing in training.
    """
    return values if observed is None else torch.cat([values, observed], -1)


class Features(NamedTuple):
    """What an encoder makes of B sequences.

    Attributes:
        steps: (N, D), the features after each event; None from an encoder that has none.
        final: (B, D), the features after the last event of each sequence.
    """

    steps: Tensor | None
    final: Tensor


class Encoder(nn.Module, ABC):
    """Events in, features out. A stack of cells is one kind, see `RecurrentEncoder`; a scan or attention are others.

    Which other sequences are in the batch must have no effect on the features of a sequence. The constructor of a
    subclass is called with these arguments, by keyword; `options` of a `ModelConfig` come as further keywords:

    - `input_size`: the number of features of an event.
    - `hidden_size`: the width of the encoder.
    - `num_layers`: how many of its layers are stacked.
    - `missing`: whether features may be missing; `Observations.observed` then says which were observed.
    - `static_size`: the width of `Observations.static`.

    Attributes:
        takes_missing: whether missing features are treated by a rule of the encoder's own. An encoder without such a
            rule uses `Observations.inputs`, in which flags are further inputs.
        causal: whether the features after an event depend on nothing that comes later.
        streams: whether events can be taken one at a time with a state of fixed size; such an encoder has `start`
            and `step`.
        flows: whether features change while time passes without an event, see `after`.
        output_size: the width D of the features.
        forms: what `form=` may be, where there is a choice.
        paper_options: the options that the `paper` preset gives it.
        past_options: what the absence of an option in a stored config means, where its default has changed since.
    """

    forms: ClassVar[Mapping[str, Any]] = {}
    paper_options: ClassVar[Mapping[str, Any]] = {}
    past_options: ClassVar[Mapping[str, Any]] = {}
    takes_missing: ClassVar[bool] = False
    causal: bool = True
    streams: bool = False
    flows: bool = False
    output_size: int

    @property
    def stack(self) -> tuple[Cell, ...]:
        """The cells, from the bottom to the top, of an encoder that is nothing but a stack of them; else none."""
        return ()

    @abstractmethod
    def forward(self, observations: Observations) -> Features:
        """The features of preprocessed sequences."""

    def start(self, values: Tensor, static: Tensor | None) -> Named:
        """The named states, (B, size) each, before the first event.

        Args:
            values: (B, F), the first event of each sequence; only its shape, number type and device matter.
            static: (B, 2 · K), as in `Observations`; None without any.
        """
        raise NotImplementedError(self._no_stream())

    def step(
        self, values: Tensor, observed: Tensor | None, timespan: Tensor, state: Named
    ) -> tuple[Tensor, Named]:
        """The features (B, D) after one more event of each sequence, and the new states.

        Args:
            values: (B, F), one event per sequence, preprocessed as in `Observations`.
            observed: (B, F) of 0 and 1; None if features were never missing in training.
            timespan: (B,), the gap before the event, in the model's unit of time.
            state: the states after the event before, as `start` or `step` returned them.
        """
        raise NotImplementedError(self._no_stream())

    def flow(self, state: Named, timespan: Tensor) -> Tensor:
        """The features (B, D) when time has passed since the last event of a stream.

        An encoder may flow, see `after`, and still not have this, where its states do not hold all that it needs.

        Args:
            state: the states after the last event, as `step` returned them.
            timespan: (B,), the time since then, in the model's unit of time.
        """
        raise ValueError(f"{type(self).__name__} cannot be asked between two events of a stream")

    def _no_stream(self) -> str:
        return f"{type(self).__name__} reads a sequence as a whole and cannot take one event at a time"

    def after(self, observations: Observations, timespans: Tensor, row: Tensor) -> Tensor:
        """(Q, output_size): features when time has passed since the last event of a sequence, without another event.

        Those of an encoder that does not flow are the features after the last event, whatever the time.

        Args:
            observations: preprocessed sequences.
            timespans: (Q,), the time since the last event, in the model's unit.
            row: (Q,), which sequence each is about.
        """
        features: Features = self(observations)
        return features.final.index_select(0, row)

    def set_input_mean(self, mean: Tensor) -> None:
        """Be told what a missing value is filled with, after scaling.

        Args:
            mean: (F,). An encoder that needs it overrides this method; others ignore it.
        """
