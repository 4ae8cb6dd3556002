"""Matched comparisons: every model of a row has the same number of parameters, by the choice of its width."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lapse import MODELS
from lapse.cli import app
from lapse.cli.train import configure
from lapse.runs import RunConfig, build_model
from lapse.study import Grid
from lapse.study.matching import Matching
from lapse.study.plan import BadPlan, Plan
from lapse.tasks import TASKS

TASK = "mini-digits"


def grid(parameters: int, *settings: str, models: list[str] | None = None) -> Grid:
    return Grid([TASK], models or list(MODELS), range(2), settings, parameters)


def made(chosen: Grid) -> list[RunConfig]:
    return chosen.configs(lambda task, model, seed, s: configure(task, model, "default", seed, s), Matching())


def test_every_model_has_the_number_within_a_twentieth() -> None:
    splits = TASKS[TASK].load()
    configs = made(grid(20_000, "readout=mlp", "readout_size=32", "cfc:backbone_units=64"))
    assert len(configs) == 2 * len(MODELS)
    for config in configs:
        model = build_model(config, TASKS[TASK], splits)  # as the run will build it
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(20_000, rel=0.05), config.model
    widths = {config.model: config.hidden_size for config in configs}
    assert widths["rnn-decay"] > widths["lstm"] > widths["ode-lstm"]


def test_the_choice_is_the_nearest_width() -> None:
    (config, _) = made(grid(9_000, models=["lstm"]))
    matching = Matching()

    def off(width: int) -> int:
        return abs(matching.count(config.with_setting("hidden_size", width)) - 9_000)

    assert off(config.hidden_size) == min(off(config.hidden_size + d) for d in (-1, 0, 1))


def test_what_no_width_gives_is_an_error_that_says_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"lstm on mini-digits has .* parameters with 1 units.*readout_size"):
        made(grid(1_000, "readout=mlp", "readout_size=512", models=["lstm"]))


def test_a_grid_without_anything_to_choose_with_is_refused() -> None:
    with pytest.raises(ValueError, match="needs `match`"):
        grid(1_000).configs(lambda task, model, seed, s: RunConfig(task, model))


def test_a_file_says_it_for_a_grid(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        f'[[grids]]\ntasks = ["{TASK}"]\nmodels = ["lstm", "gru-d"]\nseeds = 1\nmatch = {{ parameters = 5000 }}\n'
        f'[[grids]]\ntasks = ["{TASK}"]\nmodels = ["lstm"]\nseeds = 1\n'
    )
    configs = Plan.read(path).configs(
        lambda preset, task, model, seed, s: configure(task, model, preset, seed, s), Matching()
    )
    counts = [Matching().count(config) for config in configs]
    assert counts[:2] == pytest.approx([5_000, 5_000], rel=0.05)
    assert configs[2].hidden_size == 64


@pytest.mark.parametrize("match", ["5000", '{ parameters = "many" }', "{ units = 3 }", "{ parameters = 0 }"])
def test_a_file_that_asks_for_something_else_is_refused(tmp_path: Path, match: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f'[[grids]]\ntasks = ["{TASK}"]\nmatch = {match}\n')
    with pytest.raises(BadPlan, match=r"match must be a number of parameters, \{ parameters = 30000 \}"):
        Plan.read(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--match", "units=3"], "expected parameters=N"),
        (["--match", "parameters=10"], "nearest to 10"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path: Path, words: list[str], message: str) -> None:
    given = ["study", "--tasks", TASK, "--models", "lstm", "-o", str(tmp_path), *words]
    done = CliRunner().invoke(app, given, terminal_width=200)
    assert done.exit_code == 2
    assert message in done.output


def test_a_file_and_a_number_beside_it_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", str(tmp_path / "x.toml"), "--match", "parameters=9"])
    assert done.exit_code == 2
    assert "a FILE says it" in done.output
