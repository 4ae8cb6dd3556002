"""`lapse data`: what a person sees, and what a wrong call says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import standins
from example_sequences import ragged
from lapse import TASKS, Sequences
from lapse.cli import app
from lapse.heads import Numbers
from lapse.tasks import Splits, describe, xor

SECTIONS = (
    "Sizes",
    "Gaps between events",
    "Not observed",
    "Example: training sequence",
    "Files",
    "What to know",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LAPSE_DATA", raising=False)
    for name in ("TRAIN", "VALIDATION", "TEST"):
        monkeypatch.setattr(xor, name, 50)
    return standins.install(tmp_path / "data", monkeypatch)


def shown(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", *arguments], terminal_width=200)
    assert result.exit_code == code, result.output
    # An error comes in a box, broken into lines; what it says is what counts.
    return " ".join(result.output.replace("│", " ").split()) if code else result.stdout


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_described(name: str, folder: Path) -> None:
    text = shown(name, "--data-dir", str(folder))
    for section in SECTIONS:
        assert section in text
    assert TASKS[name].licence.split(",")[0] in text
    assert ("sha256:" in text) == (name in ("mnist-event", "person", "walker", "physionet2012"))


def test_the_person_splits(folder: Path) -> None:
    assert "25 gaps in the file are negative" in shown("person", "--data-dir", str(folder))
    text = shown("person", "--split", "subject", "--fold", "2", "--data-dir", str(folder))
    assert "shuffled before the split" not in text


def test_xor_options() -> None:
    assert "blocks of 2 to 7 bits" in shown("xor-dense", "--lengths", "2", "8", "--distinct", "--seed", "1")


def test_what_is_missing_is_said(folder: Path) -> None:
    text = shown("physionet2012", "--data-dir", str(folder))
    assert "missing: sets B and C" in text
    assert "Height (static)" in text
    assert "missing: published results" in shown("mini-digits")


def test_usage_errors_exit_2() -> None:
    assert "nope" in shown("nope", code=2)
    assert "has no option 'fold'" in shown("xor-dense", "--fold", "1", code=2)
    assert "expected one of paper" in shown("person", "--split", "x", code=2)


def test_a_missing_file_exits_1_and_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from lapse.tasks import walker

    monkeypatch.setattr(walker, "FILE", replace(walker.FILE, url="http://127.0.0.1:9/walker.zip"))
    text = shown("walker", code=1)
    assert "walker/walker.zip was not found in" in text
    assert "lapse data walker --generate" in text


# The pieces


def text_of(renderable: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_sparkline_runs_from_least_to_most() -> None:
    assert describe.sparkline(np.array([0.0, 7.0, np.nan, 3.0])) == "▁█·▄"
    assert describe.sparkline(np.array([2.0, 2.0])) == "▁▁"


def test_single_events_have_no_gaps() -> None:
    s = Sequences.from_arrays([[1.0]], [[0.0]], targets=[0])
    assert "–" in text_of(describe.gap_quantiles(TASKS["xor-dense"], Splits(s, s, s)))


def test_a_feature_the_example_never_has() -> None:
    s = Sequences.from_arrays([[[1, np.nan], [2, np.nan]], [[1, 2]]], [[0, 1], [0]])[[0]]
    assert "··" in text_of(describe.example(s))


def test_regression_targets_are_summed_up() -> None:
    s = replace(ragged([2, 3]), targets=np.array([1.0, 3.0], np.float32))
    task = replace(TASKS["xor-dense"], head=Numbers)
    assert "Targets" in text_of(describe.targets(task, Splits(s, s, s)))
    assert "target: 3.0" in text_of(describe.example(s))
