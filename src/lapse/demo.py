"""The product in a minute: models trained side by side on irregular events, with nothing downloaded."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lapse.runs import Result, RunConfig, run
from lapse.training import TrainConfig

MODELS = ("ode-lstm", "lstm")


def demo(output: Path) -> None:
    """Train each model on small handwritten digits in event coding, and print how they did."""
    began = time.perf_counter()
    console = Console()
    console.print(
        "mini-digits: handwritten digits read pixel by pixel; an event says that the colour changed and how long "
        "it had lasted. Which digit was it?\n"
    )
    results = [run(config_for(model), output, progress=True) for model in MODELS]
    console.print(_table(results))
    seconds = time.perf_counter() - began
    console.print(
        f"\n{seconds:.0f} s; runs are in {output}. Next: lapse list, then lapse train mini-digits -m gru-d"
    )


def config_for(model: str) -> RunConfig:
    """Small and quick: half the paper's units, and as many epochs as show the difference."""
    train = TrainConfig(epochs=25, batch_size=64)
    options = {"form": "autonomous"} if model == "ode-lstm" else {}
    return dataclasses.replace(
        RunConfig("mini-digits", model), hidden_size=32, model_options=options, train=train
    )


def _table(results: list[Result]) -> Table:
    table = Table("model", "test accuracy", "best epoch", "parameters", "seconds an epoch", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for result in results:
        table.add_row(
            result.config.model,
            f"{result.test['accuracy']:.1f} %",
            str(result.best_epoch + 1),
            f"{result.parameters:,}",
            f"{result.seconds_per_epoch:.2f}",
        )
    return table
