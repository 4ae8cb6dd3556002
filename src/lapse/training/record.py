"""The record of a training, which makes it resumable."""

from __future__ import annotations

import csv
import io
import math
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lapse.heads import Metric, NonFiniteError
from lapse.sequences.storage import write_atomically
from lapse.training.checkpoints import Checkpoints, check_identity
from lapse.training.config import TrainConfig
from lapse.training.learner import Learner


class Record(L.Callback):
    """The figures of every epoch, the best weights, and when to stop; written to the folder after every epoch.

    All of it is inside the checkpoint, which is written beside its final name and renamed: a kill at any moment leaves
    the previous epoch whole, and no other file can disagree with it.

    Args:
        config: when to stop.
        metric: the figure that chooses the best epoch.
        folder: where checkpoints and `metrics.csv` go; None keeps everything in memory.
        identity: what the training is a function of, see `lapse.training.checkpoints.identity`.
    """

    def __init__(
        self,
        config: TrainConfig,
        metric: Metric,
        folder: Path | None = None,
        identity: dict[str, str] | None = None,
    ) -> None:
        self.config, self.metric, self.identity = config, metric, identity
        self.checkpoints = None if folder is None else Checkpoints(folder)
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {"value": None, "epoch": -1, "weights": {}}
        self._began = 0.0

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, patience is at its end, or no later epoch could be the best one."""
        if len(self.history) >= self.config.epochs:
            return True
        if self.config.patience is None or not self.history:
            return False
        waited = len(self.history) - 1 - int(self.best["epoch"])
        return waited >= self.config.patience or self._is_settled

    @property
    def _is_settled(self) -> bool:
        """Whether the result is known already: the weights of an epoch that no later one can surpass are kept."""
        perfect = self.metric.perfect
        return self.config.restore_best and perfect is not None and self.best["value"] == perfect

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "best": self.best, "identity": self.identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history, self.best = state["history"], state["best"]

    def restore(self, learner: Learner) -> Path | None:
        """Take up what the newest checkpoint holds, after a check that it belongs to this training; its path.

        Args:
            learner: gets the weights of the checkpoint.
        """
        if self.checkpoints is None or (newest := self.checkpoints.newest()) is None:
            return None
        state = newest.state["callbacks"][self.state_key]
        assert self.identity is not None
        check_identity(state.get("identity"), self.identity, self.checkpoints.folder)
        self.load_state_dict(state)
        if len(self.history) > self.config.epochs:
            raise ValueError(
                f"{self.checkpoints.folder} holds {len(self.history)} epochs, more than the {self.config.epochs} asked "
                "for; ask for at least as many, choose another folder, or start again there with restart=True"
            )
        learner.load_state_dict(newest.state["state_dict"])
        learner.on_load_checkpoint(newest.state)
        self.write_metrics()
        return newest.path

    def on_train_epoch_start(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        assert isinstance(learner, Learner)
        _check_weights(learner, trainer.current_epoch)
        seconds = time.perf_counter() - self._began
        scores = learner.scores.values()
        total, weight, events = learner.epoch_totals()
        row = {
            "epoch": float(trainer.current_epoch),
            "train_loss": total / max(weight, 1.0),
            **{f"validation_{name}": value for name, value in scores.items()},
            "seconds": seconds,
            "events_per_second": events / seconds,
        }
        self.history.append(row)
        if self._is_better(scores[self.metric.name]):
            weights = {k: v.detach().clone() for k, v in learner.model.state_dict().items()}
            self.best = {
                "value": scores[self.metric.name],
                "epoch": trainer.current_epoch,
                "weights": weights,
            }
        trainer.should_stop = trainer.should_stop or self.finished
        self._write(trainer)

    def _is_better(self, value: float) -> bool:
        best = self.best["value"]
        if math.isnan(value):
            return False
        return best is None or (value > best if self.metric.maximize else value < best)

    def _write(self, trainer: L.Trainer) -> None:
        if self.checkpoints is None:
            return
        trainer.save_checkpoint(self.checkpoints.partial)
        if trainer.is_global_zero:
            self.checkpoints.keep()
            self.write_metrics()
        trainer.strategy.barrier()  # no process goes on before the file has its name

    def write_metrics(self) -> None:
        """Write `metrics.csv`, one row per epoch."""
        assert self.checkpoints is not None
        text = io.StringIO()
        table = csv.DictWriter(text, fieldnames=list(self.history[0]))
        table.writeheader()
        table.writerows(
            {k: int(v) if k == "epoch" else f"{v:.8g}" for k, v in row.items()} for row in self.history
        )
        path = self.checkpoints.folder / "metrics.csv"
        write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def _check_weights(learner: Learner, epoch: int) -> None:
    for name, weight in learner.model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise NonFiniteError(
                f"the weights {name} are NaN or infinite after epoch {epoch}. Likely cause: too large steps; lower the "
                "learning rate or clip gradients"
            )
