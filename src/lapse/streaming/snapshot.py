"""The states of a stream as one file: safetensors, with ids and digests in its header."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

import lapse
from lapse.models import Stepper
from lapse.sequences.ragged import Array
from lapse.sequences.storage import write_atomically

FORMAT = "lapse.Stream/1"


class Kept(NamedTuple):
    """What a stream is made of beside its model.

    Attributes:
        ids: the ids, the one without an event for the longest time first.
        rows: (N, width), their states.
        times: (N,), the times of their last events.
        evicted: how many ids were forgotten so far.
    """

    ids: list[Hashable]
    rows: Array
    times: Array
    evicted: int


def save(kept: Kept, step: Stepper, path: Path) -> None:
    """Write a snapshot, whole or not at all.

    Args:
        kept: the states.
        step: the model that they are states of.
        path: the file.
    """
    from safetensors.numpy import save as to_bytes

    ids = [_stored(id) for id in kept.ids]
    arrays = {"rows": np.ascontiguousarray(kept.rows), "times": np.ascontiguousarray(kept.times)}
    contents = {
        "format": FORMAT,
        "lapse": lapse.__version__,
        "model": fingerprint(step),
        "ids": ids,
        "evicted": kept.evicted,
        "arrays": _digest_of(arrays),
    }
    text = json.dumps(contents)
    header = {"contents": text, "digest": hashlib.sha256(text.encode()).hexdigest()}
    data = to_bytes(arrays, header)
    write_atomically(path, lambda file: file.write(data))


def _stored(id: Hashable) -> str | int:
    """An id as it is written; those of NumPy equal Python's."""
    if isinstance(id, bool | np.bool_) or not isinstance(id, str | int | np.integer):
        raise TypeError(f"only ids that are text or whole numbers can be stored, got {id!r}")
    return str(id) if isinstance(id, str) else int(id)


class SnapshotBusy(RuntimeError):
    """Another process goes on from this snapshot and will write it."""


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """A snapshot for this process alone; `SnapshotBusy` if another one has it. Of two, the last would undo the first.

    Args:
        path: the file, which need not be there yet.
    """
    # The lock is the kernel's and ends with the process, however that ends.
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0.5)
    try:
        lock.acquire()
    except Timeout:
        raise SnapshotBusy(f"another process uses {path}; wait for it or choose another file") from None
    try:
        for partial in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            partial.unlink(missing_ok=True)  # of a process that was killed while it wrote
        yield
    finally:
        lock.release()


def load(step: Stepper, path: Path) -> Kept:
    """The states that `save` wrote; ValueError if the file is damaged or belongs to another model.

    Args:
        step: the model that they must be states of.
        path: the file.
    """
    contents, arrays = _read(path)
    if contents.get("format") != FORMAT:
        raise ValueError(f"{path} says format {contents.get('format')!r}, expected {FORMAT!r}")
    if contents["arrays"] != _digest_of(arrays):
        raise ValueError(f"{path} is damaged: the digest of its states is wrong; take it from a backup")
    if contents["model"] != fingerprint(step):
        raise ValueError(
            f"{path} is a snapshot of a stream of another model; its states mean nothing to this one"
        )
    return Kept(contents["ids"], arrays["rows"], arrays["times"], contents["evicted"])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    from safetensors import SafetensorError, safe_open

    with path.open("rb"):
        pass  # the system says what is wrong with the path in clearer words
    try:
        with safe_open(path, "numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or no snapshot of a stream: {error}") from error
    text = header.get("contents", "")
    if hashlib.sha256(text.encode()).hexdigest() != header.get("digest"):
        raise ValueError(f"{path} is damaged, or no snapshot of a stream: the digest of its header is wrong")
    return dict(json.loads(text)), arrays


def fingerprint(step: Stepper) -> str:
    """A digest of all that the states of a model depend on."""
    said = [step.schema.config(), step.head.config(), step.described]
    digest = hashlib.sha256(json.dumps(said, default=str).encode())
    for name, tensor in (*step.named_parameters(), *step.named_buffers()):
        digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _digest_of(arrays: dict[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].tobytes())
    return digest.hexdigest()
