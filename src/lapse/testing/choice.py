"""Which checks concern which cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Check = TypeVar("Check", bound=Callable[..., None])


def needs(attribute: str) -> Callable[[Check], Check]:
    """Mark a check that concerns only cells whose `attribute` is true or defined.

    Args:
        attribute: The name of an attribute of the cell.
    """

    def mark(check: Check) -> Check:
        check.needs = attribute  # type: ignore[attr-defined]
        return check

    return mark


def concerns(check: Callable[..., None], cell: Any) -> bool:
    """Whether a check concerns a cell."""
    attribute = getattr(check, "needs", None)
    return attribute is None or bool(getattr(cell, attribute, False))
