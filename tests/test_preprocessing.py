"""The one formula from raw values to what a network sees: scales, wild values, missing ones, the unit of time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from example_sequences import ragged
from lapse import Sequences
from lapse.models import Preprocessing


def measured(s: Sequences, **options: object) -> Preprocessing:
    static = 0 if s.static is None else s.static.shape[1]
    preprocessing = Preprocessing(s.num_features, static, missing=s.observed is not None, **options)  # type: ignore[arg-type]
    preprocessing.measure(s)
    return preprocessing


def seen(s: Sequences, **options: object) -> np.ndarray:
    """All preprocessed values (N, F) of the sequences, NaN where nothing was observed."""
    batch = s.batch(np.arange(len(s)))
    values = measured(s, **options)(batch).values
    if batch.observed is not None:
        values = values.masked_fill(~batch.observed, torch.nan)
    return values.numpy()


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=10),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5]),
    st.floats(-1e3, 1e3),
)
def test_standard_scaling_gives_mean_0_and_deviation_1(
    lengths: list[int], seed: int, missing: float, shift: float
) -> None:
    s = ragged(lengths, seed=seed, missing=missing)
    s.values[...] += np.float32(shift)
    values = seen(s).astype(np.float64)
    for column in range(2):
        known = values[~np.isnan(values[:, column]), column]
        assert abs(known.mean()) < 1e-2
        if len(np.unique(known)) > 1:
            assert abs(known.std() - 1) < 1e-2


def acidity() -> Sequences:
    random = np.random.default_rng(0)
    values = random.normal(7.4, 0.1, 5000)
    values[17] = 735.0  # a decimal point that was lost
    return Sequences.from_arrays(values.reshape(50, 100, 1), [np.arange(100.0)] * 50)


def test_one_wild_value_does_not_set_the_scale() -> None:
    assert float(measured(acidity()).scale) > 9
    robust = measured(acidity(), scaling="robust", clip=5.0)
    assert float(robust.scale) == pytest.approx(0.1, rel=0.05)
    assert float(robust.shift) == pytest.approx(7.4, abs=0.01)
    values = seen(acidity(), scaling="robust", clip=5.0)
    assert values.max() == 5.0
    assert np.delete(values, 17).std() == pytest.approx(1.0, abs=0.05)


def test_robust_scaling_of_what_is_mostly_one_value() -> None:
    s = Sequences.from_arrays([[[0, 7], [0, 7], [0, 7], [0, 7], [8, 7]]], [np.arange(5)])
    found = measured(s, scaling="robust")
    assert found.shift.tolist() == [0, 7]
    assert found.scale.tolist() == pytest.approx([3.2, 1.0])  # the standard deviation, and 1 for a constant


def test_without_scaling_values_stay_and_missing_ones_are_the_mean() -> None:
    s = Sequences.from_arrays([[[1.0, 5.0], [3.0, np.nan]]], [[0, 1]])
    values = measured(s, scaling="none")(s.batch([0])).values
    assert values.tolist() == [[1, 5], [3, 5]]
    assert measured(s, scaling="none").filled.tolist() == [2, 5]
    assert measured(s).filled.tolist() == [0, 0]


def test_constant_features_stay_finite() -> None:
    s = Sequences.from_arrays([[[7, 1], [7, 2]], [[7, np.nan]]], [[0, 1], [0]])
    assert seen(s)[:, 0].tolist() == [0, 0, 0]
    large = Sequences.from_arrays([np.full(3, 1e7 + 0.3)], [np.arange(3)])
    assert measured(large).scale.tolist() == [1]


def test_the_scale_comes_from_training_only() -> None:
    train, test = ragged([5] * 20).split_by_sequence((0.5, 0.5))
    found = measured(train)
    batch = test.batch([0])
    torch.testing.assert_close(found(batch).values, (batch.values - found.shift) / found.scale)


@pytest.mark.parametrize(("time_unit", "gap"), [(None, 4.0), ("median", 1.0), (2.0, 2.0)])
def test_the_unit_of_time_can_be_chosen(time_unit: object, gap: float) -> None:
    s = Sequences.from_arrays([[1, 2, 3]], [[0, 4, 8]])
    observations = measured(s, time_unit=time_unit)(s.batch([0]))
    assert observations.timespans.tolist() == [0, gap, gap]
    assert observations.times.tolist() == [0, gap, 2 * gap]


def test_static_features_come_with_a_flag_for_whether_they_are_known() -> None:
    s = Sequences.from_arrays([[1]] * 3, [[0]] * 3, static=[[1.0, 2.0], [3.0, np.nan], [5.0, 4.0]])
    static = measured(s)(s.batch([0, 1, 2])).static
    assert static is not None
    assert static[:, 2:].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert static[:, :2].mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert static[1, 1] == 0


def test_one_feature_is_not_taken_for_two() -> None:
    two, one = ragged([3, 2]), Sequences.from_arrays([[1.0, 2.0]], [[0, 1]])
    with pytest.raises(
        ValueError, match=r"has 1 features and 0 static ones, the model was built for 2 and 2"
    ):
        measured(two)(one.batch([0]))
