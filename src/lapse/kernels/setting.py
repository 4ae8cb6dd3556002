"""Settings of the whole process that hold from now on, or for the length of a `with`."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import Generic, Literal, TypeVar

T = TypeVar("T")


class Choices(Generic[T]):
    """What a setting is for every thread: the latest choice that has not ended, or the default.

    A choice ends with its `with`. Where such blocks of several threads overlap, the end of one takes away its own
    choice and no other.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._made: list[tuple[T, weakref.ref[Setting[T]]]] = []
        self._lock = threading.Lock()

    def get(self) -> T:
        made = self._made  # a list that is replaced, never changed, so that reading needs no lock
        return made[-1][0] if made else self._default

    def add(self, setting: Setting[T], value: T, *, again: bool = False) -> None:
        """Make a choice the latest one; with `again`, it takes the place of the one that the setting made before."""
        with self._lock:
            made = [one for one in self._made if not again or one[1]() is not setting]
            # A choice that nobody holds can no longer end, and so hides those before it for good.
            lasting = [i for i, (_, holder) in enumerate(made) if holder() is None]
            self._made = [*made[max(lasting, default=0) :], (value, weakref.ref(setting))]

    def remove(self, setting: Setting[T]) -> None:
        with self._lock:
            mine = [i for i, (_, holder) in enumerate(self._made) if holder() is setting]
            for i in mine[-1:]:  # none if a lasting choice was made within the block
                self._made = self._made[:i] + self._made[i + 1 :]


class Setting(Generic[T]):
    """One choice: holds when made, and until the end of a `with` if it is used in one, which may come again."""

    def __init__(self, choices: Choices[T], value: T) -> None:
        self._choices, self._value, self._fresh = choices, value, True
        choices.add(self, value)

    def __enter__(self) -> None:
        # Another choice may have been made since this one.
        self._choices.add(self, self._value, again=self._fresh)
        self._fresh = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._choices.remove(self)


Backend = Literal["auto", "fused", "reference"]

_backend: Choices[Backend] = Choices("auto")


class backend(Setting[Backend]):
    """Choose the path that layers take: `lapse.backend("reference")`, also as `with lapse.backend(...):`.

    "auto" takes a fused kernel where one covers the call and the reference loop elsewhere, "reference" always the
    loop, and "fused" raises where no kernel covers the call, so that a benchmark or test cannot miss it. The choice
    holds for every thread of the process; the latest one that has not ended counts.

    Args:
        name: "auto", "fused" or "reference".
    """

    def __init__(self, name: Backend) -> None:
        if name not in ("auto", "fused", "reference"):
            raise ValueError(f"backend must be 'auto', 'fused' or 'reference', got {name!r}")
        super().__init__(_backend, name)


def chosen_backend() -> Backend:
    """The choice that holds now."""
    return _backend.get()


def not_covered(cell: object) -> RuntimeError:
    """The error for a call that must take the fused path and cannot."""
    return RuntimeError(f"no fused kernel covers this call of {type(cell).__name__}; use backend('auto')")
