"""Configs that outlive the code that wrote them: what it means that a stored config lacks a field.

A field that was added later declares with `added` what runs did before it existed. Reading an older config fills in
that meaning, and a digest leaves the field out where it has that meaning, so that results recorded before the field
was added keep their folder and still count as done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def added(default: Any, *, before: Any) -> Any:
    """A dataclass field that older stored configs lack.

    Args:
        default: the value of the field in a new config.
        before: what the absence of the field in a stored config means.
    """
    return dataclasses.field(default=default, metadata={"before": before})


def with_absent_fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The stored `values` of a config of this `kind`, with what the absence of newer fields means."""
    absent = {f.name: f.metadata["before"] for f in dataclasses.fields(kind) if "before" in f.metadata}
    return absent | dict(values)


def without_absent_fields(config: Any) -> dict[str, Any]:
    """The fields of a config, without those that have the meaning of their absence; nested configs as dicts."""
    values = dataclasses.asdict(config)
    newer = {f.name: f.metadata["before"] for f in dataclasses.fields(config) if "before" in f.metadata}
    return {name: value for name, value in values.items() if name not in newer or value != newer[name]}
