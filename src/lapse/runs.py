"""A run: a pure function of its config, in a folder that tells whether it is done.

The folder holds ``config.json``, ``metrics.csv`` (one row per epoch), ``last.ckpt`` (the last whole epoch),
the folder ``model`` and, written last, ``result.json``: a run is done if and only if that file is there. A run
that failed leaves ``error.txt`` and is tried again the next time.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import json
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import lapse
from lapse.models import ModelConfig, Schema
from lapse.models.base import Model
from lapse.models.registry import declared, default_options, spelled_out, stored_options
from lapse.sequences.storage import write_atomically
from lapse.stored_config import (
    added,
    check_like,
    check_types,
    digest_of,
    with_absent_fields,
    without_absent_fields,
)
from lapse.tasks import Splits, Task
from lapse.tasks import find as find_task
from lapse.training import Fitted, TrainConfig, evaluate, fit

RESULT = "result.json"
MODEL = "model"  # the folder, in that of a run, that holds the model it has trained
SIZES = ("hidden_size", "num_layers")


class UnreadableResult(ValueError):
    """A `result.json` that is damaged, or of a version that has other fields."""


class RunBusy(RuntimeError):
    """Another process is working in the folder of this run."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the result of a run, as plain values."""

    task: str
    model: str = "ode-lstm"
    preset: str = "default"
    hidden_size: int = 64  # the paper's
    num_layers: int = 1
    model_options: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    architecture: Mapping[str, Any] = added(dict, before={})  # further fields of `ModelConfig`

    def __post_init__(self) -> None:
        check_types(self)
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        # The absence of an option in a stored config means what its default was when the config was stored.
        object.__setattr__(self, "model_options", spelled_out(self.model, self.model_options))

    def model_config(self, task: Task) -> ModelConfig:
        """The config of the model; what is not said follows the task and the training."""
        followed = {
            **task.question.model.defaults,
            "scaling": "standard" if task.standardize else "none",
            "time_unit": "median" if self.train.median_gap else None,
        }
        return ModelConfig(
            self.model,
            self.hidden_size,
            self.num_layers,
            dict(self.model_options),
            **(followed | dict(self.architecture)),
        )

    def with_setting(self, name: str, value: Any) -> RunConfig:
        """The config with one setting changed.

        Args:
            name: `train.NAME` for a field of the training, the name of a field of `ModelConfig`, or an option of the
                task or of the model.
            value: its value; a ValueError says if it is none for this setting.
        """
        train = [f"train.{field.name}" for field in dataclasses.fields(TrainConfig)]
        task = find_task(self.task).options
        model = {**default_options(self.model), **declared(self.model, "shared_options", {})}
        if name in train:
            changed = dataclasses.replace(self.train, **{name.removeprefix("train."): value})
            return dataclasses.replace(self, train=changed)
        if name in SIZES:
            return dataclasses.replace(self, **{name: value})
        if name in ARCHITECTURE:
            return dataclasses.replace(self, architecture={**self.architecture, name: value})
        if name in task:
            check_like(name, value, task[name])
            return dataclasses.replace(self, task_options={**self.task_options, name: value})
        if name in model:
            check_like(name, value, model[name])
            return dataclasses.replace(self, model_options={**self.model_options, name: value})
        names = [*train, *SIZES, *ARCHITECTURE, *task, *model]
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"
        raise ValueError(f"there is no setting {name!r}; {hint}")

    def check_model(self) -> None:
        """Raise a ValueError if there is no such model, which else shows when the data are loaded."""
        task = find_task(self.task)
        one_event = task.question.one_event(task.input_size, task.head())
        try:
            # With one unit, since sizes are no question; and the features of a difference are known to the data only.
            config = dataclasses.replace(self.model_config(task), hidden_size=1, difference=False)
            task.model(Schema.of(one_event), config)
        except (TypeError, RuntimeError, AttributeError) as error:
            raise ValueError(
                f"{self.model} cannot be made with {dict(self.model_options)}: {error}"
            ) from error

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RunConfig:
        """The config that `as_dict` gave, also one that an earlier version stored.

        Args:
            values: The stored values. A run of the ODE-LSTM that was stored without its `form` was a driven one.
        """
        train = TrainConfig(**with_absent_fields(TrainConfig, values["train"]))
        options = stored_options(values["model"], values.get("model_options", {}))
        return RunConfig(
            **with_absent_fields(RunConfig, {**values, "model_options": options, "train": train})
        )

    @property
    def digest(self) -> str:
        """Eight letters for everything but task, model and seed, which the folder's name spells out."""
        values = without_absent_fields(self)
        values["train"] = {k: v for k, v in without_absent_fields(self.train).items() if k != "seed"}
        return digest_of(values)[:8]

    def folder(self, root: str | Path) -> Path:
        """Where the run is kept under `root`."""
        return (
            Path(root)
            / folder_name(self.task)
            / folder_name(self.model)
            / f"{self.preset}-{self.digest}-seed{self.train.seed}"
        )


def folder_name(name: str) -> str:
    """The folder of a task or model; the colon of a reference is no character for it on every system."""
    return name.replace(":", ".")


# What a run can say of its model beside the fields that it has for it.
ARCHITECTURE = tuple(
    f.name
    for f in dataclasses.fields(ModelConfig)
    if f.name not in ("model", "hidden_size", "num_layers", "options")
)


def default_config(task: Task, model: str, seed: int = 0) -> RunConfig:
    """What works best in practice: see `lapse.training.TrainConfig` for the reason of each setting.

    Args:
        task: The task.
        model: The name of the model.
        seed: Decides weights, the order of batches and dropout.
    """
    return RunConfig(task.name, model, train=TrainConfig(seed=seed))


def paper_config(task: Task, model: str, seed: int = 0) -> RunConfig:
    """The paper's protocol, Tables S1 and S2: its solvers, optimiser, sizes, epochs and unit of time.

    The weights of the best validation epoch are restored for Walker2d only, as the paper says.
    """
    if task.paper is None:
        raise ValueError(f"task {task.name!r} is not in the paper; use the default preset")
    train = TrainConfig(
        seed=seed,
        epochs=task.paper.epochs,
        batch_size=task.paper.batch_size,
        optimizer="rmsprop",
        learning_rate=task.paper.learning_rate,
        clip=None,
        patience=None,
        restore_best=task.name == "walker",
        median_gap=False,
        schedule="constant",
        warmup=0.0,
    )
    options = dict(declared(model, "paper_options", {}))
    return RunConfig(task.name, model, "paper", task.paper.hidden_size, model_options=options, train=train)


PRESETS = {"default": default_config, "paper": paper_config}


@dataclass(frozen=True)
class Result:
    """What a finished run found; ``test`` was looked at once, after training."""

    config: RunConfig
    test: dict[str, float]
    validation: dict[str, float]
    best_epoch: int
    epochs: int
    parameters: int
    seconds_per_epoch: float
    events_per_second: float
    version: str = lapse.__version__

    @staticmethod
    def read(folder: str | Path) -> Result | None:
        """The result in a run's folder, or None if the run is not done: no result, or one that is not whole."""
        path = Path(folder) / RESULT
        try:
            return Result.parse(path.read_bytes()) if path.exists() else None
        except UnreadableResult:
            return None

    @staticmethod
    def parse(content: bytes) -> Result:
        """The result that a file holds; `UnreadableResult` says what is wrong with another content.

        The digest in the file is verified; results of earlier versions have none.
        """
        try:
            values = json.loads(content)
            if "digest" in values and values.pop("digest") != digest_of(values):
                raise ValueError("it was changed since it was written: its digest is wrong")
            result = Result(**{**values, "config": RunConfig.from_dict(values["config"])})
            check_types(result)
            numbers = [*result.test.values(), *result.validation.values()]
            if not all(isinstance(number, int | float) for number in numbers):
                raise TypeError(f"expected numbers for figures, got {numbers}")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise UnreadableResult(f"result.json is not a whole result of this version: {reason}") from error
        return result


def run(
    config: RunConfig,
    root: str | Path,
    *,
    data_dir: str | Path | None = None,
    restart: bool = False,
    progress: bool = False,
    devices: int = 1,
    nodes: int = 1,
    callbacks: tuple[Any, ...] = (),
) -> Result:
    """Do a run, or what is left of it, or nothing if it is done; one process at a time works in a folder.

    Args:
        config: what decides the result.
        root: the folder of runs; the run has a folder of its own in it.
        data_dir: where to look for the task's data first.
        restart: begin anew instead of going on from a checkpoint; a run that is done stays done.
        progress: show how the training goes.
        devices: processes on this machine, data-parallel.
        nodes: machines, data-parallel.
        callbacks: further callbacks of Lightning.
    """
    folder = config.folder(root)
    training = _Training(config, folder, data_dir, progress, restart, devices, nodes, callbacks)
    if not training.leads:
        return training.finish().test()
    with hold(folder):
        if (done := Result.read(folder)) is not None:
            return done
        with _recorded(config, folder):
            if (
                folder / RESULT
            ).exists():  # damaged, or of another version: nothing is lost by doing the run again
                os.replace(folder / RESULT, folder / "unreadable-result.json")
            trained = training.finish()
            trained.model.save(folder / MODEL)
            result = trained.test()
            values = dataclasses.asdict(result)
            _write_json(folder / RESULT, values | {"digest": digest_of(values)})
        return result


def run_without_test(
    config: RunConfig, root: str | Path, *, data_dir: str | Path | None = None, progress: bool = False
) -> Fitted:
    """A run up to where the test split would be looked at; `run` on the same folder does the rest.

    For choosing between configs: what has not been computed cannot be chosen by.
    """
    folder = config.folder(root)
    with hold(folder), _recorded(config, folder):
        return _Training(config, folder, data_dir, progress).finish().fitted


@contextmanager
def hold(folder: Path, patience: float = 0.5) -> Iterator[None]:
    """The folder of a run for this process alone; `RunBusy` if another one has it.

    A study looks whether a folder is held by taking it for an instant: ``patience`` outlasts that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The lock is the kernel's and ends with the process, however that ends.
    lock = FileLock(folder / "lock", timeout=patience)
    try:
        lock.acquire()
    except Timeout:
        raise RunBusy(f"another process works in {folder}; wait for it or choose another folder") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _recorded(config: RunConfig, folder: Path) -> Iterator[None]:
    """The config before, and the traceback if it comes to that; what a kill left half-written is removed."""
    for partial in folder.glob(".*.part"):
        partial.unlink(missing_ok=True)
    (folder / "error.txt").unlink(missing_ok=True)
    _write_json(folder / "config.json", config.as_dict())
    try:
        yield
    except Exception as error:
        error.add_note(f"The run is in {folder}; error.txt there has the traceback.")
        text = traceback.format_exc()
        write_atomically(folder / "error.txt", lambda file: file.write(text.encode()))
        raise


def build_model(config: RunConfig, task: Task, splits: Splits) -> Model[Any]:
    """The untrained model of a run: its weights are a function of the seed, its preprocessing of the training data."""
    schema, shape = Schema.of(splits.train), config.model_config(task)
    with torch.random.fork_rng():
        torch.manual_seed(config.train.seed)
        model = task.model(schema, shape)
    model.measure(task.question.examples(splits.train))
    return model


@dataclass(frozen=True)
class _Training:
    """The part of a run that learns, on however many processes."""

    config: RunConfig
    folder: Path
    data_dir: str | Path | None
    progress: bool
    restart: bool = False
    devices: int = 1
    nodes: int = 1
    callbacks: tuple[Any, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's files: of a data-parallel run, the first process does."""
        ranks = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))
        return self.devices * self.nodes == 1 or all(rank == "0" for rank in ranks)

    def finish(self) -> _Trained:
        config, task = self.config, find_task(self.config.task)
        splits = task.load(self.data_dir, **config.task_options)
        model = build_model(config, task, splits)
        fitted = fit(
            model,
            task.question.examples(splits.train),
            task.question.examples(splits.validation),
            config.train,
            folder=self.folder,
            restart=self.restart,
            progress=self.progress and self.leads,
            label=f"{config.task} {config.model} {config.train.seed}",
            devices=self.devices,
            nodes=self.nodes,
            callbacks=self.callbacks,
        )
        return _Trained(config, splits, model, fitted)


@dataclass(frozen=True)
class _Trained:
    config: RunConfig
    splits: Splits
    model: Model[Any]
    fitted: Fitted

    def test(self) -> Result:
        """Look at the test split, for the first and only time."""
        history, question = self.fitted.history, find_task(self.config.task).question
        # The figures of the epoch whose weights are kept, so that validation and test speak of one model.
        kept = history[self.fitted.best_epoch if self.config.train.restore_best else -1]
        seconds = sum(row["seconds"] for row in history)
        return Result(
            config=self.config,
            test=evaluate(self.model, question.examples(self.splits.test)),
            validation={
                k.removeprefix("validation_"): v for k, v in kept.items() if k.startswith("validation_")
            },
            best_epoch=self.fitted.best_epoch,
            epochs=len(history),
            parameters=sum(p.numel() for p in self.model.parameters()),
            seconds_per_epoch=seconds / len(history),
            events_per_second=self.splits.train.num_events * len(history) / seconds,
        )


def read_metrics(folder: str | Path) -> list[dict[str, float]]:
    """One row per epoch, as `metrics.csv` has it; nothing without the file, and a ValueError if it is odd."""
    path = Path(folder) / "metrics.csv"
    if not path.exists():
        return []
    try:
        with path.open(newline="") as file:
            return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ValueError(f"no table of figures per epoch: {error}") from error


def fastest_epoch(history: list[dict[str, float]], otherwise: float) -> float:
    """Seconds of the fastest epoch: other work on the machine makes an epoch longer, and nothing makes it shorter.

    Args:
        history: one row per epoch, as `read_metrics` gives it.
        otherwise: what to return where no seconds are recorded.
    """
    return min((row["seconds"] for row in history if row.get("seconds", 0.0) > 0), default=otherwise)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
