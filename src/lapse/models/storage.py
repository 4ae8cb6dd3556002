"""A model as a folder: `model.safetensors` (the weights), `config.json` (everything else) and `card.md` (for people).

Nothing in the folder can run code. `config.json` holds the version of this format, the SHA-256 of the weights, and the
SHA-256 of its own contents, so that a changed bit in either file is found when a model is loaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch

import lapse
from lapse import heads
from lapse.models.base import Model
from lapse.models.card import card_of
from lapse.models.config import ModelConfig
from lapse.models.registry import stored_options
from lapse.models.schema import Schema
from lapse.references import is_reference
from lapse.sequences.storage import write_atomically
from lapse.stored_config import with_absent_fields

Kind = TypeVar("Kind", bound=Model[Any])
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "card.md"


def save(model: Model[Any], folder: Path, card: str | None) -> None:
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise heads.NonFiniteError(f"{name} is NaN or infinite, so the model is not stored in {folder}")
    weights = to_bytes(tensors)
    contents = {
        "format": model.format,
        "lapse": lapse.__version__,
        "weights": hashlib.sha256(weights).hexdigest(),
        "model": dataclasses.asdict(model.config),
        "schema": model.schema.config(),
        "head": model.head.config(),
    }
    text = json.dumps(contents | {"digest": _digest(contents)}, indent=2)
    # The config comes last. Should the writing end before it, its digest of the weights does not fit, and loading
    # says so.
    files = {CARD: (card or card_of(model)).encode(), WEIGHTS: weights, CONFIG: text.encode()}
    for name, content in files.items():
        write_atomically(folder / name, partial(_write, content))


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def load(folder: Path, kind: type[Kind]) -> Kind:
    from safetensors.torch import load as from_bytes

    contents = _read_config(folder, kind)
    weights = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != contents["weights"]:
        raise ValueError(
            f"{folder / WEIGHTS} is damaged, or belongs to another {CONFIG}: its digest is wrong"
        )
    for name in (contents["model"]["model"], contents["head"]["kind"]):
        _check_imported(name, folder)
    stored = with_absent_fields(ModelConfig, contents["model"])
    stored["options"] = stored_options(stored["model"], stored["options"])
    # Weights are drawn and then replaced, which must not change the random numbers of anyone else.
    with torch.random.fork_rng(devices=[]):
        model = kind(
            Schema.from_config(contents["schema"]),
            heads.from_config(contents["head"]),
            ModelConfig(**stored),
        )
    # Assigned, not copied into what is there, so that a float64 model stays one.
    model.load_state_dict(from_bytes(weights), assign=True)
    return model


def format_of(folder: Path) -> str | None:
    """What the format of a stored model is called; None if the folder does not say."""
    try:
        found = json.loads((folder / CONFIG).read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def digest_in(folder: Path) -> str:
    """The digest of a stored model, which stands for its config and its weights; `load` verifies it."""
    return str(json.loads((folder / CONFIG).read_bytes())["digest"])


def _read_config(folder: Path, kind: type[Model[Any]]) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        raise ValueError(
            f"{folder} holds no lapse model; expected a folder with {WEIGHTS} and {CONFIG}, which "
            f"{kind.__name__}.save writes"
        )
    try:
        contents = json.loads(path.read_bytes())
        found = contents.get("format")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged, or no {CONFIG} of a lapse model: {error}") from error
    if found != kind.format:
        raise ValueError(
            f"{path} says format {found!r}, and this version of lapse ({lapse.__version__}) reads {kind.format!r} only "
            f"as a {kind.__name__}; load the model with the class or the version that wrote it, or train it again"
        )
    digest = contents.pop("digest", None)
    if digest != _digest(contents):
        raise ValueError(f"{path} is damaged or was edited: its digest is wrong; take it from a backup")
    return dict(contents)


def _digest(contents: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _check_imported(name: str, folder: Path) -> None:
    """Refuse a class outside lapse whose module was not imported: a folder must not decide what code runs."""
    module = name.partition(":")[0]
    if is_reference(name) and module not in sys.modules:
        raise ValueError(
            f"the model in {folder} uses {name}, which is not part of lapse; if you trust that code, "
            f"`import {module}` before loading the model"
        )
