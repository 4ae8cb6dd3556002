"""The files from which a training goes on: the last two whole epochs, and what they belong to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lapse.models.base import Data, Model
from lapse.sequences import Sequences
from lapse.stored_config import without_absent_fields
from lapse.training.config import TrainConfig

# These only decide when a training stops, so more of them may be asked for later.
STOPPING = ("epochs", "patience")
# What a model sees of sequences; their ids and names do not change its weights.
SEEN = ("values", "times", "offsets", "observed", "targets", "static", "static_observed", "starts", "weights")


class DamagedCheckpoint(RuntimeError):
    """No checkpoint in the folder can be read."""


class DamagedCheckpointWarning(UserWarning):
    """The last checkpoint cannot be read; training goes on from the one before."""


class OtherTraining(ValueError):
    """The folder holds checkpoints of a training with other data, another model or other settings."""


class Checkpoint(NamedTuple):
    """A file and what it holds."""

    path: Path
    state: dict[str, Any]


@dataclass(frozen=True)
class Checkpoints:
    """The last two checkpoints of a training: should the newer one be damaged, the older one is still there.

    Args:
        folder: where the two files are.
    """

    folder: Path

    @property
    def last(self) -> Path:
        """The newer file."""
        return self.folder / "last.ckpt"

    @property
    def before(self) -> Path:
        """The older file."""
        return self.folder / "before.ckpt"

    @property
    def partial(self) -> Path:
        """Where a checkpoint is written before it gets its name, so that a kill leaves the others whole."""
        return self.folder / "last.ckpt.part"

    def keep(self) -> None:
        """Give the finished `partial` its name; what had that name becomes the older one."""
        if self.last.exists():
            self.last.replace(self.before)
        self.partial.replace(self.last)

    def clear(self) -> None:
        """Remove all checkpoints."""
        for path in (self.last, self.before, self.partial):
            path.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """The newer checkpoint that is whole; None if there is no file at all."""
        damage: dict[Path, Exception] = {}
        for path in (self.last, self.before):
            if not path.exists():
                continue
            try:
                state = _read(path)
            except Exception as error:  # a damaged file raises anything
                damage[path] = error
                continue
            for bad, reason in damage.items():
                message = f"{bad} is damaged ({reason}); training goes on from {path.name}, the epoch before"
                warnings.warn(message, DamagedCheckpointWarning, stacklevel=2)
            return Checkpoint(path, state)
        if damage:
            told = "; ".join(f"{path}: {error}" for path, error in damage.items())
            raise DamagedCheckpoint(f"no checkpoint can be read ({told}); start again with restart=True")
        return None


def _read(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        if (name := archive.testzip()) is not None:  # torch.load does not look at the checksums
            raise ValueError(f"the checksum of {name} is wrong")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def identity(model: Model[Data], train: Data, validation: Data, config: TrainConfig) -> dict[str, str]:
    """Digests of what a training is a function of: its settings, the kind of its model, and its data.

    Epochs and patience are left out: they only decide when it stops. So are the weights that it starts from, or a
    script that draws them without a seed could not go on.
    """
    settings = {k: v for k, v in without_absent_fields(config).items() if k not in STOPPING}
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    described: list[Any] = [
        dataclasses.asdict(model.config),
        model.schema.config(),
        model.head.config(),
        shapes,
    ]
    if frozen := [name for name, parameter in model.named_parameters() if not parameter.requires_grad]:
        described.append(frozen)
    measured = [buffer.cpu().numpy() for _, buffer in sorted(model.named_buffers())]
    parts = (*model.parts(train), *model.parts(validation))
    return {
        "settings": _digest(json.dumps(settings, sort_keys=True).encode()),
        "model": _digest(json.dumps(described, sort_keys=True).encode(), *measured),
        "data": _digest(*(array for part in parts for array in _arrays(part))),
    }


def check_identity(found: Mapping[str, str] | None, expected: Mapping[str, str], folder: Path) -> None:
    """Raise `OtherTraining` if a checkpoint belongs to something else; `found` is None if it does not say to what."""
    if found is None:
        what = "does not say what it belongs to"
    elif differing := [name for name, digest in expected.items() if found.get(name) != digest]:
        what = f"belongs to a training with other {' and other '.join(differing)}"
    else:
        return
    raise OtherTraining(
        f"the checkpoint in {folder} {what}; choose another folder, or start again there with restart=True"
    )


def _arrays(sequences: Sequences) -> list[Any]:
    return [array for name in SEEN if (array := getattr(sequences, name)) is not None]


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(part)
    return digest.hexdigest()[:16]
