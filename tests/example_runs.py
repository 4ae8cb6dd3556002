"""Run folders written without training, for what reads them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from lapse.runs import Result, RunConfig


def write_run(
    root: Path, config: RunConfig, score: float, *, epochs: int = 3, parameters: int = 1000
) -> Path:
    """A finished run whose test score is ``score``."""
    folder = write_unfinished(root, config)
    metric = "mse" if config.task == "walker" else "accuracy"
    rows = ["epoch,train_loss,validation_loss,validation_" + metric + ",seconds,events_per_second"]
    rows += [f"{epoch},1.0,1.0,{score * (epoch + 1) / epochs},0.5,1000" for epoch in range(epochs)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    test = {"loss": 0.5, metric: score}
    result = Result(config, test, test, epochs - 1, epochs, parameters, 0.5, 1000.0)
    (folder / "result.json").write_text(json.dumps(dataclasses.asdict(result)))
    return folder


def write_unfinished(root: Path, config: RunConfig) -> Path:
    folder = config.folder(root)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.as_dict()))
    return folder


def write_failed(root: Path, config: RunConfig) -> Path:
    folder = write_unfinished(root, config)
    (folder / "error.txt").write_text("Traceback\n")
    return folder


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))


def write_seeds(root: Path, config: RunConfig, *scores: float) -> None:
    for seed, score in enumerate(scores):
        write_run(root, with_seed(config, seed), score)
