"""The model card: what a person who finds a stored model should know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lapse

if TYPE_CHECKING:
    from lapse.models.base import Model
    from lapse.models.schema import Column


def card_of(model: Model[Any]) -> str:
    """A model card in Markdown, from what the model itself knows.

    Args:
        model: the model.
    """
    config, schema = model.config, model.schema
    parameters = sum(p.numel() for p in model.parameters())
    unit = "unknown; times are taken as the training table had them" if schema.unit is None else schema.unit
    lines = [
        f"# {config.model} for {model.sentence}",
        "",
        f"Made with lapse {lapse.__version__}: `{config.model}`, {config.hidden_size} units, {config.num_layers} "
        f"layer(s), {parameters:,} parameters.",
        "",
        "```python",
        f"model = lapse.{type(model).__name__}.load(FOLDER)",
        f"{model.usage}.frame()",
        "```",
        "",
        "## What it takes",
        "",
        f"Unit of time: {unit}. A gap of {float(model.preprocessing.time_unit):.4g} of these is 1 for the network.",
        "",
        "| column | kind | may be missing |",
        "|---|---|---|",
        *(_row(column, "feature") for column in schema.features),
        *(_row(column, "static feature") for column in schema.static),
        "",
        "Columns are found by name. Another unit of time is converted; unknown columns are left out.",
    ]
    return "\n".join(lines) + "\n"


def _row(column: Column, kind: str) -> str:
    words = "" if column.words is None else f": {', '.join(column.words)}"
    return f"| {column.name} | {kind}{words} | {'yes' if column.optional else 'no'} |"
