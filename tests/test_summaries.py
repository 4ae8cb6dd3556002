"""Sequences as plain tables."""

from __future__ import annotations

import numpy as np
import pytest

from example_sequences import ragged
from lapse.sequences import Sequences
from lapse.sequences.summaries import SHAPE, STATISTICS, present, summarize


def by_hand(s, i):
    rows = slice(s.offsets[i], s.offsets[i + 1])
    numbers = np.where(s.observed[rows], s.values[rows], np.nan) if s.observed is not None else s.values[rows]
    found = []
    for column in numbers.T.astype(float):
        seen = column[~np.isnan(column)]
        four = [seen[-1], seen.mean(), seen.min(), seen.max()] if len(seen) else [np.nan] * 4
        found += [*four, np.log1p(len(seen))]
    return np.array(found)


def test_each_feature_has_its_statistics():
    s = ragged([4, 1, 7, 3], features=3, missing=0.5)
    names, table = summarize(s)
    assert names[:3] == ("static 0", "static 1", "feature 0 last")
    assert len(names) == table.shape[1] == 2 + 5 * 3
    for i in range(len(s)):
        np.testing.assert_allclose(table[i, 2:], by_hand(s, i), rtol=1e-6)
        np.testing.assert_allclose(table[i, :2], s.static[i])


def shape_by_hand(times, values):
    if len(values) == 0:
        return [np.nan] * 4
    change = np.abs(np.diff(values)).mean() if len(values) > 1 else 0.0
    slope = np.polyfit(times, values, 1)[0] if len(values) > 1 else 0.0
    return [values.std(), change, values[0], slope]


def test_each_feature_has_a_shape():
    s = ragged([4, 1, 7, 3, 1, 2, 2, 30], features=3, missing=0.5)
    names, table = summarize(s, STATISTICS)
    assert names[2:11] == tuple(f"feature 0 {statistic}" for statistic in STATISTICS)
    counts = set()
    for i in range(len(s)):
        rows = slice(s.offsets[i], s.offsets[i + 1])
        for feature in range(3):
            seen = s.observed[rows, feature]
            counts.add(min(int(seen.sum()), 2))
            values = s.values[rows, feature][seen].astype(float)
            found = table[i, 2 + 9 * feature :][5:9]
            np.testing.assert_allclose(
                found, shape_by_hand(s.times[rows][seen], values), rtol=1e-9, atol=1e-9
            )
    assert counts == {0, 1, 2}  # none, one and several observations all occur
    np.testing.assert_array_equal(summarize(s, SHAPE).values[:, 2:6], table[:, 7:11])
    np.testing.assert_array_equal(summarize(s).values[:, 2:7], table[:, 2:7])


def test_a_slope_needs_time_and_all_stay_in_float32():
    s = Sequences.from_arrays([[[1.0], [3.0]], [[-3e38], [3e38]]], [[0.1, 0.1], [0.0, 1e-9]])
    slopes = summarize(s, ("slope",)).values[:, 0]
    assert slopes[0] == 0
    assert slopes[1] == pytest.approx(np.finfo(np.float32).max)
    assert np.isfinite(summarize(s, STATISTICS).values.astype(np.float32)).all()
    far = Sequences.from_arrays([[[5e6], [5e6 + 1], [5e6 + 2]]], [[1e9, 1e9 + 2, 1e9 + 4]])
    np.testing.assert_allclose(summarize(far, SHAPE).values, [[np.sqrt(2 / 3), 1.0, 5e6, 0.5]], rtol=1e-12)


def test_present_is_the_latest_value_of_the_same_sequence():
    s = ragged([4, 1, 7, 3], features=2, missing=0.5)
    names, table = present(s)
    assert names[2:] == ("feature 0", "feature 1", "gap before the event")
    for i in range(len(s)):
        latest = np.full(2, np.nan)
        for row in range(s.offsets[i], s.offsets[i + 1]):
            latest = np.where(s.observed[row], s.values[row], latest)
            np.testing.assert_allclose(table[row, 2:4], latest)
            assert table[row, 4] == s.timespans[row]
