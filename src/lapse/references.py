"""Things outside lapse by name: `package.module:Name` is the object `Name` of the module `package.module`.

Every place that takes the name of a model, a head or a task also takes such a reference, so that a user's own can be
trained, stored and shown without a change in lapse.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def is_reference(name: object) -> bool:
    """Whether `name` has the form `package.module:Name`."""
    return isinstance(name, str) and ":" in name


def known(name: object, table: Mapping[str, Any], what: str, form: str) -> Any:
    """The entry of a table by its name, or None if the name is a reference, which is to be resolved.

    Args:
        name: the name or reference; ValueError for anything else.
        table: the entries that lapse itself has.
        what: what to call an entry in an error: "model".
        form: the form of a reference: "package.module:Class".
    """
    if isinstance(name, str) and name in table:
        return table[name]
    if not is_reference(name):
        raise ValueError(f"{what} must be one of {', '.join(table)}, or {form}, got {name!r}")
    return None


def resolve(reference: str) -> Any:
    """The object that `package.module:Name` refers to; importing its module runs that module's code.

    Args:
        reference: the reference; the module must be importable, that is installed or on `PYTHONPATH`.
    """
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"cannot import {module_name!r} of {reference!r} ({error}); install the module, or put its folder "
            "on PYTHONPATH"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"{reference!r}: module {module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found


def resolve_class(reference: str, base: type) -> Any:
    """The class that `reference` names, which must be derived from `base`."""
    found = resolve(reference)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(
            f"{reference!r} is {found!r}, expected a class derived from {base.__module__}.{base.__qualname__}"
        )
    return found


def reference_to(cls: type) -> str:
    """The reference that `resolve` turns back into `cls`."""
    return f"{cls.__module__}:{cls.__qualname__}"
