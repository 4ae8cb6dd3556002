"""The LightningModule around a model."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lapse.models import SequenceModel
from lapse.sequences import Batch
from lapse.solvers import SolverError
from lapse.training.config import TrainConfig
from lapse.training.objective import NonFiniteLoss, Objective, Scores


class Learner(L.LightningModule):
    """Loss, optimiser and validation of a :class:`lapse.models.SequenceModel`, for Lightning's Trainer."""

    def __init__(self, model: SequenceModel, objective: Objective, config: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.config = config
        self.train_total, self.train_count, self.events = 0.0, 0, 0
        self.scores = Scores(objective, model.config.output_size)

    def configure_optimizers(self) -> Any:
        config = self.config
        steps = max(1, int(self.trainer.estimated_stepping_batches))
        optimizer = self._optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: config.rate_factor(step, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _optimizer(self) -> torch.optim.Optimizer:
        settings: dict[str, Any] = {"lr": self.config.learning_rate, "weight_decay": self.config.weight_decay}
        if self.config.optimizer == "adam":
            return torch.optim.AdamW(self.parameters(), **settings)  # with no decay this is Adam
        # The paper's runs used Keras' RMSprop, whose averaging (0.9) and epsilon differ from torch's defaults.
        return torch.optim.RMSprop(self.parameters(), alpha=0.9, eps=1e-7, **settings)

    def on_train_epoch_start(self) -> None:
        # Dropout is a function of seed and epoch, so that a resumed run draws what the unbroken one drew.
        torch.manual_seed(self.config.seed * 1_000_003 + self.current_epoch)
        self.train_total, self.train_count, self.events = 0.0, 0, 0

    def training_step(self, batch: Batch, index: int) -> Tensor:
        if not len(batch):
            # No row was left for this process in the last batch; it still takes part in averaging the gradients.
            return self._nothing() / self._share(0)
        prediction, target = self.objective.valid(self._predict(batch, index), batch)
        total = self.objective.total(prediction, target)
        if not bool(torch.isfinite(total)):
            raise NonFiniteLoss(self._diagnosis(batch, index, float(total.detach())))
        self.train_total += float(total.detach())
        self.train_count += len(target)
        self.events += int(batch.lengths.sum())
        return total / self._share(len(target))

    def _predict(self, batch: Batch, index: int) -> Tensor:
        try:
            prediction: Tensor = self.model(batch)
        except (SolverError, ValueError) as error:
            if isinstance(error, ValueError) and bool(torch.isfinite(batch.values).all()):
                raise  # a mistake of another kind
            raise NonFiniteLoss(self._diagnosis(batch, index, math.nan)) from error
        return prediction

    def _nothing(self) -> Tensor:
        return torch.stack([0.0 * p.sum() for p in self.model.parameters()]).sum()

    def epoch_totals(self) -> tuple[float, int, int]:
        """Loss, predictions and events of the epoch so far, over all processes."""
        totals = torch.tensor([self.train_total, self.train_count, self.events], dtype=torch.float64)
        if self.trainer.world_size > 1:
            totals = totals.to(self.device)
            torch.distributed.all_reduce(totals)
        return float(totals[0]), int(totals[1]), int(totals[2])

    def _share(self, count: int) -> float:
        """How many predictions a process answers for: all of them, divided by the processes.

        Gradients are averaged over processes, so this gives them the weight they have in one large batch.
        """
        world = self.trainer.world_size
        if world == 1:
            return float(count)
        counts = torch.tensor(float(count), device=self.device)
        torch.distributed.all_reduce(counts)
        return float(counts) / world

    def _diagnosis(self, batch: Batch, index: int, loss: float) -> str:
        weights = all(bool(torch.isfinite(p).all()) for p in self.model.parameters())
        inputs = bool(torch.isfinite(batch.values).all())
        if not inputs:
            cause = "the batch holds values that are not finite: mark them as missing"
        elif not weights:
            cause = "the weights are not finite: lower the learning rate or clip gradients"
        else:
            cause = "the prediction overflowed: standardise inputs, or count time in a larger unit"
        rows = batch.index[:5].tolist()
        return (
            f"loss is {loss} in epoch {self.current_epoch}, batch {index} (step {self.global_step}; sequences {rows} "
            f"...; longest gap {float(batch.timespans.max()):.4g}). Likely cause: {cause}"
        )

    def on_validation_epoch_start(self) -> None:
        self.scores = Scores(self.objective, self.model.config.output_size)

    def validation_step(self, batch: Batch, index: int) -> None:
        self.scores.add(self.model(batch), batch)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device)
