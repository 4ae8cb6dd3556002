"""Files of `Sequences`: a changed bit is always found, and a damaged file is always named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as to_bytes

from example_sequences import ragged, same
from lapse import Sequences
from lapse.sequences.storage import FORMAT, NO_DIGEST
from lapse.tasks import Splits
from lapse.tasks.prepared import prepared

FLIPS = 5000


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_flipped_bit_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    # A label that looks like the digest must not be taken for it.
    whole = replace(ragged([30, 1, 7], missing=0.3), classes=(f'"digest":"{NO_DIGEST}"', "b", 3))
    whole.save(path)
    content = path.read_bytes()
    bits = np.random.default_rng(0).integers(0, 8 * len(content), FLIPS).tolist()
    assert [bit for bit in bits if not is_refused(path, content, bit)] == []
    same(Sequences.load(path), whole)


def is_refused(path: Path, content: bytes, bit: int) -> bool:
    """Whether the file with this bit flipped is refused by name."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        file.write(flipped(content, bit)[bit // 8 :][:1])
        file.flush()
        try:
            Sequences.load(path)
        except ValueError as error:
            return "s.safetensors is not a whole file of Sequences" in str(error)
        finally:
            file.seek(bit // 8)
            file.write(content[bit // 8 :][:1])
    return False


def test_no_flipped_bit_of_prepared_data_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path))
    splits = Splits(ragged([3]), ragged([2]), ragged([1, 2]), notes=("one", "two"))
    made: list[int] = []

    def prepare() -> Splits:
        made.append(1)
        return splits

    prepared("demo", (), {}, prepare)
    (folder,) = (tmp_path / "prepared").iterdir()
    files = sorted(folder.iterdir())
    random = np.random.default_rng(0)
    for attempt in range(60):
        path = files[attempt % len(files)]
        content = path.read_bytes()
        path.write_bytes(flipped(content, int(random.integers(8 * len(content)))))
        found = prepared("demo", (), {}, prepare)
        assert found.notes == ("one", "two")
        for name, part in found.parts().items():
            same(part, splits.parts()[name])
        assert len(made) == attempt + 2, f"a flipped bit in {path.name} went unnoticed"


@pytest.mark.parametrize("name", ["train.safetensors", "notes.json"])
@pytest.mark.parametrize("content", [b"", b"\0" * 200, b"null", b"[[]]", b"\xff" * 9, b"{}" * 100])
def test_prepared_data_with_any_other_contents_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path))
    splits = Splits(ragged([3]), ragged([2]), ragged([1, 2]), notes=("one",))
    prepared("demo", (), {}, lambda: splits)
    (damaged,) = (tmp_path / "prepared").glob(f"*/{name}")
    damaged.write_bytes(content)
    assert prepared("demo", (), {}, lambda: splits).notes == ("one",)
    assert damaged.read_bytes() != content


def test_verification_can_be_left_out_for_huge_files(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    ragged([5, 3]).save(path)
    content = path.read_bytes()
    path.write_bytes(flipped(content, 8 * content.index(b"id0id1")))
    with pytest.raises(ValueError, match="contents have changed since it was written"):
        Sequences.load(path)
    assert Sequences.load(path, verify=False).num_events == 8


HEADER = {
    "values": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    "times": {"dtype": "F64", "shape": [2], "data_offsets": [8, 24]},
    "offsets": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
}


def write_file(path: Path, header: Any, data: bytes, **metadata: Any) -> None:
    named = {"format": FORMAT, "digest": NO_DIGEST, "fields": "{}", **metadata}
    text = json.dumps({**header, "__metadata__": named}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def damaged_headers() -> dict[str, tuple[Any, dict[str, Any]]]:
    def changed(name: str, **entry: Any) -> Any:
        return {**HEADER, name: {**HEADER[name], **entry}}

    return {
        "overlapping arrays": (changed("times", data_offsets=[0, 16]), {}),
        "a negative place": (changed("values", data_offsets=[-8, 0]), {}),
        "a place past the end": (changed("offsets", data_offsets=[24, 4000]), {}),
        "a hole": (changed("times", data_offsets=[9, 24]), {}),
        "an unknown type": (changed("values", dtype="F8"), {}),
        "a negative shape": (changed("values", shape=[-2, -1]), {}),
        "too large a shape": (changed("values", shape=[2, 2]), {}),
        "no shape": ({**HEADER, "values": {"dtype": "F32", "data_offsets": [0, 8]}}, {}),
        "an array that is a word": ({**HEADER, "values": "many"}, {}),
        "an array too many": (
            {**HEADER, "more": {"dtype": "U8", "shape": [0], "data_offsets": [40, 40]}},
            {},
        ),
        "an array too few": ({k: v for k, v in HEADER.items() if k != "offsets"}, {}),
        "fields that are no JSON": (HEADER, {"fields": "{"}),
        "fields that are a list": (HEADER, {"fields": "[1]"}),
        "an unknown field": (HEADER, {"fields": '{"colour": 1}'}),
        "nested too deeply": (HEADER, {"fields": "[" * 100_000}),
        "another format": (HEADER, {"format": "lapse.Sequences/99"}),
    }


@pytest.mark.parametrize("damage", damaged_headers())
def test_a_damaged_header_names_the_file(tmp_path: Path, damage: str) -> None:
    header, metadata = damaged_headers()[damage]
    data = np.zeros(2, np.float32).tobytes() + np.zeros(2).tobytes() + np.array([0, 2]).tobytes()
    write_file(tmp_path / "good", HEADER, data)
    assert Sequences.load(tmp_path / "good", verify=False).num_events == 2
    write_file(tmp_path / "odd", header, data, **metadata)
    for verify in (True, False):
        with pytest.raises(ValueError, match=r"odd is not a whole file of Sequences \(.*\); save it again"):
            Sequences.load(tmp_path / "odd", verify=verify)


@pytest.mark.parametrize("offsets", [[0, 3, 1, 4], [0, -1, 4], [0, 2, 2, 4], [1, 4], [0, 5], []])
def test_sequences_may_not_overlap_or_be_empty(tmp_path: Path, offsets: list[int]) -> None:
    arrays = {
        "values": np.zeros((4, 1), np.float32),
        "times": np.arange(4.0),
        "offsets": np.array(offsets, int),
    }
    with pytest.raises(ValueError, match="offsets must rise from 0 to 4"):
        Sequences(**arrays)
    metadata = {"format": FORMAT, "digest": NO_DIGEST, "fields": "{}"}
    (tmp_path / "s").write_bytes(to_bytes(arrays, metadata))
    with pytest.raises(ValueError, match="not a whole file of Sequences"):
        Sequences.load(tmp_path / "s", verify=False)


def test_ids_that_leave_int64_are_not_saved_as_others(tmp_path: Path) -> None:
    s = replace(ragged([3]), ids=np.array([2**63 + 1], np.uint64))
    with pytest.raises(ValueError, match="ids has dtype uint64, which has no plain form on disk"):
        s.save(tmp_path / "s")
    replace(s, ids=np.array([7], np.uint64)).save(tmp_path / "s")
    ids = Sequences.load(tmp_path / "s").ids
    assert ids is not None
    assert ids.tolist() == [7]
