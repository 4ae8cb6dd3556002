"""What docs/data.md says is run: its Python as it stands, its commands by name, its tests by their names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lapse import TASKS
from lapse.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "data.md").read_text()


def test_the_python_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: object
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "data.md", "exec"), names)
    assert "[1 0 1] [4 6 7]" in capsys.readouterr().out  # type: ignore[attr-defined]


def test_every_task_is_on_the_page() -> None:
    assert re.findall(r"^\| `([\w-]+)` \| \w+ ?\w*", PAGE.split("## The tasks")[1], re.MULTILINE) == list(
        TASKS
    )


@pytest.mark.parametrize("named", sorted(set(re.findall(r"pytest (tests/\w+\.py)", PAGE))))
def test_the_tests_it_names_exist(named: str) -> None:
    assert (ROOT / named).is_file()


@pytest.mark.parametrize(("named", "key"), re.findall(r"pytest (tests/\w+\.py) -k \"?(\w+)", PAGE))
def test_the_keywords_it_names_select_something(named: str, key: str) -> None:
    assert re.search(rf"def test_\w*{key}", (ROOT / named).read_text())


def test_its_commands_exist() -> None:
    for command in set(re.findall(r"`lapse (\w+)", PAGE)):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_the_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/frame_to_batch.py", "--events", "30000", "--repeats", "1"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"events/s, ratio [\d.]+x", shown.stdout)


def test_the_python_of_the_models_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "models.md", "exec"), {})
    assert "p_1" in capsys.readouterr().out
