"""One odd file in a folder of runs: it is left out and named, and everything else is shown as if it were not there."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from example_runs import with_seed, write_run
from lapse.cli import app
from lapse.report.collection import Collection
from lapse.report.page import report
from lapse.report.tables import build_tables
from lapse.runs import RunConfig

GOOD = RunConfig("mini-digits", "lstm")


def change(folder: Path, **values: Any) -> None:
    """Write other values into the result."""
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**content, **values}))


def change_config(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "result.json").read_text())
    change(folder, config={**content["config"], **values})


def overwrite(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "result.json").write_bytes(content)  # type: ignore[return-value]


def without(field: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        content = json.loads((folder / "result.json").read_text())
        del content[field]
        (folder / "result.json").write_text(json.dumps(content))

    return remove


def a_folder(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (overwrite(b""), "not a whole result"),
    "half": (overwrite(b'{"config": {"task": "mini-dig'), "not a whole result"),
    "not JSON": (overwrite(b"\x00\xff\xfe"), "not a whole result"),
    "null": (overwrite(b"null"), "not a whole result"),
    "a list": (overwrite(b"[1, 2]"), "not a whole result"),
    "nested too deeply": (overwrite(b"[" * 100_000), "not a whole result"),
    "a folder": (a_folder, "Is a directory"),
    "no config": (without("config"), "it has no 'config'"),
    "no test": (without("test"), "'test'"),
    "a field too many": (lambda f: change(f, colour="red"), "colour"),
    "test is a word": (lambda f: change(f, test="high"), "test must be"),
    "test holds words": (lambda f: change(f, test={"accuracy": "high"}), "expected numbers"),
    "no accuracy": (lambda f: change(f, test={"loss": 1.0}), "no test accuracy"),
    "NaN": (lambda f: change(f, test={"accuracy": math.nan}), "its test accuracy is nan"),
    "infinity": (lambda f: change(f, test={"accuracy": math.inf}), "its test accuracy is inf"),
    "epochs is a word": (lambda f: change(f, epochs="many"), "epochs must be a whole number"),
    "parameters is null": (lambda f: change(f, parameters=None), "parameters must be"),
    "seconds are NaN": (lambda f: change(f, seconds_per_epoch=math.nan), "seconds_per_epoch must be"),
    "unknown task": (lambda f: change_config(f, task="chess"), "chess"),
    "unknown model": (lambda f: change_config(f, model="elman"), "elman"),
    "unknown setting": (lambda f: change_config(f, train={"momentum": 1}), "momentum"),
    "a model that is a number": (lambda f: change_config(f, model=3), "not a whole result"),
    "a preset without this task": (lambda f: change_config(f, preset="paper"), "is not in the paper"),
    "hidden size of 0": (lambda f: change_config(f, hidden_size=0), "hidden_size must be"),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of one row, and one with a better score that a test is to spoil."""
    for seed, score in enumerate((60.0, 70.0)):
        write_run(tmp_path, with_seed(GOOD, seed), score)
    write_run(tmp_path, RunConfig("mini-digits", "gru-d"), 99.0)
    return tmp_path


def spoiled(root: Path) -> Path:
    (folder,) = (root / "mini-digits" / "gru-d").iterdir()
    return folder


@pytest.mark.parametrize("case", ODD)
def test_an_odd_result_is_left_out_and_named(runs: Path, case: str) -> None:
    spoil, reason = ODD[case]
    spoil(spoiled(runs))
    collection = Collection.read(runs)
    (remark,) = collection.remarks
    assert remark.startswith(f"Left out: {spoiled(runs).relative_to(runs)}: ")
    assert reason in remark
    (table,) = build_tables(collection)
    assert [(row.name, row.mean, row.mark) for row in table.rows] == [("lstm", 65.0, "best")]
    shown = CliRunner().invoke(app, ["table", str(runs), "--format", "json", "--no-baselines"])
    assert shown.exit_code == 0
    assert [row["mean"] for row in json.loads(shown.stdout, parse_constant=pytest.fail)[0]["rows"]] == [65.0]
    assert reason in shown.stderr


@pytest.mark.parametrize("format", ["rich", "markdown", "csv", "latex", "json"])
def test_every_format_goes_on_without_an_odd_run(runs: Path, format: str) -> None:
    change(spoiled(runs), test={"accuracy": math.nan})
    shown = CliRunner().invoke(app, ["table", str(runs), "--format", format, "--no-baselines"])
    assert shown.exit_code == 0
    assert "its test accuracy is nan" in shown.stderr
    assert "nan" not in shown.stdout.lower()
    if format == "csv":
        assert len(list(csv.DictReader(shown.stdout.splitlines()))) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\x00", b"epoch\n0\n", b"epoch,validation_accuracy\n0,high\n", b"a,b\n1,2,3\n1\n"],
)
def test_odd_metrics_cost_a_run_its_curve_only(runs: Path, content: bytes) -> None:
    (spoiled(runs) / "metrics.csv").write_bytes(content)
    (table,) = build_tables(Collection.read(runs))
    assert [row.name for row in table.rows] == ["gru-d", "lstm"]
    page = report(runs)
    told = f"No learning curve: {spoiled(runs).relative_to(runs)}/metrics.csv" in page
    assert told == bool(content)  # an empty file is a run without epochs, and no news
    assert "99.00" in page


def test_many_odd_runs_are_counted(tmp_path: Path) -> None:
    for seed in range(30):
        write_run(tmp_path, with_seed(GOOD, seed), math.nan)
    write_run(tmp_path, RunConfig("mini-digits", "gru-d"), 50.0)
    collection = Collection.read(tmp_path)
    assert len(collection.remarks) == 21
    assert collection.remarks[-1] == "Left out: 10 more"
    assert "30 with a result that cannot be read or compared" in collection.left_out()


def test_nothing_but_odd_runs_is_a_failure_that_names_them(tmp_path: Path) -> None:
    write_run(tmp_path, GOOD, math.nan)
    for command in ("table", "report"):
        shown = CliRunner().invoke(app, [command, str(tmp_path)])
        assert shown.exit_code == 1
        assert "its test accuracy is nan" in shown.stderr
