"""Every wrong command line ends in a line or two and the right exit status; none in a traceback, none in silence."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from bad_lines import FAILURES, FIT, TABLE, TRAIN, USAGE
from example_models import model_for, sequences
from example_runs import write_failed, write_run, write_unfinished
from lapse import Cuts, Forecaster
from lapse.cli import app
from lapse.cli.forecasts import features_alone
from lapse.runs import RunConfig, hold
from lapse.tables import guess
from lapse.tasks import files
from processes import Command, wait_for

# What every command that works for long does, and by which function.
LONG = "--set train.epochs=500 --set train.patience=500"
WORK = {
    "train": (f"train mini-digits --model lstm {LONG}", "runs.run"),
    "study": (f"study --tasks mini-digits --models lstm {LONG}", "study.study"),
    "tune": (f"tune mini-digits --model lstm {LONG}", "tune.tune"),
    "demo": ("demo", "demo.demo"),
    "gradients": ("gradients -o figures", "gradients.gallery.run"),
    "bench": ("bench --only lstm", "bench.bench"),
    "fit": (f"{FIT} --yes", "estimators.trial.run_trial"),
}


class Started(BaseException):
    """The command would now begin to work for minutes."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a forecaster of the table, and of another model."""
    folder = tmp_path_factory.mktemp("models")
    found = {name: folder / name for name in ("forecast", "served")}
    table = pd.read_csv(io.StringIO(TABLE))
    roles = features_alone(guess(table, {"id": "id", "time": "t", "values": ("x",)}, need_target=False))
    cuts = Cuts.random(roles.sequences(table))
    Forecaster.for_data(cuts, model="lstm", hidden_size=4).save(found["forecast"])
    roles.save(found["forecast"] / "table.json")
    model_for(sequences(), model="lstm").save(found["served"])
    return found


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, Path]) -> dict[str, Path]:
    """Folders and files for command lines to name; nothing is found in caches or on the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAPSE_DATA", raising=False)
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))

    def unreachable(file: Any, target: Path) -> None:
        raise OSError("no network")

    monkeypatch.setattr(files, "_fetch", unreachable)
    found = {
        name: tmp_path / name
        for name in ("file", "folder", "new", "runs", "unfinished", "empty", "odd", "held")
    }
    tables = {"table": "table.csv", "broken": "broken.csv", "header": "header.csv"}
    found |= {name: tmp_path / file for name, file in tables.items()}
    found |= models
    found["table"].write_text(TABLE)
    found["header"].write_text("id,t,x,y\n")
    found["broken"].write_bytes(b"\x00\xff\xfe" * 50)
    found["file"].write_text("grids = 3\n")
    found["empty"].write_text("")
    found["odd"].write_text('[[grids]]\ntasks = ["mini-digits"]\nmodels = ["lstm"]\nseeds = true\n')
    found["folder"].mkdir()
    write_run(found["runs"], RunConfig("mini-digits", "lstm"), 90.0)
    write_unfinished(found["unfinished"], RunConfig("mini-digits", "lstm"))
    write_failed(found["unfinished"], RunConfig("mini-digits", "gru-d"))
    return found


def words(line: str, places: dict[str, Path]) -> list[str]:
    filled = re.sub(r"\{(\w+)\}", lambda name: str(places[name[1]]), line)
    return shlex.split(filled)


def check(result: Any, status: int, said: str) -> None:
    assert "Traceback" not in result.output
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert re.search(said, result.stderr), result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2, result.stderr


@pytest.mark.parametrize("line", USAGE)
def test_a_wrong_command_line_exits_2_in_two_lines(
    line: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*args: Any, **kwargs: Any) -> Any:
        raise Started

    for name in (
        "runs.run",
        "study.study",
        "tune.tune",
        "demo.demo",
        "gradients.gallery.run",
        "bench.bench",
        "estimators.trial.run_trial",
    ):
        monkeypatch.setattr(f"lapse.{name}", start)
    before = sorted(places["folder"].iterdir())
    check(CliRunner().invoke(app, words(line, places)), 2, USAGE[line])
    assert sorted(places["folder"].iterdir()) == before


@pytest.mark.parametrize("line", FAILURES)
def test_a_failure_exits_1_with_the_reason(line: str, places: dict[str, Path]) -> None:
    with hold(RunConfig("mini-digits", "ode-lstm").folder(places["held"])):
        check(CliRunner().invoke(app, words(line, places)), 1, FAILURES[line])


def test_there_are_enough_of_them() -> None:
    assert len(USAGE) + len(FAILURES) >= 170


@pytest.mark.parametrize("text", ["False", "FALSE", "false", "fAlSe"])
def test_false_is_false_in_any_case(text: str) -> None:
    from lapse.cli.train import configure

    assert (
        configure("mini-digits", "lstm", "default", 0, [f"train.restore_best={text}"]).train.restore_best
        is False
    )


def test_debug_shows_the_traceback(places: dict[str, Path]) -> None:
    result = CliRunner().invoke(app, ["--debug", "data", "walker"])
    assert isinstance(result.exception, files.DataFileError)


def test_a_mistake_of_ours_is_called_one(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr("lapse.runs.run", broken)
    check(
        CliRunner().invoke(app, [*TRAIN.split()]),
        1,
        "KeyError: 'x'. This is a mistake in lapse; `lapse --debug`",
    )


@pytest.mark.parametrize("command", WORK)
def test_every_command_that_works_says_how_to_go_on(
    command: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    line, work = WORK[command]
    monkeypatch.setattr(f"lapse.{work}", interrupted)
    result = CliRunner().invoke(app, words(line, places))
    assert result.exit_code == 130
    assert re.search("interrupted; .*(the same command|nothing is kept)", result.stderr)


@pytest.mark.parametrize(
    "command", ["train", *(pytest.param(name, marks=pytest.mark.slow) for name in ("study", "tune", "demo"))]
)
def test_ctrl_c_exits_130_and_says_how_to_go_on(command: str, tmp_path: Path) -> None:
    working = Command([*WORK[command][0].split(), "-o", str(tmp_path)])
    wait_for(lambda: list(tmp_path.glob("**/metrics.csv")))
    os.killpg(working.process.pid, signal.SIGINT)
    status, said = working.end()
    assert status == 130
    assert "Traceback" not in said
    assert "interrupted; the same command goes on" in said
    for path in tmp_path.rglob("result.json"):
        json.loads(path.read_text())
