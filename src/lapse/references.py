"""Things outside lapse by name: `package.module:Name` is the object `Name` of the module `package.module`.

Every place that takes the name of a model, a head or a task also takes such a reference, so that a user's own can be
trained, stored and shown without a change in lapse.
"""

from __future__ import annotations

import importlib
from typing import Any


def is_reference(name: str) -> bool:
    """Whether `name` has the form `package.module:Name`."""
    return ":" in name


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
