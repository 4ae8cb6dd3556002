"""Studies: every run once, none lost, whoever dies."""

import dataclasses
import io
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from lapse import runs
from lapse.cli import app
from lapse.runs import RunConfig, run
from lapse.study import Grid, LocalWorkers, study
from lapse.study.cluster import RayWorkers
from lapse.study.local import run_in_worker
from lapse.study.progress import Progress
from lapse.study.schedule import Ending, Run, State, describe_failure
from processes import Command, wait_for
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
    doomed = processes.Process(target=counted_study, args=(tmp_path,), kwargs={"epochs": 8})
    doomed.start()
    wait_for(lambda: list(tmp_path.glob("**/metrics.csv")))
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.join()
    few = configs(2, epochs=8)
    outcome = study(few, tmp_path, workers=LocalWorkers(tmp_path, 2))
    assert [one.state for one in outcome.runs] == [State.DONE, State.DONE]
    assert_same_run(few[0].folder(tmp_path), reference(few[0], tmp_path), epochs=8)


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


# Slow for Ray's own sake: each of its processes loads everything anew.
@pytest.mark.slow
def test_ray_goes_on_after_one_of_two_workers_was_killed(processes: Any, tmp_path: Path) -> None:
    pair = configs(2, epochs=8)
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
        assert_same_run(config.folder(tmp_path), reference(config, tmp_path), epochs=8)


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


def test_progress_tells_what_is_under_way_and_when_it_ends(tmp_path: Path) -> None:
    finished, begun, untouched = (Run(config, config.folder(tmp_path)) for config in configs(3))
    run(finished.config, tmp_path)
    finished.state, begun.state = State.DONE, State.RUNNING
    begun.folder.mkdir(parents=True)
    lines = (finished.folder / "metrics.csv").read_text().splitlines(keepends=True)
    (begun.folder / "metrics.csv").write_text("".join(lines[:2]))
    console = Console(file=io.StringIO(), width=120)
    with Progress(2, console) as progress:
        progress.changed(finished)
        progress.looked([finished, begun, untouched])
    console.print(progress.render([finished, begun, untouched]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "done    mini-digits lstm default seed 0  accuracy" in text
    assert "mini-digits lstm default seed 1" in text
    assert "1/3" in text
    assert "1 waiting, 1 running, 1 done; at the latest at" in text


def test_a_run_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    class Doomed:
        """Workers that are killed as soon as they start."""

        free = True

        def __init__(self) -> None:
            self.started: list[Run] = []

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def start(self, run: Run) -> None:
            self.started.append(run)

        def ended(self) -> Any:
            ends, self.started = [(run, Ending.KILLED) for run in self.started], []
            return ends

    outcome = study(configs(1), tmp_path, workers=Doomed())
    assert outcome.failed[0].attempts == 3
    assert "ended 3 times without a result" in outcome.failed[0].error


def test_the_command_says_by_its_status_whether_a_run_failed(tmp_path: Path) -> None:
    words = ["study", "--tasks", "mini-digits", "--seeds", "1", "--workers", "1", "-o", str(tmp_path)]
    small = ["--set", "hidden_size=4", "--set", "train.epochs=1", "--set", "train.batch_size=512"]
    good = CliRunner().invoke(app, [*words, *small, "--models", "lstm"])
    assert good.exit_code == 0, good.output
    assert "1 of 1 runs are done" in good.stdout
    # A rate at which the first step leaves the range of float32.
    bad = CliRunner().invoke(
        app, [*words, *small, "--models", "lstm,gru-d", "--set", "gru-d:train.learning_rate=1e300"]
    )
    assert bad.exit_code == 1
    assert "1 of 2 runs are done" in bad.stdout
    assert "error.txt" in bad.stderr
    typo = CliRunner().invoke(app, [*words, "--models", "lsmt"])
    assert typo.exit_code == 2
    assert "did you mean lstm" in typo.stderr


class TerminatingWorkers(LocalWorkers):
    """Workers of which the first gets SIGTERM in the midst of its training, as a batch system sends it."""


def terminated_once(config: dict[str, Any], root: str, *rest: Any) -> None:
    from lapse.training.learner import Learner

    marker = Path(root, "terminated.txt")
    step, steps = Learner.training_step, 0

    def training_step(self: Any, *args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 8 and not marker.exists():
            marker.write_text("")
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args)

    Learner.training_step = training_step  # type: ignore[method-assign]
    run_in_worker(config, root, *rest)


TerminatingWorkers.target = staticmethod(terminated_once)


def test_a_terminated_worker_is_not_done_and_starts_again(tmp_path: Path) -> None:
    config = small_config(7)
    outcome = study([config], tmp_path, workers=TerminatingWorkers(tmp_path, 1))
    assert (tmp_path / "terminated.txt").exists()
    assert [(one.state, one.attempts) for one in outcome.runs] == [(State.DONE, 2)]
    assert_same_run(config.folder(tmp_path), reference(config, tmp_path))


class Liars:
    """Workers that say they are done and leave this behind as a result."""

    free = True

    def __init__(self, result: bytes | None) -> None:
        self.result = result
        self.started: list[Run] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def start(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        if self.result is not None:
            (run.folder / "result.json").write_bytes(self.result)
        self.started.append(run)

    def ended(self) -> Any:
        ends, self.started = [(run, Ending.DONE) for run in self.started], []
        return ends


@pytest.mark.parametrize("result", [None, b"", b"{", b"null", b'{"test": 1}', b"\xff\xfe"])
def test_a_run_without_a_whole_result_is_not_done(tmp_path: Path, result: bytes | None) -> None:
    outcome = study(configs(1), tmp_path, workers=Liars(result))
    assert outcome.failed[0].attempts == 3
    assert outcome.results == []
    assert "ended 3 times without a result" in outcome.failed[0].error


def test_a_damaged_result_is_set_aside_and_the_run_done_again(tmp_path: Path) -> None:
    config = small_config(8)
    folder = config.folder(tmp_path)
    study([config], tmp_path, workers=LocalWorkers(tmp_path, 1))
    whole = (folder / "result.json").read_bytes()
    (folder / "result.json").write_bytes(whole[: len(whole) // 2])
    outcome = study([config], tmp_path, workers=LocalWorkers(tmp_path, 1))
    assert [one.state for one in outcome.runs] == [State.DONE]
    assert (folder / "unreadable-result.json").read_bytes() == whole[: len(whole) // 2]
    assert_same_run(folder, reference(config, tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"epoch\n1\n", b"epoch,seconds\n1,x\n", b"a,b\n1,2,3\n"]
)
def test_odd_metrics_do_not_end_a_study(tmp_path: Path, content: bytes) -> None:
    begun = Run(small_config(), small_config().folder(tmp_path), State.RUNNING)
    begun.folder.mkdir(parents=True)
    (begun.folder / "metrics.csv").write_bytes(content)
    console = Console(file=io.StringIO(), width=120)
    console.print(Progress(2, console).render([begun]))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parents")
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_a_killed_study_leaves_no_process_behind(tmp_path: Path, moment: str) -> None:
    words = [
        "study",
        "--tasks",
        "mini-digits",
        "--models",
        "lstm",
        "-o",
        str(tmp_path),
        "--set",
        "hidden_size=8",
    ]
    doomed = Command(words)
    if moment == "starting":  # the fork server has just begun to import
        wait_for(lambda: len(doomed.alive) > 1)
    else:
        wait_for(lambda: list(tmp_path.glob("**/metrics.csv")))
        assert len(doomed.alive) >= 4  # the study, its fork server, two workers
    doomed.process.kill()
    doomed.end()
    assert doomed.orphans() == []
