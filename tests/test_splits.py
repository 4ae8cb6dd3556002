"""Splits that leak nothing: every sequence once, no group twice, no future in the past."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_sequences import ragged, same
from lapse import Sequences
from lapse.sequences.splits import as_dates


def names(s: Sequences) -> list[str]:
    assert s.ids is not None
    return [str(name) for name in s.ids]


@given(st.integers(10, 60), st.integers(0, 9), st.booleans())
def test_by_sequence_deals_every_sequence_once(count: int, seed: int, stratify: bool) -> None:
    s = ragged([2] * count)
    parts = s.split_by_sequence((0.6, 0.2, 0.2), seed=seed, stratify=stratify)
    assert sorted(name for part in parts for name in names(part)) == sorted(names(s))
    assert abs(len(parts[0]) - 0.6 * count) <= 1


def test_seeds_decide() -> None:
    s = ragged([2] * 50)
    first, again, other = (s.split_by_sequence(seed=seed)[0] for seed in (1, 1, 2))
    same(first, again)
    assert names(first) != names(other)


def test_stratified_parts_have_the_same_share_of_each_class() -> None:
    labels = np.array([1] * 30 + [0] * 170)
    s = Sequences.from_arrays([[0.0]] * 200, [[0.0]] * 200, targets=labels)
    for part in s.split_by_sequence((0.5, 0.3, 0.2), stratify=True):
        assert part.targets is not None
        assert abs(part.targets.mean() - 0.15) < 0.01
    with pytest.raises(ValueError, match="stratify needs one class per sequence"):
        Sequences.from_arrays([[0.0]] * 9, [[0.0]] * 9).split_by_sequence((0.5, 0.5), stratify=True)


@given(st.integers(8, 40), st.integers(0, 9))
def test_no_group_is_in_two_parts(count: int, seed: int) -> None:
    s = ragged([1] * count)
    parts = s.split_by_group((0.5, 0.25, 0.25), seed=seed)
    seen = [set(part.groups.tolist()) for part in parts if part.groups is not None]
    assert len(set.union(*seen)) == sum(map(len, seen)) == 4
    assert sum(map(len, parts)) == count


def test_bad_fractions_and_missing_groups() -> None:
    s = ragged([1] * 4)
    for fractions in [(0.5, 0.4), (1.2, -0.2), ()]:
        with pytest.raises(ValueError, match="positive and sum to 1"):
            s.split_by_sequence(fractions)
    with pytest.raises(ValueError, match="4 groups cannot be split"):
        s.split_by_group((0.9, 0.05, 0.05))
    with pytest.raises(ValueError, match="have no groups; name their column with group="):
        Sequences.from_arrays([[1.0]], [[0.0]]).split_by_group()


def history() -> Sequences:
    return Sequences.from_arrays(
        [[1, 2], [3, 4, 5], [6]], [[0, 1], [1, 3, 4], [5]], ids=["past", "both", "future"]
    )


def test_by_time_leaves_out_what_crosses_the_boundary() -> None:
    past, future = history().split_by_time(2.5)
    assert (names(past), names(future)) == (["past"], ["future"])
    with pytest.raises(ValueError, match="no sequence lies wholly between"):
        history().split_by_time(0.5)
    with pytest.raises(ValueError, match="in increasing order"):
        history().split_by_time(3, 2)


def test_cut_keeps_every_event_and_the_gap_across() -> None:
    before, after = history().cut_at(2.5)
    assert (names(before), names(after)) == (["past", "both"], ["both", "future"])
    assert before.values.ravel().tolist() == [1, 2, 3]
    assert after.values.ravel().tolist() == [4, 5, 6]
    assert after.timespans.tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match="leaves no event on one side"):
        history().cut_at(99)


def test_dates_as_boundaries() -> None:
    table = pd.DataFrame({"i": ["a", "b"], "t": pd.to_datetime(["2024-01-01", "2024-02-01"]), "x": [1, 2]})
    s = Sequences.from_frame(table, id="i", time="t", values="x", unit="D")
    past, future = s.split_by_time("2024-01-15")
    assert (names(past), names(future)) == (["a"], ["b"])
    assert len(s.cut_at(pd.Timestamp("2024-01-15"))[0]) == 1
    with pytest.raises(ValueError, match="the boundary must be a number"):
        history().split_by_time("2024-01-01")


@pytest.mark.parametrize("hours", [1e10, -1e10, 1e300])
def test_a_time_that_is_no_date_is_refused_and_not_written_as_none(hours: float) -> None:
    frame = pd.DataFrame({"id": 1, "time": pd.date_range("2024-01-01", periods=3, freq="h"), "x": 1.0})
    s = Sequences.from_frame(frame, id="id", time="time", values="x", unit="h")
    assert as_dates(s, np.array([2.0])).tolist() == [pd.Timestamp("2024-01-01 02:00")]
    with pytest.raises(ValueError, match="is no date that a table can hold"):
        as_dates(s, np.array([2.0, hours]))
