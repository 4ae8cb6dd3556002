"""Values at any time: the state of an encoder flows from the last event to the time that is asked about."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from lapse import heads
from lapse.arguments import check_kind
from lapse.encoders import Observations
from lapse.heads import Head, Targets
from lapse.models.base import Model, check_finite, static_size
from lapse.models.config import ModelConfig
from lapse.models.predictions import Predictions
from lapse.models.readout import Present, Readout
from lapse.models.schema import Schema, SchemaWarning
from lapse.models.summaries import latest_observed
from lapse.recurrent.cell import softplus_inverse
from lapse.sequences import CutBatch, Cuts, Sequences

FIRST_RATE = 0.02  # per unit of time, at which last values begin to fade: after 50 median gaps to a third


class Forecaster(Model[Cuts]):
    """A model of what the features will be at any time after the events that are known.

        h(t) = the state after the last event, having flowed through t − t_last without another event
        base(t) = typical + exp(−rate · (t − t_last)) ⊙ (last observed values − typical)
        output(t) = base(t) + readout(h(t), t − t_last, last values and their age)

    An encoder that flows (`Encoder.flows`) moves its state to the time that is asked about; any other keeps it. The
    readout is told the gap in both cases, so that every model can forecast. It starts at zero: an untrained forecaster
    repeats the last values, which fade to what is typical of training, at a rate per feature that is learned. All
    queries of a batch are answered in one call.

    Attributes:
        calibration: (width,), what is added to the raw outputs, see `calibrate`.
        farthest: the longest time ahead in training, in the unit of the training table.

    Args:
        schema: the form of the training table.
        head: what is asked: numbers, gaussian or quantiles, one answer per event, with a name of a feature per column.
        config: everything else that a user chooses; None for a readout with hidden units.
    """

    format = "lapse.Forecaster/1"
    usage = "model.predict(sequences, ahead=[1, 2, 5])"
    # A forecast bends with the gap and with the last values together, which one affine map cannot say.
    defaults: ClassVar[Mapping[str, Any]] = {"readout": "residual", "readout_size": 64}
    calibration: Tensor
    farthest: Tensor

    def __init__(self, schema: Schema, head: Head, config: ModelConfig | None = None) -> None:
        config = config or ModelConfig(**self.defaults)
        _check_config(config)
        super().__init__(schema, head, config)
        self.present = Present(_columns(schema, head))
        inputs = len(schema.inputs) * (3 if schema.missing else 1)
        static = static_size(config, schema, "head")
        width = self.encoder.output_size + 1 + inputs + static
        self.readout = Readout(config.readout, width, head.width, config.readout_size)
        self.readout.start_at_zero()
        self.rate = nn.Parameter(torch.full((len(_names(head)),), softplus_inverse(FIRST_RATE)))
        self.register_buffer("calibration", torch.zeros(head.width))
        self.register_buffer("farthest", torch.zeros(()))

    @classmethod
    def for_data(cls, train: Cuts, head: Head | str = "quantiles", **settings: Any) -> Forecaster:
        """An untrained forecaster; what is measured on training data is measured.

        Args:
            train: cuts of the training split, and nothing else.
            head: what is asked: a head, or the name of one: "numbers", "gaussian" or "quantiles".
            settings: fields of `ModelConfig`.
        """
        check_kind("train", train, Cuts, "make it with Cuts.random")
        asked = head if isinstance(head, Head) else heads.for_data(train.queries, head)
        model = cls(Schema.of(train.sequences), asked, ModelConfig(**{**cls.defaults, **settings}))
        model.measure(train)
        return model

    def measure(self, train: Cuts) -> None:
        train = self.conform(train)
        self.preprocessing.measure(train.sequences)
        self.encoder.set_input_mean(self.preprocessing.filled)
        self.head.measure(train.queries)
        self.farthest.fill_(float(train.spans.max()))

    def conform(self, data: Cuts) -> Cuts:
        check_kind("data", data, Cuts, "make it with Cuts.random, Cuts.at or Cuts.ahead")
        sequences, queries = self.schema.conform(data.sequences), self.schema.in_unit(data.queries)
        if sequences is data.sequences and queries is data.queries:
            return data
        return dataclasses.replace(data, sequences=sequences, queries=queries)

    def asked(self, data: Cuts) -> Sequences:
        return data.queries

    def parts(self, data: Cuts) -> tuple[Sequences, ...]:
        return data.history, data.queries

    @property
    def could_see_ahead(self) -> bool:
        """Never: what comes after a cut is not in the batch."""
        return False

    @property
    def sentence(self) -> str:
        names = ", ".join(_names(self.head))
        return f"{self.head.question} at any time ({names})"

    def targets(self, batch: CutBatch) -> Targets:
        return self.head.targets(batch.queries)

    def forward(self, batch: CutBatch) -> Tensor:
        """Raw outputs (Q, width), one row per query; the head says what they mean.

        Args:
            batch: a batch of cuts that `conform` returned.
        """
        row = batch.queries.rows.row.to(batch.spans.device)
        observations = self.preprocessing(batch)
        spans = batch.spans.to(observations.timespans.dtype) / self.preprocessing.time_unit
        dropped = dataclasses.replace(observations, values=self.input_dropout(observations.values))
        state = self.state_dropout(self.encoder.after(dropped, spans, row))
        seen = [state, spans.log1p().unsqueeze(1), self._latest(observations, spans, row)]
        if static_size(self.config, self.schema, "head"):
            assert observations.static is not None, "the width of the static features was checked"
            seen.append(observations.static.index_select(0, row))
        change: Tensor = self.readout(torch.cat(seen, -1), observations)
        return self.head.certain(self._base(batch, spans, row)) + change + self.calibration

    def _base(self, batch: CutBatch, spans: Tensor, row: Tensor) -> Tensor:
        """(Q, K) the last values on their way to what is typical, in the table's own units."""
        fill = self.preprocessing.fill
        last = self.present(batch, fill).index_select(0, batch.rows.last.to(row.device)).index_select(0, row)
        typical = fill.index_select(0, self.present.columns)
        return torch.lerp(typical, last, torch.exp(-functional.softplus(self.rate) * spans.unsqueeze(1)))

    def _latest(self, observations: Observations, spans: Tensor, row: Tensor) -> Tensor:
        """(Q, F) last values; where features may be missing (Q, 3F): also their age, and whether there is any."""
        rows, values = observations.rows, observations.values
        last = rows.last.to(values.device)
        if observations.observed is None:
            return values.index_select(0, last).index_select(0, row)
        seen = observations.observed > 0
        place = latest_observed(seen, rows).index_select(0, last)  # (B, F)
        times = observations.times
        age = times.index_select(0, last).unsqueeze(1) - times[place]
        found = torch.cat([values.gather(0, place), seen.gather(0, place).to(values)], -1)
        age_then = age.index_select(0, row) + spans.unsqueeze(1)
        return torch.cat([found.index_select(0, row), age_then.log1p()], -1)

    def calibrate(self, validation: Cuts) -> None:
        """Shift the answers so that they keep what they promise on data that was not trained on.

        Quantiles then have their share of these targets below them. Plain numbers promise nothing and stay the same.

        Args:
            validation: cuts with targets.
        """
        validation = self.conform(validation)
        targets = self.head.targets_of(validation.queries)
        self.calibration += self.head.calibration(self.gathered(validation, 512).cpu(), targets).to(
            self.calibration
        )

    def predict(
        self,
        sequences: Sequences,
        times: Sequence[ArrayLike] | ArrayLike | None = None,
        *,
        ahead: ArrayLike | None = None,
        batch_size: int = 512,
    ) -> Predictions:
        """Answers for any times, one row per query: the sequences in their order, the times of each as they were given.

        Args:
            sequences: what is known; they are brought into the form of the training table first.
            times: the times that are asked about, in the unit of the sequences: one list per sequence, or one list for
                all. Each answer is made of the events up to its time, and of no later one.
            ahead: instead, how long after the last event of each sequence.
            batch_size: how many sequences are computed at a time; it has no effect on the answers.
        """
        cuts = asked_about(sequences, times, ahead)
        self._tell_of_extrapolation(cuts)
        output = self.outputs(cuts, batch_size=batch_size)
        queries = cuts.queries
        assert queries.ids is not None
        ids = queries.ids.repeat(queries.lengths)
        check_finite(output, ids)
        return Predictions(ids, queries.times, self.head.predict(output))

    def _tell_of_extrapolation(self, cuts: Cuts) -> None:
        longest, learned = float(self.conform(cuts).spans.max(initial=0.0)), float(self.farthest)
        if longest > learned * 1.001:
            unit = self.schema.unit or "units of time"
            warnings.warn(
                f"asked about {longest:.4g} {unit} after the last event; in training it was {learned:.4g} at most, so "
                "that answers beyond that are guesses",
                SchemaWarning,
                stacklevel=3,
            )

    def outputs(self, cuts: Cuts, *, batch_size: int = 512) -> Tensor:
        """Raw outputs (Q, width) for any cuts, one row per query in their order; targets are not looked at.

        Args:
            cuts: what to answer; they are brought into the form of the training table first.
            batch_size: how many cuts are computed at a time.
        """
        return self.gathered(self.conform(cuts), batch_size)


def asked_about(
    sequences: Sequences, times: Sequence[ArrayLike] | ArrayLike | None, ahead: ArrayLike | None
) -> Cuts:
    """The cuts for either times or spans after the last event, see `Forecaster.predict`."""
    if times is not None and ahead is None:
        return Cuts.at(sequences, times)
    if times is None and ahead is not None:
        return Cuts.ahead(sequences, ahead)
    raise ValueError("say when: give either times, or ahead for times after the last event")


def _names(head: Head) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(head, "names", ())
    return names


def _columns(schema: Schema, head: Head) -> list[int]:
    """The positions of the features that are asked for."""
    numbers = [column.name for column in schema.features if column.words is None]
    names = _names(head)
    if not head.per_step or not names or (unknown := [name for name in names if name not in numbers]):
        asked = f"{unknown[0]!r}" if head.per_step and names else head.sentence
        raise ValueError(
            f"a forecaster answers with numbers for features, once per event, and this head asks for {asked}; "
            f"name some of {numbers} in it, with per_step=True"
        )
    columns = [schema.inputs.index(name) for name in names]
    head.certain(torch.zeros(1, len(columns)))  # refuses a head that does not answer with numbers
    return columns


def _check_config(config: ModelConfig) -> None:
    other = {
        "pooling": config.pooling != "last",
        "summaries": config.summaries,
        "readout_input": config.readout_input,
        "difference": bool(config.difference),
        "static='table'": "table" in config.static,
    }
    if used := [name for name, is_used in other.items() if is_used]:
        raise ValueError(f"{used[0]} is for a SequenceModel; a Forecaster has a readout of its own")
