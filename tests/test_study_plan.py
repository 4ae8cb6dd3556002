"""Studies in a file: what they describe, what is refused, and configs that outlive added fields."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lapse.cli import app
from lapse.cli.train import configure
from lapse.runs import PRESETS, RunConfig
from lapse.study.plan import BadPlan, Plan
from lapse.tasks import TASKS

PAPER = Path(__file__).parents[1] / "studies" / "paper.toml"


def written(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def configs(plan: Plan) -> list[RunConfig]:
    return plan.configs(lambda preset, task, model, seed, s: configure(task, model, preset, seed, s))


def test_the_papers_study_has_every_cell_of_its_tables() -> None:
    made = configs(Plan.read(PAPER))
    cells = {(c.task, c.model) for c in made}
    assert cells == {(task, model) for task, t in TASKS.items() if t.paper for model in t.published}
    assert len({c.folder("x") for c in made}) == len(made)
    assert {c.train.schedule for c in made} == {"cosine"}
    assert [c.train.seed for c in made] == sorted(c.train.seed for c in made)


def test_settings_of_the_file_and_of_a_grid_both_hold(tmp_path: Path) -> None:
    text = """
    [settings]
    "train.epochs" = 7
    "ode-lstm:form" = "driven"
    [[grids]]
    tasks = ["mini-digits"]
    models = ["ode-lstm", "lstm"]
    seeds = 2
    settings = { "train.epochs" = 3 }
    [[grids]]
    tasks = ["mini-digits"]
    models = ["gru-d"]
    seeds = 1
    """
    made = configs(Plan.read(written(tmp_path, text)))
    found = [(c.train.seed, c.model, c.train.epochs, c.model_options.get("form")) for c in made]
    assert found == [
        (0, "ode-lstm", 3, "driven"),
        (0, "lstm", 3, None),
        (0, "gru-d", 7, None),
        (1, "ode-lstm", 3, "driven"),
        (1, "lstm", 3, None),
    ]


def test_what_a_grid_says_of_its_runs_has_the_last_word(tmp_path: Path) -> None:
    """Over what the file says of one model too; and what it says of one model, over what it says of all."""
    text = """
    [settings]
    hidden_size = 5
    "lstm:forget_bias" = 3.0
    [[grids]]
    tasks = ["mini-digits"]
    models = ["lstm", "ode-lstm"]
    seeds = 1
    settings = { forget_bias = 2.0, "ode-lstm:hidden_size" = 7 }
    [[grids]]
    tasks = ["mini-digits"]
    models = ["lstm"]
    seeds = 1
    settings = { "lstm:forget_bias" = 1.0 }
    """
    made = configs(Plan.read(written(tmp_path, text)))
    found = [(c.model, c.hidden_size, c.model_options["forget_bias"]) for c in made]
    assert found == [("lstm", 5, 2.0), ("ode-lstm", 7, 2.0), ("lstm", 5, 1.0)]


def test_models_of_the_file_are_those_of_grids_that_name_none(tmp_path: Path) -> None:
    text = f'models = ["lstm"]\n{GRID}seeds = 1\n{GRID}seeds = 1\nmodels = ["gru-d"]'
    assert [c.model for c in configs(Plan.read(written(tmp_path, text)))] == ["lstm", "gru-d"]


GRID = '[[grids]]\ntasks = ["mini-digits"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no \\[\\[grids\\]\\]"),
        ("grids = [", "cannot be read as a study"),
        ('[[grids]]\ntask = ["x"]', "did you mean 'tasks'"),
        ("[[grids]]\nseeds = 2", "tasks must be a list of names"),
        (GRID + "seeds = 0", "seeds must be a whole number of at least 1"),
        (GRID + 'models = "ode-lstm"', "models must be a list of names"),
        (GRID + 'settings = { "xx:form" = "driven" }', "is for 'xx'"),
        ('[settings]\n"xx:form" = "driven"\n' + GRID, "no grid has a task or model 'xx'"),
        ("colour = 1\n" + GRID, "the file has 'colour'"),
    ],
)
def test_what_is_no_study_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=message):
        Plan.read(written(tmp_path, text))


def test_the_command_does_a_study_from_a_file(tmp_path: Path) -> None:
    text = (
        'settings = { "train.epochs" = 1, "hidden_size" = 4 }\n'
        + GRID
        + 'models = ["rnn-decay"]\nseeds = 1\n'
    )
    words = ["study", str(written(tmp_path, text)), "-o", str(tmp_path / "runs"), "--workers", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1 of 1 runs are done" in done.output
    assert "hours of one core are left" in done.stderr
    again = CliRunner().invoke(app, words)
    assert "at most 0.0 hours" in again.stderr


def test_a_file_that_is_not_there_and_a_call_without_tasks_are_usage_errors(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["study", str(tmp_path / "no.toml")]).exit_code == 2
    assert CliRunner().invoke(app, ["study"]).exit_code == 2


# As runs wrote them before a schedule could be chosen.
OLD: dict[str, Any] = (
    json.loads("""{"task": "walker", "model": "lstm", "preset": "default", "hidden_size": 64,
"num_layers": 1, "model_options": {}, "task_options": {}, "train": {"seed": 0, "epochs": 100, "batch_size": 128,
"optimizer": "adam", "learning_rate": 0.005, "clip": 1.0, "patience": 20, "restore_best": true, "median_gap": true}}""")
)


def test_a_config_from_before_a_field_was_added_keeps_its_meaning_and_its_folder() -> None:
    config = RunConfig.from_dict(OLD)
    assert (config.train.schedule, config.train.warmup, config.train.weight_decay) == ("constant", 0.0, 0.0)
    assert config.digest == "b541a929"
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert PRESETS["default"](TASKS["walker"], "lstm").digest != config.digest


def test_the_rate_rises_and_falls() -> None:
    train = PRESETS["default"](TASKS["walker"], "lstm").train
    factors = [train.rate_factor(step, 1000) for step in range(1001)]
    assert factors[0] == pytest.approx(1 / 50, rel=1e-3)
    assert max(factors) == pytest.approx(1.0, abs=0.01)
    assert factors.index(max(factors)) == pytest.approx(50, abs=2)
    assert factors[-1] == pytest.approx(0.01)
    constant = RunConfig.from_dict(OLD).train
    assert {constant.rate_factor(step, 10) for step in range(11)} == {1.0}


def test_the_successors_study_is_one_that_can_be_done() -> None:
    """Every setting of the file is one that its runs take; the widths need the data, which are not everywhere."""
    plan = Plan.read(PAPER.with_name("successors.toml"))
    for grid in plan.grids:
        chosen = replace(grid, parameters=None).configs(
            lambda task, model, seed, s: configure(task, model, plan.preset, seed, s)
        )
        assert {config.train.epochs for config in chosen} <= {20, 50}
    sizes = [191_000, 90_000, 30_000]
    assert [grid.parameters for grid in plan.grids] == [*sizes, *sizes, None, None, 25_300, 51_200, 27_200]
