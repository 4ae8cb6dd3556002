"""Fit a model to sequences; the same in a script, a run or a study."""

from __future__ import annotations

import logging
import math
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lapse.arguments import check_count, check_kind
from lapse.extras import extra
from lapse.heads import NonFiniteError
from lapse.models.base import Data, Model
from lapse.training.causality import check_causality
from lapse.training.checkpoints import Checkpoints, identity
from lapse.training.config import TrainConfig

if TYPE_CHECKING:
    from lapse.training.record import Record


@dataclass(frozen=True)
class Fitted:
    """What a training found.

    Args:
        history: one row of figures per epoch.
        best_epoch: the epoch with the best validation metric, counted from 0.
        best_value: that metric.
    """

    history: list[dict[str, float]]
    best_epoch: int
    best_value: float


def fit(
    model: Model[Data],
    train: Data,
    validation: Data,
    config: TrainConfig | None = None,
    *,
    folder: str | Path | None = None,
    restart: bool = False,
    progress: bool = True,
    label: str = "training",
    devices: int = 1,
    nodes: int = 1,
    callbacks: Sequence[Any] = (),
) -> Fitted:
    """Train a model in place; afterwards it is in evaluation mode.

    The order of batches and dropout are functions of `config.seed`: the same call gives the same weights, in one piece
    or in several, and torch's global generator is left alone. A model that answers at every event and sees the events
    after it is refused (`SeesTheFuture`). Predictions, losses or weights that are NaN or infinite end the training with
    `NonFiniteError`; the model then has the weights of its best epoch, or its first ones if there is none.

    Args:
        model: what is trained; its head says what the targets, the loss and the metrics are.
        train: the data to learn from: `Sequences`, or `Cuts` for a `Forecaster`.
        validation: the data that choose the best epoch, by the first metric of the head.
        config: the settings; None for the defaults.
        folder: where checkpoints and `metrics.csv` go. Training goes on from the last whole epoch that is found there,
            if it belongs to the same data, model and settings; otherwise it raises `OtherTraining`. More epochs than
            last time may be asked for. The weights that a training began with are not compared: to begin from others,
            as in fine-tuning, take another folder or `restart`.
        restart: begin anew, whatever the folder holds.
        progress: show a bar on a terminal, or elsewhere a line for every tenth of the epochs.
        label: what the bar or line begins with.
        devices: processes on this machine, data-parallel.
        nodes: machines, data-parallel.
        callbacks: further callbacks of Lightning.
    """
    with extra("train"):
        import lightning  # noqa: F401 - what the modules below import
    from lapse.training.learner import Learner
    from lapse.training.progress import progress as shown
    from lapse.training.progress import scalars
    from lapse.training.record import Record

    check_kind("model", model, Model)
    config = TrainConfig() if config is None else config
    check_kind("config", config, TrainConfig)
    for name, count in {"devices": devices, "nodes": nodes}.items():
        check_count(name, count)
    folder = None if folder is None else Path(folder)
    train, validation = model.conform(train), model.conform(validation)
    _check(model, train, validation)
    model.head.balance(model.asked(train) if config.class_weights else None)
    if restart and folder is not None:
        Checkpoints(folder).clear()
    belongs = None if folder is None else identity(model, train, validation, config)
    record = Record(config, model.head.metrics[0], folder, belongs)
    learner = Learner(model, config)
    resumed = record.restore(learner)
    if not record.finished:
        bars = shown(record, label) if progress else []
        watchers = [record, *scalars(record, folder), *bars, *callbacks]
        with _good_weights(model, record), _contained_lightning():
            _trainer(config, devices, nodes, watchers).fit(
                learner,
                train.batches(config.batch_size, seed=config.seed),
                validation.batches(4 * config.batch_size, shuffle=False),
                ckpt_path=resumed,
            )
    if record.best["value"] is None:
        raise NonFiniteError(f"{record.metric.name} was NaN on the validation split in every epoch")
    model.load_state_dict(record.best["weights"] if config.restore_best else learner.weights())
    model.eval()
    return Fitted(record.history, int(record.best["epoch"]), float(record.best["value"]))


@torch.no_grad()
def evaluate(model: Model[Data], data: Data, batch_size: int = 512) -> dict[str, float]:
    """The loss and the metrics of a trained model, as its head computes them.

    Args:
        model: the model; it is left in the mode it was in.
        data: sequences or cuts with targets; they are brought into the form of the training table first.
        batch_size: how many sequences go through the model at a time; it does not change the figures.
    """
    check_kind("model", model, Model)
    head, device = model.head, next(model.parameters()).device
    data = model.conform(data)
    head.targets_of(model.asked(data))
    scores = head.scores()
    with model.evaluating():
        for batch in data.batches(batch_size, shuffle=False):
            moved = batch.to(device)
            scores.add(model(moved), model.targets(moved))
    return scores.values()


def _check(model: Model[Data], train: Data, validation: Data) -> None:
    """Refuse what could only fail, or mislead, after an epoch of work."""
    head, metric = model.head, model.head.metrics[0].name
    if math.isnan(head.baseline(model.asked(train), model.asked(validation))[metric]):
        raise ValueError(
            f"{metric} is not defined on the validation split, since all its targets are the same; choose another "
            "metric, or a split with different targets"
        )
    if model.could_see_ahead:
        check_causality(model, model.asked(train))


def _trainer(config: TrainConfig, devices: int, nodes: int, callbacks: list[Any]) -> Any:
    import lightning as L

    return L.Trainer(
        max_epochs=config.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        gradient_clip_val=config.clip,
        accumulate_grad_batches=config.accumulate,
        deterministic=True,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # LengthBatches deals to the processes itself
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )


@contextmanager
def _good_weights(model: Model[Any], record: Record) -> Iterator[None]:
    """Whatever ends a training, the model is left in evaluation mode, and with weights that are finite."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        yield
    except NonFiniteError as error:
        model.load_state_dict(record.best["weights"] or before)
        kept = f"of epoch {record.best['epoch']}" if record.history else "that it had before training"
        raise NonFiniteError(f"{error}. The model has the weights {kept}") from error
    finally:
        model.eval()


@contextmanager
def _contained_lightning() -> Iterator[None]:
    """Keep Lightning's hints on hardware to itself, and undo what it changes for the whole process."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    deterministic = torch.are_deterministic_algorithms_enabled()
    on_interrupt = signal.getsignal(signal.SIGINT)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            # Batches are gathered in this process: workers would only copy them.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            yield
    except SystemExit as error:
        # On Ctrl-C Lightning ends the process, which is for the caller to decide, and ignores the next one. On SIGTERM
        # it ends the process as if all were well.
        if isinstance(error.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, on_interrupt)
            raise KeyboardInterrupt from None
        raise SystemExit(error.code or 128 + signal.SIGTERM) from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        torch.use_deterministic_algorithms(deterministic)
