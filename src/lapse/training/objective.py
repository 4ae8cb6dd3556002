"""What a training minimises, and by which figures its result is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lapse.sequences import Batch

# Whether more is better; accuracy is in percent, as in the paper's tables.
METRICS = {"accuracy": True, "mse": False, "auroc": True, "auprc": True}


class NonFiniteLoss(RuntimeError):
    """The loss left the numbers; the run keeps its last checkpoint."""


@dataclass(frozen=True)
class Objective:
    """A loss, the metrics to report (the first one chooses the best epoch), and where the targets are."""

    loss: Literal["cross_entropy", "mse"]
    metrics: tuple[str, ...]
    readout: Literal["last", "every"] = "last"

    def __post_init__(self) -> None:
        unknown = [name for name in self.metrics if name not in METRICS]
        if unknown or not self.metrics:
            raise ValueError(f"metrics must be among {', '.join(METRICS)}, got {self.metrics}")

    @property
    def maximize(self) -> bool:
        return METRICS[self.metrics[0]]

    def valid(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Predictions (M, output_size) and their targets, padding left out."""
        if batch.targets is None:
            raise ValueError("these sequences carry no targets: give `target=` when they are built")
        if self.readout == "last":
            return prediction, batch.targets
        return prediction[batch.mask], batch.targets[batch.mask]

    def total(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss summed over predictions: a sum can be averaged over processes, a mean cannot."""
        if self.loss == "cross_entropy":
            return F.cross_entropy(prediction, target, reduction="sum")
        return F.mse_loss(prediction, target, reduction="none").mean(-1).sum()

    def build_metrics(self, output_size: int) -> Any:
        """Fresh torchmetrics that take predictions and targets."""
        import torchmetrics
        from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, MulticlassAccuracy

        makers: dict[str, Any] = {
            "accuracy": lambda **k: MulticlassAccuracy(output_size, average="micro", **k),
            "mse": torchmetrics.MeanSquaredError,
            "auroc": BinaryAUROC,
            "auprc": BinaryAveragePrecision,
        }
        # Every process of a data-parallel training evaluates everything: there is nothing to add up.
        return {name: makers[name](sync_on_compute=False) for name in self.metrics}


class Scores:
    """Metrics gathered over the batches of one pass."""

    def __init__(self, objective: Objective, output_size: int) -> None:
        self.objective = objective
        self.metrics = objective.build_metrics(output_size)
        self.total = 0.0
        self.count = 0

    @torch.no_grad()
    def add(self, prediction: Tensor, batch: Batch) -> None:
        prediction, target = self.objective.valid(prediction, batch)
        self.total += float(self.objective.total(prediction, target))
        self.count += len(target)
        for name, metric in self.metrics.items():
            # Ranking metrics take one score a case: the odds of the second class.
            scores = prediction[:, 1] - prediction[:, 0] if name in ("auroc", "auprc") else prediction
            metric.update(scores.contiguous(), target.contiguous())

    def values(self) -> dict[str, float]:
        """The mean loss and every metric."""
        percent = {"accuracy": 100.0}
        scores = {name: float(m.compute()) * percent.get(name, 1.0) for name, m in self.metrics.items()}
        return {"loss": self.total / max(self.count, 1)} | scores
