"""The forms in which a caller may lay sequences out for a layer: padded, packed, flat. A layer itself works flat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lapse.rows import Rows

Given = Tensor | PackedSequence


class Layout(ABC):
    """How the input of a call lies, and with it the output and the tensors that come beside the input.

    Attributes:
        rows: Where the steps lie in flat tensors.
        data: The input as a flat tensor (rows.size, input_size).
        axes: The shape of a tensor that comes beside the input, without the axis of features.
        unbatched: Whether states have no axis of rows.
    """

    rows: Rows
    data: Tensor
    axes: tuple[int, ...]
    unbatched = False

    @abstractmethod
    def restore(self, output: Tensor) -> Given:
        """A flat output (rows.size, D) in the form of the input."""

    def flat(self, given: Given, name: str) -> Tensor:
        """A tensor that came beside the input, (..., F) or (...), as a flat tensor; packed ones are recognised.

        Args:
            given: The tensor, of these `axes`, or packed with the same lengths.
            name: What to call it in an error.
        """
        if not isinstance(given, PackedSequence):
            return self._flat(given)
        theirs = Rows.packed(given, name)
        if not theirs.same_lengths(self.rows):
            raise ValueError(
                f"{name} is packed with other lengths than input; pack both with the same lengths"
            )
        return given.data if theirs.same_places(self.rows) else self.rows.take(given.data, theirs)

    def _flat(self, given: Tensor) -> Tensor:
        return given.flatten(0, len(self.axes) - 1)


class Flat(Layout):
    """Steps of all rows in one axis, described by `rows`."""

    def __init__(self, input: Tensor, rows: Rows) -> None:
        self.rows, self.data, self.axes = rows, input, (rows.size,)

    def restore(self, output: Tensor) -> Tensor:
        return output


class Padded(Layout):
    """(B, T, ...), or (T, B, ...), or one unbatched row (T, ...)."""

    def __init__(self, input: Tensor, lengths: Tensor | Sequence[int] | None, batch_first: bool) -> None:
        self.axes = tuple(input.shape[:-1])
        self.unbatched = len(self.axes) == 1
        axes = (1, *self.axes) if self.unbatched else self.axes
        count, steps = axes if batch_first or self.unbatched else axes[::-1]
        self.rows = Rows.padded(count, steps, lengths, batch_first=batch_first or self.unbatched)
        self.data = self._flat(input)

    def restore(self, output: Tensor) -> Tensor:
        return output.view(*self.axes, -1)


class Packed(Layout):
    """A `PackedSequence`. A plain tensor beside it is padded."""

    def __init__(self, input: PackedSequence, batch_first: bool) -> None:
        self.rows, self.data, self._input, self._batch_first = (
            Rows.packed(input),
            input.data,
            input,
            batch_first,
        )
        axes = self.rows.batch_size, len(input.batch_sizes)
        self.axes = axes if batch_first else axes[::-1]

    def restore(self, output: Tensor) -> PackedSequence:
        return self._input._replace(data=output)

    def _flat(self, given: Tensor) -> Tensor:
        count, steps = self.axes if self._batch_first else self.axes[::-1]
        padded = Rows.padded(count, steps, self.rows.lengths, batch_first=self._batch_first)
        return self.rows.take(super()._flat(given), padded)


def layout_of(
    input: Given,
    lengths: Tensor | Sequence[int] | None = None,
    rows: Rows | None = None,
    *,
    batch_first: bool = True,
) -> Layout:
    """The layout of a layer's input; see `lapse.RNN.forward` for the arguments."""
    if isinstance(input, PackedSequence):
        return Packed(input, batch_first)
    return Padded(input, lengths, batch_first) if rows is None else Flat(input, rows)
