"""Every wrong command line ends in a line or two and the right exit status; none in a traceback, none in silence."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from example_runs import write_failed, write_run, write_unfinished
from lapse.cli import app
from lapse.runs import RunConfig, hold
from lapse.tasks import files
from processes import Command, wait_for

TRAIN = "train mini-digits"
GRID = "study --tasks mini-digits --models lstm"

# Settings that mean nothing, each with what must be said of it.
SETTINGS = {
    "hidden_size=0": "hidden_size must be at least 1, got 0",
    "hidden_size=-3": "at least 1",
    "hidden_size=1.5": "hidden_size must be a whole number, got 1.5",
    "hidden_size=true": "a whole number, got True",
    "hidden_size=null": "a whole number, got None",
    "hidden_size=big": "a whole number, got 'big'",
    "hidden_size=": "a whole number, got ''",
    "hiden_size=64": "did you mean hidden_size",
    "num_layers=0": "num_layers must be at least 1",
    "num_layers=two": "a whole number, got 'two'",
    "form=x": "form must be one of 'driven', 'autonomous', 'jump', got 'x'",
    "form=3": "form must be a word, got 3",
    "form=": "form must be one of",
    "solver=rk5": "rk5",
    "solver=3": "solver",
    "solver=[1]": "solver",
    "forget_bias=x": "forget_bias must be a finite number, got 'x'",
    "forget_bias=NaN": "forget_bias must be a finite number, got NaN",
    "forget_bias=-Infinity": "a finite number",
    "forget_bias=1e400": "a finite number",
    "forget_bias=true": "a finite number, got True",
    "dropout=1": "dropout must be at least 0 and below 1",
    "dropout=-0.1": "dropout must be at least 0",
    "dropout=half": "dropout must be a finite number, got 'half'",
    "bidirectional=maybe": "bidirectional must be true or false, got 'maybe'",
    "bidirectional=0": "true or false, got 0",
    "nonsense=1": "there is no setting 'nonsense'",
    "epochs=3": "did you mean train.epochs",
    "lr=3": "there is no setting 'lr'",
    "learning_rate=3": "did you mean train.learning_rate",
    "train.epoch=3": "did you mean train.epochs",
    "train.epochs=0": "epochs must be at least 1",
    "train.epochs=-1": "epochs must be at least 1",
    "train.epochs=true": "epochs must be a whole number, got True",
    "train.epochs=TRUE": "epochs must be a whole number, got True",
    "train.epochs=many": "epochs must be a whole number, got 'many'",
    "train.epochs=1.5": "a whole number, got 1.5",
    "train.epochs=1e3": "a whole number, got 1000.0",
    "train.epochs=99999999999999999999": "below 2[*][*]63",
    "train.batch_size=0": "batch_size must be at least 1",
    "train.batch_size=[1]": "a whole number",
    "train.patience=-5": "patience must be at least 1",
    "train.patience=0": "patience must be at least 1",
    "train.patience=often": "a whole number or null, got 'often'",
    "train.clip=-1": "clip must be positive",
    "train.clip=0": "clip must be positive",
    "train.clip=False": "clip must be a finite number or null, got False",
    "train.restore_best=maybe": "restore_best must be true or false, got 'maybe'",
    "train.restore_best=1": "true or false, got 1",
    "train.median_gap=no": "true or false, got 'no'",
    "train.learning_rate=0": "learning_rate must be positive",
    "train.learning_rate=-1": "learning_rate must be positive",
    "train.learning_rate=nan": "a finite number, got 'nan'",
    "train.learning_rate=NaN": "a finite number, got NaN",
    "train.learning_rate=Infinity": "a finite number",
    "train.learning_rate=1e400": "a finite number",
    "train.learning_rate=fast": "a finite number, got 'fast'",
    "train.optimizer=sgd": "optimizer must be 'adam' or 'rmsprop', got 'sgd'",
    "train.optimizer=Adam": "'adam' or 'rmsprop'",
    "train.schedule=linear": "'constant' or 'cosine', got 'linear'",
    "train.warmup=2": "warmup must be",
    "train.warmup=-1": "warmup must be",
    "train.weight_decay=-1": "weight_decay must not be negative",
    "train.seed=-1": "seed must be at least 0",
    "train.=3": "there is no setting 'train.'",
    "train=3": "there is no setting 'train'",
    "task=walker": "there is no setting 'task'",
    "preset=paper": "there is no setting 'preset'",
    "model_options={}": "there is no setting 'model_options'",
    "device=cuda": "there is no setting 'device'",
    "dtype=float64": "there is no setting 'dtype'",
    "batch_first=false": "there is no setting 'batch_first'",
    "=3": "there is no setting ''",
    "noequals": "expected NAME=VALUE, got 'noequals'",
    "": "expected NAME=VALUE, got ''",
}

# Exit status 2, with what must be said.
USAGE = {
    "trian": "Did you mean 'train'",
    "nonsense": "No such command 'nonsense'",
    "--nonsense": "No such option: --nonsense",
    "--debug nonsense": "No such command",
    "--verbose list": "No such option: --verbose",
    "list extra": "unexpected extra argument",
    "list --models": "No such option: --models",
    "info extra": "unexpected extra argument",
    "info --data-dir nowhere": "'nowhere' does not exist",
    "info --data-dir {file}": "is a file",
    "info --data": "--data-dir",
    "demo --output": "requires an argument",
    "demo -o {file}": "cannot write to",
    "demo -o {file}/below": "cannot write to",
    "demo -o /proc/lapse": "cannot write to /proc/lapse",
    "demo extra": "unexpected extra argument",
    "demo --seed 1": "No such option: --seed",
    "data": "Missing argument 'TASK'",
    "data walke": "did you mean walker",
    "data xor": "did you mean xor-",
    "data nothing-like-it": "no 'nothing-like-it'",
    "data ''": "no ''",
    "data person --split days": "split",
    "data person --fold -1": "fold",
    "data person --fold x": "--fold",
    "data person --split": "requires an argument",
    "data mini-digits --split paper": "has no option 'split'",
    "data mini-digits --fold 1": "has no option 'fold'",
    "data mini-digits --distinct": "has no option 'distinct'",
    "data mini-digits --generate": "has no option 'generate'",
    "data mini-digits --lengths 2 9": "has no option 'lengths'",
    "data mini-digits --seed -1": "--seed",
    "data mini-digits --seed x": "--seed",
    "data mini-digits --data-dir nowhere": "does not exist",
    "data xor-event --lengths 5": "requires 2 arguments",
    "data xor-event --lengths 9 2": "lengths",
    "data xor-event --lengths 0 0": "lengths",
    "data xor-event --lengths a b": "--lengths",
    "data nowhere.module:TASK": "cannot import 'nowhere",
    "data lapse.tasks:nothing": "has no 'nothing'",
    "data :": "cannot import",
    "train": "Missing argument 'TASK'",
    "train mini-digit": "did you mean mini-digits",
    "train mini_digits": "did you mean mini-digits",
    "train MINI-DIGITS": "no 'MINI-DIGITS'",
    "train nowhere.module:TASK": "cannot import",
    f"{TRAIN} extra": "unexpected extra argument",
    f"{TRAIN} --model lsmt": "did you mean lstm",
    f"{TRAIN} --model odelstm": "did you mean ode-lstm",
    f"{TRAIN} --model ''": "no ''",
    f"{TRAIN} --model": "requires an argument",
    f"{TRAIN} -m": "requires an argument",
    f"{TRAIN} --modle lstm": "--model",
    f"{TRAIN} --preset papers": "did you mean paper",
    f"{TRAIN} --preset paper": "is not in the paper",
    f"{TRAIN} --seed -1": "--seed",
    f"{TRAIN} --seed one": "--seed",
    f"{TRAIN} --seed 1.5": "--seed",
    f"{TRAIN} --seed 99999999999999999999": "--seed",
    f"{TRAIN} --devices 0": "--devices",
    f"{TRAIN} --devices -1": "--devices",
    f"{TRAIN} --devices all": "--devices",
    f"{TRAIN} --nodes 0": "--nodes",
    f"{TRAIN} --nodes x": "--nodes",
    f"{TRAIN} --data-dir nowhere": "does not exist",
    f"{TRAIN} --data-dir {{file}}": "is a file",
    f"{TRAIN} -o {{file}}": "cannot write to",
    f"{TRAIN} -o {{file}}/below": "cannot write to",
    f"{TRAIN} -o /proc/lapse": "cannot write to /proc/lapse",
    f"{TRAIN} --restart yes": "unexpected extra argument",
    f"{TRAIN} --set": "requires an argument",
    "study": "name at least one",
    "study --tasks ''": "name at least one",
    "study --tasks ,": "name at least one",
    "study --tasks mini-digits --models ''": "name at least one",
    "study --tasks mini-digits --models ,": "name at least one",
    "study --tasks mini-digit": "did you mean mini-digits",
    "study --tasks mini-digits,walke --models lstm": "did you mean walker",
    "study --tasks mini-digits --models lstm,grud": "did you mean gru-d",
    "study --tasks mini-digits --models All": "no 'All'",
    "study --tasks": "requires an argument",
    f"{GRID} --seeds 0": "--seeds",
    f"{GRID} --seeds -1": "--seeds",
    f"{GRID} --seeds many": "--seeds",
    f"{GRID} --workers 0": "--workers",
    f"{GRID} --threads 0": "--threads",
    f"{GRID} --preset best": "no 'best'",
    f"{GRID} --preset paper": "is not in the paper",
    f"{GRID} --set gru-d:train.epochs=1": "is for 'gru-d', which is not in this study",
    f"{GRID} --set :train.epochs=1": "names no task or model before its colon",
    f"{GRID} --set lstm:form=x": "there is no setting 'form'",
    f"{GRID} --data-dir nowhere": "does not exist",
    f"{GRID} -o {{file}}": "cannot write to",
    f"{GRID} --ray": "requires an argument",
    "study nowhere.toml": "nowhere.toml",
    "study {file}": "grids must be tables",
    "study {folder}": "cannot be read as a study",
    "study {empty}": "has no",
    "study {odd}": "seeds must be a whole number",
    "tune": "Missing argument 'TASK'",
    "tune mini-digit": "did you mean mini-digits",
    "tune mini-digits --model lsmt": "did you mean lstm",
    "tune mini-digits --trials 0": "--trials",
    "tune mini-digits --trials many": "--trials",
    "tune mini-digits --seed -1": "--seed",
    "tune mini-digits --preset paper": "is not in the paper",
    "tune mini-digits --set form=x": "form must be",
    "tune mini-digits --set train.epochs=0": "epochs must be",
    "tune mini-digits -o {file}": "cannot write to",
    "tune mini-digits --data-dir nowhere": "does not exist",
    "table": "Missing argument 'DIR'",
    "table nowhere": "nowhere is not a folder",
    "table {file}": "is not a folder",
    "table {folder}": "no runs in",
    "table {runs} --format html": "no 'html'",
    "table {runs} --format mardown": "did you mean markdown",
    "table {runs} --format": "requires an argument",
    "table {runs} --data-dir nowhere": "does not exist",
    "table {runs} extra": "unexpected extra argument",
    "report": "Missing argument 'DIR'",
    "report nowhere": "nowhere",
    "report {file}": "cannot write to|is not a folder",
    "report {folder}": "no runs in",
    "report {runs} -o {folder}": "is a folder, expected a file",
    "report {runs} -o {file}/page.html": "cannot write to",
    "report {runs} -o /proc/lapse/page.html": "cannot write to",
    "report {runs} --format html": "No such option: --format",
    "report {runs} --data-dir nowhere": "does not exist",
    "gradients": "Missing option '--output'",
    "gradients -o": "requires an argument",
    "gradients -o {file}": "cannot write to",
    "gradients -o {folder} --models elman": "no 'elman'",
    "gradients -o {folder} --models lstm,elman": "no 'elman'",
    "gradients -o {folder} --models ''": "no ''",
    "gradients -o {folder} --lags 1": "--lags",
    "gradients -o {folder} --lags x": "--lags",
    "gradients -o {folder} --hidden-size 0": "--hidden-size",
    "gradients -o {folder} --seed -1": "--seed",
    "bench --only nonsense": "no 'nonsense'",
    "bench --only author": "did you mean authors",
    "bench --repeats 0": "--repeats",
    "bench --repeats x": "--repeats",
    "bench --threads 0": "--threads",
    "bench --json {folder}": "is a folder, expected a file",
    "bench --json {file}/out.json": "cannot write to",
    "bench extra": "unexpected extra argument",
} | {f"{TRAIN} --set '{setting}'": said for setting, said in SETTINGS.items()}

FIT = "fit {table} --id id --time t --target y"
USAGE |= {
    "fit": "Missing argument 'FILE'",
    "fit nowhere.csv": "'nowhere.csv' does not exist",
    "fit {folder}": "is a directory",
    "fit {table} --model lsmt": "did you mean lstm",
    "fit {table} --members 0": "--members",
    "fit {table} --seed -1": "--seed",
    "fit {table} -o {file}": "cannot write to",
    "fit {table} --id idd": "no column 'idd'; did you mean 'id'",
    "fit {table} --id id --time when": "no column 'when'; its columns are",
    "fit {table} --id id --time t --target z": "no column 'z'",
    f"{FIT} --values q": "no column 'q'",
    f"{FIT} --group g": "no column 'g'",
    f"{FIT} --unit years": "the unit of time must be one of",
    "fit {table} --long": "which column is the variable",
    "fit {table} --long --variable x": "which column is the value",
    "predict": "Missing argument 'MODEL'",
    "predict {folder}": "Missing argument 'FILE'",
    "predict nowhere {table}": "'nowhere' does not exist",
    "predict {file} {table}": "is a file",
    "predict {folder} nowhere.csv": "'nowhere.csv' does not exist",
    "predict {folder} {table} -o {folder}": "is a folder, expected a file",
    "predict {folder} {table} -o {file}/x.csv": "cannot write to",
    "predict {folder} {table} -o out.xlsx": "no '.xlsx'",
    "predict {folder} {table} -o out": "no ''",
    "evaluate": "Missing argument 'MODEL'",
    "evaluate nowhere {table}": "does not exist",
    "evaluate {folder} nowhere.csv": "does not exist",
    "example nothing": "no 'nothing'",
    "example pbc": "did you mean pbc2",
    "example pbc2 -o {folder}": "is a folder, expected a file",
    "example pbc2 -o {file}/x.csv": "cannot write to",
    "example pbc2 -o x.xlsx": "no '.xlsx'",
}

# Exit status 1: the command makes sense, and what it asks for cannot be done.
FAILURES = {
    "train walker -o {new}": r"walker.zip was not found .* downloading .* failed .*\nThe run is in .*walker",
    "data walker": "walker.zip was not found",
    "data person": "ConfLongDemo_JSI.txt was not found",
    "tune person -o {new} --trials 1": "ConfLongDemo_JSI.txt was not found",
    "table {unfinished}": "no run in .* is finished",
    "report {unfinished}": "no run in .* is finished",
    f"{GRID} --ray nowhere:1 -o {{new}}": "no Ray cluster answers at nowhere:1",
    f"{GRID} --ray 127.0.0.1:9 -o {{new}}": "no Ray cluster answers",
    f"{GRID} --ray 127.0.0.1:x -o {{new}}": "no Ray cluster answers",
    f"{GRID} --ray ray://127.0.0.1:9 -o {{new}}": "no Ray cluster answers",
    f"{TRAIN} -o {{held}}": "another process works in .*held",
    "fit {file}": "is of no known kind",
    "fit {broken}": "broken.csv is not written in UTF-8",
    "fit {header}": "header.csv holds no rows",
    f"{FIT} --static x": "column 'x' changes within id",
    "predict {folder} {table}": "folder holds no model",
    "evaluate {folder} {table}": "folder holds no model",
}


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


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
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
    rows = [f"{i},{t},{t * i},{t},{i % 2}" for i in range(20) for t in range(3)]
    found["table"].write_text("\n".join(["id,t,x,u,y", *rows]))
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
