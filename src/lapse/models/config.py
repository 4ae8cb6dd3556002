"""The plain values that decide the shape of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lapse.arguments import check_choice
from lapse.models.pooling import POOLS
from lapse.models.preprocessing import SCALINGS
from lapse.models.readout import READOUTS
from lapse.models.registry import spelled_out
from lapse.stored_config import added, check_types

STATIC = ("state", "head", "table")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that a user chooses about a `SequenceModel`, as plain values that can be stored.

    What follows from the data (the number of features, whether they may be missing) is in the model's `Schema`, and
    what follows from the question (the number of outputs, one answer per event or per sequence) is in its `Head`.

    Args:
        model: the name of the layer or encoder.
        hidden_size: its number of units.
        num_layers: how many of it are stacked.
        options: further arguments of the layer or encoder: `form`, `solver` by name, `forget_bias`, ...
        scaling: "standard", "robust" or "none", see `Preprocessing`.
        clip: the largest absolute value after scaling; None for no limit.
        time_unit: what a gap of 1 is for the network: a number in the unit of the table, "median" for the median gap of
            the training split, None for the unit of the table.
        pooling: what stands for a whole sequence: "last", "mean", "max" and "attention", joined by "+". Only for one
            answer per sequence.
        summaries: whether the readout also sees last, mean, least, largest and number of each feature's observations.
            Only for one answer per sequence.
        static: where static features enter: "head" (beside the features), "state" (they set the state before the first
            event), "table" (by a regularised linear map of their own that is added to the raw outputs, see
            `TabularReadout`; only for one answer per sequence), or several of them, joined by "+".
        ridge: how strongly large weights of the map for "table" are penalised.
        readout: "linear", "mlp" for one layer of hidden units, "deep" for two of them, or "residual" for the first two,
            added.
        readout_size: the number of hidden units of each layer of an "mlp", "deep" or "residual" readout.
        readout_input: whether the readout sees the event's own values beside the state. Only for one answer per event.
        difference: whether the readout gives the difference from the event's own values. True if the target's columns
            are those of the features, in their order; otherwise the name of one feature per column of the target. Only
            for one answer per event, and for numbers.
        input_dropout: the probability of setting a value to 0 before the encoder, in training.
        state_dropout: the probability of setting a feature to 0 before the readout, in training.
    """

    model: str = "ode-lstm"
    hidden_size: int = 64  # the paper's
    num_layers: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    scaling: str = "standard"
    clip: float | None = None
    time_unit: float | str | None = "median"
    pooling: str = "last"
    summaries: bool = False
    static: str = "head"
    readout: str = "linear"
    readout_size: int = 256
    readout_input: bool = False
    difference: bool | tuple[str, ...] = False
    input_dropout: float = 0.0
    state_dropout: float = 0.0
    # With two classes, 600 is the penalty of logistic regression with C = 1 / 300 on standardised columns.
    ridge: float = added(600.0, before=600.0)

    def __post_init__(self) -> None:
        if isinstance(self.difference, list):
            object.__setattr__(self, "difference", tuple(self.difference))
        check_types(self)
        object.__setattr__(self, "options", spelled_out(self.model, self.options))
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("readout", self.readout, READOUTS)
        for word in self.pooling.split("+"):
            check_choice("pooling", word, POOLS)
        for word in self.static.split("+"):
            check_choice("static", word, STATIC)
        self._check_numbers()
        _check_options(self.options)

    def _check_numbers(self) -> None:
        for name in ("input_dropout", "state_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)!r}")
        if not self.ridge >= 0:
            raise ValueError(f"ridge must not be negative, got {self.ridge!r}")
        for name in ("hidden_size", "num_layers", "readout_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.clip is not None and (self.scaling == "none" or not self.clip > 0):
            raise ValueError(
                f"clip is a positive number of scales, so it needs a scaling; got clip={self.clip} with "
                f"scaling={self.scaling!r}"
            )
        if isinstance(self.time_unit, str):
            check_choice("time_unit", self.time_unit, ("median",))
        elif self.time_unit is not None and not self.time_unit > 0:
            raise ValueError(f"time_unit must be positive, 'median' or None, got {self.time_unit}")


def _check_options(options: Mapping[str, Any]) -> None:
    try:
        json.dumps(dict(options))
    except TypeError as error:
        raise TypeError(
            f"options must be plain values, so that the model can be stored: {error}; "
            "a solver goes by its word here, such as 'rk4:8' (`solver.word`)"
        ) from None
