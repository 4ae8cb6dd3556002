"""What is not part of lapse is used like what is: a task and a head, each in one file, by their reference."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lapse import heads
from lapse.references import resolve
from lapse.study.grid import Grid, which_of
from lapse.tasks import find

TOY = Path(__file__).parent / "toy_counts.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but the file, and that Python does not search by itself."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(TOY, folder / "my_counts.py")
    return folder


def lapse(folder: Path, *words: str, code: int = 0, path: str = "") -> str:
    """What the command prints; like the script `lapse`, it does not search its own folder for modules."""
    command = [sys.executable, "-P", "-m", "lapse", *words]
    paths = [os.environ.get("PYTHONPATH", ""), path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else " ".join(done.stderr.replace("│", " ").split())


def test_a_task_and_a_head_of_the_users_own_from_the_command_line(folder: Path) -> None:
    name = "my_counts:TASK"
    settings = ("--set", "train.epochs=3", "--set", "hidden_size=8", "--set", "size=40")
    described = lapse(folder, "data", name)
    assert "a count per sequence" in described
    assert "deviance (less is better)" in described
    result = json.loads(lapse(folder, "train", name, "--model", "lstm", *settings, "-o", "runs"))
    assert set(result["test"]) == {"loss", "deviance"}
    assert (folder / result["folder"]).parts[-3:-1] == ("my_counts.TASK", "lstm")
    per_task = ("--set", f"{name}:train.epochs=2")
    grid = ("--tasks", name, "--models", "lstm,gru-d", "--seeds", "1", "--workers", "1")
    assert "2 of 2 runs are done" in lapse(folder, "study", *grid, *settings, *per_task, "-o", "runs")
    # A name that was not typed but found in a folder of runs must not run code from wherever the command is started.
    assert "no run in runs is finished" in lapse(folder, "table", "runs", code=1)
    table = lapse(folder, "table", "runs", "--format", "csv", path=str(folder))
    assert "mean count" in table
    assert table.count(name) >= 3
    lapse(folder, "report", "runs", "-o", "page.html", path=str(folder))
    assert name in (folder / "page.html").read_text()


def test_a_reference_that_leads_nowhere_is_a_usage_error(folder: Path) -> None:
    assert "cannot import 'nowhere'" in lapse(folder, "train", "nowhere:TASK", code=2)
    assert "has no 'OTHER'" in lapse(folder, "data", "my_counts:OTHER", code=2)
    assert "expected a lapse.Task" in lapse(folder, "train", "my_counts:load", code=2)


def test_a_model_keeps_a_head_of_the_users_own() -> None:
    task = find("toy_counts:TASK")
    assert task.name == "toy_counts:TASK"
    head = task.head()
    assert head.config()["kind"] == "toy_counts:Counts"
    assert type(heads.from_config(head.config())) is resolve("toy_counts:Counts")


def test_what_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no task 'walkr'; expected one of xor-dense"):
        find("walkr")


def test_a_setting_may_be_for_a_reference() -> None:
    assert which_of("a.b:TASK:train.epochs=3") == "a.b:TASK"
    assert which_of("walker:form=x:y") == "walker"
    assert which_of("form=x:y") == ""
    Grid(["a.b:TASK"], ["lstm"], range(1), ["a.b:TASK:train.epochs=3"])
