"""The product in two minutes: four models on two kinds of irregular events, a table, curves and a page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from lapse.report.collection import Collection, FinishedRun
from lapse.report.formats import terminal
from lapse.report.page import report, with_baselines
from lapse.report.tables import build_tables
from lapse.runs import RunConfig
from lapse.sequences.storage import write_atomically
from lapse.study import LocalWorkers, Outcome, study
from lapse.study.progress import Progress
from lapse.tasks import TASKS, find
from lapse.tasks.describe import sparkline
from lapse.training import TrainConfig

ABOUT = """\
Four models, two kinds of irregular events, nothing downloaded:
  mini-digits  handwritten digits, pixel by pixel; an event is a change of
               colour, its gap how long the old one lasted. Which digit?
  xor-event    2 to 8 random bits; an event is a run of equal bits, its gap
               how many they are. Is the number of ones odd?
One seed, few epochs, settings chosen for ODE-LSTM: a demonstration, no ranking.
"""

# The slowest first, so that no processor idles at the end. ODE-LSTM in the form that learns fastest; ODE-RNN with four
# evaluations of its field per gap instead of RK4's twelve, for speed.
MODELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("ode-lstm", {"form": "autonomous"}),
    ("ode-rnn", {"solver": "euler"}),
    ("ct-lstm", {}),
    ("lstm", {}),
)
# Few epochs, to keep the promise of two minutes on two processors. Sizes and learning rates were chosen from a handful
# of runs of ODE-LSTM, and the others take the same: a demonstration, not a fair comparison.
DIGITS = {"hidden_size": 64, "train": TrainConfig(epochs=20, batch_size=64, learning_rate=1e-2)}
BITS = {
    "hidden_size": 32,
    "task_options": {"lengths": [2, 9], "size": 20_000},
    "train": TrainConfig(epochs=8, batch_size=128),
}


def demo_configs() -> list[RunConfig]:
    return [
        RunConfig(task, model, model_options=options, **settings)  # type: ignore[arg-type]
        for task, settings in {"mini-digits": DIGITS, "xor-event": BITS}.items()
        for model, options in MODELS
    ]


def demo(output: Path, configs: Sequence[RunConfig] | None = None) -> Outcome:
    """Train, compare, draw; what is found there already is not trained again."""
    began = time.perf_counter()
    console, progress = Console(), Console(stderr=True)
    progress.print(ABOUT, highlight=False)
    workers = min(2, os.cpu_count() or 1)
    with Progress(workers, progress) as watcher:
        outcome = study(
            list(configs or demo_configs()), output, workers=LocalWorkers(output, workers), watchers=[watcher]
        )
    if outcome.results:
        _show(output, console, progress)
    took = time.perf_counter() - began
    progress.print(f"{took:.0f} s; runs, curves and weights are in {output}", highlight=False)
    if outcome.results:
        console.print("Next: open the page, then try lapse train mini-digits --model gru-d")
    return outcome


def _show(output: Path, console: Console, progress: Console) -> None:
    """What was found, on stdout: the tables, each run's curve in a line, and where the page is."""
    collection = Collection.read(output)
    with progress.status("computing baselines"):
        tables = [with_baselines(table)[0] for table in build_tables(collection)]
    console.print(terminal(tables), end="", markup=False, highlight=False)
    console.print(_curves(collection))
    with progress.status("drawing the page"):
        text = report(output)
    page = output / "report.html"
    write_atomically(page, lambda file: file.write(text.encode()))
    console.print(f"\nThe page: {page}", markup=False, highlight=False, soft_wrap=True)


def _curves(collection: Collection) -> Grid:
    grid = Grid(
        "validation metric by epoch", "", "first", "best", box=None, pad_edge=False, header_style="dim"
    )
    for row in _curve_rows(collection):
        grid.add_row(*row)
    return grid


def _curve_rows(collection: Collection) -> Iterator[tuple[str, str, str, str]]:
    for run in sorted((run for run in collection.finished if run.history), key=_task_then_score):
        config = run.result.config
        metric = find(config.task).metrics[0]
        values = np.array([row[f"validation_{metric.name}"] for row in run.history])
        best = values.max() if metric.maximize else values.min()
        first, last = (f"{value:.3g} {metric.unit}" for value in (values[0], best))
        yield f"{config.task} {config.model}", sparkline(values), first, last


def _task_then_score(run: FinishedRun) -> tuple[int, float]:
    result = run.result
    metric = find(result.config.task).metrics[0]
    return list(TASKS).index(result.config.task), (-1) ** metric.maximize * result.test[metric.name]
