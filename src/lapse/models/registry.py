"""The models by name, and what their classes declare about themselves."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from lapse import encoders, recurrent
from lapse.encoders import Encoder
from lapse.palette import Look, look_from
from lapse.references import is_reference, known, resolve

ModelClass = type[recurrent.RNN] | type[Encoder]

# The eleven of the paper's tables, in their order, then those that came after it.
MODELS: dict[str, ModelClass] = {
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
    "ltc": recurrent.LTC,
    "cfc": recurrent.CfC,
    "cfc-mm": recurrent.CfCMixedMemory,
    "neural-cde": recurrent.NeuralCDE,
    "state-space": encoders.StateSpace,
    "mtan": encoders.MTAN,
}


def find(name: str) -> ModelClass:
    """The layer or encoder of a model; ValueError if there is none.

    Args:
        name: Its name in `MODELS`, or `package.module:Class` for one outside lapse.
    """
    own: ModelClass | None = known(name, MODELS, "model", "package.module:Class")
    if own is not None:
        return own
    found = resolve(name)
    if not (isinstance(found, type) and issubclass(found, recurrent.RNN | Encoder)):
        raise ValueError(f"{name!r} is {found!r}, expected a subclass of lapse.RNN or lapse.encoders.Encoder")
    return found


def find_layer(name: str) -> type[recurrent.RNN]:
    """The recurrent layer of a model, for what looks into its cells; ValueError for any other encoder.

    Args:
        name: The name of the model, as `find` takes it.
    """
    found = find(name)
    if not issubclass(found, recurrent.RNN):
        raise ValueError(f"{name!r} is no recurrent layer, so it has no cells to look into")
    return found


def layers() -> dict[str, type[recurrent.RNN]]:
    """Those of `MODELS` that are recurrent layers."""
    return {name: model for name, model in MODELS.items() if issubclass(model, recurrent.RNN)}


def declared(name: str, attribute: str, default: Any) -> Any:
    """What the class of a model declares about itself, or `default`.

    A model outside lapse need not be importable where its results are read: it then declares nothing.

    Args:
        name: The name of the model, as `find` takes it.
        attribute: The name of the class attribute.
        default: Its value if the class has none.
    """
    try:
        return getattr(find(name), attribute, default)
    except ValueError:
        if not is_reference(name):
            raise
        return default


def default_options(name: str) -> dict[str, Any]:
    """The options of a model's constructor with their defaults; sizes, and what the table decides, are left out."""
    constructor = declared(name, "__init__", lambda self: None)
    parameters = inspect.signature(constructor).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
    return {option: default for option, default in options.items() if option not in encoders.FROM_THE_TABLE}


def spelled_out(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model for a config that may be stored: those whose default has changed once are never left out.

    Args:
        name: The name of the model.
        options: The options as the caller gave them.
    """
    past, defaults = declared(name, "past_options", {}), default_options(name)
    return {option: defaults[option] for option in past} | dict(options)


def stored_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model as a stored config means them: an absent one has the default of the time it was stored.

    Args:
        name: The name of the model.
        options: The options as they are stored.
    """
    return {**declared(name, "past_options", {}), **options}


def label_of(name: str) -> str:
    """What a model is called in tables and figures: its class's own `label`, or the name of the class."""
    label: str = _own(name).get("label", name.rpartition(":")[2])
    return label


def look_of(name: str) -> Look:
    """How a model is drawn: its class's own `look`, or one that follows from its name."""
    look: Look = _own(name).get("look") or look_from(name)
    return look


def _own(name: str) -> Mapping[str, Any]:
    """What the very class of a model declares: a subclass that looked like its parent could not be told from it."""
    attributes: Mapping[str, Any] = declared(name, "__dict__", {})
    return attributes
