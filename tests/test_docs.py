"""What the pages say is run: their Python as it stands, commands by name, tests by their names; tables are compared."""

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lapse import TASKS
from lapse.cli import app
from lapse.encoders import RecurrentEncoder
from lapse.heads import Classes, Gaussian, Labels, Numbers, Quantiles
from lapse.kernels.programs import has_program
from lapse.models.registry import layers

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


def test_the_first_page_begins_as_the_readme_does() -> None:
    """The README's tests run that code."""
    page, readme = ((ROOT / name).read_text() for name in ("docs/index.md", "README.md"))
    assert (
        re.findall(r"```python\n.*?```", page, re.DOTALL)
        == re.findall(r"```python\n.*?```", readme, re.DOTALL)[:1]
    )


@pytest.mark.parametrize(
    "page", ["models", "questions", "coming-from", "streams", "forecasting", "explain", "estimators"]
)
def test_the_python_of_other_pages_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL):
        exec(compile(block, f"{page}.md", "exec"), names)
    assert capsys.readouterr().out


def test_the_python_of_the_page_on_graphs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/compile.md").read_text(), re.DOTALL):
        exec(compile(block, "compile.md", "exec"), names)
    assert capsys.readouterr().out == f"{torch.Size([8, 20, 32])}\n{torch.Size([3, 50, 32])}\nTrue\n"


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the first table below a heading, without its head."""
    text = (ROOT / "docs" / f"{page}.md").read_text().split(heading)[1]
    table = re.findall(r"(?:^\|.*\|$\n)+", text, re.MULTILINE)[0]
    return [[cell.strip(" `*") for cell in line[1:-1].split(" | ")] for line in table.splitlines()[2:]]


def test_what_models_can_do_is_what_their_classes_say() -> None:
    words = {True: "yes", False: "no"}
    for name, missing, causal, streams, exports, pieces, forms, _ in rows_of(
        "choosing", "## What each can do"
    ):
        encoder = RecurrentEncoder(layers()[name], 1, 1)
        layer = encoder.layer
        assert missing == words[layer.takes_missing]
        assert (causal, streams) == (words[encoder.causal], words[encoder.streams])
        assert exports == words[all(has_program(cell) for cell in layer.cells)]
        assert forms == (", ".join(layer.forms) or "–")
        splitting = [form for form, cell in layer.forms.items() if cell.splits_gaps]
        if layer.forms:
            assert pieces == (f"{splitting[0]} form only" if splitting else "no")
        else:
            assert pieces == words[layer.cells[0].splits_gaps]
    assert [row[0] for row in rows_of("choosing", "## What each can do")] == list(layers())


def test_the_speed_of_models_is_what_was_measured() -> None:
    measured = {row[0]: row[6] for row in rows_of("performance", "## Measured")}
    defaults = {"ode-lstm": "autonomous", "ode-rnn": "rk4", "cfc": "gated", "cfc-mm": "driven"}
    for name, *_, speed in rows_of("choosing", "## What each can do"):
        kind = f"{name} {defaults[name]}" if name in defaults else name
        # The neural CDE has no fused loop, so that its reference loop is what is compared, with another rival.
        assert speed == (measured.get(f"{kind}: reference") or measured[f"{kind}: nn.LSTM"])


def test_where_models_did_well_is_what_was_published() -> None:
    for task, _, best, others in rows_of("choosing", "## Where each did well"):
        asked = TASKS[task.split("`")[0]]
        sign = -1 if asked.metrics[0].maximize else 1
        ranking = sorted(asked.published.items(), key=lambda item: sign * item[1].mean)[:3]
        told = re.findall(r"([\w-]+)`? (\d+\.\d+)", f"{best} {others}")
        assert [(name, float(value)) for name, value in told] == [(name, s.mean) for name, s in ranking]


def test_the_links_of_llms_txt_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_python_of_the_training_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "training.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "training.md", "exec"), names)
    assert "nll" in capsys.readouterr().out
    model, train, test = (names[name] for name in ("model", "train", "test"))
    figures, trivial = names["evaluate"](model, test), model.head.baseline(train, test)
    assert figures["nll"] < trivial["nll"]
    assert (tmp_path / "level" / "before.ckpt").exists()


def test_the_training_page_names_every_head_metric_and_setting() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    for head in (Classes("ab"), Labels(), Numbers(), Gaussian(), Quantiles()):
        (row,) = re.findall(rf"^\| `{type(head).__name__}` .*$", page, re.MULTILINE)
        assert row.rstrip(" |").endswith(", ".join(metric.name for metric in head.available))
    newer = ("weight_decay", "average", "hide", "class_weights", "accumulate")
    assert all(f"| `{name}` |" in page for name in newer)
