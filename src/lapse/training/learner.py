"""The LightningModule around a model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lapse.heads import NonFiniteError
from lapse.models.base import Model
from lapse.sequences import Batch
from lapse.solvers import SolverError
from lapse.training.averaging import evaluated_weights
from lapse.training.config import TrainConfig
from lapse.training.randomness import own_random


class Learner(L.LightningModule):
    """Loss, optimiser and validation of a `lapse.models.Model`, for Lightning's Trainer.

    Args:
        model: the model that is trained; its head says what the loss and the metrics are.
        config: how it is trained.
    """

    def __init__(self, model: Model[Any], config: TrainConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.scores = model.head.scores()
        self._evaluated = evaluated_weights(config.average, model)
        self._total, self._weight, self._events = 0.0, 0.0, 0

    def configure_optimizers(self) -> Any:
        config = self.config
        steps, optimizer = self._steps, self._optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: config.rate_factor(step, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def _steps(self) -> int:
        """How many steps all epochs have."""
        return max(1, int(self.trainer.estimated_stepping_batches))

    def _optimizer(self) -> torch.optim.Optimizer:
        settings: dict[str, Any] = {"lr": self.config.learning_rate, "weight_decay": self.config.weight_decay}
        if self.config.optimizer == "adam":
            return torch.optim.AdamW(self._decayed_or_not(), **settings)  # with no decay this is Adam
        # The paper's runs used Keras' RMSprop, whose averaging (0.9) and epsilon differ from torch's defaults.
        return torch.optim.RMSprop(self.parameters(), alpha=0.9, eps=1e-7, **settings)

    def _decayed_or_not(self) -> list[Any]:
        """All parameters; with weight decay, those that it leaves alone in a group of their own."""
        everything = list(self.parameters())
        if not self.config.weight_decay:
            return everything
        decayed = self.model.decayed_parameters()
        chosen = {id(parameter) for parameter in decayed}
        others = [parameter for parameter in everything if id(parameter) not in chosen]
        return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]

    def on_train_epoch_start(self) -> None:
        self._total, self._weight, self._events = 0.0, 0.0, 0

    def training_step(self, batch: Batch, index: int) -> Tensor:
        if not len(batch):
            # No row was left for this process in the last batch; it still takes part in averaging the gradients.
            return self._nothing() / self._share(0.0)
        head = self.model.head
        with own_random(self.config.seed, self.current_epoch, index, self.global_rank):
            seen = hidden(batch, self.config.hide) if self.config.hide else batch
            output = self._predict(seen, index)
        targets = self.model.targets(batch)
        # A sum can be averaged over processes, a mean cannot.
        total = head.loss(output, targets).sum()
        if not bool(torch.isfinite(total)):
            raise NonFiniteError(self._diagnosis(batch, index, float(total.detach())))
        weight = float(targets.weights.sum())
        self._total += float(total.detach())
        self._weight += weight
        self._events += batch.rows.size
        loss, penalty = total / self._share(weight), self.model.penalty
        return loss if penalty is None else loss + penalty

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._evaluated.update(self.global_step, self._steps)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's state as it is evaluated: with the average of the weights, if there is one."""
        state = self.model.state_dict() | self._evaluated.mean
        return {name: value.detach().clone() for name, value in state.items()}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["average"] = self._evaluated.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._evaluated.load(checkpoint["average"])

    def _predict(self, batch: Batch, index: int) -> Tensor:
        try:
            output: Tensor = self.model(batch)
        except (SolverError, ValueError) as error:
            if isinstance(error, ValueError) and bool(torch.isfinite(batch.values).all()):
                raise  # a mistake of another kind
            raise NonFiniteError(self._diagnosis(batch, index, math.nan)) from error
        return output

    def _nothing(self) -> Tensor:
        return torch.stack([0.0 * p.sum() for p in self.model.parameters()]).sum()

    @property
    def mean_loss(self) -> float:
        """The mean loss of the epoch so far, in this process."""
        return self._total / self._weight if self._weight else 0.0

    def epoch_totals(self) -> tuple[float, float, int]:
        """The sum of the losses, the sum of their weights, and the events of the epoch so far, over all processes."""
        totals = torch.tensor([self._total, self._weight, self._events], dtype=torch.float64)
        if self.trainer.world_size > 1:
            totals = totals.to(self.device)
            torch.distributed.all_reduce(totals)
        return float(totals[0]), float(totals[1]), int(totals[2])

    def _share(self, weight: float) -> float:
        """What this process divides its loss by: the weight of all processes' predictions, divided by the processes.

        Gradients are averaged over processes, so this gives them the weight they have in one large batch. A batch
        without any known target has no loss, whatever it is divided by.
        """
        world = self.trainer.world_size
        if world == 1:
            return weight or 1.0
        weights = torch.tensor(weight, device=self.device)
        torch.distributed.all_reduce(weights)
        return float(weights) / world or 1.0

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
        self.scores = self.model.head.scores()
        self._evaluated.swap()

    def validation_step(self, batch: Batch, index: int) -> None:
        self.scores.add(self.model(batch), self.model.targets(batch))

    def on_validation_epoch_end(self) -> None:
        self._evaluated.swap()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch.to(device)


def hidden(batch: Batch, share: float) -> Batch:
    """The batch without some of its observed values, each left out with the same probability.

    Args:
        batch: the batch.
        share: the probability.
    """
    kept = torch.rand(batch.values.shape, device=batch.values.device) >= share
    observed = kept if batch.observed is None else batch.observed & kept
    return dataclasses.replace(batch, values=batch.values * observed, observed=observed)
