"""Checks of plain arguments: counts, numbers, flags, names. Each error says what came and what is expected."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_number(name: str, value: object, expected: str, *, least: float = -math.inf) -> None:
    """Refuse what is not a finite number of at least `least`.

    Args:
        name: the argument.
        value: what came.
        expected: what is expected, to be said in the error.
        least: the least number that is fine.
    """
    if not is_number(value) or float(value) < least:  # type: ignore[arg-type]
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def check_share(name: str, value: object) -> None:
    """Refuse what is not a number of at least 0 and below 1."""
    if not is_number(value) or not 0 <= float(value) < 1:  # type: ignore[arg-type]
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")


def is_number(value: object) -> bool:
    """Whether a value is a finite real number; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither true nor false: the word "False" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, word: object, known: Collection[str]) -> None:
    """Refuse what is not one of these words."""
    if not isinstance(word, str) or word not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {word!r}")


def check_kind(name: str, value: object, kind: type, way_out: str = "") -> None:
    """Refuse what is no instance of a class.

    Args:
        name: the argument.
        value: what came.
        kind: the class.
        way_out: what to do, to be said in the error.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, got a {type(value).__name__}"
            + (f"; {way_out}" if way_out else "")
        )


def as_names(name: str, names: object) -> tuple[str, ...]:
    """One name, or several, as a tuple; anything else is refused, also a name that comes twice.

    Args:
        name: the argument.
        names: what came.
    """
    found: tuple[Any, ...] = (
        (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    )
    if strange := [each for each in found if not isinstance(each, str)]:
        raise TypeError(f"{name} must be a name or several, got {strange[0]!r}")
    if twice := [each for each in found if found.count(each) > 1]:
        raise ValueError(f"{name} names {twice[0]!r} twice; give each its own name")
    return found
