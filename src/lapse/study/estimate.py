"""How long a study will take, from what was recorded and from a few timed steps of what was not."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from lapse.runs import Result, RunConfig, build_model, fastest_epoch, read_metrics
from lapse.tasks import Splits, find
from lapse.threads import threads

TIMED_BATCHES = 3  # after one that is not counted, in which memory is taken and code is compiled
OVERHEAD = (
    1.3  # validation, the optimiser and the loading of batches, relative to the passes over the training data
)


def hours_left(configs: Sequence[RunConfig], root: str | Path, data_dir: str | Path | None = None) -> float:
    """Hours of one core that the unfinished runs take at most; early stopping may save some."""
    pace = _recorded(configs, root)
    splits: dict[str, Splits] = {}
    seconds = 0.0
    for config in configs:
        if Result.read(config.folder(root)) is not None:
            continue
        kind = _kind(config)
        if kind not in pace:
            pace[kind] = _timed(config, splits, data_dir)
        seconds += pace[kind] * config.train.epochs
    return seconds / 3600


def _kind(config: RunConfig) -> str:
    """What decides the seconds per epoch of a run."""
    train = config.train.batch_size
    model = (config.model, config.hidden_size, config.num_layers, dict(config.model_options))
    return json.dumps(
        [config.task, dict(config.task_options), model, dict(config.architecture), train], sort_keys=True
    )


def _recorded(configs: Sequence[RunConfig], root: str | Path) -> dict[str, float]:
    """Seconds per epoch of each kind of run that has been done, as they are with nothing else on the machine."""
    pace: dict[str, float] = {}
    for config in configs:
        folder = config.folder(root)
        if (result := Result.read(folder)) is not None:
            kind, seconds = _kind(config), fastest_epoch(_history(folder), result.seconds_per_epoch)
            pace[kind] = min(seconds, pace.get(kind, seconds))
    return pace


def _history(folder: Path) -> list[dict[str, float]]:
    try:
        return read_metrics(folder)
    except ValueError:
        return []  # nothing to time a run by, and no reason to end a study


def _timed(config: RunConfig, splits: dict[str, Splits], data_dir: str | Path | None) -> float:
    """Seconds per epoch, from a few steps of an untrained model."""
    data = json.dumps([config.task, dict(config.task_options)], sort_keys=True)
    if data not in splits:
        splits.clear()  # one task's data at a time
        splits[data] = find(config.task).load(data_dir, **config.task_options)
    task, train = find(config.task), splits[data].train
    model = build_model(config, task, splits[data])
    batches = task.question.examples(train).batches(config.train.batch_size, seed=config.train.seed)
    count, start = 0, time.process_time()
    # Threads that wait for each other on a busy machine would count as work.
    with threads(1):
        for batch in batches:
            if count == 1:
                start = time.process_time()
            model(batch).sum().backward()
            count += 1
            if count > TIMED_BATCHES:
                break
    return OVERHEAD * (time.process_time() - start) / max(1, count - 1) * len(batches)
