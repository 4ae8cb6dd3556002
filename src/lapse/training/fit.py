"""Fit a model to sequences; the same in a script, a run or a study."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lapse.extras import extra
from lapse.models import SequenceModel
from lapse.sequences import Sequences
from lapse.training.causality import check_causality
from lapse.training.config import TrainConfig
from lapse.training.objective import Objective, Scores


@dataclass(frozen=True)
class Fitted:
    """What a training left: one row of figures an epoch, and which epoch was the best by validation."""

    history: list[dict[str, float]]
    best_epoch: int
    best_value: float


def fit(
    model: SequenceModel,
    objective: Objective,
    train: Sequences,
    validation: Sequences,
    config: TrainConfig | None = None,
    *,
    folder: str | Path | None = None,
    progress: bool = False,
    label: str = "training",
    devices: int = 1,
    nodes: int = 1,
    callbacks: Sequence[Any] = (),
) -> Fitted:
    """Train ``model`` in place; with a ``folder``, go on from the last whole epoch that is found there.

    The data loaders, the order of batches and dropout are functions of ``config.seed``: the same call gives the
    same weights, in one piece or in several. Where every step is to be answered, a model that sees the steps after
    it is refused (:class:`lapse.training.SeesTheFuture`).
    """
    with extra("train"):
        import lightning as L

    from lapse.training.callbacks import Progress, Record, scalars
    from lapse.training.learner import Learner

    config = config or TrainConfig()
    folder = None if folder is None else Path(folder)
    record = Record(folder, config.patience, objective.maximize, objective.metrics[0])
    resumed = record.restore()
    learner = Learner(model, objective, config)
    if objective.readout == "every":
        check_causality(model, train)
    if not record.finished:
        bars = [Progress(objective.metrics[0], label)] if progress else []
        with _quiet_lightning():
            trainer = L.Trainer(
                max_epochs=config.epochs,
                accelerator="auto" if torch.cuda.is_available() else "cpu",
                devices=devices,
                num_nodes=nodes,
                strategy="ddp" if devices * nodes > 1 else "auto",
                gradient_clip_val=config.clip,
                deterministic=True,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,  # LengthBatches deals to the processes itself
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[record, *scalars(folder, len(record.history)), *bars, *callbacks],
            )
            trainer.fit(
                learner,
                train.batches(config.batch_size, seed=config.seed),
                validation.batches(4 * config.batch_size, shuffle=False),
                ckpt_path=record.checkpoint if resumed else None,
            )
    if config.restore_best:
        model.load_state_dict(record.best["weights"])
    elif resumed and record.finished:
        state = torch.load(record.checkpoint, map_location="cpu", weights_only=True)["state_dict"]  # type: ignore[arg-type]
        learner.load_state_dict(state)
    return Fitted(record.history, int(record.best["epoch"]), float(record.best["value"]))


@torch.no_grad()
def evaluate(
    model: SequenceModel, objective: Objective, sequences: Sequences, batch_size: int = 512
) -> dict[str, float]:
    """Loss and metrics of a trained model on sequences with targets."""
    was_training = model.training
    model.eval()
    scores = Scores(objective, model.config.output_size)
    device = next(model.parameters()).device
    for batch in sequences.batches(batch_size, shuffle=False):
        scores.add(model(batch.to(device)), batch.to(device))
    model.train(was_training)
    return scores.values()


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning's hints on hardware and workers are not for users of lapse; its errors still come through."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        # Batches are padded once, in this process: workers would only copy them.
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
