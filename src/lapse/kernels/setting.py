"""Settings that hold from now on, or for the length of a ``with``."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Setting(Generic[T]):
    """A value of a context variable: set when made, put back at the end of a ``with`` on it, which may come again."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value, self._before = variable, value, variable.get()
        variable.set(value)

    def __enter__(self) -> None:
        self._variable.set(self._value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._variable.set(self._before)
