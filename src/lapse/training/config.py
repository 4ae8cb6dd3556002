"""How a model is trained; every default with its reason, written into every run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lapse.stored_config import added, check_types

LOWEST_RATE = 0.01  # share of the learning rate with which a cosine schedule ends


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one training; with the data and the model they decide its result."""

    seed: int = 0
    epochs: int = 100  # an upper bound: patience usually ends a training earlier
    batch_size: int = 128  # small enough for many updates an epoch on the paper's 10,000-window tasks
    optimizer: Literal["adam", "rmsprop"] = "adam"
    learning_rate: float = 5e-3  # the paper's; it suits Adam too at these sizes
    clip: float | None = 1.0  # gradient norm; without it one long gap can undo an epoch
    patience: int | None = 20  # epochs without a better validation metric before stopping
    restore_best: bool = True  # end with the weights of the best validation epoch, not of the last
    median_gap: bool = True  # count time in the training split's median gap, so that a gap is about 1
    # The learning rate falls along a cosine to a hundredth: at a constant rate the last epochs still jump about.
    schedule: Literal["constant", "cosine"] = added("cosine", before="constant")
    warmup: float = added(
        0.05, before=0.0
    )  # share of all steps in which the rate rises from 0: first steps are wild
    weight_decay: float = added(
        0.0, before=0.0
    )  # Adam decays weights apart from the gradient, RMSprop through it

    def __post_init__(self) -> None:
        check_types(self)
        for name, least in {"seed": 0, "epochs": 1, "batch_size": 1, "patience": 1}.items():
            if (number := getattr(self, name)) is not None and not least <= number < 2**63:
                raise ValueError(f"{name} must be at least {least} and below 2**63, got {number}")
        for name in ("learning_rate", "clip"):
            if (number := getattr(self, name)) is not None and not number > 0:
                raise ValueError(f"{name} must be positive, got {number}")
        if not 0 <= self.warmup < 1:
            raise ValueError(
                f"warmup must be a share of all steps, at least 0 and below 1, got {self.warmup}"
            )
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")

    def rate_factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at `step` of `steps` optimiser steps."""
        rising = self.warmup * steps
        warm = min(1.0, (step + 1) / rising) if rising else 1.0
        if self.schedule == "constant":
            return warm
        return warm * (
            LOWEST_RATE + (1 - LOWEST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        )
