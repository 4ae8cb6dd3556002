"""Studies: every run once, none lost, whoever dies."""

import dataclasses
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lapse import runs
from lapse.runs import RunConfig, run
from lapse.study import Grid, LocalWorkers, study
from lapse.study.cluster import RayWorkers
from lapse.study.local import run_in_worker
from lapse.study.schedule import State, describe_failure
from unbroken import assert_same_run, metrics, small_config


class CountingWorkers(LocalWorkers):
    """Workers that leave a line in a file whenever they really train."""


def count_and_run(config: dict[str, Any], root: str, *rest: Any) -> None:
    fit = runs.fit

    def counted(*args: Any, **kwargs: Any) -> Any:
        with Path(root, "trained.txt").open("a") as file:
            file.write(f"{RunConfig.from_dict(config).folder(root)}\n")
        return fit(*args, **kwargs)

    runs.fit = counted
    run_in_worker(config, root, *rest)


CountingWorkers.target = staticmethod(count_and_run)


def configs(count: int = 4, **train: Any) -> list[RunConfig]:
    return [small_config(seed, **train) for seed in range(count)]


def counted_study(root: Path, **train: Any) -> None:
    outcome = study(configs(**train), root, workers=CountingWorkers(root, 1))
    assert len(outcome.results) == 4


def times_trained(root: Path) -> Counter[str]:
    return Counter(Path(root, "trained.txt").read_text().split())


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def reference(config: RunConfig, root: Path) -> Path:
    torch.set_num_threads(1)
    run(config, root / "unbroken")
    return config.folder(root / "unbroken")


def test_two_studies_on_one_folder_do_every_run_once(processes: Any, tmp_path: Path) -> None:
    both = [processes.Process(target=counted_study, args=(tmp_path,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    assert times_trained(tmp_path) == {str(config.folder(tmp_path)): 1 for config in configs()}


def test_a_study_takes_over_from_one_that_was_killed(processes: Any, tmp_path: Path) -> None:
    doomed = processes.Process(target=counted_study, args=(tmp_path,), kwargs={"epochs": 30})
    doomed.start()
    wait_for(lambda: list(tmp_path.glob("**/metrics.csv")))
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.join()
    few = configs(2, epochs=30)
    outcome = study(few, tmp_path, workers=LocalWorkers(tmp_path, 2))
    assert [one.state for one in outcome.runs] == [State.DONE, State.DONE]
    assert_same_run(few[0].folder(tmp_path), reference(few[0], tmp_path), epochs=30)


def test_a_failed_run_is_recorded_and_stops_nobody(tmp_path: Path) -> None:
    wrong = dataclasses.replace(small_config(), model_options={"nonsense": 1})
    outcome = study([wrong, small_config()], tmp_path, workers=LocalWorkers(tmp_path, 1))
    assert [one.state for one in outcome.runs] == [State.FAILED, State.DONE]
    assert outcome.failed[0].error.startswith("Traceback")
    assert "nonsense" in describe_failure(outcome.failed[0])
    assert len(outcome.results) == 1


def holder(lock: Path) -> int | None:
    """The process that has this lock open, by the kernel's word."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd) == str(lock) for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue  # it ended, or is not ours
    return None


def test_ray_goes_on_after_one_of_two_workers_was_killed(processes: Any, tmp_path: Path) -> None:
    pair = configs(2, epochs=12)
    folder = pair[0].folder(tmp_path)
    killed: list[int] = []

    class Killer:
        def changed(self, run: Any) -> None: ...

        def looked(self, runs: Any) -> None:
            if not killed and (folder / "metrics.csv").exists() and len(metrics(folder)) >= 2:
                victim = holder(folder / "lock")
                if victim is not None:
                    killed.append(victim)
                    os.kill(victim, signal.SIGKILL)

    outcome = study(pair, tmp_path, workers=RayWorkers(tmp_path, "local", count=2), watchers=[Killer()])
    assert len(killed) == 1
    assert [one.state for one in outcome.runs] == [State.DONE, State.DONE]
    assert [one.attempts for one in outcome.runs] == [2, 1]
    for config in pair:
        assert_same_run(config.folder(tmp_path), reference(config, tmp_path), epochs=12)


def test_settings_can_be_for_one_model_or_task() -> None:
    settings = ["ode-lstm:form=autonomous", "train.epochs=3", "walker:train.epochs=5"]
    grid = Grid(["walker", "person"], ["lstm", "ode-lstm"], range(1), settings)
    seen: dict[tuple[str, str], list[str]] = {}

    def configure(task: str, model: str, seed: int, chosen: list[str]) -> RunConfig:
        seen[task, model] = chosen
        return RunConfig(task, model)

    assert len(grid.configs(configure)) == 4
    assert seen["person", "lstm"] == ["train.epochs=3"]
    assert seen["walker", "ode-lstm"] == ["train.epochs=3", "form=autonomous", "train.epochs=5"]
    with pytest.raises(ValueError, match="is for 'gru-d', which is not in this study"):
        Grid(["walker"], ["lstm"], range(1), ["gru-d:x=1"])
