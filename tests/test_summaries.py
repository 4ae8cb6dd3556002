"""Sequences as plain tables."""

from __future__ import annotations

import numpy as np

from example_sequences import ragged
from lapse.sequences.summaries import present, summarize


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
