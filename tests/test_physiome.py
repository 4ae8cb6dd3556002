"""Forecasts of biological systems: trajectories, noise, thinning, what is hidden, and every command with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from typer.testing import CliRunner

import standins
from example_sequences import same
from lapse import MODELS, TASKS, Forecaster
from lapse.cli import app
from lapse.cli.train import configure
from lapse.runs import build_model
from lapse.sequences import Cuts, Sequences
from lapse.study.estimate import hours_left
from lapse.study.matching import Matching
from lapse.study.plan import Plan
from lapse.tasks import physiome
from lapse.tasks.baselines import baselines
from lapse.tasks.biology import SYSTEMS, System
from lapse.tasks.physiome import joint_gradient_deviation, observations, trajectories

ROOT = Path(__file__).parents[1]
WHOLE = dict(SYSTEMS)
PERIODIC = [name for name, system in SYSTEMS.items() if system.period]
SMALL = "physiome-lotka-volterra"


@pytest.fixture(autouse=True)
def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only what is prepared goes there: the compiled kernels are where they always are.
    monkeypatch.setattr("lapse.tasks.prepared.cache_folder", lambda: tmp_path / "cache")
    standins.watch_for_a_while(monkeypatch)


def as_published(name: str) -> System:
    return replace(WHOLE[name], constants_spread=0.0, states_spread=0.0)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.stdout


# Trajectories


@pytest.mark.parametrize("name", SYSTEMS)
def test_trajectories_are_those_of_another_integrator(name: str) -> None:
    system = replace(WHOLE[name], duration=WHOLE[name].duration / 5)
    ours = trajectories(system, 2, np.random.default_rng(0))
    random = np.random.default_rng(0)
    starts = random.uniform(1 - system.states_spread, 1 + system.states_spread, (2, len(system.states)))
    factors = random.uniform(
        1 - system.constants_spread, 1 + system.constants_spread, (2, len(system.constants))
    )
    constants = torch.tensor(factors[1] * list(system.constants.values()))[None]

    def field(_: float, y: np.ndarray) -> np.ndarray:
        return system.derivative(torch.from_numpy(y)[None], constants)[0].numpy()

    start = starts[1] * list(system.states.values())
    times = np.linspace(0.0, system.duration, physiome.POINTS)
    theirs = solve_ivp(field, (0.0, system.duration), start, "LSODA", times, rtol=1e-9, atol=1e-11)
    assert theirs.success
    scale = np.maximum(theirs.y.std(axis=1), 1e-12)
    assert (np.abs(ours[1] - theirs.y.T) / scale).max() < 1e-4


@pytest.mark.parametrize("name", PERIODIC)
def test_a_system_has_the_period_that_was_published(name: str) -> None:
    system = as_published(name)
    assert system.period is not None
    channel = trajectories(system, 1, np.random.default_rng(0))[0, :, 0]
    channel = channel[len(channel) // 3 :]  # after it has found its cycle
    level = (channel.min() + channel.max()) / 2
    up = np.flatnonzero((channel[:-1] < level) & (channel[1:] >= level))
    crossings = up + (level - channel[up]) / (channel[up + 1] - channel[up])
    period = np.diff(crossings).mean() * system.duration / (physiome.POINTS - 1)
    assert period == pytest.approx(system.period, rel=0.06)


def test_what_systems_conserve() -> None:
    random = np.random.default_rng(1)
    people = trajectories(SYSTEMS["epidemic"], 3, random).sum(2)
    np.testing.assert_allclose(people, np.repeat(people[:, :1], physiome.POINTS, 1), rtol=1e-9)
    kinases = trajectories(SYSTEMS["mapk"], 3, random)
    for enzyme in (slice(0, 2), slice(2, 5), slice(5, 8)):
        total = kinases[:, :, enzyme].sum(2)
        np.testing.assert_allclose(total, np.repeat(total[:, :1], physiome.POINTS, 1), rtol=1e-9)
    system = as_published("lotka-volterra")
    k = system.constants
    hares, lynxes = trajectories(system, 1, random)[0].T
    kept = k["delta"] * hares - k["gamma"] * np.log(hares) + k["beta"] * lynxes - k["alpha"] * np.log(lynxes)
    np.testing.assert_allclose(kept, kept[0], rtol=1e-5)


def test_the_axon_rests_without_a_current() -> None:
    system = SYSTEMS["hodgkin-huxley"]
    constants = {**system.constants, "current": 0.0}
    rest = torch.tensor([[0.0, 0.0529, 0.5961, 0.3177]], dtype=torch.float64)
    change = system.derivative(rest, torch.tensor([list(constants.values())], dtype=torch.float64))
    assert change.abs().max() < 0.02
    assert bool(
        torch.isfinite(system.derivative(rest + torch.tensor([[25.0, 0, 0, 0]]), torch.ones(1, 8))).all()
    )


@pytest.mark.parametrize("name", ["goodwin", "epidemic"])
def test_initial_states_are_moved_by_their_share_at_most(name: str) -> None:
    system = SYSTEMS[name]
    starts = trajectories(system, 400, np.random.default_rng(0))[:, 0]
    published = np.array(list(system.states.values()))
    moved = starts[:, published > 0] / published[published > 0] - 1
    assert np.abs(moved).max() <= system.states_spread
    assert np.abs(moved).max() > 0.95 * system.states_spread
    assert moved.std() == pytest.approx(system.states_spread / np.sqrt(3), rel=0.1)  # evenly


def test_every_system_says_where_it_is_from() -> None:
    assert len(SYSTEMS) >= 10
    for system in SYSTEMS.values():
        assert any(f"({year})" in system.source for year in range(1925, 2019))
        assert system.constants_spread in (0.05, 0.1, 0.3)
        assert system.states_spread in (0.1, 0.3, 0.5)


# Noise and thinning


def test_noise_and_thinning() -> None:
    seen = observations(np.zeros((1000, 100, 3)), ("a", "b", "c"), "h", np.random.default_rng(0))
    assert seen.observed is not None
    assert seen.values[seen.observed].std() == pytest.approx(physiome.NOISE, rel=0.02)
    assert seen.values[seen.observed].mean() == pytest.approx(0.0, abs=0.002)
    assert seen.observed.sum() / 300_000 == pytest.approx(1 - physiome.DROPPED, rel=0.02)
    assert seen.num_events / 100_000 == pytest.approx(1 - physiome.DROPPED**3, rel=0.02)  # each by itself
    assert seen.observed.any(axis=1).all()
    assert not seen.values[~seen.observed].any()
    assert (np.diff(seen.times[: seen.offsets[1]]) > 0).all()
    assert (seen.times.min(), seen.times.max()) == (0.0, 1.0)


def test_scales_are_those_of_the_training_instances() -> None:
    splits = TASKS["physiome-goodwin"].load(size=1000)
    sizes = [len(part) for part in splits.parts().values()]
    assert sizes == [700, 200, 100]
    train = splits.train
    assert train.observed is not None
    for k in range(3):
        values = train.values[train.observed[:, k], k]
        assert values.mean() == pytest.approx(0.0, abs=0.05)
        assert values.std() == pytest.approx(1.0, abs=0.05)


def test_the_seed_decides_everything() -> None:
    first = TASKS[SMALL].load(seed=3)
    same(first.test, physiome._generate(SYSTEMS["lotka-volterra"], physiome.SIZE, 3).test)
    other = TASKS[SMALL].load(seed=4)
    assert first.test.times.tolist() != other.test.times.tolist()


def test_instances_that_are_far_out_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(physiome, "FARTHEST", 2.0)
    splits = TASKS[SMALL].load()
    assert sum(map(len, splits.parts().values())) < physiome.SIZE
    assert "were left out" in splits.notes[-1]


def test_joint_gradient_deviation() -> None:
    time = np.linspace(0, 1, 50)[None, :, None]
    slopes = np.array([1.0, 2.0, 3.0])[:, None, None]
    assert joint_gradient_deviation(slopes * time)[0] == pytest.approx(0.0, abs=1e-12)  # lines
    waves = np.sin(20 * time + np.zeros((3, 1, 1)))
    assert joint_gradient_deviation(waves)[0] == pytest.approx(0.0, abs=1e-12)  # that all do the same
    assert joint_gradient_deviation(np.sin(20 * time + slopes))[0] > 0.01


# What is asked


def test_the_future_is_not_in_the_question() -> None:
    task = TASKS[SMALL]
    splits = task.load()
    cuts = task.question.examples(splits.test)
    assert isinstance(cuts, Cuts)
    assert len(cuts) == len(splits.test)
    assert cuts.history.times.max() <= 0.5 < cuts.queries.times.min()
    assert cuts.history.num_events + cuts.queries.num_events == splits.test.num_events
    model = build_model(configure(SMALL, "gru-d", "default", 0, ["hidden_size=4"]), task, splits)
    assert isinstance(model, Forecaster)
    with torch.no_grad():  # before training a readout is zero, and its state without effect
        for parameter in model.readout.parameters():
            parameter.normal_(0.0, 0.2)
    later = splits.test.times > 0.5
    other = replace(splits.test, values=np.where(later[:, None], 1e3, splits.test.values).astype(np.float32))
    again = task.question.examples(other)
    assert isinstance(again, Cuts)
    torch.testing.assert_close(model.outputs(again), model.outputs(cuts), rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_answers(name: str) -> None:
    task = TASKS[SMALL]
    config = configure(SMALL, name, "default", 0, ["hidden_size=4"])
    splits = task.load()
    model = build_model(config, task, splits)
    output = model(next(iter(task.question.examples(splits.test).batches(4))))
    assert output.shape[1] == 2
    assert bool(torch.isfinite(output).all())
    assert Matching().count(config) == sum(p.numel() for p in model.parameters())


def test_the_constant_forecast_is_the_mean_of_the_training_targets() -> None:
    task = TASKS[SMALL]
    splits = task.load()
    train, test = (task.question.asked(part).targets for part in (splits.train, splits.test))
    assert train is not None
    assert test is not None
    scores = baselines(task, splits)
    assert list(scores) == ["persistence", "mean", "linear", "boosting"]
    assert scores["mean"] == pytest.approx(np.nanmean((test - np.nanmean(train, axis=0)) ** 2), rel=1e-5)


def last_value(part: Sequences, row: int, feature: int, until: float) -> float | None:
    one = part[row]
    assert one.observed is not None
    seen = one.observed[:, feature] & (one.times <= until)
    return float(one.values[seen, feature][-1]) if seen.any() else None


def test_persistence_repeats_what_was_observed_last() -> None:
    task = TASKS[SMALL]
    splits = task.load()
    head = task.head()
    head.measure(task.question.asked(splits.train))
    repeated = head.answer(task.question.simple_answers(head, splits.train, splits.test)["persistence"])
    ends = task.question.asked(splits.test).offsets
    for row in range(len(splits.test)):
        for feature in range(2):
            last = last_value(splits.test, row, feature, 0.5)
            if last is not None:
                assert float(repeated[ends[row], feature]) == pytest.approx(last, abs=1e-5)


# The commands


def test_train_table_report_and_data(tmp_path: Path) -> None:
    settings = ["--set", "train.epochs=1", "--set", "hidden_size=4"]
    told = json.loads(run("train", SMALL, "--model", "gru-d", "-o", str(tmp_path), *settings))
    assert set(told["test"]) == {"loss", "mse", "mae"}
    assert Forecaster.load(Path(told["folder"]) / "model").head.config() == TASKS[SMALL].head().config()
    run("train", "physiome-epidemic", "--model", "lstm", "-o", str(tmp_path), *settings)
    table, other = json.loads(run("table", str(tmp_path), "-f", "json"))
    assert (table["task"], other["task"]) == (SMALL, "physiome-epidemic")
    rows = {row["model"]: row for row in table["rows"]}
    assert list(rows) == ["gru-d", "persistence", "mean", "linear", "boosting"]
    assert rows["mean"]["kind"] == "baseline"
    assert rows["gru-d"]["mean"] == told["test"]["mse"]
    page = Path(run("report", str(tmp_path), "-o", str(tmp_path / "page.html")).strip()).read_text()
    assert SMALL in page
    assert "Hudson" in page
    text = run("data", SMALL)
    assert "2 numbers (squared error) at each event after time 0.5" in " ".join(text.split())
    assert "joint gradient deviation" in text


def test_the_time_of_a_study_is_estimated(tmp_path: Path) -> None:
    config = configure(SMALL, "lstm", "default", 0, ["train.epochs=1", "hidden_size=4"])
    assert 0 < hours_left([config], tmp_path) < 1


def test_the_study_has_every_system() -> None:
    plan = Plan.read(ROOT / "studies" / "physiome.toml")
    assert [task for grid in plan.grids for task in grid.tasks] == list(physiome.TASKS)


def test_a_setting_that_a_forecaster_does_not_have() -> None:
    with pytest.raises(Exception, match="pooling is for a SequenceModel"):
        configure(SMALL, "lstm", "default", 0, ["pooling=mean"])
