"""How a model is trained; every default with its reason, written into every run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lapse.stored_config import added, check_types

LOWEST_RATE = 0.01  # share of the learning rate with which a cosine schedule ends


@dataclass(frozen=True)
class TrainConfig:
    """The settings of one training; with the data and the model they decide its result.

    Args:
        seed: decides the order of batches and everything that is drawn in training.
        epochs: passes over the training split; an upper bound, since patience usually ends a training earlier.
        batch_size: sequences per step; small enough for many steps per epoch on the paper's 10,000-window tasks.
        optimizer: "adam" or "rmsprop".
        learning_rate: the paper's; it suits Adam too at these sizes.
        clip: the largest norm of the gradient; without it one long gap can undo an epoch. None for no limit.
        patience: epochs without a better validation metric before stopping; None to do all epochs. With `restore_best`
            a training also ends when the metric is perfect, because no later epoch could take its place.
        restore_best: end with the weights of the best validation epoch, not of the last.
        median_gap: count time in the training split's median gap, so that a gap is about 1.
        schedule: "cosine" lets the learning rate fall to a hundredth: at a constant rate the last epochs jump about.
        warmup: share of all steps in which the rate rises from 0, since the first steps are wild.
        weight_decay: Adam decays weights apart from the gradient, RMSprop through it.
        accumulate: batches per step, for a large batch that does not fit into memory; each batch counts the same.
        average: evaluate and keep an average of the weights instead of the last ones: "ema" over about the last tenth
            of the steps so far, "swa" over the last quarter of all steps; None for no average.
        hide: share of the observed values that each step does not see, so that a model gets used to missing ones.
        class_weights: "balanced" lets rare classes or labels count as much as common ones; None counts every prediction
            the same. Reported figures are not weighted.
    """

    seed: int = 0
    epochs: int = 100
    batch_size: int = 128
    optimizer: Literal["adam", "rmsprop"] = "adam"
    learning_rate: float = 5e-3
    clip: float | None = 1.0
    patience: int | None = 20
    restore_best: bool = True
    median_gap: bool = True
    schedule: Literal["constant", "cosine"] = added("cosine", before="constant")
    warmup: float = added(0.05, before=0.0)
    weight_decay: float = added(0.0, before=0.0)
    accumulate: int = added(1, before=1)
    average: Literal["ema", "swa"] | None = added(None, before=None)
    hide: float = added(0.0, before=0.0)
    class_weights: Literal["balanced"] | None = added(None, before=None)

    def __post_init__(self) -> None:
        check_types(self)
        for name, least in {"seed": 0, "epochs": 1, "batch_size": 1, "patience": 1, "accumulate": 1}.items():
            if (number := getattr(self, name)) is not None and not least <= number < 2**63:
                raise ValueError(f"{name} must be at least {least} and below 2**63, got {number}")
        for name in ("learning_rate", "clip"):
            if (number := getattr(self, name)) is not None and not number > 0:
                raise ValueError(f"{name} must be positive, got {number}")
        for name in ("warmup", "hide"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be a share, at least 0 and below 1, got {share}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")

    def rate_factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by.

        Args:
            step: the number of the optimiser's step, counted from 0.
            steps: how many there are in all epochs.
        """
        rising = self.warmup * steps
        warm = min(1.0, (step + 1) / rising) if rising else 1.0
        if self.schedule == "constant":
            return warm
        return warm * (
            LOWEST_RATE + (1 - LOWEST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        )
