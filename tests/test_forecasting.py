"""Forecasts of a table of one's own: the estimator, simple forecasts beside it, the command line."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import Result
from sklearn.base import clone
from typer.testing import CliRunner

from lapse import Cuts, Forecaster, Sequences
from lapse.cli import app
from lapse.cli.forecasts import predicted, verdict
from lapse.estimators import IrregularForecaster
from lapse.estimators.forecast_trial import ForecastTrial
from lapse.heads import Numbers, Quantiles
from lapse.models.simple_forecasts import simple_forecasts

QUICK = {"hidden_size": 6, "epochs": 12, "batch_size": 32, "horizon": "3h", "unit": "h", "targets": "level"}


def tanks(count: int = 40, seed: int = 0) -> pd.DataFrame:
    """Tanks that leak: the level falls at a rate of its own, and is read now and then; the lid is open or not."""
    random = np.random.default_rng(seed)
    rows = []
    for tank in range(count):
        hour = np.cumsum(random.exponential(0.5, 16))
        level = random.uniform(5, 9) - random.uniform(0.1, 0.6) * hour + random.normal(0, 0.05, 16)
        lid = np.where(random.random(16) < 0.5, "open", "shut")
        rows.append(pd.DataFrame({"tank": tank, "hour": hour, "level": level, "lid": lid}))
    return pd.concat(rows, ignore_index=True)


@pytest.fixture(scope="module")
def fitted() -> IrregularForecaster:
    return IrregularForecaster(**QUICK).fit(tanks())


def test_it_forecasts_a_table(fitted: IrregularForecaster) -> None:
    later = tanks(10, seed=1)
    ahead = [0.5, 2.0]
    found = fitted.predict(later, ahead=ahead)
    assert found.shape == (20,)
    fans = fitted.quantiles(later, ahead=ahead)
    assert fans.shape == (20, 5)
    assert (np.diff(fans, axis=1) >= 0).all()
    np.testing.assert_allclose(fans[:, 2], found)
    named = fitted.predictions(later, ahead=ahead).frame(id="tank", time="hour")
    assert named["tank"].tolist() == [tank for tank in range(10) for _ in ahead]
    np.testing.assert_allclose(named["prediction_q0.5"], found)


def test_times_may_be_asked_for_per_sequence(fitted: IrregularForecaster) -> None:
    later = tanks(3, seed=1)
    found = fitted.predictions(later, [[5.0], [5.0, 6.0], [5.5]])
    assert found.times.tolist() == [5.0, 5.0, 6.0, 5.5]


def test_it_knows_that_tanks_leak(fitted: IrregularForecaster) -> None:
    assert fitted.score(tanks(20, seed=1)) > 0.8
    now, then = fitted.predict(tanks(20, seed=1), ahead=[0.0, 3.0]).reshape(-1, 2).T
    assert (now - then).mean() > 0.5


def test_the_seed_decides(fitted: IrregularForecaster) -> None:
    again = clone(fitted).fit(tanks())
    later = tanks(4, seed=1)
    np.testing.assert_array_equal(again.predict(later, ahead=[1.0]), fitted.predict(later, ahead=[1.0]))


def test_several_features_and_other_answers() -> None:
    pairs = [(np.arange(8.0), np.random.default_rng(k).normal(size=(8, 2))) for k in range(20)]
    for answer in ("numbers", "gaussian"):
        forecaster = IrregularForecaster(answer=answer, hidden_size=4, epochs=1).fit(pairs)
        assert forecaster.predict(pairs, ahead=[1.0]).shape == (20, 2)
        assert np.isfinite(forecaster.score(pairs))
    with pytest.raises(ValueError, match="answer='quantiles'"):
        forecaster.quantiles(pairs, ahead=[1.0])
    with pytest.raises(ValueError, match="answer must be one of"):
        IrregularForecaster(answer="words").fit(pairs)


def test_what_it_saves_is_a_forecaster(fitted: IrregularForecaster, tmp_path) -> None:
    fitted.save(tmp_path)
    later = fitted.sequences(tanks(4, seed=1))
    expected = fitted.forecaster_.predict(later, ahead=[1.0])
    found = Forecaster.load(tmp_path).predict(later, ahead=[1.0])
    np.testing.assert_array_equal(found["prediction_q0.5"], expected["prediction_q0.5"])


# Simple forecasts


def line(slope: float) -> Sequences:
    return Sequences.from_arrays([slope * np.arange(4.0)], [np.arange(4.0)], features=("x",))


def test_simple_forecasts_by_hand() -> None:
    rising = Sequences.from_arrays(
        [np.arange(6.0) + k for k in range(5)], [np.arange(6.0)] * 5, features=("x",)
    )
    train, test = Cuts.random(rising, count=9, queries=None), Cuts.ahead(line(1.0), [2.0])
    outputs = simple_forecasts(Numbers(["x"], scale=False, per_step=True), train, test)
    assert outputs["persistence"].item() == 3.0
    assert outputs["mean"].item() == pytest.approx(np.nanmean(train.queries.targets))
    assert outputs["linear"].item() == pytest.approx(5.0, abs=0.3)


def test_simple_quantiles_are_those_of_the_errors() -> None:
    random = np.random.default_rng(0)
    noise = Sequences.from_arrays(
        [random.normal(size=12) for _ in range(200)], [np.arange(12.0)] * 200, features=("x",)
    )
    cuts = Cuts.random(noise, count=2)
    head = Quantiles(["x"], per_step=True)
    head.measure(cuts.queries)
    for output in simple_forecasts(head, cuts, cuts).values():
        below = (torch.tensor(cuts.queries.targets).unsqueeze(-1) <= head.answer(output)).float().mean((0, 1))
        torch.testing.assert_close(below, torch.tensor([0.1, 0.5, 0.9]), atol=0.01, rtol=0)


def test_a_feature_that_was_never_seen_is_taken_as_typical() -> None:
    values = [np.array([[1.0, np.nan], [2.0, np.nan], [3.0, 7.0]])] * 3
    data = Sequences.from_arrays(values, [np.arange(3.0)] * 3, features=("x", "y"))
    cuts = Cuts.random(data, "y", count=1, seed=0)
    outputs = simple_forecasts(Numbers(["y"], scale=False, per_step=True), cuts, cuts)
    torch.testing.assert_close(outputs["persistence"], torch.full((3, 1), 7.0))


# The command line


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a forecaster that `lapse fit --forecast` made of it."""
    folder = tmp_path_factory.mktemp("tanks")
    table = tanks(30)
    table["outcome"] = np.repeat(np.arange(30) % 2, 16)
    table.to_csv(folder / "tanks.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.estimators.recipe.epochs", lambda cuts, batch: 2)
        done = run("fit", folder / "tanks.csv", "--forecast", "--horizon", "2h", "--target", "level", "--id", "tank",
                   "-o", folder / "model")  # fmt: skip
    assert done.exit_code == 0, done.output
    names = [line.split()[0] for line in done.stdout.splitlines()[1:5]]
    assert names == ["lapse", "persistence", "mean", "linear"]
    assert "held-out sequences" in done.stdout
    assert "outcome (an outcome, which is not forecast)" in " ".join(done.stderr.split())
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_forecast_on_the_command_line(stored: Path) -> None:
    done = run("predict", stored / "model", stored / "tanks.csv", "--ahead", "30min,2")
    assert done.exit_code == 0, done.output
    table = pd.read_csv(io.StringIO(done.stdout))
    last = tanks(30).groupby("tank")["hour"].max()
    assert table.columns.tolist()[:3] == ["tank", "hour", "prediction_q0.05"]
    np.testing.assert_allclose(table["hour"][:2], [last[0] + 0.5, last[0] + 2.0])
    later = run("predict", stored / "model", stored / "tanks.csv", "--at", "8,500min")
    assert later.exit_code == 0, later.output
    np.testing.assert_allclose(pd.read_csv(io.StringIO(later.stdout))["hour"][:2], [8.0, 500 / 60])


def test_figures_of_a_stored_forecaster(stored: Path) -> None:
    done = run("evaluate", stored / "model", stored / "tanks.csv")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["sequences"] == 30
    assert 0 < found["figures"]["pinball"] < 1


def test_dates_are_asked_for_and_answered_as_dates(tmp_path: Path) -> None:
    table = tanks(6)
    for zone in (None, "Europe/Vienna"):
        start = pd.Timestamp("2024-05-01", tz=zone)
        dated = table.assign(hour=start + pd.to_timedelta(table["hour"], unit="h"))
        data = Sequences.from_frame(dated, id="tank", time="hour", values="level", unit="h")
        Forecaster.for_data(Cuts.random(data), hidden_size=4).save(tmp_path)
        found = predicted(tmp_path, data, "2024-05-01 04:30", "").frame(time="hour")
        assert (found["hour"] - (start + pd.Timedelta("4.5h"))).abs().max() < pd.Timedelta("1ms")
        ahead = predicted(tmp_path, data, "", "30min").frame(time="hour")["hour"]
        last = dated.groupby("tank")["hour"].max().reset_index(drop=True)
        assert (ahead - last - pd.Timedelta("30min")).abs().max() < pd.Timedelta("1ms")


def test_a_simpler_forecast_that_is_better_is_named(fitted: IrregularForecaster) -> None:
    better = {"lapse": {"pinball": 2.0}, "linear": {"pinball": 1.0}}
    trial = ForecastTrial(fitted.forecaster_, better, 5, fitted.train_)
    assert "linear is better than lapse" in verdict(trial)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "model", "tanks.csv"), "say when with --ahead"),
        (("predict", "model", "tanks.csv", "--ahead", "1h", "--at", "9"), "say when with --ahead"),
        (("fit", "tanks.csv", "--horizon", "2h", "--target", "outcome"), "is for --forecast"),
        (("fit", "tanks.csv", "--forecast", "--target", "lid", "--id", "tank"), "'lid' cannot be forecast"),
    ],
)
def test_wrong_commands(stored: Path, arguments: tuple[str, ...], message: str) -> None:
    names = {"model": stored / "model", "tanks.csv": stored / "tanks.csv"}
    done = run(*(names.get(argument, argument) for argument in arguments))
    assert done.exit_code != 0
    assert message in " ".join(done.output.replace("│", " ").split())
