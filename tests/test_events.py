"""Event coding: known examples, and nothing lost on the way there and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lapse import Events, decode_events, encode_events

series = hnp.arrays(np.int8, st.integers(0, 40), elements=st.integers(0, 2))


def test_four_ones_are_one_event_at_time_four() -> None:
    events = encode_events([1, 1, 1, 1])
    assert (events.symbols.tolist(), events.times.tolist(), events.offsets.tolist()) == ([1], [4], [0, 1])


def test_the_paper_figure() -> None:
    events = encode_events(list(b"aaaabbba"))
    assert events.symbols.tolist() == list(b"aba")
    assert np.diff(events.times, prepend=0).tolist() == [4, 3, 1]


def test_rows_are_coded_apart() -> None:
    events = encode_events([[1, 1], [1, 0]])
    assert events.symbols.tolist() == [1, 1, 0]
    assert events.times.tolist() == [2, 1, 2]
    assert events.offsets.tolist() == [0, 1, 3]


@given(st.lists(series, min_size=1, max_size=6))
def test_round_trip(parts: list[np.ndarray]) -> None:
    offsets = np.cumsum([0, *map(len, parts)])
    decoded = decode_events(encode_events(np.concatenate(parts), offsets=offsets))
    assert len(decoded) == len(parts)
    for part, back in zip(parts, decoded, strict=True):
        np.testing.assert_array_equal(part, back)
        assert part.dtype == back.dtype


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.sampled_from([0.0, 1.0])))
def test_round_trip_of_a_grid(grid: np.ndarray) -> None:
    events = encode_events(grid)
    np.testing.assert_array_equal(np.stack(decode_events(events)), grid)
    assert (events.times[events.offsets[1:] - 1] == grid.shape[1]).all()


@given(series)
def test_no_two_neighbours_are_alike(part: np.ndarray) -> None:
    assert (np.diff(encode_events(part).symbols) != 0).all()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="got shape"):
        encode_events(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="offsets must be whole numbers that rise from 0 to 3"):
        encode_events([1, 2, 3], offsets=[0, 2])
    with pytest.raises(ValueError, match="event 1 is at time 4"):
        decode_events(Events(np.array([1, 0]), np.array([4, 4]), np.array([0, 2])))
