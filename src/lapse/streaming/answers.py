"""What a stream answers: raw outputs at once, and named columns when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lapse.heads import Head
from lapse.sequences.ragged import Array, plain


class Answer(Mapping[str, Any]):
    """One answer, by the names of the columns that `predict` has: `answer["prediction"]`, or `dict(answer)`.

    The columns are worked out when the first of them is looked at, so that an answer nobody looks at costs nothing.

    Args:
        head: what was asked.
        raw: (width,), the raw outputs of the model.
    """

    __slots__ = ("_columns", "_head", "raw")

    def __init__(self, head: Head, raw: Array) -> None:
        self._head, self.raw = head, raw
        self._columns: dict[str, Any] | None = None

    def _named(self) -> dict[str, Any]:
        if self._columns is None:
            found = self._head.predict(torch.from_numpy(self.raw).unsqueeze(0))
            self._columns = {name: plain(column[0]) for name, column in found.items()}
        return self._columns

    def __getitem__(self, name: str) -> Any:
        return self._named()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self._named())

    def __repr__(self) -> str:
        return f"Answer({self._named()!r})"


class Answers:
    """The answers to many events, in their order.

    Args:
        head: what was asked.
        raw: (N, width), the raw outputs of the model; NaN for events that were dropped.
        taken: (N,) bool, whether each event was taken; events that came too late may have been dropped.
    """

    __slots__ = ("_head", "raw", "taken")

    def __init__(self, head: Head, raw: Array, taken: Array) -> None:
        self._head, self.raw, self.taken = head, raw, taken

    def columns(self) -> dict[str, Array]:
        """Named columns of the answers to the events that were taken, as `predict` has them."""
        return self._head.predict(torch.from_numpy(self.raw[self.taken]))

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> Answer | None:
        """The answer to one event; None if it was dropped."""
        return Answer(self._head, self.raw[index]) if self.taken[index] else None

    def __iter__(self) -> Iterator[Answer | None]:
        return (self[index] for index in range(len(self)))
