"""Runs: pure functions of their config, whatever kills them on the way."""

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from lapse import TASKS, runs
from lapse.cli.train import configure
from lapse.models import SequenceModel
from lapse.report.collection import Collection, departures
from lapse.runs import PRESETS, Result, RunBusy, RunConfig, UnreadableResult, hold, run
from lapse.training import TrainConfig
from unbroken import PHASES, assert_same_run, die, metrics, run_and_die, run_through, small_config


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


def test_a_run_that_diverges_fails_by_name_and_leaves_no_model(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from lapse.cli import app

    words = ["train", "mini-digits", "-m", "lstm", "-o", str(tmp_path), "--set", "hidden_size=4"]
    words += ["--set", "train.learning_rate=1e308", "--set", "train.epochs=2", "--set", "train.clip=null"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "train: loss is nan in epoch 0" in result.stderr
    assert "Likely cause" in result.stderr
    (folder,) = Collection.read(tmp_path).failed
    assert "NonFiniteError" in (folder / "error.txt").read_text()
    assert not (folder / "result.json").exists()
    assert not (folder / "model").exists()


def test_the_processes_of_these_tests_really_die(processes: Any) -> None:
    assert status(processes, die) == -signal.SIGKILL


def test_a_run_that_is_done_is_not_done_again(unbroken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(runs, "fit", again)
    monkeypatch.setattr(runs, "evaluate", again)
    root = unbroken.parents[2]
    assert run(small_config(), root) == Result.read(unbroken)


def test_a_run_leaves_a_model_that_answers(unbroken: Path) -> None:
    data = TASKS["mini-digits"].load().test[:5]
    assert len(SequenceModel.load(unbroken / "model").predict(data)) == 5
    assert [run.folder for run in Collection.read(unbroken.parents[2]).finished] == [unbroken]


def test_the_parts_of_a_model_can_be_set_on_the_command_line() -> None:
    words = ["readout=mlp", "readout_size=512", "readout_input=true", "difference=true", "scaling=standard"]
    config = configure("walker", "ode-lstm", "default", 0, [*words, "form=driven", "hidden_size=128"])
    assert config.architecture == {
        "readout": "mlp", "readout_size": 512, "readout_input": True, "difference": True, "scaling": "standard",
    }  # fmt: skip
    assert config.model_options["form"] == "driven"
    assert config.model_config(TASKS["walker"]).readout_size == 512
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert departures(config) == {**config.architecture, "form": "driven", "hidden_size": 128}
    with pytest.raises(
        typer.BadParameter, match="readout must be one of 'linear', 'mlp', 'deep', 'residual', got 'wide'"
    ):
        configure("walker", "ode-lstm", "default", 0, ["readout=wide"])


def test_runs_from_before_there_were_parts_keep_their_folders() -> None:
    """The digest is that of a run of an earlier version."""
    config = RunConfig("walker", "gru-d", train=TrainConfig(schedule="constant", warmup=0.0))
    assert config.digest == "e6ce6744"
    assert dataclasses.replace(config, architecture={"readout": "mlp"}).digest != config.digest


def test_another_seed_is_another_run(unbroken: Path, tmp_path: Path) -> None:
    other = small_config(seed=1)
    assert other.digest == small_config().digest
    assert other.folder(tmp_path) != small_config().folder(tmp_path)
    run(other, tmp_path)
    assert metrics(other.folder(tmp_path)) != metrics(unbroken)


def test_a_folder_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    config = small_config()
    with hold(config.folder(tmp_path)), pytest.raises(RunBusy, match="another process works in"):
        run(config, tmp_path)


def test_a_failure_leaves_its_traceback_until_the_run_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no luck today")

    config = small_config(epochs=1)
    error = config.folder(tmp_path) / "error.txt"
    with monkeypatch.context() as patch:
        patch.setattr(runs, "fit", fails)
        with pytest.raises(RuntimeError, match="no luck today"):
            run(config, tmp_path)
    assert "no luck today" in error.read_text()
    run(config, tmp_path)
    assert not error.exists()


def test_the_last_weights_have_the_last_validation(tmp_path: Path) -> None:
    config = small_config(restore_best=False, learning_rate=0.1)
    result = run(config, tmp_path)
    last = metrics(config.folder(tmp_path))[-1]
    assert f"{result.validation['accuracy']:.8g}" == last["validation_accuracy"]


def test_of_a_data_parallel_run_one_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(epochs=1)
    alone = runs._Training(config, tmp_path, None, False)
    pair = dataclasses.replace(alone, devices=2)
    assert alone.leads
    assert pair.leads
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert alone.leads
    assert not pair.leads


def test_a_config_survives_being_written() -> None:
    config = PRESETS["paper"](TASKS["xor-event"], "ode-lstm", 3)
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_the_paper_preset_is_the_paper() -> None:
    walker = PRESETS["paper"](TASKS["walker"], "ode-lstm", 0)
    person = PRESETS["paper"](TASKS["person"], "ode-rnn", 0)
    assert (walker.train.epochs, walker.train.restore_best) == (200, True)
    assert (person.train.epochs, person.train.restore_best) == (200, False)
    assert walker.model_options == {"form": "driven", "solver": "euler"}
    assert person.model_options == {"solver": "rk4"}
    with pytest.raises(ValueError, match="task 'mini-digits' is not in the paper; use the default preset"):
        PRESETS["paper"](TASKS["mini-digits"], "lstm", 0)


def test_a_run_of_the_ode_lstm_says_its_form() -> None:
    """Python and the command line agree, and what is stored cannot change its meaning with a default."""
    task = TASKS["walker"]
    assert PRESETS["default"](task, "ode-lstm").model_options == {"form": "autonomous"}
    assert RunConfig("walker", "ode-lstm").model_options == {"form": "autonomous"}
    assert PRESETS["paper"](task, "ode-lstm").model_options == {"form": "driven", "solver": "euler"}
    assert PRESETS["paper"](task, "lstm").model_options == {}


def test_a_stored_run_without_a_form_was_a_driven_one() -> None:
    values = RunConfig("walker", "ode-lstm").as_dict() | {"model_options": {"solver": "euler"}}
    assert RunConfig.from_dict(values).model_options == {"form": "driven", "solver": "euler"}
    again = RunConfig.from_dict(RunConfig("walker", "ode-lstm").as_dict())
    assert again.model_options == {"form": "autonomous"}


def test_the_digest_of_a_run_recorded_earlier_is_the_same() -> None:
    """A changed digest would do every recorded run again."""
    assert PRESETS["paper"](TASKS["walker"], "gru-ode").digest == "163a6122"
    assert PRESETS["paper"](TASKS["walker"], "ode-lstm").digest == "93acf73a"


def test_no_flipped_bit_of_a_result_is_silent(unbroken: Path) -> None:
    content = (unbroken / "result.json").read_bytes()
    whole = Result.parse(content)
    random = np.random.default_rng(0)
    for bit in random.choice(8 * len(content), min(2000, 8 * len(content)), replace=False).tolist():
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert Result.parse(bytes(changed)) == whole  # a space that became a line's end
        except UnreadableResult:
            continue


def test_a_result_without_a_digest_is_an_earlier_versions(unbroken: Path) -> None:
    values = json.loads((unbroken / "result.json").read_bytes())
    assert Result.parse(
        json.dumps({k: v for k, v in values.items() if k != "digest"}).encode()
    ) == Result.read(unbroken)
