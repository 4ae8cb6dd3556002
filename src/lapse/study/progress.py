"""A live table of a study on stderr, read from the folders of its runs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lapse.runs import Result, RunConfig, read_metrics
from lapse.study.schedule import Run, State, describe_failure
from lapse.tasks import find

REFRESH = 1.0  # seconds between two looks into the folders


@dataclass(frozen=True)
class Curve:
    """What a run has written of its epochs so far."""

    epochs: int
    seconds: float
    metric: float | None

    @staticmethod
    def read(folder: Path, metric: str) -> Curve:
        try:
            rows = read_metrics(folder)
        except ValueError:
            rows = []  # nothing to watch a run by, and no reason to end a study; the run writes its file anew
        last = rows[-1].get(f"validation_{metric}") if rows else None
        return Curve(len(rows), sum(row.get("seconds", 0.0) for row in rows), last)


class Progress:
    """Runs under way line by line, and the whole in one: done, failed, waiting, the latest time it can take.

    Without a terminal, a line for every run that ends instead.
    """

    def __init__(self, workers: int, console: Console | None = None) -> None:
        self.workers = workers
        self.console = console or Console(stderr=True)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._looked = 0.0
        self._pace: dict[tuple[str, str], float] = {}  # seconds per epoch, by task and model

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def changed(self, run: Run) -> None:
        if run.state is State.DONE:
            self.console.print(
                f"done    {_name(run.config)}  {_result(run)}", highlight=False, soft_wrap=True
            )
        elif run.state is State.FAILED:
            text = f"failed  {_name(run.config)}  {describe_failure(run)}"
            self.console.print(text, style="red", markup=False, soft_wrap=True)

    def looked(self, runs: Sequence[Run]) -> None:
        if not self._live.is_started or time.monotonic() - self._looked < REFRESH:
            return
        self._looked = time.monotonic()
        self._live.update(self.render(runs), refresh=True)

    def render(self, runs: Sequence[Run]) -> Group:
        curves = {run.folder: Curve.read(run.folder, _metric(run.config)) for run in runs if _unfinished(run)}
        for run in runs:
            self._note_pace(run, curves.get(run.folder))
        return Group(self._under_way(runs, curves), Text(self._summary(runs, curves)))

    def _under_way(self, runs: Sequence[Run], curves: dict[Path, Curve]) -> Table:
        table = Table("run", "epoch", "validation", "at most", box=None, header_style="bold")
        for column in table.columns[1:]:
            column.justify = "right"
        for run in runs:
            if run.state not in (State.RUNNING, State.ELSEWHERE):
                continue
            curve = curves[run.folder]
            where = "" if run.state is State.RUNNING else " (another study's)"
            value = "" if curve.metric is None else f"{_metric(run.config)} {curve.metric:.4g}"
            table.add_row(
                _name(run.config) + where,
                f"{curve.epochs}/{run.config.train.epochs}",
                value,
                _duration(self._left(run.config, curve)),
            )
        return table

    def _summary(self, runs: Sequence[Run], curves: dict[Path, Curve]) -> str:
        counts = Counter(run.state for run in runs)
        parts = [f"{counts[state]} {state.value}" for state in State if counts[state]]
        left = [self._left(run.config, curves[run.folder]) for run in runs if run.folder in curves]
        known = [seconds for seconds in left if seconds is not None]
        if not known:
            return ", ".join(parts)
        # Runs of which nothing is known yet count as the mean of the others.
        seconds = sum(known) / len(known) * len(left) / max(1, min(self.workers, len(left)))
        end = datetime.now() + timedelta(seconds=max(seconds, *known))
        return f"{', '.join(parts)}; at the latest at {end:%a %H:%M}"

    def _left(self, config: RunConfig, curve: Curve) -> float | None:
        """Seconds to the last epoch, at the pace of this run or of others like it; early stopping may save some."""
        pace = curve.seconds / curve.epochs if curve.epochs else self._known_pace(config)
        return None if pace is None else pace * (config.train.epochs - curve.epochs)

    def _note_pace(self, run: Run, curve: Curve | None) -> None:
        key = run.config.task, run.config.model
        if curve is not None and curve.epochs:
            self._pace[key] = curve.seconds / curve.epochs
        elif key not in self._pace and (result := Result.read(run.folder)) is not None:
            self._pace[key] = result.seconds_per_epoch

    def _known_pace(self, config: RunConfig) -> float | None:
        same_task = [p for (task, _), p in self._pace.items() if task == config.task]
        if (config.task, config.model) in self._pace:
            return self._pace[config.task, config.model]
        return sum(same_task) / len(same_task) if same_task else None


def _result(run: Run) -> str:
    result = Result.read(run.folder)
    if result is None:
        return "and its result was removed since"
    metric = _metric(run.config)
    return f"{metric} {result.test.get(metric, math.nan):.4g} after {result.epochs} epochs"


def _unfinished(run: Run) -> bool:
    return run.state not in (State.DONE, State.FAILED)


def _name(config: RunConfig) -> str:
    return f"{config.task} {config.model} {config.preset} seed {config.train.seed}"


def _metric(config: RunConfig) -> str:
    return find(config.task).metrics[0].name


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
