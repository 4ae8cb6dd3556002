"""A whole model, one event at a time: what serves a stream, and what is exported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from lapse.encoders import Named, with_flags
from lapse.heads import Head
from lapse.models.model import SequenceModel
from lapse.models.preprocessing import Preprocessing
from lapse.models.schema import Schema
from lapse.models.summaries import start_summaries, step_summaries, summaries_of
from lapse.sequences import Sequences


class Stepper(nn.Module, ABC):
    """Whatever answers after every event: `answer, state = stepper(values, timespan, state)`.

    The state is a dictionary of tensors (B, size). One of them is `events`, how many events a sequence has had: a
    sequence begins where it is 0, whatever the other states hold, so that zeros are always a right beginning.
    """

    @property
    @abstractmethod
    def preprocessing(self) -> Preprocessing:
        """The scales of the values, and the unit of time."""

    @property
    @abstractmethod
    def head(self) -> Head:
        """What is asked."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The form of the training table."""

    @property
    @abstractmethod
    def described(self) -> str:
        """What it is, in a few words."""

    @property
    @abstractmethod
    def seen_names(self) -> tuple[str, ...]:
        """The names of what `advance` returns beside the state."""

    @abstractmethod
    def start(self, batch_size: int) -> Named:
        """The state before the first event: zeros, (B, size) each.

        Args:
            batch_size: the number of sequences.
        """

    @abstractmethod
    def advance(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None = None
    ) -> tuple[Named, Named]:
        """What the answer is made of after one more event, and the new state; the arguments are those of a call."""

    @abstractmethod
    def outputs(self, seen: Named, static: Tensor | None = None) -> Tensor:
        """The raw outputs (M, head.width) from which the answers are made; the arguments are those of `answer`."""

    def begin(self, batch_size: int, static: Tensor | None = None) -> Named:
        """The state before the first event, maybe spelled out: what zeros stand for.

        Args:
            batch_size: the number of sequences.
            static: (B, K), the static features; None if the training table had none.
        """
        return self.start(batch_size)

    def fixed(self, static: Tensor) -> Named:
        """What follows from static features alone, by name, (B, size) each, so that it need not be computed again.

        Args:
            static: (B, K), NaN where not known.
        """
        return {}

    def between(self, timespan: Tensor, state: Named) -> Named:
        """What the answer is made of when time has passed without another event: `answer` and `outputs` take it.

        The features flow; a mean, a maximum or a summary over events stays what it was.

        Args:
            timespan: (B,), the time since the last event, in the unit of the training table.
            state: the state after the last event.
        """
        raise ValueError(f"{self.described} cannot be asked between events")

    @abstractmethod
    def whole(self, sequences: Sequences) -> Tensor:
        """The raw outputs (M, head.width) for whole sequences at once, with which those of single steps agree.

        Args:
            sequences: any sequences.
        """

    @property
    def dtype(self) -> torch.dtype:
        """The number type of values, time spans and answers."""
        return self.preprocessing.scale.dtype

    @property
    def state_sizes(self) -> dict[str, int]:
        """The width of every state, by name."""
        return {name: part.shape[1] for name, part in self.start(1).items()}

    def forward(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None = None
    ) -> tuple[Tensor, Named]:
        """The answer after one more event of each sequence, (B, len(head.answer_names)), and the new state.

        Args:
            values: (B, F), one event per sequence in the units of the training table; NaN where nothing was observed.
            timespan: (B,), the time since the event before, in the unit of the training table.
            state: the state after the event before.
            static: (B, K), the static features, NaN where not known; the same in every call of a sequence. None if the
                training table had none.
        """
        seen, state = self.advance(values, timespan, state, static)
        return self.answer(seen, static), state

    def answer(self, seen: Named, static: Tensor | None = None) -> Tensor:
        """The answers (M, len(head.answer_names)), as the head's `answer` gives them.

        Args:
            seen: what `advance` returned, M rows.
            static: (M, K), the static features of each row.
        """
        return self.head.answer(self.outputs(seen, static)).flatten(1).to(self.dtype)


class Steppable(Protocol):
    """What a stream takes and what is exported: a `SequenceModel`, or an `Ensemble`."""

    def stepper(self) -> Stepper:
        """The model, one event at a time."""
        ...


def stepper_of(model: Steppable) -> Stepper:
    """The model, one event at a time; TypeError for what cannot take events so.

    Args:
        model: the model.
    """
    if not hasattr(model, "stepper"):
        raise TypeError(
            f"model must be a SequenceModel or an Ensemble, got {type(model).__name__}, which cannot take events one "
            "at a time"
        )
    return model.stepper()


class Step(Stepper):
    """A whole model for one event of each sequence: `answer, state = step(values, timespan, state)`.

    It is plain PyTorch. Preprocessing, encoder, pooling, readout and head are inside; the answers are those of
    `SequenceModel.predict` for the events so far. The states are `layer0_h` and the like of the encoder, and what
    pooling and summaries keep of the past.

    Args:
        model: the model; its encoder must take events one at a time.
    """

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        if not model.encoder.streams:
            raise ValueError(
                f"{model.config.model} needs a sequence as a whole, so it cannot take one event at a time; "
                "use a model that reads forward only"
            )
        self.model = model

    @property
    def preprocessing(self) -> Preprocessing:
        return self.model.preprocessing

    @property
    def head(self) -> Head:
        return self.model.head

    @property
    def schema(self) -> Schema:
        return self.model.schema

    @property
    def described(self) -> str:
        return self.model.config.model

    @property
    def seen_names(self) -> tuple[str, ...]:
        readout = self.model.readout
        optional = {
            "inputs": readout.sees_inputs,
            "summaries": readout.sees_summaries,
            "present": self.model.present is not None,
        }
        return ("features", *(name for name, used in optional.items() if used))

    def whole(self, sequences: Sequences) -> Tensor:
        return self.model.outputs(sequences)

    def start(self, batch_size: int) -> Named:
        scale, schema = self.preprocessing.scale, self.schema
        values = scale.new_zeros(batch_size, len(schema.inputs))
        static = scale.new_zeros(batch_size, len(schema.static_inputs)) if schema.static else None
        first = self._first(values, static)
        return {name: torch.zeros_like(part) for name, part in first.items()} | {"events": values[:, :1]}

    def advance(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None = None
    ) -> tuple[Named, Named]:
        model, events = self.model, state["events"]
        observed = ~values.isnan()
        first = self._first(values, static)
        state = {name: torch.where(events == 0, part, state[name]) for name, part in first.items()}
        x, flags = model.preprocessing.events(values, observed)
        features, after = model.encoder.step(x, flags, model.preprocessing.spans(timespan), state)
        seen = {"features": features}
        if model.pooling is not None:
            seen["features"], pools = model.pooling.step(features, state)
            after |= pools
        if "inputs" in self.seen_names:
            seen["inputs"] = with_flags(x, flags)
        if "summaries" in self.seen_names:
            seen["summaries"], summaries = step_summaries(x, flags, state)
            after |= summaries
        if model.present is not None:
            seen["present"] = model.present.latest(values, observed, state["latest"])
            after["latest"] = seen["present"]
        return seen, after | {"events": events + 1}

    def outputs(self, seen: Named, static: Tensor | None = None) -> Tensor:
        model = self.model
        parts = [seen["features"], self._static(static) if model.readout.sees_static else None]
        parts += [seen.get("inputs"), seen.get("summaries")]
        output = model.readout.outputs([part for part in parts if part is not None])
        if model.present is not None:
            output = output + model.head.certain(seen["present"])
        if model.tabular is not None:
            assert static is not None, "a model with a table has static features"
            output = output + model.tabular(static.nan_to_num(), ~static.isnan())
        return output

    def begin(self, batch_size: int, static: Tensor | None = None) -> Named:
        values = self.preprocessing.scale.new_zeros(batch_size, len(self.schema.inputs))
        return self._first(values, static) | {"events": values[:, :1]}

    def fixed(self, static: Tensor) -> Named:
        """`static_seen`, what the readout sees of static features, and `offset`, what they add to the raw outputs."""
        numbers, known, found = static.nan_to_num(), ~static.isnan(), Named()
        seen = self.preprocessing.static(numbers, known)
        if self.model.readout.sees_static and seen is not None:
            found["static_seen"] = seen
        if self.model.tabular is not None:
            found["offset"] = self.model.tabular(numbers, known)
        return found

    def between(self, timespan: Tensor, state: Named) -> Named:
        model = self.model
        if not model.encoder.flows:
            raise ValueError(
                f"{model.config.model} cannot be asked between events, since it is driven by the event at the end of a "
                "gap; use a model that takes a gap in pieces, such as ode-lstm with form=jump, gru-d or ct-lstm"
            )
        if model.readout.sees_inputs:
            raise ValueError(
                "the readout sees the values of an event (readout_input), and between events there are none"
            )
        seen = {"features": model.encoder.flow(state, model.preprocessing.spans(timespan))}
        if model.pooling is not None:
            seen["features"] = model.pooling.between(seen["features"], state)
        if model.readout.sees_summaries:
            seen["summaries"] = summaries_of(state)
        if model.present is not None:
            seen["present"] = state["latest"]
        return seen

    def _first(self, values: Tensor, static: Tensor | None) -> Named:
        """All states but `events` before the first event."""
        model = self.model
        states = model.encoder.start(values, self._static(static))
        if model.pooling is not None:
            states |= model.pooling.start(values.new_zeros(values.shape[0], model.encoder.output_size))
        if model.readout.sees_summaries:
            states |= start_summaries(values)
        if model.present is not None:
            states["latest"] = model.present.start(values, model.preprocessing.fill)
        return states

    def _static(self, static: Tensor | None) -> Tensor | None:
        return None if static is None else self.model.preprocessing.static(static, ~static.isnan())
