"""Events gathered into bins: means, gaps, categories, targets, the calendar."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_sequences import ragged
from lapse import Sequences


def minutes() -> Sequences:
    return Sequences.from_arrays(
        [[[1, np.nan], [3, np.nan], [5, 7], [9, np.nan]], [[2, 4]]],
        [[0, 10, 60, 200], [59]],
        targets=[[0, 1, 0, 1], [1]],
        per_step=True,
        features=("a", "b"),
        unit="min",
    )


@pytest.mark.parametrize("width", ["1h", "60min", "60 min", 60])
def test_means_per_bin_and_nothing_where_nothing_was_observed(width: float | str) -> None:
    s = minutes().bin(width)
    assert s.lengths.tolist() == [3, 1]
    assert s.times.tolist() == [60, 120, 240, 60]
    assert s.values.tolist() == [[2, 0], [5, 7], [9, 0], [2, 4]]
    assert s.observed is not None
    assert s.observed.tolist() == [[True, False], [True, True], [True, False], [True, True]]
    assert s.timespans.tolist() == [0, 60, 120, 0]
    assert s.targets is not None
    assert s.targets.tolist() == [1, 0, 1, 1]  # of the last event in each bin


def test_counts_are_features_of_their_own() -> None:
    s = minutes().bin("1h", counts=True)
    assert s.features == ("a", "b", "a count", "b count")
    assert s.values[:, 2:].tolist() == [[2, 0], [1, 1], [1, 0], [1, 1]]
    assert s.observed is not None
    assert s.observed[:, 2:].all()


def test_the_last_word_stands_for_a_bin() -> None:
    table = pd.DataFrame({"i": 1, "t": [0, 1, 2, 10], "x": ["low", "high", None, None]})
    s = Sequences.from_frame(table, id="i", time="t", values="x").bin(5)
    assert s.observed is not None
    assert s.observed.ravel().tolist() == [True, False]
    assert s.categories["x"][int(s.values[0, 0])] == "high"


def dated(first: str) -> Sequences:
    dates = pd.to_datetime([first, "2024-03-01 10:40", "2024-03-01 11:05", "2024-03-01 11:59"])
    table = pd.DataFrame({"i": [0, 1, 1, 1], "t": dates, "x": [0.0, 1.0, 2.0, 4.0]})
    return Sequences.from_frame(table, id="i", time="t", values="x", unit="min")


@pytest.mark.parametrize("first", ["2024-03-01 10:39", "2024-02-11 03:17", "2024-03-01 00:00"])
def test_bins_of_dates_follow_the_calendar_and_not_the_rest_of_the_table(first: str) -> None:
    s = dated(first).bin("1h")[1]
    assert s.values.ravel().tolist() == [1, 3]
    assert s.timespans.tolist() == [0, 60]
    assert s.origin is not None
    assert np.datetime64(s.origin) + np.timedelta64(int(s.times[0]), "m") == np.datetime64("2024-03-01T11:00")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0.05, 3.0), st.integers(0, 3))
def test_every_observation_is_in_exactly_one_bin(lengths: list[int], width: float, seed: int) -> None:
    s = ragged(lengths, seed=seed, missing=0.4)
    binned = s.bin(width, counts=True)
    count = binned.values[:, 2:]
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    np.testing.assert_array_equal(count.sum(0), observed.sum(0))
    np.testing.assert_allclose((binned.values[:, :2] * count).sum(0), s.values.sum(0), rtol=1e-4)
    assert (binned.gaps > 0).all()
    for i in range(len(s)):
        alone = s[i].bin(width, counts=True)
        np.testing.assert_array_equal(alone.values, binned[i].values)
        np.testing.assert_array_equal(alone.times, binned[i].times)


def test_an_edge_belongs_to_the_bin_that_begins_there() -> None:
    s = Sequences.from_arrays([np.arange(40.0)], [np.arange(40) * 0.1])
    assert s.bin(0.1).lengths.tolist() == [40]
    assert s.bin(0.2).lengths.tolist() == [20]


@pytest.mark.parametrize(
    ("width", "unit", "message"),
    [
        ("1 parsec", "h", "expected a width such as '1h'"),
        ("h1", "h", "expected a width such as '1h'"),
        ("1h", None, "count time in unit=None, so that '1h' cannot be converted"),
        ("1h", "frames", "count time in unit='frames'"),
        (0, "h", "must be positive and finite, got 0"),
        ("0h", "h", "must be positive and finite"),
        (np.inf, None, "must be positive and finite"),
        (-1.0, "h", "must be positive and finite"),
    ],
)
def test_a_width_that_makes_no_sense(width: Any, unit: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sequences.from_arrays([[1.0]], [[0.0]], unit=unit).bin(width)


def test_no_sequences_have_no_bins() -> None:
    assert len(minutes()[[]].bin(1)) == 0
