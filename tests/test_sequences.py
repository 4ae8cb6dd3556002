"""`Sequences`: what goes in, what is derived, what a subset keeps, what a file gives back."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from example_sequences import ragged, same
from lapse import Sequences
from lapse.sequences import storage


def test_gaps_follow_the_convention() -> None:
    s = Sequences.from_arrays([[1, 2, 3], [4, 5]], [[10.0, 11.0, 14.0], [2.0, 2.0]])
    assert s.timespans.tolist() == [0, 1, 3, 0, 0]
    assert s.gaps.tolist() == [1, 3, 0]
    assert s.median_gap == 2.0
    told = Sequences.from_arrays([[1, 2], [4]], [[10.0, 11.0], [2.0]], starts=[7.5, 2.0])
    assert told.timespans.tolist() == [2.5, 1, 0]
    assert told.timespans.dtype == np.float32


def test_median_gap_without_any_gap_is_one() -> None:
    assert Sequences.from_arrays([[1.0]], [[3.0]]).median_gap == 1.0


def test_arrays_are_sorted_and_nan_is_not_observed() -> None:
    s = Sequences.from_arrays([[[1, np.nan], [2, 5]]], [[3.0, 1.0]], targets=[[7, 8]], per_step=True)
    assert s.values.tolist() == [[2, 5], [1, 0]]
    assert s.observed is not None
    assert s.observed.tolist() == [[True, True], [True, False]]
    assert s.targets is not None
    assert s.targets.tolist() == [8, 7]
    assert s.missing == 0.25
    assert (
        repr(s) == "Sequences(1 sequence, 2 events, 2 features; lengths 2 to 2; 25.0% of values not observed)"
    )


def test_nothing_is_padded() -> None:
    s = ragged([1, 1000, 3])
    assert s.values.shape == (1004, 2)
    assert len(s) == 3


def test_subset_keeps_everything_of_the_chosen() -> None:
    s = ragged([2, 5, 3], missing=0.3)
    picked = s[[2, 0]]
    same(picked[1], s[0])
    same(s[1:], s[np.array([False, True, True])])
    assert picked.ids is not None
    assert picked.ids.tolist() == ["id2", "id0"]
    np.testing.assert_array_equal(picked.values[:3], s.values[7:])
    with pytest.raises(IndexError):
        s[3]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.randoms())
def test_taking_and_taking_back_is_the_identity(lengths: list[int], random: object) -> None:
    s = ragged(lengths)
    order = np.random.default_rng(0).permutation(len(s))
    same(s.take(order).take(np.argsort(order)), s)


def test_bad_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="2 arrays of values but 1 of times"):
        Sequences.from_arrays([[1], [2]], [[0]])
    with pytest.raises(ValueError, match="id 1 has no rows"):
        Sequences.from_arrays([[1.0], []], [[0.0], []])
    with pytest.raises(ValueError, match="sequence 0 has values of shape"):
        Sequences.from_arrays([[1, 2]], [[0]])
    with pytest.raises(ValueError, match="differ in their number of features"):
        Sequences.from_arrays([[[1, 2]], [[1]]], [[0], [0]])
    with pytest.raises(ValueError, match="sequence 0 starts at 2"):
        Sequences.from_arrays([[1]], [[0]], starts=[2])
    with pytest.raises(ValueError, match="sequence 0 has 1 targets for 2 events"):
        Sequences.from_arrays([[1, 2]], [[0, 1]], targets=[[1]], per_step=True)
    with pytest.raises(ValueError, match="per_step needs one array"):
        Sequences.from_arrays([[1, 2]], [[0, 1]], per_step=True)
    with pytest.raises(ValueError, match="encode words"):
        Sequences.from_arrays([[1, 2]], [[0, 1]], targets=["yes"])
    for target in (np.inf, 1e39):
        with pytest.raises(ValueError, match=r"target 0 is .*, expected a number that float32 can hold"):
            Sequences.from_arrays([[1, 2]], [[0, 1]], targets=[target])
    with pytest.raises(ValueError, match="the table is empty"):
        Sequences.from_arrays([], [])
    with pytest.raises(ValueError, match="targets has 2 rows, expected 1"):
        Sequences.from_arrays([[1, 2]], [[0, 1]], targets=[1, 2])
    with pytest.raises(ValueError, match=r"values must be \(N, 1\)"):
        Sequences(np.zeros((2, 3)), np.zeros(2), np.array([0, 2]), features=("a",))
    with pytest.raises(ValueError, match="offsets must rise from 0 to 2"):
        Sequences(np.zeros((2, 1)), np.zeros(2), np.array([0, 1]))


@given(st.lists(st.integers(1, 5), min_size=2, max_size=8), st.sampled_from([0.0, 0.4]))
def test_a_file_gives_back_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], missing: float
) -> None:
    s = ragged(lengths, missing=missing)
    path = tmp_path_factory.mktemp("saved") / "data.safetensors"
    s.save(path)
    same(Sequences.load(path), s)
    assert [p.name for p in path.parent.iterdir()] == ["data.safetensors"]


def test_loading_maps_the_file_instead_of_reading_it(tmp_path: Path) -> None:
    ragged([400_000]).save(tmp_path / "big.safetensors")
    s = Sequences.load(tmp_path / "big.safetensors")
    assert not s.values.flags.owndata
    assert not s.values.flags.writeable
    assert next(iter(s.batches(4))).values.shape == (400_000, 2)


def test_a_saved_file_holds_no_pickle(tmp_path: Path) -> None:
    from safetensors import safe_open

    ragged([3, 2]).save(tmp_path / "s.safetensors")
    with safe_open(tmp_path / "s.safetensors", "numpy") as file:
        assert "values" in file.keys()  # noqa: SIM118 - safe_open is no dict


@pytest.mark.parametrize("keep", [0, 4, 30, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "s.safetensors"
    ragged([3, 2]).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"s\.safetensors is not a whole file"):
        Sequences.load(path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="expected 'lapse"):
        Sequences.load(tmp_path / "model.safetensors")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(OSError, match=r"no space left in .* free some"):
        ragged([3]).save(tmp_path / "s.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_small_integers_and_numpy_labels_are_saved(tmp_path: Path) -> None:
    from dataclasses import replace

    s = replace(ragged([3]), ids=np.array([7], np.int16), classes=(np.int64(4), "b", True))
    s.save(tmp_path / "s")
    back = Sequences.load(tmp_path / "s")
    assert back.classes == (4, "b", True)
    assert back.ids is not None
    assert back.ids.tolist() == [7]


def test_a_folder_in_the_way_is_reported_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(IsADirectoryError):
        ragged([3]).save(tmp_path / "s")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_what_has_no_plain_form_is_not_saved(tmp_path: Path) -> None:
    from dataclasses import replace

    s = ragged([3])
    with pytest.raises(ValueError, match="ids has dtype complex128"):
        replace(s, ids=np.array([1j])).save(tmp_path / "s")
    with pytest.raises(ValueError, match="class label"):
        replace(s, classes=(object(),)).save(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_float32_and_int64_for_torch() -> None:
    batch = ragged([2, 3]).batch([0, 1])
    assert batch.values.dtype == torch.float32
    assert batch.targets is not None
    assert batch.targets.dtype == torch.int64
