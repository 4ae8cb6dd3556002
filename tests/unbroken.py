"""A small run, where it may be killed, and how two runs are compared to the last bit."""

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lapse import runs
from lapse.runs import Result, RunConfig
from lapse.sequences import storage
from lapse.training import TrainConfig
from lapse.training.record import Record

EPOCHS = 3


def small_config(seed: int = 0, **train: Any) -> RunConfig:
    """Two layers with dropout, so that a resumed run has random draws to get wrong."""
    settings = {"epochs": EPOCHS, "batch_size": 256, **train}
    options = {"dropout": 0.2}
    return RunConfig(
        "mini-digits",
        "lstm",
        hidden_size=8,
        num_layers=2,
        model_options=options,
        train=TrainConfig(seed=seed, **settings),
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, except that the process is killed when it is called for the ``number``-th time."""
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            die()
        return function(*args, **kwargs)

    return counted


def at_start() -> None:
    runs.build_model = at_call(1, runs.build_model)  # type: ignore[assignment]


def mid_epoch() -> None:
    from lapse.training.learner import Learner

    # An epoch has 5 batches: this is the third of the second.
    Learner.training_step = at_call(8, Learner.training_step)  # type: ignore[method-assign]


def in_validation() -> None:
    from lapse.training.learner import Learner

    Learner.validation_step = at_call(2, Learner.validation_step)  # type: ignore[method-assign]


def half_a_checkpoint() -> None:
    import lightning as L

    whole, saved = L.Trainer.save_checkpoint, 0

    def torn(trainer: Any, path: Path, *args: Any, **kwargs: Any) -> None:
        nonlocal saved
        whole(trainer, path, *args, **kwargs)
        saved += 1
        if saved == 2:
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    L.Trainer.save_checkpoint = torn  # type: ignore[method-assign]


def between_checkpoints() -> None:
    """The last checkpoint has become the one before, and the new one has no name yet."""
    from lapse.training.checkpoints import Checkpoints

    whole, kept = Checkpoints.keep, 0

    def torn(checkpoints: Checkpoints) -> None:
        nonlocal kept
        kept += 1
        if kept == 2:
            checkpoints.last.replace(checkpoints.before)
            die()
        whole(checkpoints)

    Checkpoints.keep = torn  # type: ignore[method-assign]


def after_the_checkpoint() -> None:
    """The checkpoint knows an epoch of which metrics.csv does not."""
    Record.write_metrics = at_call(2, Record.write_metrics)  # type: ignore[method-assign]


def before_the_test() -> None:
    runs.evaluate = at_call(1, runs.evaluate)  # type: ignore[assignment]


def half_a_result() -> None:
    replace = os.replace

    def torn(source: Any, target: Any) -> None:
        if Path(target).name == "result.json":
            os.truncate(source, os.path.getsize(source) // 2)
            die()
        replace(source, target)

    storage.os.replace = torn  # type: ignore[assignment]


PHASES = {
    phase.__name__: phase
    for phase in (
        at_start,
        mid_epoch,
        in_validation,
        half_a_checkpoint,
        between_checkpoints,
        after_the_checkpoint,
        before_the_test,
        half_a_result,
    )
}


def run_and_die(phase: str, root: Path) -> None:
    """What the doomed process does."""
    torch.set_num_threads(1)
    PHASES[phase]()
    runs.run(small_config(), root)


def run_through(root: Path, seed: int) -> None:
    torch.set_num_threads(1)
    runs.run(small_config(seed), root)


def assert_same_run(folder: Path, reference: Path, epochs: int = EPOCHS) -> None:
    """Equal results, weights and epochs; only what the clock says may differ."""
    result, expected = Result.read(folder), Result.read(reference)
    assert result is not None
    assert expected is not None
    assert (result.test, result.validation) == (expected.test, expected.validation)
    assert (result.epochs, result.best_epoch) == (expected.epochs, expected.best_epoch)
    weights, others = (load_file(f / "model" / "model.safetensors") for f in (folder, reference))
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in others)
    curve, known = metrics(folder), metrics(reference)
    assert [row["epoch"] for row in curve] == [str(epoch) for epoch in range(epochs)]
    assert curve == known


def metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv without those columns that tell of time."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("seconds", "events_per_second")} for row in rows]
