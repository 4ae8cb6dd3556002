"""What happens around the epochs: the record that makes a training resumable, and the progress bar."""

from __future__ import annotations

import csv
import importlib.util
import io
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lapse.sequences.storage import write_atomically
from lapse.training.learner import Learner


class Record(L.Callback):
    """The history of a training, its best weights, and when to stop; written to ``folder`` after every epoch.

    All of it travels inside the checkpoint, which is written beside its final name and renamed: a kill at any
    moment leaves the previous epoch whole, and nothing that a later file says can disagree with it.
    """

    def __init__(self, folder: Path | None, patience: int | None, maximize: bool, metric: str) -> None:
        self.folder, self.patience, self.maximize, self.metric = folder, patience, maximize, metric
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {"value": None, "epoch": -1, "weights": {}}
        self.finished = False
        self._began = 0.0

    @property
    def checkpoint(self) -> Path | None:
        return None if self.folder is None else self.folder / "last.ckpt"

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "best": self.best, "finished": self.finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history, self.best, self.finished = state["history"], state["best"], state["finished"]

    def on_train_epoch_start(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        assert isinstance(learner, Learner)
        seconds = time.perf_counter() - self._began
        scores = learner.scores.values()
        total, count, events = learner.epoch_totals()
        row = {
            "epoch": float(trainer.current_epoch),
            "train_loss": total / max(count, 1),
            **{f"validation_{name}": value for name, value in scores.items()},
            "seconds": seconds,
            "events_per_second": events / seconds,
        }
        self.history.append(row)
        if self._is_better(scores[self.metric]):
            weights = {k: v.detach().clone() for k, v in learner.model.state_dict().items()}
            self.best = {"value": scores[self.metric], "epoch": trainer.current_epoch, "weights": weights}
        waited = trainer.current_epoch - int(self.best["epoch"])
        stop = self.patience is not None and waited >= self.patience
        assert trainer.max_epochs is not None
        self.finished = stop or trainer.current_epoch + 1 >= trainer.max_epochs
        trainer.should_stop = trainer.should_stop or stop
        self._write(trainer)

    def _is_better(self, value: float) -> bool:
        best = self.best["value"]
        return best is None or (value > best if self.maximize else value < best)

    def _write(self, trainer: L.Trainer) -> None:
        if self.folder is None:
            return
        partial = self.folder / "last.ckpt.part"
        trainer.save_checkpoint(partial)
        if trainer.is_global_zero:
            partial.replace(self.folder / "last.ckpt")
            self.write_metrics()
        trainer.strategy.barrier()  # no process goes on before the file has its name

    def write_metrics(self) -> None:
        assert self.folder is not None
        text = io.StringIO()
        table = csv.DictWriter(text, fieldnames=list(self.history[0]))
        table.writeheader()
        table.writerows(
            {k: int(v) if k == "epoch" else f"{v:.8g}" for k, v in row.items()} for row in self.history
        )
        write_atomically(self.folder / "metrics.csv", lambda file: file.write(text.getvalue().encode()))

    def restore(self) -> bool:
        """Take up what the last checkpoint holds; whether there is one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return False
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        self.load_state_dict(state["callbacks"][self.state_key])
        self.write_metrics()
        return True


class Scalars(L.Callback):
    """Every figure of every epoch for TensorBoard."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        if trainer.is_global_zero:
            for name, value in _record(trainer).history[-1].items():
                self.writer.add_scalar(name, value, trainer.current_epoch)

    def teardown(self, trainer: L.Trainer, learner: L.LightningModule, stage: str) -> None:
        self.writer.close()


def scalars(folder: Path | None, epoch: int) -> list[L.Callback]:
    """The callback for TensorBoard where that is installed; epochs from ``epoch`` on are written anew."""
    if folder is None or importlib.util.find_spec("tensorboard") is None:
        return []
    from torch.utils.tensorboard import SummaryWriter

    return [Scalars(SummaryWriter(str(folder / "tensorboard"), purge_step=epoch))]


def _record(trainer: L.Trainer) -> Record:
    return next(c for c in trainer.callbacks if isinstance(c, Record))  # type: ignore[attr-defined]


class Progress(L.Callback):
    """One line on stderr: epoch, loss, metric, events per second, time left."""

    def __init__(self, metric: str, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.metric, self.label = metric, label
        self.bar = Bar(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]:<52}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._note = ""

    def on_train_start(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        assert trainer.max_epochs is not None
        total = trainer.max_epochs * trainer.num_training_batches
        done = int(trainer.current_epoch * trainer.num_training_batches)
        self.task = self.bar.add_task(self.label, total=total, completed=done, note="")
        self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, learner: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        assert isinstance(learner, Learner)
        loss = learner.train_total / max(learner.train_count, 1)
        note = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} loss {loss:.4f} {self._note}"
        self.bar.update(self.task, advance=1, note=note)

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        assert isinstance(learner, Learner)
        value = learner.scores.values()[self.metric]
        speed = _record(trainer).history[-1]["events_per_second"]
        self._note = f"{self.metric} {value:.4g} {speed:,.0f} events/s"

    def teardown(self, trainer: L.Trainer, learner: L.LightningModule, stage: str) -> None:
        self.bar.stop()
