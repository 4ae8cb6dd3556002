"""What is not part of lapse is used like what is: a task, a head and a model, each in one file, by their reference."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from example_runs import write_run
from lapse import RNN, backend, heads
from lapse.gradients.exhibits import Settings, error_flows
from lapse.kernels.builder import BEFORE
from lapse.models import registry
from lapse.references import resolve
from lapse.report.collection import Collection
from lapse.report.page import report
from lapse.report.tables import build_tables
from lapse.runs import RunConfig
from lapse.study.grid import Grid, which_of
from lapse.tasks import find
from lapse.tune import space_for

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but these files, and that Python does not search by itself."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(TESTS / "toy_counts.py", folder / "my_counts.py")
    shutil.copy(TESTS / "toy_model.py", folder / "my_model.py")
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


def test_workers_import_nothing_from_the_folder_in_which_a_study_is_started(tmp_path: Path) -> None:
    # The script `lapse` lies in another folder, so that Python does not search the present one by itself.
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "command.py"
    script.write_text("from lapse.__main__ import main\nif __name__ == '__main__':\n    main()\n")
    (tmp_path / "queue.py").write_text("raise SystemExit('this is not the queue of Python')\n")
    grid = ("--tasks", "mini-digits", "--models", "lstm", "--seeds", "1", "--workers", "1")
    settings = ("--set", "train.epochs=1", "--set", "hidden_size=4")
    words = [sys.executable, str(script), "study", *grid, *settings, "-o", "runs"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "1 of 1 runs are done" in done.stdout, done.stderr


def test_a_model_of_the_users_own_from_the_command_line(folder: Path) -> None:
    name, task = "my_model:Drift", "my_counts:TASK"
    settings = ("--set", "train.epochs=2", "--set", "hidden_size=4", "--set", "size=40")
    pace = ("--set", "pace=0.25")
    trained = json.loads(lapse(folder, "train", task, "--model", name, *settings, *pace, "-o", "models"))
    assert trained["config"]["model_options"] == {"pace": 0.25}
    assert (folder / trained["folder"]).parts[-3:-1] == ("my_counts.TASK", "my_model.Drift")
    grid = ("--tasks", task, "--models", f"{name},lstm", "--seeds", "1", "--workers", "2")
    own = ("--set", f"{name}:pace=0.75")
    assert "2 of 2 runs are done" in lapse(folder, "study", *grid, *settings, *own, "-o", "models")
    table = lapse(folder, "table", "models", "--format", "csv", path=str(folder))
    assert {row["model"] for row in csv.DictReader(table.splitlines())} >= {name, "lstm"}
    assert "pace=0.75" in table
    lapse(folder, "report", "models", "-o", "models.html", path=str(folder))
    page = (folder / "models.html").read_text()
    assert "Drift of my own" in page
    assert "var(--m-my_5f_model_3a_Drift)" in page


@pytest.mark.slow
def test_a_model_of_the_users_own_on_a_ray_cluster(folder: Path) -> None:
    pytest.importorskip("ray")
    settings = ("--set", "train.epochs=1", "--set", "hidden_size=4", "--set", "size=20", "--seeds", "1")
    grid = ("--tasks", "my_counts:TASK", "--models", "my_model:Drift", "--ray", "local", "--workers", "1")
    assert "1 of 1 runs are done" in lapse(folder, "study", *grid, *settings, "-o", "cluster")


def test_tables_and_pages_of_a_model_that_is_not_installed_here(tmp_path: Path) -> None:
    """Results outlive the code: where the module is not found, the model goes by its name."""
    write_run(tmp_path, RunConfig("mini-digits", "elsewhere.models:Lost"), 90.0)
    write_run(tmp_path, RunConfig("mini-digits", "lstm"), 80.0)
    (table,) = build_tables(Collection.read(tmp_path))
    assert [row.name for row in table.models] == ["elsewhere.models:Lost", "lstm"]
    page = report(tmp_path)
    assert "Lost" in page
    assert "var(--m-elsewhere_2e_models_3a_Lost)" in page


def test_a_model_of_the_users_own_in_figures_tuning_and_theory() -> None:
    name = "toy_model:Drift"
    assert registry.label_of(name) == "Drift of my own"
    assert registry.look_of(name) == registry.look_of(name) != registry.look_of("toy_model:Drifter")
    assert "form" not in space_for(name)
    assert registry.default_options(name) == {"pace": 0.5}
    shown = [exhibit.name for exhibit in error_flows(Settings((name, "lstm"), lags=4, hidden_size=4, rows=2))]
    assert shown == ["error-flow", "error-flow-gaps"]


def test_a_model_that_is_none_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"expected a subclass of lapse\.RNN"):
        registry.find("toy_model:DriftCell")
    with pytest.raises(ValueError, match=r"model must be one of .*, or package\.module:Class, got 'drift'"):
        registry.find("drift")


def test_a_setting_of_its_own_is_noticed_by_the_fused_loop() -> None:
    """A program that was written for another value of the setting would be silently wrong."""
    torch.manual_seed(0)
    layer, x = resolve("toy_model:Drift")(2, 4), torch.randn(3, 5, 2)
    layer(x)
    layer.cells[0].pace = 2.0
    with backend("reference"):
        expected, _ = layer(x)
    with backend("fused"):
        torch.testing.assert_close(layer(x)[0], expected)


def test_a_setting_of_a_part_is_noticed_by_the_fused_loop() -> None:
    class Paced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pace = 0.5

    class PacedCell(resolve("toy_model:DriftCell")):
        def __init__(self, input_size: int, hidden_size: int) -> None:
            super().__init__(input_size, hidden_size)
            self.paced = Paced()

        def step(self, input: Any, state: Any, timespan: Any) -> Any:
            h = state[0] + self.paced.pace * timespan[:, None] * torch.tanh(self.gates(input, state[0]))
            return h, (h,)

        def program(self, p: Any) -> None:
            n, x = self.hidden_size, p.input(self.input_size)
            h, u, t = p.state(n), p.register(n), p.register(n)
            self.gates.program(p, "gates", u, [x], h | BEFORE)
            p.emit("Tanh", t, u)
            p.combine(1, h, h | BEFORE, [t], [self.paced.pace], "Integrate")

    layer, x = RNN(2, 4, cell=PacedCell), torch.randn(3, 5, 2)
    layer(x)
    layer.cells[0].paced.pace = 2.0
    with backend("reference"):
        expected, _ = layer(x)
    with backend("fused"):
        torch.testing.assert_close(layer(x)[0], expected)


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
    with pytest.raises(ValueError, match=r"task must be one of xor-dense.*got 'walkr'"):
        find("walkr")


def test_a_setting_may_be_for_a_reference() -> None:
    assert which_of("a.b:TASK:train.epochs=3") == "a.b:TASK"
    assert which_of("walker:form=x:y") == "walker"
    assert which_of("form=x:y") == ""
    Grid(["a.b:TASK"], ["lstm"], range(1), ["a.b:TASK:train.epochs=3"])
