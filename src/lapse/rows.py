"""Where the steps of ragged rows lie in flat tensors: the one description of rows, from `Sequences` to the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lapse.torch_private import readable

T = TypeVar("T")


class _lazy(Generic[T]):
    """`functools.cached_property` without its lock, which Python 3.11 has and torch.compile cannot trace."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> T:
        value = self.compute(instance)
        instance.__dict__[self.name] = value
        return value


@dataclass(frozen=True, eq=False)
class Rows:
    """B rows of different lengths, whose steps lie in flat tensors (size, ...): one place per step.

    Step t of row i lies at place `starts[i] + t · stride`. Tensors that are packed in the manner of a `PackedSequence`
    have a stride of 0: step t of row i then lies at `starts[i]` plus the number of steps before step t in all rows
    together. Nothing but these places is ever read, so what padding holds cannot matter, NaN included.

    A loop over time walks the rows together, the longest first, so that those that have ended are the last ones. Rows
    of equal length are walked in the order of the batch.

    `Rows.flat`, `Rows.padded` and `Rows.packed` make them.

    Args:
        lengths: (B,) int64 on the CPU, at least 1 each.
        starts: (B,) int64 on the CPU, the place of the first step of each row.
        stride: the distance between the places of two steps of a row; 0 if packed.
        size: the number of places.
        room: the number of steps that each row has room for if there is padding; 0 if there is none.
        even: whether every row is known to have exactly `room` steps without a look at `lengths`.
        backward: whether rows are walked from their last step to their first.
    """

    lengths: Tensor
    starts: Tensor
    stride: int
    size: int
    room: int = 0
    even: bool = False
    backward: bool = False

    @staticmethod
    def flat(lengths: Tensor | Sequence[int], size: int | None = None) -> Rows:
        """Rows that lie end to end, without padding.

        Args:
            lengths: (B,), the number of steps of each row, at least 1.
            size: the sum of the lengths, for a graph that is traced, in which lengths cannot be looked at.
        """
        lengths = _whole_numbers(lengths)
        if lengths.dim() != 1:
            raise ValueError(f"lengths must have shape (B,), one per row, got {tuple(lengths.shape)}")
        _check_range(lengths, None)
        size = int(lengths.sum()) if size is None else size
        return Rows(lengths, lengths.cumsum(0) - lengths, 1, size)

    @staticmethod
    def padded(
        count: int, steps: int, lengths: Tensor | Sequence[int] | None = None, *, batch_first: bool = True
    ) -> Rows:
        """Rows of tensors (count, steps, ...), or (steps, count, ...), with their first two axes made one.

        Args:
            count: the number of rows.
            steps: the number of steps that each row has room for.
            lengths: (count,), the number of steps of each row, from 1 to `steps`; None if all rows have all steps.
            batch_first: whether the axis of rows comes first, or that of steps.
        """
        row_stride, stride = (steps, 1) if batch_first else (1, count)
        # Not `arange` with a step: its size would be a division, for which an exported graph needs two rows or more.
        starts = torch.arange(count, device="cpu") * row_stride
        if lengths is None:
            return Rows(
                torch.full((count,), steps, device="cpu"), starts, stride, count * steps, steps, even=True
            )
        lengths = _whole_numbers(lengths)
        if tuple(lengths.shape) != (count,):
            raise ValueError(f"lengths must have shape ({count},), one per row, got {tuple(lengths.shape)}")
        _check_range(lengths, steps)
        return Rows(lengths, starts, stride, count * steps, steps)

    @staticmethod
    def packed(packed: PackedSequence, name: str = "input") -> Rows:
        """Rows of the data of a `PackedSequence`, in the order that they had before they were packed.

        Args:
            packed: the packed sequences; if its parts do not fit together, it is refused.
            name: what to call it in an error.
        """
        _check_packed(packed, name)
        sizes = packed.batch_sizes
        ranks = _range(int(sizes[0]))
        starts = ranks if packed.unsorted_indices is None else packed.unsorted_indices.cpu()
        # Row r of those sorted by length is as long as there are steps with more than r rows.
        return Rows(torch.searchsorted(-sizes, -ranks)[starts], starts, 0, len(packed.data))

    def __len__(self) -> int:
        return self.batch_size

    @property
    def batch_size(self) -> int:
        """The number of rows, B. In a graph that is traced it may be a symbol, which `len` would turn into a number."""
        return self.lengths.shape[0]

    @_lazy
    def steps(self) -> int:
        """The length of the longest row."""
        return self.room if self.even else int(self.lengths.max()) if self.batch_size else 0

    @_lazy
    def count(self) -> int:
        """The number of steps of all rows together; less than `size` if there is padding."""
        return int(self.lengths.sum()) if self.room and not self.even else self.size

    @_lazy
    def batch_sizes(self) -> list[int]:
        """How many rows have each step, for a loop in Python."""
        return [self.batch_size] * self.room if self.even else self._alive.tolist()

    @_lazy
    def order(self) -> Tensor | None:
        """(B,) the rows as they are walked, the longest first; None if they keep their places."""
        return None if self.even else torch.argsort(self.lengths, descending=True, stable=True)

    @_lazy
    def walk(self) -> tuple[Tensor, Tensor]:
        """The row and the step of everything that is walked, (count,) each, step after step.

        Where rows are walked backward, step 0 is the last one of a row.
        """
        if self.even:
            rows = _range(self.batch_size).repeat(self.room)
            return rows, _range(self.room).repeat_interleave(self.batch_size)
        assert self.order is not None
        steps = torch.repeat_interleave(self._alive, output_size=self.count)
        return self.order[_range(self.count) - self._before[steps]], steps

    @_lazy
    def row(self) -> Tensor:
        """(size,) the row of each place, for rows that lie end to end."""
        assert self.stride == 1
        assert not self.room
        return torch.repeat_interleave(self.lengths, output_size=self.size)

    @_lazy
    def step(self) -> Tensor:
        """(size,) the step of each place, for rows that lie end to end."""
        return _range(self.size) - self.starts[self.row]

    @_lazy
    def mask(self) -> Tensor:
        """(B, T) bool, which steps each row has, T being the length of the longest."""
        return _range(self.steps) < self.lengths.unsqueeze(1)

    def pad(self, values: Tensor) -> Tensor:
        """Values of rows that lie end to end, (size, ...), as (B, T, ...) with zeros beyond the length of each row."""
        padded = values.new_zeros(self.batch_size * self.steps, *values.shape[1:])
        padded = padded.index_copy(0, self._cells.to(values.device), values)
        return padded.view(self.batch_size, self.steps, *values.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """Values (B, T, ...) as those of rows that lie end to end, (size, ...)."""
        return padded.flatten(0, 1).index_select(0, self._cells.to(padded.device))

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the steps of each row, (B, ...), for rows that lie end to end."""
        total = values.new_zeros(self.batch_size, *values.shape[1:])
        return total.index_add(0, self.row.to(values.device), values)

    def max(self, values: Tensor) -> Tensor:
        """The largest value over the steps of each row, (B, ...), for rows that lie end to end."""
        # The lengths were checked when the rows were made; to look again costs a pass over all of them.
        lengths = self.lengths.to(values.device)
        largest: Tensor = torch.segment_reduce(values, "max", lengths=lengths, unsafe=True)
        return largest

    def step_of(self, rows: Tensor, steps: Tensor) -> Tensor:
        """The steps counted from the first one of a row, of steps counted as they are walked."""
        return self.lengths[rows] - 1 - steps if self.backward else steps

    def place(self, rows: Tensor, steps: Tensor) -> Tensor:
        """The places of these steps of these rows, steps counted as they are walked."""
        steps = self.step_of(rows, steps)
        return self.starts[rows] + (steps * self.stride if self.stride else self._before[steps])

    def gather(self, values: Tensor) -> Tensor:
        """Flat values (size, ...) as they are walked: (count, ...)."""
        return values.index_select(0, self._index.to(values.device))

    def scatter(self, walked: Tensor) -> Tensor:
        """What was walked (count, ...) as flat values (size, ...), with zeros in the padding."""
        if self.even or not self.room:
            return walked.index_select(0, self._position.to(walked.device))
        flat = walked.new_zeros(self.size, *walked.shape[1:])
        # In place: a copy of all the padding costs as much as the fused loop over short rows.
        return flat.index_copy_(0, self._index.to(walked.device), walked)

    def sort(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Tensors (B, ...) with their rows as they are walked."""
        if self.order is None:
            return state
        return tuple(part.index_select(0, self.order.to(part.device)) for part in state)

    def unsort(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Tensors (B, ...) whose rows are as they are walked, with their rows as the batch has them."""
        if self.order is None:
            return state
        back = torch.argsort(self.order)
        return tuple(part.index_select(0, back.to(part.device)) for part in state)

    def take(self, values: Tensor, rows: Rows) -> Tensor:
        """Flat values that lie as `rows` says, as values that lie as these rows say."""
        return self.scatter(rows.gather(values))

    def same_lengths(self, other: Rows) -> bool:
        """Whether the rows of both have the same lengths."""
        return torch.equal(self.lengths, other.lengths)

    def same_places(self, other: Rows) -> bool:
        """Whether every step of rows of the same lengths lies at the same place."""
        return self.stride == other.stride and torch.equal(self.starts, other.starts)

    def reversed(self) -> Rows:
        """The same rows, walked the other way."""
        return replace(self, backward=not self.backward)

    def gaps_after(self, timespans: Tensor) -> Tensor:
        """The gap after each step, from flat gaps before each step; 0 after the last step of a row.

        On the way back these are the gaps before each step: the same gap between the same two observations.
        """
        places = _range(self.size)
        if self.stride:
            after = places + self.stride
        else:
            after = places + torch.repeat_interleave(self._alive, self._alive, output_size=self.size)
        after, last = (index.to(timespans.device) for index in (after.clamp(max=self.size - 1), self.last))
        return timespans.index_select(0, after).index_fill(0, last, 0.0)

    @_lazy
    def last(self) -> Tensor:
        """(B,) the place of the last step of each row, whichever way it is walked."""
        return replace(self, backward=False).place(_range(self.batch_size), self.lengths - 1)

    @_lazy
    def _cells(self) -> Tensor:
        """(size,) where each place of rows that lie end to end comes in padded tensors (B · T, ...)."""
        return self.row * self.steps + self.step

    @_lazy
    def _alive(self) -> Tensor:
        """(steps,) how many rows have each step."""
        return self.batch_size - torch.bincount(self.lengths)[:-1].cumsum(0)

    @_lazy
    def _before(self) -> Tensor:
        """(steps,) how many steps there are before each step in all rows together."""
        return self._alive.cumsum(0) - self._alive

    @_lazy
    def _index(self) -> Tensor:
        """(count,) the place of everything that is walked."""
        return self.place(*self.walk)

    @_lazy
    def _position(self) -> Tensor:
        """(size,) where each place comes in what is walked, if there is no padding."""
        return torch.empty_like(self._index).index_copy(0, self._index, _range(self.size))


def _range(count: int) -> Tensor:
    return torch.arange(count, device="cpu")  # whatever the default device is


def _whole_numbers(lengths: Tensor | Sequence[int]) -> Tensor:
    try:
        lengths = torch.as_tensor(lengths).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"lengths must be whole numbers, got {lengths!r}: {error}") from error
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be whole numbers, got {lengths.dtype}")
    return lengths.long().contiguous()


def _check_range(lengths: Tensor, steps: int | None) -> None:
    """Refuse lengths below 1 or above `steps`, where they can be looked at."""
    if not readable(lengths):
        return
    wrong = lengths < 1 if steps is None else (lengths < 1) | (lengths > steps)
    if bool(wrong.any()):
        row, range = int(wrong.nonzero()[0]), "at least 1" if steps is None else f"from 1 to {steps}"
        raise ValueError(
            f"lengths must be {range}, got {int(lengths[row])} in row {row}; leave out rows without steps"
        )


def _check_packed(packed: PackedSequence, name: str) -> None:
    """Refuse a `PackedSequence` whose parts do not fit together: compiled code goes where its batch sizes point."""
    sizes, count = packed.batch_sizes, len(packed.data)
    if sizes.dim() != 1 or sizes.dtype != torch.int64:
        problem = f"its batch sizes must be one axis of int64, got {tuple(sizes.shape)} of {sizes.dtype}"
    elif not len(sizes) or int(sizes[-1]) < 1 or bool((sizes[1:] > sizes[:-1]).any()):
        problem = f"its batch sizes must be at least 1 and never grow, got {sizes.tolist()}"
    elif count != int(sizes.sum()):
        problem = f"its batch sizes add up to {int(sizes.sum())} steps, but its data have {count}"
    elif not _ordered(packed.sorted_indices, packed.unsorted_indices, int(sizes[0])):
        problem = "its sorted_indices and unsorted_indices must be each other's inverse, of one entry per row"
    else:
        return
    raise ValueError(f"{name} is a damaged PackedSequence: {problem}; make it with pack_padded_sequence")


def _ordered(order: Tensor | None, inverse: Tensor | None, count: int) -> bool:
    """Whether `order` and `inverse` are permutations of `count` rows that undo each other."""
    if order is None or inverse is None:
        return order is None and inverse is None
    if not readable(order):
        return True
    rows = torch.arange(count, device=order.device)
    if order.shape != rows.shape or inverse.shape != rows.shape:
        return False
    least, most = torch.aminmax(inverse)
    return bool(least >= 0) and bool(most < count) and torch.equal(order[inverse], rows)
