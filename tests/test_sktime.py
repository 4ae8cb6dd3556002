"""sktime's own checks of lapse.sktime, and what they do not ask; `make test-peers` has the environment."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime", reason="`make test-peers` runs this in an environment of its own")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of sktime and what it imports

from sktime.utils import check_estimator  # noqa: E402

from example_estimators import QUICK  # noqa: E402
from lapse.estimators import IrregularClassifier, IrregularRegressor  # noqa: E402
from lapse.sktime import SktimeClassifier, SktimeRegressor  # noqa: E402


@pytest.mark.parametrize("kind", [SktimeClassifier, SktimeRegressor])
def test_sktimes_own_checks(kind: type) -> None:
    results = check_estimator(kind, raise_exceptions=False, verbose=False)
    assert results
    assert {name: found for name, found in results.items() if found != "PASSED"} == {}


def panel(times: list[pd.Index], values: list[np.ndarray]) -> pd.DataFrame:
    """The instances in falling order of their names, so that sorting them would be noticed."""
    names = [f"instance {99 - i}" for i in range(len(times))]
    index = [(name, time) for name, one in zip(names, times, strict=True) for time in one]
    frame = pd.DataFrame({"a": np.concatenate(values), "b": 1.0})
    return frame.set_axis(pd.MultiIndex.from_tuples(index, names=["instance", "when"]))


def paced(start: pd.Timestamp | int, unit: pd.Timedelta | int) -> tuple[pd.DataFrame, np.ndarray]:
    """Series of which only the gaps tell the class."""
    random = np.random.default_rng(0)
    slow = np.arange(40) % 2
    lengths = random.integers(4, 8, 40)
    times = [
        pd.Index([start + unit * (k * (5 if one else 1)) for k in range(length)])
        for one, length in zip(slow, lengths, strict=True)
    ]
    return panel(times, [random.normal(size=length) for length in lengths]), slow


@pytest.mark.parametrize(
    ("start", "unit"), [(0, 1), (pd.Timestamp("2026-01-01"), pd.Timedelta("1h"))], ids=["integers", "dates"]
)
def test_the_time_stamps_are_used(start: pd.Timestamp | int, unit: pd.Timedelta | int) -> None:
    X, slow = paced(start, unit)
    eager = {"epochs": 30, "batch_size": 8, "learning_rate": 0.03, "weight_decay": 0.0, "refit": False}
    alone = {"boosting": False, "summaries": False, "dropout": 0.0, "hide": 0.0}
    fitted = SktimeClassifier(IrregularClassifier(**QUICK | eager | alone | {"model": "lstm"})).fit(X, slow)
    assert (fitted.predict(X) == slow).mean() > 0.9
    assert fitted.predict_proba(X).shape == (40, 2)


def test_periods_missing_values_and_the_order_of_instances() -> None:
    lengths = np.arange(30) % 4 + 3
    levels = np.arange(30.0)
    times = [pd.period_range("2026-01", periods=length, freq="M") for length in lengths]
    values = [np.where(np.arange(n) == 1, np.nan, level) for n, level in zip(lengths, levels, strict=True)]
    X = panel(times, values)
    fitted = SktimeRegressor(IrregularRegressor(**QUICK)).fit(X, levels)
    assert np.corrcoef(fitted.predict(X), levels)[0, 1] > 0.9
