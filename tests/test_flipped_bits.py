"""Bits flipped in every kind of stored file: each is found and the file named, or it changed nothing.

pytest flips a few; `make flip-bits FLIPS=5000` as many as it is told.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from example_models import model_for, sequences
from example_sequences import ragged
from lapse import Cuts, Forecaster, SequenceModel, Sequences, Stream, heads
from lapse.estimators import Ensemble
from lapse.estimators.preparation import Preparation
from lapse.estimators.trees import grow_classes
from lapse.models import Schema
from lapse.runs import Result, RunConfig, UnreadableResult
from lapse.stored_config import digest_of
from lapse.streaming import snapshot
from lapse.tables import Roles
from lapse.training import DamagedCheckpoint, TrainConfig, fit
from lapse.training.checkpoints import Checkpoints

CUTS = Cuts.random(sequences(count=20))
REFUSALS = (ValueError, UnreadableResult, DamagedCheckpoint)


def write_ensemble(folder: Path) -> None:
    train = sequences(count=20)
    preparation = Preparation(Schema.of(train), per_step=False)
    prepared, head = preparation(train), heads.for_data(train)
    trees = grow_classes(prepared.table, head.targets_of(train), head, 0)
    Ensemble(preparation, [model_for(prepared.sequences, model="lstm")], trees).save(folder)


def write_result(folder: Path) -> None:
    scores = {"loss": 0.5, "accuracy": 90.0}
    values = dataclasses.asdict(Result(RunConfig("mini-digits", "lstm"), scores, scores, 1, 2, 3, 0.5, 1e4))
    (folder / "result.json").write_text(json.dumps(values | {"digest": digest_of(values)}, indent=2))


def write_checkpoint(folder: Path) -> None:
    train = sequences()
    fit(model_for(train, model="lstm"), train, train, TrainConfig(epochs=1), folder=folder, progress=False)


def write_snapshot(folder: Path) -> None:
    stream = Stream(model_for(sequences(), model="lstm"))
    stream.push_many(["a", 2, "ü"], [0.0, 1.0, 2.0], np.ones((3, 2)))
    stream.snapshot(folder / "stream.safetensors")


def read_snapshot(folder: Path) -> Any:
    step = Stream(model_for(sequences(), model="lstm")).step
    return tuple(snapshot.load(step, folder / "stream.safetensors"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a kind of file is written into a folder and read again, and what it is called there."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    files: tuple[str, ...]


KINDS = {
    "sequences": Kind(
        lambda folder: ragged([30, 1, 7], missing=0.3).save(folder / "s"),
        lambda folder: Sequences.load(folder / "s"),
        ("s",),
    ),
    "model": Kind(
        lambda folder: model_for(sequences(), model="lstm").save(folder),
        lambda folder: contents(SequenceModel.load(folder)),
        ("model.safetensors", "config.json"),
    ),
    "forecaster": Kind(
        lambda folder: Forecaster.for_data(CUTS, model="lstm", hidden_size=4).save(folder),
        lambda folder: contents(Forecaster.load(folder)),
        ("model.safetensors", "config.json"),
    ),
    "snapshot": Kind(write_snapshot, read_snapshot, ("stream.safetensors",)),
    "ensemble": Kind(
        write_ensemble,
        lambda folder: ensemble_contents(Ensemble.load(folder)),
        ("config.json", "trees.safetensors"),
    ),
    "roles": Kind(
        lambda folder: Roles("id", "time", ("x",), ("y",), unit="h").save(folder / "table.json"),
        lambda folder: Roles.load(folder / "table.json"),
        ("table.json",),
    ),
    "result": Kind(
        write_result, lambda folder: Result.parse((folder / "result.json").read_bytes()), ("result.json",)
    ),
    "checkpoint": Kind(write_checkpoint, lambda folder: Checkpoints(folder).newest(), ("last.ckpt",)),
}


def contents(model: SequenceModel | Forecaster) -> Any:
    return model.state_dict(), model.config, model.schema, model.head.config()


def ensemble_contents(ensemble: Ensemble) -> Any:
    networks = [contents(network) for network in ensemble.networks]
    return networks, ensemble.preparation.config(), ensemble.trees, ensemble.tree_share, ensemble.temperature


def fingerprint(value: Any) -> Any:
    """Plain values that are equal if and only if what was read is the same."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist() if value.dtype == object else value.tobytes()
    if dataclasses.is_dataclass(value):
        return {f.name: fingerprint(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): fingerprint(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(part) for part in value]
    return repr(value)


def silent(kind: Kind, folder: Path, flips: int, draw: random.Random) -> list[str]:
    """The flips that were neither refused by the name of the file nor without any effect."""
    whole, found = fingerprint(kind.read(folder)), []
    for _ in range(flips):
        path = folder / draw.choice(kind.files)
        content = path.read_bytes()
        changed, place = bytearray(content), draw.randrange(8 * len(content))
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            if fingerprint(kind.read(folder)) != whole:
                found.append(f"bit {place} of {path.name}")
        except REFUSALS as error:
            if path.name not in str(error):
                found.append(f"bit {place} of {path.name}: {error!r}")
        finally:
            path.write_bytes(content)
    return found


@pytest.mark.parametrize("name", KINDS)
def test_no_flipped_bit_is_silent(name: str, tmp_path: Path) -> None:
    KINDS[name].write(tmp_path)
    assert silent(KINDS[name], tmp_path, 60, random.Random(0)) == []


def main(flips: int) -> int:
    """Flip so many bits, as many in each kind of file; the number that was silent."""
    warnings.simplefilter("ignore")
    each, total = -(-flips // len(KINDS)), 0
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            kind.write(Path(folder))
            found = silent(kind, Path(folder), each, random.Random(0))
        print(f"{name:<12}{each:>6} flipped {len(found):>4} silent", *found, sep="\n  ", flush=True)
        total += len(found)
    return total


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000) > 0)
