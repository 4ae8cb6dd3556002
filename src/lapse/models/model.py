"""From a table of events to predictions: schema, preprocessing, encoder, pooling, readout and head in one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lapse import heads
from lapse.heads import Head
from lapse.models.base import Model, check_finite, static_size
from lapse.models.config import ModelConfig
from lapse.models.pooling import Pooling, steps_of
from lapse.models.predictions import Predictions
from lapse.models.readout import Present, Readout
from lapse.models.schema import Schema
from lapse.models.tabular import TabularReadout
from lapse.sequences import Batch, Sequences
from lapse.sequences.summaries import static_numbers

if TYPE_CHECKING:
    from lapse.models.step import Stepper


class SequenceModel(Model[Sequences]):
    """A model that knows its table: it takes raw sequences and gives named predictions.

    `for_data` builds one for a training split, `predict` answers for any `Sequences` in their order. Calling the model
    with a batch is the part that is trained: raw outputs for a batch of sequences that `conform` returned.

    Args:
        schema: the form of the training table.
        head: what is asked.
        config: everything else that a user chooses.
    """

    format = "lapse.SequenceModel/1"
    usage = "model.predict(sequences)"

    def __init__(self, schema: Schema, head: Head, config: ModelConfig | None = None) -> None:
        config = config or ModelConfig()
        _check_question(config, head)
        super().__init__(schema, head, config)
        self.pooling = None if head.per_step else Pooling(config.pooling, self.encoder.output_size)
        features = self.encoder.output_size if self.pooling is None else self.pooling.output_size
        self.readout = _readout(config, schema, head, features)
        self.present = Present(_compared(config, schema, head)) if config.difference else None
        self.tabular = _tabular(config, schema, head)
        if self.tabular is not None:
            self.readout.start_at_zero()  # the table comes first, and the encoder adds to it

    @classmethod
    def for_data(cls, train: Sequences, head: Head | str | None = None, **settings: Any) -> SequenceModel:
        """An untrained model for these sequences; what is measured on training data is measured.

        Args:
            train: the training split, and nothing else.
            head: what is asked: a head, the name of one, or None to choose by the targets.
            settings: fields of `ModelConfig`.
        """
        asked = head if isinstance(head, Head) else heads.for_data(train, head)
        model = cls(Schema.of(train), asked, ModelConfig(**settings))
        model.measure(train)
        return model

    def measure(self, train: Sequences) -> None:
        train = self.conform(train)
        self.preprocessing.measure(train)
        self.encoder.set_input_mean(self.preprocessing.filled)
        self.head.measure(train)
        if self.tabular is not None:
            self.tabular.solve(static_numbers(train), self.head, self.head.targets_of(train))

    def conform(self, data: Sequences) -> Sequences:
        return self.head.conform(self.schema.conform(data))

    def asked(self, data: Sequences) -> Sequences:
        return data

    def parts(self, data: Sequences) -> tuple[Sequences, ...]:
        return (data,)

    @property
    def could_see_ahead(self) -> bool:
        return self.head.per_step

    def forward(self, batch: Batch) -> Tensor:
        """Raw outputs (B, width), or (N, width) for one answer per event; the head says what they mean.

        Args:
            batch: a batch of sequences that `conform` returned.
        """
        observations = self.preprocessing(batch)
        dropped = dataclasses.replace(observations, values=self.input_dropout(observations.values))
        features = self.encoder(dropped)
        state = steps_of(features) if self.pooling is None else self.pooling(features, observations)
        output: Tensor = self.readout(self.state_dropout(state), observations)
        if self.present is not None:
            output = output + self.head.certain(self.present(batch, self.preprocessing.fill))
        if self.tabular is not None:
            assert batch.static is not None, "the width of the static features was checked"
            output = output + self.tabular(batch.static, batch.static_observed)
        return output

    def decayed_parameters(self) -> list[nn.Parameter]:
        own = set() if self.tabular is None else {id(p) for p in self.tabular.parameters()}
        return [p for p in super().decayed_parameters() if id(p) not in own]

    @property
    def penalty(self) -> Tensor | None:
        return None if self.tabular is None else self.tabular.penalty

    def stepper(self) -> Stepper:
        """The model for one event at a time, with its weights shared: for streams and export."""
        from lapse.models.step import Step

        return Step(self)

    def predict(self, sequences: Sequences, *, batch_size: int = 512) -> Predictions:
        """Answers for any sequences, in their order and with their ids; targets are not looked at.

        Args:
            sequences: what to answer for; they are brought into the form of the training table first.
            batch_size: how many sequences are computed at a time; it has no effect on the answers.
        """
        output = self.outputs(sequences, batch_size=batch_size)
        ids = np.arange(len(sequences)) if sequences.ids is None else sequences.ids
        ids = np.repeat(ids, sequences.lengths) if self.head.per_step else ids
        check_finite(output, ids)
        return Predictions(ids, sequences.times if self.head.per_step else None, self.head.predict(output))

    def outputs(self, sequences: Sequences, *, batch_size: int = 512) -> Tensor:
        """Raw outputs (M, width) for any sequences in their order, one row per sequence or per event.

        Args:
            sequences: what to answer for; they are brought into the form of the training table first.
            batch_size: how many sequences are computed at a time.
        """
        conformed = dataclasses.replace(self.schema.conform(sequences), targets=None, per_step=False)
        return self.gathered(conformed, batch_size)


def _readout(config: ModelConfig, schema: Schema, head: Head, feature_size: int) -> Readout:
    inputs = len(schema.inputs)
    return Readout(
        config.readout,
        feature_size,
        head.width,
        config.readout_size,
        per_step=head.per_step,
        static_size=static_size(config, schema, "head"),
        input_size=inputs * (2 if schema.missing else 1) if config.readout_input else 0,
        summary_size=inputs if config.summaries else 0,
    )


def _tabular(config: ModelConfig, schema: Schema, head: Head) -> TabularReadout | None:
    if "table" not in config.static.split("+") or not schema.static:
        return None
    return TabularReadout(len(schema.static_inputs), head.width, config.ridge)


def _check_question(config: ModelConfig, head: Head) -> None:
    once = [
        name
        for name, used in (
            ("pooling", config.pooling != "last"),
            ("summaries", config.summaries),
            ("static='table'", "table" in config.static),
        )
        if used
    ]
    if head.per_step and once:
        raise ValueError(f"{once[0]} is for one answer per sequence, and this model answers at every event")
    every = [name for name in ("readout_input", "difference") if getattr(config, name)]
    if not head.per_step and every:
        raise ValueError(f"{every[0]} is for one answer per event, and this model answers once per sequence")


def _compared(config: ModelConfig, schema: Schema, head: Head) -> list[int]:
    """The positions of the features from which the targets are counted."""
    names = schema.inputs if config.difference is True else tuple(config.difference or ())
    if unknown := [name for name in names if name not in schema.inputs]:
        raise ValueError(f"difference names {unknown[0]!r}, which is not one of the features {schema.inputs}")
    columns = [schema.inputs.index(name) for name in names]
    head.certain(torch.zeros(1, len(columns)))  # refuses what is not one feature per column of the target
    return columns
