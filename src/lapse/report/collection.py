"""The runs in a folder: which are done, which are not, and which belong in one row of a table."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.models.registry import default_options
from lapse.runs import MODEL, PRESETS, RESULT, Result, RunConfig, fastest_epoch, folder_name, read_metrics
from lapse.tasks import TASKS
from lapse.tasks import find as find_task

Settings = dict[str, Any]
History = list[dict[str, float]]
MOST_REMARKS = 20  # odd runs that are told of one by one


class NoRuns(ValueError):
    """A folder without a single run in it."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that is done.

    Args:
        folder: where it is.
        result: what it found.
        history: one row per epoch, as `metrics.csv` has it; empty where the file was removed or cannot be read.
    """

    folder: Path
    result: Result
    history: History

    @property
    def seconds_per_epoch(self) -> float:
        """Those of the fastest epoch, which other work on the machine has slowed least."""
        return fastest_epoch(self.history, self.result.seconds_per_epoch)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone: one row of a table."""

    runs: tuple[FinishedRun, ...]

    @property
    def config(self) -> RunConfig:
        return self.runs[0].result.config

    @property
    def settings(self) -> Settings:
        """Where the config departs from its preset; the preset itself when it is not the default one."""
        return departures(self.config)

    @property
    def all_settings(self) -> Settings:
        """All settings by their short names, those that the preset gives too."""
        return _flat(self.config)


@dataclass(frozen=True)
class Collection:
    """Every run under a folder. Only finished ones count; the others are there to be counted.

    Args:
        root: the folder.
        finished: the runs that are done, with figures that can be compared.
        failed: the folders of those that left an error.txt.
        unfinished: the folders of those that are not done.
        odd: the folders of those that are left out although there is a result.
        remarks: what is odd, a line for each file, with its place and the reason.
    """

    root: Path
    finished: tuple[FinishedRun, ...]
    failed: tuple[Path, ...]
    unfinished: tuple[Path, ...]
    odd: tuple[Path, ...]
    remarks: tuple[str, ...]

    @staticmethod
    def read(root: str | Path) -> Collection:
        """The runs under `root`; a run or file that cannot be read is left out and told of."""
        root = Path(root)
        finished: list[FinishedRun] = []
        others: dict[str, list[Path]] = {"failed": [], "unfinished": [], "odd": []}
        remarks: list[str] = []
        for folder in _run_folders(root):
            if not (folder / RESULT).exists():
                others["failed" if (folder / "error.txt").exists() else "unfinished"].append(folder)
                continue
            try:
                result = _comparable(folder)
            except (OSError, ValueError) as error:
                others["odd"].append(folder)
                remarks.append(f"Left out: {folder.relative_to(root)}: {error}")
                continue
            history, remark = _history(folder, root, result)
            finished.append(FinishedRun(folder, result, history))
            remarks += remark
        if not finished and not any(others.values()):
            raise NoRuns(
                f"no runs in {root}: expected folders with config.json, as `lapse train TASK -o {root}` writes them"
            )
        more = [f"Left out: {len(remarks) - MOST_REMARKS} more"] if len(remarks) > MOST_REMARKS else []
        folders = {name: tuple(paths) for name, paths in others.items()}
        return Collection(root, tuple(finished), **folders, remarks=(*remarks[:MOST_REMARKS], *more))

    @property
    def hours(self) -> float:
        """Hours of one core that the finished runs would take again, with nothing else on the machine."""
        return sum(run.result.epochs * run.seconds_per_epoch for run in self.finished) / 3600

    def left_out(self, task: str | None = None) -> str:
        """What is not averaged in, of one task or of all; empty when every run is done."""
        kinds = {
            "failed": "failed (error.txt in its folder says why)",
            "unfinished": "not finished",
            "odd": "with a result that cannot be read or compared",
        }
        counts = {
            words: sum(task is None or _task_of(path) == folder_name(task) for path in getattr(self, kind))
            for kind, words in kinds.items()
        }
        told = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
        return f"Runs left out: {told}." if told else ""

    def variants(self) -> dict[str, list[Group]]:
        """Groups by the data they were trained on, in the order of `TASKS`, others last; the key is unique."""
        keys: dict[str, dict[str, list[FinishedRun]]] = {}
        for run in self.finished:
            config = run.result.config
            group = f"{config.model} {config.digest}"
            keys.setdefault(_variant(config), {}).setdefault(group, []).append(run)
        order = {name: place for place, name in enumerate(TASKS)}
        ranked = sorted(keys, key=lambda key: (order.get(key.split(" ")[0], len(order)), key))
        return {key: [Group(_by_seed(runs)) for runs in keys[key].values()] for key in ranked}


def _run_folders(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise NoRuns(f"{root} is not a folder; expected the folder given to `lapse train` or `lapse study`")
    # The model that a run has trained is a folder in its folder, with a config.json of its own.
    yield from sorted(path.parent for path in root.rglob("config.json") if path.parent.name != MODEL)


def _comparable(folder: Path) -> Result:
    """The result in a folder; a ValueError says why it cannot stand in a table."""
    result = Result.parse((folder / RESULT).read_bytes())
    metric = find_task(result.config.task).metrics[0].name
    if not math.isfinite(score := result.test.get(metric, math.nan)):
        raise ValueError(f"its test {metric} is {score}" if metric in result.test else f"no test {metric}")
    departures(result.config)  # a preset that the task does not have
    return result


def _history(folder: Path, root: Path, result: Result) -> tuple[History, list[str]]:
    """The figures per epoch, and what is odd about them."""
    column = f"validation_{find_task(result.config.task).metrics[0].name}"
    try:
        history = read_metrics(folder)
        if any(column not in row for row in history):
            raise ValueError(f"no column {column!r}")
    except ValueError as error:
        return [], [f"No learning curve: {folder.relative_to(root)}/metrics.csv: {error}"]
    return history, []


def _task_of(folder: Path) -> str:
    """The folder of a run's task: a run is kept in `task/model/run`, see `lapse.runs.RunConfig.folder`."""
    return folder.parts[-3] if len(folder.parts) >= 3 else ""


def _by_seed(runs: list[FinishedRun]) -> tuple[FinishedRun, ...]:
    return tuple(sorted(runs, key=lambda run: run.result.config.train.seed))


def _variant(config: RunConfig) -> str:
    options = short(changed_task_options(config))
    return f"{config.task} {options}".strip()


def changed_task_options(config: RunConfig) -> Settings:
    """The task's options that differ from its defaults: they make other data of it."""
    defaults = find_task(config.task).options
    return {k: v for k, v in config.task_options.items() if _as_stored(defaults.get(k)) != _as_stored(v)}


def departures(config: RunConfig) -> Settings:
    """The settings of a run that its preset does not give it, by their short names; seed and data apart."""
    given, usual = _flat(config), _flat(_preset_config(config))
    changed = {name: value for name, value in given.items() if usual.get(name) != value}
    return ({"preset": config.preset} if config.preset != "default" else {}) | changed


def _preset_config(config: RunConfig) -> RunConfig:
    preset = PRESETS.get(config.preset, PRESETS["default"])
    return preset(find_task(config.task), config.model)


def _flat(config: RunConfig) -> Settings:
    train = dataclasses.asdict(config.train)
    train.pop("seed")
    sizes = {"hidden_size": config.hidden_size, "num_layers": config.num_layers}
    # With the layer's own defaults: an option that a run leaves out may be one that its preset gives.
    options = default_options(config.model) | dict(config.model_options)
    named = {**sizes, **train, **options, **config.architecture}
    return {name: _as_stored(value) for name, value in named.items()}


def _as_stored(value: Any) -> Any:
    """As JSON would give it back: a tuple in Python is a list in a stored config."""
    return list(value) if isinstance(value, tuple) else value


def short(settings: Mapping[str, Any]) -> str:
    """``form=autonomous, epochs=50``; a preset by its name alone."""
    return ", ".join(
        f"{value} preset" if name == "preset" else f"{name}={_word(value)}"
        for name, value in settings.items()
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(_as_stored(value), separators=(",", ":"))
