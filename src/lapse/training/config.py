"""How a model is trained; every default with its reason, written into every run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.optimizer not in ("adam", "rmsprop"):
            raise ValueError(f"optimizer must be 'adam' or 'rmsprop', got {self.optimizer!r}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
