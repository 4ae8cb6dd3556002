"""One file on disk: a safetensors file, written whole or not at all, verified and memory-mapped when read.

safetensors is a length, a JSON header and flat arrays: nothing in it can run code. Its NumPy reader copies
every array, so the few lines that map the file instead are here. Words (ids, groups) are stored as UTF-8
bytes and lengths. The header's metadata hold the SHA-256 of the whole file with the digest itself set to
zeros, so that a single changed bit anywhere in the file is found.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import mmap
import os
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lapse.sequences.ragged import FIELD_NAMES, Array, Sequences

FORMAT = "lapse.Sequences/2"
NO_DIGEST = "0" * 64  # what stands in place of the digest while the digest is computed
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
WORDS = ("ids", "groups")
# Disk full, quota used up, and the process's limit on the size of a file.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    fields = json.dumps(plain, default=_plain_scalar)
    metadata = {"format": FORMAT, "digest": NO_DIGEST, "fields": fields}
    content = to_bytes({k: _storable(k, v) for k, v in arrays.items()}, metadata)
    digest = hashlib.sha256(content).hexdigest()
    # A quotation mark inside the fields is escaped, so that this is the digest and not a label that looks like it.
    content = content.replace(f'"digest":"{NO_DIGEST}"'.encode(), f'"digest":"{digest}"'.encode(), 1)
    write_atomically(Path(path), lambda file: file.write(content))


def _storable(name: str, array: Array) -> Array:
    if array.dtype in (np.dtype(dtype) for dtype in DTYPES.values()):
        return array
    whole = array.astype(np.int64) if array.dtype.kind in "iu" else None
    if whole is None or (whole != array).any():
        raise ValueError(
            f"{name} has dtype {array.dtype}, which has no plain form on disk; turn it into text"
        )
    return whole


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"class label {value!r} cannot be saved; use text, numbers or booleans for labels")


def _words(name: str, array: Array) -> dict[str, Array]:
    encoded = [str(word).encode() for word in array]
    text = np.frombuffer(b"".join(encoded), np.uint8)
    return {f"{name}.text": text, f"{name}.lengths": np.array([len(word) for word in encoded], np.int64)}


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write beside `path` and rename: no reader sees half a file, and no error leaves one behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise OSError(
                error.errno,
                f"no space left in {path.parent} to write {path.name}; free some, or choose another folder",
            ) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | Path, verify: bool) -> Sequences:
    path = Path(path)
    try:
        return _load(path, verify)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # Whatever a damaged header leads to, the reader must hear which file it is and not only which key.
        raise ValueError(f"{path} is not a whole file of Sequences ({error}); save it again") from error


def _load(path: Path, verify: bool) -> Sequences:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    begin = 8 + int.from_bytes(mapped[:8], "little")
    if begin > len(mapped):
        raise ValueError("its header is longer than the file")
    header: dict[str, Any] = json.loads(mapped[8:begin])
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise ValueError(f"it holds {metadata.get('format')!r}, expected {FORMAT!r}")
    if verify:
        _verify(mapped, metadata["digest"])
    _check_places(header, len(mapped) - begin)
    arrays: dict[str, Any] = {name: _mapped(mapped, begin, entry) for name, entry in header.items()}
    for name in WORDS:
        if f"{name}.text" in arrays:
            arrays[name] = _unpacked(arrays.pop(f"{name}.text"), arrays.pop(f"{name}.lengths"))
    plain = json.loads(metadata["fields"])
    lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
    return Sequences(**arrays, **{**plain, **lists})


def _verify(mapped: mmap.mmap, digest: str) -> None:
    """Compare the file with its own digest, which counts as zeros."""
    place = mapped.find(f'"digest":"{digest}"'.encode()) + len('"digest":"')
    with memoryview(mapped) as content:
        found = hashlib.sha256(content[:place])
        found.update(NO_DIGEST.encode())
        found.update(content[place + len(NO_DIGEST) :])
    if found.hexdigest() != digest:
        raise ValueError(
            "its contents have changed since it was written: their SHA-256 is not the stored one"
        )


def _check_places(header: dict[str, Any], size: int) -> None:
    """The arrays must fill the file from end to end, without a hole and without sharing a byte."""
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    edges = [0, *(edge for span in spans for edge in span), size]
    joined = all(a == b for a, b in zip(edges[::2], edges[1::2], strict=True))
    if not joined or any(a > b for a, b in pairwise(edges)):
        raise ValueError(f"its arrays do not fill its {size:,} bytes of data from end to end: {spans}")


def _mapped(mapped: mmap.mmap, begin: int, entry: dict[str, Any]) -> Array:
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), entry["shape"]
    first, last = entry["data_offsets"]
    count = math.prod(shape)
    if count * dtype.itemsize != last - first:
        raise ValueError(f"an array of shape {shape} and type {dtype} does not fill {last - first} bytes")
    return np.frombuffer(mapped, dtype, count, begin + first).reshape(shape)


def _unpacked(text: Array, lengths: Array) -> Array:
    ends = np.cumsum(lengths)
    if (lengths < 0).any() or (ends[-1] if len(ends) else 0) != len(text):
        raise ValueError("the lengths of its words do not add up to their text")
    blob = text.tobytes()
    return np.array([blob[e - n : e].decode() for e, n in zip(ends, lengths, strict=True)], object)
