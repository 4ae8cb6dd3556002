"""Every wrong command line ends in a line or two and the right exit status; none in a traceback, none in silence."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pandas as pd
import pytest
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from bad_lines import FAILURES, FIT, GRID, TABLE, TRAIN, USAGE
from example_models import model_for, sequences
from example_runs import write_failed, write_run, write_unfinished
from lapse import Cuts, Forecaster
from lapse.cli import app
from lapse.cli.endings import Commands
from lapse.cli.forecasts import features_alone
from lapse.extras import extra
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

# Every command that takes a path as an option, without it.
WITH_PATHS = {
    "demo": "demo",
    "info": "info",
    "data": "data mini-digits",
    "fit": FIT,
    "predict": "predict {served} {table}",
    "explain": "explain {served} {table}",
    "stream": "stream {served}",
    "export": "export {served}",
    "example": "example pbc2",
    "train": TRAIN,
    "study": GRID,
    "tune": "tune mini-digits",
    "table": "table {runs}",
    "report": "report {runs}",
    "gradients": "gradients",
    "bench": "bench",
}
HUGE = 10**20  # no number that a machine counts with
HUGE_LINES = [
    f"{TRAIN} --devices {HUGE}",
    f"{TRAIN} --nodes {HUGE}",
    f"{GRID} --seeds {HUGE}",
    f"{GRID} --workers {HUGE}",
    f"{GRID} --threads {HUGE}",
    f"gradients -o {{new}} --lags {HUGE}",
    f"gradients -o {{new}} --hidden-size {HUGE}",
    f"bench --threads {HUGE}",
]
# What tells a process of several machines where the others are.
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0"}
# A command that is interrupted when a module of this name is about to be imported.
INTERRUPTED_IMPORT = """
import os, signal, sys
from lapse.__main__ import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["lapse", *sys.argv[1:]]
main()
"""


class Started(BaseException):
    """The command would now begin to work for minutes."""


def options_for_paths() -> list[tuple[str, str]]:
    """The commands, each with an option of it that is a path."""
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, *extras = get_args(hint) or (hint,)
            if kind in (Path, Path | None) and isinstance(extras[0], OptionInfo):
                # The first name that is given in an annotation is stored as the default.
                given = extras[0].default if isinstance(extras[0].default, str) else f"--{name}"
                found.append((command.name or command.callback.__name__, given.replace("_", "-")))
    return found


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


@pytest.mark.parametrize(("command", "option"), options_for_paths())
def test_an_empty_path_is_none(
    command: str, option: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places["folder"])
    line = f"{WITH_PATHS[command]} {option} ''"
    check(CliRunner().invoke(app, words(line, places)), 2, f"{option}.* expected a path, got ''")
    assert not list(places["folder"].iterdir())


@pytest.mark.parametrize("line", ["table ''", "report ''", "study ''", "predict '' {table}", "stream ''"])
def test_an_empty_argument_is_no_path(line: str, places: dict[str, Path]) -> None:
    check(CliRunner().invoke(app, words(line, places)), 2, "expected a path, got ''")


def test_all_options_for_paths_are_tried() -> None:
    tried = options_for_paths()
    assert {command for command, _ in tried} == set(WITH_PATHS)
    assert len(tried) >= 20


@pytest.mark.parametrize("line", HUGE_LINES)
def test_a_number_beyond_all_machines_is_refused(line: str, places: dict[str, Path]) -> None:
    option = shlex.split(line)[-2]
    check(CliRunner().invoke(app, words(line, places)), 2, option)
    assert not places["new"].exists()


@pytest.mark.parametrize("address", ["", "nonsense", ":", ":6379", "host:", "ray://", "ray://host"])
def test_what_is_no_address_of_a_cluster_is_refused(address: str, places: dict[str, Path]) -> None:
    line = f"{GRID} --ray '{address}' -o {{new}}"
    said = f"--ray.* expected HOST:PORT, ray://HOST:PORT, auto or local, got '{address}'"
    check(CliRunner().invoke(app, words(line, places)), 2, said)


@pytest.mark.parametrize("command", ["fit", "predict {served}", "evaluate {served}", "explain {served}"])
def test_a_device_is_no_table(command: str, places: dict[str, Path]) -> None:
    line = f"{command} /dev/null"
    check(
        CliRunner().invoke(app, words(line, places)),
        2,
        "'/dev/null' is a device or a pipe, expected a regular file",
    )


@pytest.mark.parametrize("absent", [[], *([name] for name in MEETING), list(MEETING)])
@pytest.mark.parametrize("launcher", [{}, {"TORCHELASTIC_RUN_ID": "1"}])
def test_several_machines_must_be_told_where_to_meet(
    absent: list[str], launcher: dict[str, str], places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("started")

    monkeypatch.setattr("lapse.runs.run", start)
    for name, value in MEETING.items():
        monkeypatch.delenv(name, raising=False)
        if name not in absent:
            monkeypatch.setenv(name, value)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, words(f"{TRAIN} --nodes 3 -o {{new}}", places))
    if not absent or launcher:
        return check(result, 1, "started")
    check(result, 2, f"--nodes: nothing tells where the 3 machines meet: {', '.join(absent)} not set")
    assert not places["new"].exists()


def test_damaged_checkpoints_are_answered_with_the_option(places: dict[str, Path]) -> None:
    folder = RunConfig("mini-digits", "lstm").folder(places["new"])
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_bytes(b"damaged")
    result = CliRunner().invoke(app, words(f"{TRAIN} --model lstm -o {{new}}", places))
    check(result, 1, "no checkpoint can be read .*start again with --restart")


def test_half_the_seconds_go_to_each_kind_of_fuzzing() -> None:
    root = Path(__file__).parents[1]
    command = ["make", "--dry-run", "fuzz", "SECONDS=9"]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert "tests/test_fuzz.py 5\n" in said
    assert "tests/fuzz_kernels.py --seconds 5\n" in said


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


@pytest.mark.parametrize("module", ["lapse.cli", "typer", "lapse.cli.results", "lapse.runs", "lightning"])
def test_ctrl_c_during_imports_ends_in_one_line(module: str, tmp_path: Path) -> None:
    code = INTERRUPTED_IMPORT.replace("MODULE", repr(module))
    command = [sys.executable, "-c", code, *TRAIN.split(), "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stdout == ""
    # The run's folder is known as soon as all that its config needs is imported.
    how = "; the same command goes on after .*" if module == "lightning" else ""
    assert re.fullmatch(f"interrupted{how}\n", done.stderr), done.stderr


@pytest.mark.parametrize("module", ["lapse", "torch", "numpy", "lapse.kernels"])
def test_ctrl_c_while_lapse_is_imported_ends_in_one_line(module: str) -> None:
    code = INTERRUPTED_IMPORT.replace("MODULE", repr(module)).replace("lapse.__main__", "_lapse_command")
    done = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interruption_that_is_ignored_stays_so() -> None:
    """As a shell has it for a job in the background."""
    code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    code += INTERRUPTED_IMPORT.replace("MODULE", "'torch'").replace("lapse.__main__", "_lapse_command")
    done = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_before_a_command_begins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Commands, "make_context", interrupted)
    check(CliRunner().invoke(app, ["list"]), 130, "^interrupted\n$")


def test_ctrl_c_at_a_question_is_told(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise typer.Abort

    monkeypatch.setattr("lapse.runs.run", interrupted)
    check(CliRunner().invoke(app, TRAIN.split()), 130, "^interrupted\n$")


def test_ctrl_c_in_a_compiled_module_is_no_missing_extra(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        with extra("tasks"):
            raise ImportError("initialization failed") from KeyboardInterrupt()

    for name, said in {
        "runs.run": "^interrupted; the same command",
        "runs.RunConfig.folder": "^interrupted\n$",
    }.items():
        monkeypatch.setattr(f"lapse.{name}", interrupted)
        check(CliRunner().invoke(app, TRAIN.split()), 130, said)
