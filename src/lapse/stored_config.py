"""Configs that outlive the code that wrote them: the types of fields, and what it means that one is absent.

A field that was added later declares with `added` what runs did before it existed. Reading an older config fills in
that meaning, and a digest leaves the field out where it has that meaning, so that results recorded before the field
was added keep their folder and still count as done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

# `int | None` is the one, `Literal["a"] | None` the other.
UNIONS = (UnionType, Union)


def added(default: Any, *, before: Any) -> Any:
    """A dataclass field that older stored configs lack.

    Args:
        default: the value of the field in a new config, or for a value that can be changed, such as a dict, a function
            that makes it.
        before: what the absence of the field in a stored config means.
    """
    metadata = {"before": before}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def with_absent_fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored `values` of a config of this `kind`, with what the absence of newer fields means."""
    absent = {f.name: f.metadata["before"] for f in dataclasses.fields(kind) if "before" in f.metadata}
    return absent | dict(values)


def without_absent_fields(config: Any) -> dict[str, Any]:
    """The fields of a config, without those that have the meaning of their absence; nested configs as dicts."""
    values = dataclasses.asdict(config)
    newer = {f.name: f.metadata["before"] for f in dataclasses.fields(config) if "before" in f.metadata}
    return {name: value for name, value in values.items() if name not in newer or value != newer[name]}


def digest_of(values: Any) -> str:
    """The SHA-256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def check_types(config: Any) -> None:
    """Raise a ValueError for a field whose value is not of the declared type.

    A whole number is good for a float; true and false are no numbers, and a float is finite, so that every config
    can be stored as JSON and read back.

    Args:
        config: a dataclass; its fields are declared as plain types, `Literal`, `Mapping`, dataclasses or unions.
    """
    for name, kind in get_type_hints(type(config)).items():
        if not _fits(value := getattr(config, name), kind):
            raise ValueError(f"{name} must be {_described(kind)}, got {value!r}")


def check_like(name: str, value: Any, default: Any) -> None:
    """Raise a ValueError if the value of an option is not of the type of its default, which says what it is.

    Args:
        name: the option.
        value: the value that it was given.
        default: its default; None says nothing about the type.
    """
    kind = list if isinstance(default, tuple) else type(default)  # JSON has no tuples
    if default is not None and not _fits(value, kind):
        raise ValueError(f"{name} must be {_described(kind)}, got {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) in UNIONS:
        return any(_fits(value, one) for one in get_args(kind))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in UNIONS:
        return " or ".join(map(_described, get_args(kind)))
    words = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "a word",
        NoneType: "null",
    }
    return words.get(kind, f"a {(get_origin(kind) or kind).__name__}")
