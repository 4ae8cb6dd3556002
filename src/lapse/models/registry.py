"""The models by name."""

from __future__ import annotations

import colorsys
import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

from lapse import recurrent
from lapse.palette import DASHED, DOTTED, SOLID, Look

# The eleven of the paper's tables, in their order; ours last.
MODELS: dict[str, type[recurrent.RNN]] = {
    "ode-rnn": recurrent.ODERNN,
    "ct-rnn": recurrent.CTRNN,
    "lstm": recurrent.AugmentedLSTM,
    "ct-gru": recurrent.CTGRU,
    "rnn-decay": recurrent.RNNDecay,
    "bidirectional": recurrent.CoupledLSTMODERNN,
    "gru-d": recurrent.GRUD,
    "phased-lstm": recurrent.PhasedLSTM,
    "gru-ode": recurrent.GRUODE,
    "ct-lstm": recurrent.CTLSTM,
    "ode-lstm": recurrent.ODELSTM,
}


def find(name: str) -> type[recurrent.RNN]:
    """The layer of a model.

    Args:
        name: Its name in `MODELS`.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    return MODELS[name]


def default_options(name: str) -> dict[str, Any]:
    """The options of a model's constructor with their defaults, sizes and the options of every layer left out."""
    parameters = inspect.signature(find(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def spelled_out(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model for a config that may be stored: those whose default has changed once are never left out.

    Args:
        name: The name of the model.
        options: The options as the caller gave them.
    """
    past, defaults = find(name).past_options, default_options(name)
    return {option: defaults[option] for option in past} | dict(options)


def stored_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model as a stored config means them: an absent one has the default of the time it was stored.

    Args:
        name: The name of the model.
        options: The options as they are stored.
    """
    return {**find(name).past_options, **options}


def label_of(name: str) -> str:
    """What a model is called in tables and figures: its class's own `label`, or the name of the class."""
    layer = find(name)
    label: str = vars(layer).get("label", layer.__name__)
    return label


def look_of(name: str) -> Look:
    """How a model is drawn: its class's own `look`, or one that follows from its name."""
    look: Look = vars(find(name)).get("look") or _look_from(name)
    return look


def _look_from(name: str) -> Look:
    """A look that is always the same for the same name."""
    digest = hashlib.sha256(name.encode()).digest()
    light, dark = (_hexadecimal(colorsys.hls_to_rgb(digest[0] / 256, level, 0.5)) for level in (0.38, 0.7))
    return Look(light, dark, (SOLID, DASHED, DOTTED)[digest[1] % 3])


def _hexadecimal(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)
