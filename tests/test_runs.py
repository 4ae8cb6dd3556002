"""Runs: pure functions of their config, whatever kills them on the way."""

import signal
from pathlib import Path
from typing import Any

import pytest

from lapse.runs import Result
from unbroken import PHASES, assert_same_run, run_and_die, run_through, small_config


@pytest.fixture(scope="module")
def unbroken(processes: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed."""
    root = tmp_path_factory.mktemp("unbroken")
    assert status(processes, run_through, root, 0) == 0
    return small_config().folder(root)


def status(processes: Any, target: Any, *args: Any) -> int:
    process = processes.Process(target=target, args=args)
    process.start()
    process.join()
    assert process.exitcode is not None
    return int(process.exitcode)


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_run_resumes_to_the_same_bits(
    phase: str, unbroken: Path, processes: Any, tmp_path: Path
) -> None:
    folder = small_config().folder(tmp_path)
    assert status(processes, run_and_die, phase, tmp_path) == -signal.SIGKILL
    assert Result.read(folder) is None
    assert status(processes, run_through, tmp_path, 0) == 0
    assert_same_run(folder, unbroken)
    assert not list(folder.glob("*.part")) + list(folder.glob(".*.part"))
