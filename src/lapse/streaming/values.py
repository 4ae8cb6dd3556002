"""From the values of an event, as a user has them, to the numbers that a model takes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Any

import numpy as np

from lapse.models import Column


class Values:
    """The columns of a table, of which an event or an id brings one value each.

    Args:
        kind: what they are called in messages: "feature" or "static feature".
        columns: the columns, in the order of the model.
    """

    def __init__(self, kind: str, columns: Sequence[Column]) -> None:
        self.kind, self.columns = kind, tuple(columns)
        self.names = tuple(column.name for column in columns)
        self.size = sum(len(column.inputs) for column in columns)
        # Whether a sequence of numbers is what the model takes, as it is.
        self.plain = all(column.words is None for column in columns)

    def numbers(self, given: Any) -> list[float]:
        """The numbers of one event or id, NaN where nothing is known; ValueError for what does not fit.

        Args:
            given: values by the names of the columns, of which some may be left out, or all of them in order. None and
                NaN stand for what was not observed.
        """
        if isinstance(given, Mapping):
            self._check_names(given)
            values: list[Any] = [given.get(name) for name in self.names]
        else:
            if isinstance(given, Set) or not (isinstance(given, Real | str) or hasattr(given, "__len__")):
                raise TypeError(
                    f"values must be numbers in order, or a mapping from names to numbers, got {given!r}"
                )
            values = [given] if isinstance(given, Real | str) else list(given)
            if len(values) != len(self.names):
                raise ValueError(
                    f"expected one value per {self.kind}, {len(self.names)} ({', '.join(self.names)}), "
                    f"got {len(values)}"
                )
        return [
            number
            for column, value in zip(self.columns, values, strict=True)
            for number in self._inputs(column, value)
        ]

    def _check_names(self, given: Iterable[str]) -> None:
        for name in given:
            if name not in self.names:
                near = difflib.get_close_matches(str(name), self.names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the model has {', '.join(self.names)}"
                raise ValueError(f"there is no {self.kind} {name!r}; {hint}")

    def _inputs(self, column: Column, value: Any) -> list[float]:
        if column.words is not None:
            return _one_hot(column.words, value)
        if value is None:
            return [math.nan]
        try:
            # Python would also read text as a number, and NumPy drop the imaginary part of one.
            number = (
                math.inf if isinstance(value, str | bytes | complex | np.complexfloating) else float(value)
            )
        except (TypeError, ValueError, OverflowError, RuntimeError):
            number = math.inf
        if math.isinf(number):
            raise ValueError(
                f"{self.kind} {column.name!r} is {value!r}, expected a finite number, NaN or None"
            )
        return [number]


def _one_hot(words: tuple[str, ...], value: Any) -> list[float]:
    """One number per word; all NaN for a word that training never had, which is taken as not observed."""
    word = None if value is None else str(value)
    return [float(word == known) for known in words] if word in words else [math.nan] * len(words)
