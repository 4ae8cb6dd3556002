"""What models have in common: a schema, preprocessing, an encoder and a head; training, answering, storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from lapse import heads
from lapse.encoders import Encoder, RecurrentEncoder
from lapse.heads import Head, Targets
from lapse.models.config import ModelConfig
from lapse.models.preprocessing import Preprocessing
from lapse.models.registry import find
from lapse.models.schema import Schema
from lapse.sequences import Batch, Sequences
from lapse.sequences.batches import Examples
from lapse.sequences.ragged import concatenated_ranges

Data = TypeVar("Data", bound=Examples)


class Model(nn.Module, ABC, Generic[Data]):
    """A model that knows its table: raw data in, named predictions out.

    A subclass says what data it takes: `Sequences`, or `Cuts` of them with queries. It is called with a batch of data
    that `conform` returned, and gives raw outputs, one row per answer; the head says what they mean.

    Args:
        schema: the form of the training table.
        head: what is asked.
        config: everything else that a user chooses.

    Attributes:
        format: what the format of the model's folder is called.
        usage: how predictions are asked for, for the model card.
        defaults: fields of `ModelConfig` in which this kind of model departs from that class's defaults.
    """

    format: ClassVar[str]
    usage: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, schema: Schema, head: Head, config: ModelConfig) -> None:
        super().__init__()
        self.schema, self.head, self.config = schema, head, config
        self.preprocessing = Preprocessing(
            len(schema.inputs),
            len(schema.static_inputs),
            missing=schema.missing,
            scaling=config.scaling,
            clip=config.clip,
            time_unit=config.time_unit,
        )
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.state_dropout = nn.Dropout(config.state_dropout)
        # The weights of the encoder are drawn first, then those of the readout: results that were recorded for a seed
        # depend on this order.
        self.encoder = _encoder(config, schema)

    @abstractmethod
    def measure(self, train: Data) -> None:
        """Take scales, unit of time and the scale of the targets from the training split.

        Args:
            train: the training split, and nothing else.
        """

    @abstractmethod
    def conform(self, data: Data) -> Data:
        """The data in the form of the training table; `Schema.conform` says what is an error and what a warning.

        Args:
            data: any data.
        """

    @abstractmethod
    def asked(self, data: Data) -> Sequences:
        """The part of the data that holds the targets.

        Args:
            data: any data.
        """

    @abstractmethod
    def parts(self, data: Data) -> tuple[Sequences, ...]:
        """Everything that the data consist of: what a training is a function of.

        Args:
            data: any data.
        """

    @property
    @abstractmethod
    def could_see_ahead(self) -> bool:
        """Whether the batch holds events after those that an answer is about, so that training must look for a leak."""

    @property
    def sentence(self) -> str:
        """What is asked and how often."""
        return self.head.sentence

    def targets(self, batch: Any) -> Targets:
        """The targets of a batch, one row per answer.

        Args:
            batch: a batch of data.
        """
        return self.head.targets(batch)

    def decayed_parameters(self) -> list[nn.Parameter]:
        """What weight decay acts on: matrices, apart from those with a penalty of their own."""
        return [p for p in self.parameters() if p.dim() > 1]

    @property
    def penalty(self) -> Tensor | None:
        """What training adds to the mean loss; None if nothing."""
        return None

    @torch.no_grad()
    def gathered(self, data: Data, batch_size: int) -> Tensor:
        """Raw outputs (M, width) of data that `conform` returned, in their order.

        Args:
            data: what to answer for.
            batch_size: how many sequences are computed at a time; it has no effect on the answers.
        """
        device, asked = next(self.parameters()).device, self.asked(data)
        rows = asked.num_events if self.head.per_step else len(asked)
        found: Tensor | None = None
        with self.evaluating():
            for batch in data.batches(batch_size, shuffle=False):
                output = self(batch.to(device))
                found = output.new_empty(rows, self.head.width) if found is None else found
                found[self._places(asked, batch).to(device)] = output
        return torch.zeros(0, self.head.width, device=device) if found is None else found

    def _places(self, asked: Sequences, batch: Batch) -> Tensor:
        """Where the outputs of a batch belong."""
        if not self.head.per_step:
            return batch.index
        index = batch.index.numpy()
        return torch.from_numpy(concatenated_ranges(asked.offsets[index], asked.lengths[index]))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, without dropout, for a while; afterwards the model is in the mode it was in."""
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def save(self, folder: str | Path, *, card: str | None = None) -> None:
        """Write the model as a folder: `model.safetensors`, `config.json`, `card.md`.

        Weights that are NaN or infinite are not stored: they raise `lapse.heads.NonFiniteError`.

        Args:
            folder: where to; files of an earlier model in it are replaced.
            card: the text of `card.md`; None writes what the model itself knows.
        """
        from lapse.models.storage import save

        save(self, Path(folder), card)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model that `save` wrote. Nothing in the folder is run; a damaged file or an unknown version is refused.

        Args:
            folder: the folder.
        """
        from lapse.models.storage import load

        return load(Path(folder), cls)


def static_size(config: ModelConfig, schema: Schema, place: str) -> int:
    """The width of the static features at one of the places where they can enter: each has a flag beside it."""
    return 2 * len(schema.static_inputs) if place in config.static.split("+") else 0


def check_finite(output: Tensor, ids: Any) -> None:
    """Raise `NonFiniteError` if a raw output is NaN or infinite.

    Args:
        output: (M, width).
        ids: (M,), what to call each row.
    """
    bad = (~torch.isfinite(output)).any(-1).nonzero().flatten()
    if len(bad):
        raise heads.NonFiniteError(
            f"{len(bad)} of {len(output)} predictions are NaN or infinite, the first for id {ids[int(bad[0])]}. "
            "Likely cause: the training diverged, or values far from those of training (set clip= in the model)"
        )


def _encoder(config: ModelConfig, schema: Schema) -> Encoder:
    kind: Any = find(config.model)
    make = kind if issubclass(kind, Encoder) else partial(RecurrentEncoder, kind)
    encoder: Encoder = make(
        input_size=len(schema.inputs),
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        missing=schema.missing,
        static_size=static_size(config, schema, "state"),
        **config.options,
    )
    return encoder
