"""What is shown while a model trains, and what TensorBoard gets."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import lightning as L

from lapse.training.learner import Learner
from lapse.training.record import Record

LINES = 10  # how many lines a whole training prints where there is no terminal


def progress(record: Record, label: str) -> list[L.Callback]:
    """A bar on a terminal or in a notebook; elsewhere a line on stderr for every tenth of the epochs.

    Of several processes only the first one shows anything.

    Args:
        record: the figures of the epochs.
        label: what stands at the beginning of the bar or line.
    """
    from lightning.pytorch.utilities import rank_zero_only
    from rich.console import Console

    if getattr(rank_zero_only, "rank", 0) != 0:
        return []
    console = Console(stderr=True, soft_wrap=True)
    shown: type[Bar] | type[Lines] = Bar if console.is_terminal or console.is_jupyter else Lines
    return [shown(record, label, console)]


class Lines(L.Callback):
    """A line for every tenth of the epochs, and one for the last.

    Args:
        record: the figures of the epochs.
        label: what stands at the beginning of every line.
        console: where the lines go.
    """

    def __init__(self, record: Record, label: str, console: Any) -> None:
        self.record, self.label, self.console = record, label, console

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        epochs = self.record.config.epochs
        done = len(self.record.history)
        if done % max(1, epochs // LINES) == 0 or self.record.finished:
            loss = self.record.history[-1]["train_loss"]
            text = f"{self.label}: epoch {done}/{epochs} loss {loss:.4f} {_note(self.record)}"
            self.console.print(text, markup=False, highlight=False)


class Bar(L.Callback):
    """One line that is drawn anew: epoch, loss, metric, events per second, time left.

    Args:
        record: the figures of the epochs.
        label: what stands at the beginning of the line.
        console: where the line goes.
    """

    def __init__(self, record: Record, label: str, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.record, self.label = record, label
        self.bar = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]:<52}"),
            TimeRemainingColumn(),
            console=console,
        )

    def on_train_start(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        total = self.record.config.epochs * trainer.num_training_batches
        done = int(trainer.current_epoch * trainer.num_training_batches)
        self.task = self.bar.add_task(self.label, total=total, completed=done, note="")
        self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, learner: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        assert isinstance(learner, Learner)
        epoch = f"epoch {trainer.current_epoch + 1}/{self.record.config.epochs}"
        note = f"{epoch} loss {learner.mean_loss:.4f} {_note(self.record)}"
        self.bar.update(self.task, advance=1, note=note)

    def teardown(self, trainer: L.Trainer, learner: L.LightningModule, stage: str) -> None:
        self.bar.stop()


def _note(record: Record) -> str:
    if not record.history:
        return ""
    row, name = record.history[-1], record.metric.name
    return f"{name} {row[f'validation_{name}']:.4g} {row['events_per_second']:,.0f} events/s"


class Scalars(L.Callback):
    """Every figure of every epoch for TensorBoard.

    Args:
        record: the figures of the epochs.
        writer: a `torch.utils.tensorboard.SummaryWriter`, or anything with `add_scalar` and `close`.
    """

    def __init__(self, record: Record, writer: Any) -> None:
        self.record, self.writer = record, writer

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        if trainer.is_global_zero:
            for name, value in self.record.history[-1].items():
                self.writer.add_scalar(name, value, trainer.current_epoch)

    def teardown(self, trainer: L.Trainer, learner: L.LightningModule, stage: str) -> None:
        self.writer.close()


def scalars(record: Record, folder: Path | None) -> list[L.Callback]:
    """The callback for TensorBoard where that is installed; epochs that are done again are written anew."""
    if folder is None or importlib.util.find_spec("tensorboard") is None:
        return []
    from torch.utils.tensorboard import SummaryWriter

    return [Scalars(record, SummaryWriter(str(folder / "tensorboard"), purge_step=len(record.history)))]
