"""Whether classes still have the functions that a program was written for.

A fused program stands for the functions that a cell's `step` calls: its own, those of its parts and of its solver.
Someone may have put others in their place, on one object or on a whole class, before or after the program was written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn

from lapse.torch_private import module_call

START = "step"  # where a cell's computation begins
CALLS = ("forward", "__call__")  # what calling an object runs, without its name being written anywhere


class Functions:
    """The functions that `step` may reach in some classes, as they were when this was made.

    Args:
        kinds: The classes of the cell, of its parts and of its solver.
    """

    def __init__(self, kinds: Iterable[type]) -> None:
        kinds = list(dict.fromkeys(kinds))
        names = _reached(kinds)
        self.names = {kind: frozenset(names & _defined(kind).keys()) for kind in kinds}
        pairs = [(kind, name) for kind, own in self.names.items() for name in sorted(own)]
        self._kinds, self._names = zip(*pairs, strict=True)
        self._then = self._now()
        self._original = _comes_with(nn.Module, module_call()) and all(
            _original(kind, name) for kind, name in pairs
        )

    def _now(self) -> tuple[Any, ...]:
        return (*map(getattr, self._kinds, self._names), module_call())

    def unchanged(self) -> bool:
        """Whether all of them are still the ones that came with their classes."""
        try:
            return self._original and self._now() == self._then
        except AttributeError:  # one was removed
            return False


def _defined(kind: type) -> dict[str, type]:
    """The functions and properties of a class and the base that defines each, save those that every module has."""
    bases = [base for base in reversed(kind.__mro__) if base not in (nn.Module, object)]
    return {
        name: base
        for base in bases
        for name, value in vars(base).items()
        if callable(value) or hasattr(value, "__get__")
    }


def _reached(kinds: list[type]) -> set[str]:
    """The names that occur in the code of `step`, in the code of what it names, and so on."""
    reached, ahead = set(), {START, *CALLS}
    while ahead:
        reached |= ahead
        codes = [
            _code(vars(base)[name])
            for kind in kinds
            for name, base in _defined(kind).items()
            if name in ahead
        ]
        ahead = {name for code in codes if code for name in code.co_names} - reached
    return reached


def _code(value: Any) -> CodeType | None:
    """The code of a function, also of one that is a property or a static method."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _original(kind: type, name: str) -> bool:
    """Whether a function was written in the package of the class that has it, and not put there from outside."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    return _comes_with(owner, vars(owner)[name])


def _comes_with(owner: type, function: Any) -> bool:
    """Whether a function was written in the package of a class."""
    package = getattr(sys.modules.get(owner.__module__.partition(".")[0]), "__file__", None)
    if package is None:  # a notebook or an interactive session: there is no outside
        return True
    code = _code(function)
    return code is not None and code.co_filename.startswith(str(Path(package).parent))
