"""Tuning: trials are runs that never saw the test split, and a search can be taken up again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lapse import runs
from lapse.cli import app
from lapse.runs import Result, run
from lapse.training import NonFiniteError
from lapse.tune import Choice, LogRange, TuningFailed, space_for, tune, with_parameters
from unbroken import small_config

SPACE = {"train.learning_rate": LogRange(1e-3, 1e-1), "hidden_size": Choice((4, 6))}


def test_a_search_never_looks_at_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*args: Any) -> None:
        raise AssertionError("the test split was looked at")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "evaluate", looked)
        config = small_config(epochs=1)
        best = tune(config, tmp_path, 2, space=SPACE)
        again = tune(config, tmp_path, 3, space=SPACE)
    assert (best.trials, again.trials) == (2, 3)
    assert again.value >= best.value
    assert best.metric == "accuracy"
    folder = again.config.folder(tmp_path)
    assert Result.read(folder) is None
    # The run of the best trial is trained already: only its test is left.
    monkeypatch.setattr("lightning.Trainer.fit", looked)
    assert run(again.config, tmp_path).validation["accuracy"] == again.value


def test_a_killed_search_takes_its_trial_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, asked = small_config(epochs=1), []

    def killed(config: Any, *args: Any, **kwargs: Any) -> None:
        asked.append(config)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lapse.tune.run_without_test", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(config, tmp_path, 1, space=SPACE)
    assert tune(config, tmp_path, 1, space=SPACE).config == asked[0]


def test_trials_that_break_down_are_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise NonFiniteError("loss is nan")

    monkeypatch.setattr("lapse.tune.run_without_test", broken)
    with pytest.raises(TuningFailed, match=r"every trial failed; see error\.txt"):
        tune(small_config(), tmp_path, 2, space=SPACE)


def test_a_trial_that_broke_down_counts_also_when_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose trainings break down gets no more trials than the others."""
    ended: list[str] = []

    def sometimes(config: Any, *args: Any, **kwargs: Any) -> Any:
        if not ended:
            raise NonFiniteError("loss is nan")
        return SimpleNamespace(best_value=0.5)

    monkeypatch.setattr("lapse.tune.run_without_test", sometimes)
    for _ in range(2):
        best = tune(
            small_config(), tmp_path, 3, space=SPACE, after_trial=lambda trial: ended.append(trial.state.name)
        )
    assert ended == ["FAIL", "COMPLETE", "COMPLETE"]
    assert best.trials == 2


def test_parameters_are_read_as_the_command_line_reads_them() -> None:
    found = with_parameters(small_config(), {"train.clip": 2.0, "hidden_size": 3, "forget_bias": 2.0})
    assert (found.train.clip, found.hidden_size) == (2.0, 3)
    assert found.model_options == {"dropout": 0.2, "forget_bias": 2.0}
    assert space_for("ode-lstm").keys() - space_for("lstm").keys() == {"form"}


def test_the_command_tells_how_to_test_the_best(tmp_path: Path) -> None:
    small = ["--set", "train.epochs=1", "--model", "lstm"]
    told = CliRunner().invoke(app, ["tune", "mini-digits", "--trials", "1", "-o", str(tmp_path), *small])
    assert told.exit_code == 0, told.output
    assert "validation accuracy" in told.stdout
    command = told.stdout.splitlines()[1].split()
    assert command[:2] == ["lapse", "train"]
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.glob("**/result.json"))) == len(list(tmp_path.glob("**/metrics.csv"))) == 1
