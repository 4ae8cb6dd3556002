"""One file on disk: a safetensors file, written whole or not at all, read back memory-mapped.

safetensors is a length, a JSON header and flat arrays: nothing in it can run code. Its NumPy reader copies
every array, so the few lines that map the file instead are here. Words (ids, groups) are stored as UTF-8
bytes and lengths.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lapse.sequences.ragged import FIELD_NAMES, Array, Sequences

FORMAT = "lapse.Sequences/1"
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
WORDS = ("ids", "groups")


def save(sequences: Sequences, path: str | Path) -> None:
    from safetensors.numpy import save as to_bytes

    arrays: dict[str, Array] = {}
    plain: dict[str, Any] = {}
    for name in FIELD_NAMES:
        value = getattr(sequences, name)
        if isinstance(value, np.ndarray):
            arrays |= (
                _words(name, value) if value.dtype.kind in "OUS" else {name: np.ascontiguousarray(value)}
            )
        elif value is not None:
            plain[name] = value
    metadata = {"format": FORMAT, "fields": json.dumps(plain, default=_plain_scalar)}
    content = to_bytes({k: _storable(k, v) for k, v in arrays.items()}, metadata)
    write_atomically(Path(path), lambda file: file.write(content))


def _storable(name: str, array: Array) -> Array:
    kinds = {np.dtype(dtype) for dtype in DTYPES.values()}
    if array.dtype not in kinds and array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype not in kinds:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which has no plain form on disk; turn it into text"
        )
    return array


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"class label {value!r} cannot be saved; use text, numbers or booleans for labels")


def _words(name: str, array: Array) -> dict[str, Array]:
    encoded = [str(word).encode() for word in array]
    text = np.frombuffer(b"".join(encoded), np.uint8)
    return {f"{name}.text": text, f"{name}.lengths": np.array([len(word) for word in encoded], np.int64)}


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write beside `path` and rename: no reader sees half a file, no error leaves one behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(
                errno.ENOSPC,
                f"no space left in {path.parent} to write {path.name}; free some, or choose another folder",
            ) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | Path) -> Sequences:
    path = Path(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, begin = _header(file, size, path)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} holds {metadata.get('format')!r}, expected {FORMAT!r}; save it again with this version"
        )
    arrays: dict[str, Any] = {name: _mapped(mapped, begin, entry) for name, entry in header.items()}
    for name in WORDS:
        if f"{name}.text" in arrays:
            arrays[name] = _unpacked(arrays.pop(f"{name}.text"), arrays.pop(f"{name}.lengths"))
    plain = json.loads(metadata["fields"])
    lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
    return Sequences(**arrays, **{**plain, **lists})


def _header(file: BinaryIO, size: int, path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header and where the arrays begin, once the file is as long as the header says."""
    length = int.from_bytes(file.read(8), "little")
    try:
        if length > size - 8:
            raise ValueError("its header is longer than the file")
        header: dict[str, Any] = json.loads(file.read(length))
        end = max((e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"), default=0)
        if 8 + length + end != size:
            raise ValueError(f"it has {size} bytes, its header promises {8 + length + end}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a whole file of Sequences ({error}); save it again") from error
    return header, 8 + length


def _mapped(mapped: mmap.mmap, begin: int, entry: dict[str, Any]) -> Array:
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), entry["shape"]
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(mapped, dtype, count, begin + entry["data_offsets"][0]).reshape(shape)


def _unpacked(text: Array, lengths: Array) -> Array:
    ends = np.cumsum(lengths)
    blob = text.tobytes()
    return np.array([blob[e - n : e].decode() for e, n in zip(ends, lengths, strict=True)], object)
