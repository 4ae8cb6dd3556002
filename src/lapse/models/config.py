"""The plain values that decide the shape of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lapse.heads import Head
from lapse.models.registry import spelled_out
from lapse.sequences import Sequences


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the shape of a :class:`SequenceModel`; plain values, so that it can be stored.

    ``readout`` is "last" for one answer a sequence and "every" for one a step; ``missing`` says whether features may
    be missing; ``options`` go to the layer as they are (``form``, ``solver`` by name, ``forget_bias``, ...).
    """

    input_size: int
    output_size: int
    model: str = "ode-lstm"
    hidden_size: int = 64  # the paper's
    num_layers: int = 1
    readout: Literal["last", "every"] = "last"
    missing: bool = False
    static_size: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", spelled_out(self.model, self.options))
        if self.readout not in ("last", "every"):
            raise ValueError(f"readout must be 'last' or 'every', got {self.readout!r}")
        try:
            json.dumps(dict(self.options))
        except TypeError as error:
            raise TypeError(
                f"options must be plain values, so that the model can be stored: {error}; "
                "a solver goes by its word here, such as 'rk4:8' (`solver.word`)"
            ) from None

    @staticmethod
    def for_data(train: Sequences, head: Head, **settings: Any) -> ModelConfig:
        """The config that fits these sequences and this head; `settings` are the other fields."""
        static_size = 0 if train.static is None else train.static.shape[1]
        missing = train.observed is not None
        readout: Literal["last", "every"] = "every" if head.per_step else "last"
        return ModelConfig(
            train.num_features,
            head.width,
            readout=readout,
            missing=missing,
            static_size=static_size,
            **settings,
        )
