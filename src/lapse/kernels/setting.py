"""Settings of the whole process that hold from now on, or for the length of a ``with``."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Choices(Generic[T]):
    """What a setting is for every thread: the latest choice that has not ended, or the default.

    A choice ends with its ``with``. Where such blocks of several threads overlap, the end of one takes away its own
    choice and no other.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._made: list[tuple[T, weakref.ref[Setting[T]]]] = []
        self._lock = threading.Lock()

    def get(self) -> T:
        made = self._made  # a list that is replaced, never changed, so that reading needs no lock
        return made[-1][0] if made else self._default

    def add(self, setting: Setting[T], value: T) -> None:
        with self._lock:
            # A choice that nobody holds can no longer end, and so hides those before it for good.
            lasting = [i for i, (_, holder) in enumerate(self._made) if holder() is None]
            self._made = [*self._made[max(lasting, default=0) :], (value, weakref.ref(setting))]

    def remove(self, setting: Setting[T]) -> None:
        with self._lock:
            mine = [i for i, (_, holder) in enumerate(self._made) if holder() is setting]
            for i in mine[-1:]:  # none if a lasting choice was made within the block
                self._made = self._made[:i] + self._made[i + 1 :]


class Setting(Generic[T]):
    """One choice: holds when made, and until the end of a ``with`` if it is used in one, which may come again."""

    def __init__(self, choices: Choices[T], value: T) -> None:
        self._choices, self._value, self._fresh = choices, value, True
        choices.add(self, value)

    def __enter__(self) -> None:
        if not self._fresh:
            self._choices.add(self, self._value)
        self._fresh = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._choices.remove(self)
