"""The order in which a batch of ragged sequences is walked, and the checks at the layers' edge."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lapse.torch_private import readable


class Walk:
    """The valid steps of a batch, and the order in which they are walked: time-major, rows by falling length.

    Tensors keep the layout in which the caller has them, with the axes before the last made one: (B · T, ...) if rows
    or steps come first, (N, ...) if packed. Step t of the i-th row walked lies at place ``at_step[t] + at_row[i]`` of
    such a flat tensor, and only those places are ever touched, so what the padding holds cannot matter, NaN included.
    ``order[i]`` is the row of the batch that is walked i-th; None where rows keep their places.
    """

    def __init__(
        self,
        axes: tuple[int, ...],
        lengths: Tensor | None,
        order: Tensor | None,
        batch_sizes: list[int],
        at_step: Sequence[int],
        at_row: Sequence[int],
        device: torch.device,
    ) -> None:
        self.axes = axes  # of the caller's tensors, without the last
        self.order = order
        self.batch_sizes = batch_sizes
        self.at_step = at_step  # of all steps that there is room for
        self.at_row = at_row
        self.device = device
        self.of_packed = False
        self.batch_first = True  # of padded tensors beside a packed input
        # Whether flat tensors have places without a step.
        self.padded = sum(batch_sizes) < math.prod(axes)
        self._lengths = lengths
        self._steps_and_rows: tuple[Tensor, Tensor] | None = None
        self._index: Tensor | None = None
        self._places: _Places | None = None

    @staticmethod
    def of(
        input: Tensor | PackedSequence, lengths: Tensor | Sequence[int] | None, *, batch_first: bool = True
    ) -> Walk:
        """The walk of an input (B, T, I), unbatched (T, I), or packed."""
        if isinstance(input, PackedSequence):
            check_packed(input, "input")
            walk = Walk.packed(input.batch_sizes.tolist(), input.sorted_indices, input.data.device)
            walk.batch_first = batch_first
            return walk
        axes = tuple(input.shape[:-1])
        count, steps = (1, *axes) if len(axes) == 1 else axes if batch_first else axes[::-1]
        row_stride, step_stride = (steps, 1) if batch_first or len(axes) == 1 else (1, count)
        at_step = range(0, steps * step_stride, step_stride)
        if lengths is None:
            at_row: Sequence[int] = range(0, count * row_stride, row_stride)
            return Walk(axes, None, None, [count] * steps, at_step, at_row, input.device)
        lengths, order = torch.sort(check_lengths(lengths, count, steps), descending=True, stable=True)
        alive = lengths.unsqueeze(0) > torch.arange(int(lengths[0])).unsqueeze(1)  # (T, B)
        at_row = (order * row_stride).tolist()
        return Walk(
            axes, lengths, order.to(input.device), alive.sum(1).tolist(), at_step, at_row, input.device
        )

    @staticmethod
    def packed(
        batch_sizes: list[int], order: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> Walk:
        """The walk of tensors that are in its own order already, as those of a ``PackedSequence`` are."""
        sizes = torch.tensor(batch_sizes)
        lengths = (sizes.unsqueeze(1) > torch.arange(batch_sizes[0])).sum(0)
        at_step = [0, *itertools.accumulate(batch_sizes[:-1])]
        axes, at_row = (sum(batch_sizes),), range(batch_sizes[0])
        walk = Walk(axes, lengths, order, batch_sizes, at_step, at_row, torch.device(device))
        walk.of_packed = True
        return walk

    @property
    def lengths(self) -> Tensor:
        """(B,), sorted, on the CPU."""
        if self._lengths is None:
            self._lengths = torch.full((self.batch_sizes[0],), len(self.batch_sizes))
        return self._lengths

    @property
    def pointers(self) -> list[int]:
        """Where compiled code finds ``batch_sizes``, ``at_step`` and ``at_row``, as long as the walk lives."""
        if self._places is None:
            if isinstance(self.at_step, range) and isinstance(self.at_row, range):  # all rows have every step
                self._places = _dense_places(self.at_step, self.at_row)
            else:
                self._places = _Places(self.batch_sizes, self.at_step, self.at_row)
        return self._places.pointers

    @property
    def steps_and_rows(self) -> tuple[Tensor, Tensor]:
        """The step of everything walked, and its row as sorted, (N,) each."""
        if self._steps_and_rows is None:
            sizes, count = torch.tensor(self.batch_sizes), sum(self.batch_sizes)
            steps = torch.repeat_interleave(torch.arange(len(sizes)), sizes, output_size=count)
            self._steps_and_rows = steps, torch.arange(count) - (sizes.cumsum(0) - sizes)[steps]
        return self._steps_and_rows

    @property
    def index(self) -> Tensor | None:
        """The place of everything walked, (N,); None if they are in order already."""
        if not self.padded and self.at_row == range(self.batch_sizes[0]):
            return None
        if self._index is None:
            self._index = self._place(*self.steps_and_rows).to(self.device)
        return self._index

    def _place(self, steps: Tensor, rows: Tensor) -> Tensor:
        return torch.tensor(self.at_step)[steps] + torch.tensor(self.at_row)[rows]

    def flat(self, values: Tensor | PackedSequence, name: str) -> Tensor:
        """The caller's values (..., F) as (M, F), or (...) as (M,)."""
        if isinstance(values, PackedSequence):
            return self._repacked(values, name)
        if not self.of_packed:
            return values.flatten(0, len(self.axes) - 1)
        # Beside a packed input a plain tensor is padded.
        steps, rows = (t.to(self.device) for t in self.steps_and_rows)
        rows = rows if self.order is None else self.order[rows]
        return values[(rows, steps) if self.batch_first else (steps, rows)]

    def _repacked(self, packed: PackedSequence, name: str) -> Tensor:
        """Packed values in this walk's layout: equal lengths may have been sorted another way."""
        check_packed(packed, name)
        count = self.batch_sizes[0]
        theirs = torch.arange(count) if packed.unsorted_indices is None else packed.unsorted_indices.cpu()
        same = packed.batch_sizes.tolist() == self.batch_sizes and len(theirs) == count
        # Our i-th row is their where[i]-th.
        where = theirs if self.order is None or not same else theirs[self.order.cpu()]
        if not same or not torch.equal(self.lengths[where], self.lengths):
            raise ValueError(
                f"{name} is packed with other lengths than input; pack both with the same lengths"
            )
        if self.index is None and torch.equal(where, torch.arange(count)):
            return packed.data
        steps, rows = self.steps_and_rows
        sizes = packed.batch_sizes
        walked = packed.data.index_select(0, ((sizes.cumsum(0) - sizes)[steps] + where[rows]).to(self.device))
        return self.scatter(walked)

    def gather(self, values: Tensor) -> Tensor:
        """Flat (M, ...) to what is walked, in order: (N, ...)."""
        return values if self.index is None else values.index_select(0, self.index)

    def scatter(self, walked: Tensor) -> Tensor:
        """(N, ...) back to flat (M, ...), zeros where there is no step."""
        if self.index is None:
            return walked
        flat = walked.new_zeros(math.prod(self.axes), *walked.shape[1:])
        # In place: a copy of all the padding costs as much as the fused loop over short rows.
        return flat.index_copy_(0, self.index, walked)

    def by_row(self, walked: Tensor, *, reverse: bool = False) -> Tensor:
        """(N,) to (B, T), rows as the caller has them, zeros past their ends; ``reverse`` if walked from their ends."""
        steps, rows = self.steps_and_rows
        steps = self.lengths[rows] - 1 - steps if reverse else steps
        rows = rows if self.order is None else self.order.cpu()[rows]
        padded = walked.new_zeros(len(self.lengths), len(self.at_step))
        return padded.index_put((rows.to(self.device), steps.to(self.device)), walked)

    def last(self) -> Tensor:
        """Where each row's last step comes in the walk, rows as sorted, (B,)."""
        sizes = torch.tensor(self.batch_sizes)
        begin = sizes.cumsum(0) - sizes
        return (begin[self.lengths - 1] + torch.arange(len(self.lengths))).to(self.device)

    def flip(self) -> Tensor:
        """The places of flat tensors with every row from its last valid step to its first; its own inverse, (M,)."""
        steps, rows = self.steps_and_rows
        flipped = torch.arange(math.prod(self.axes))
        flipped[self._place(steps, rows)] = self._place(self.lengths[rows] - 1 - steps, rows)
        return flipped.to(self.device)

    def reversed_spans(self, spans: Tensor) -> Tensor:
        """The gaps of the flipped rows: the same gap between the same two observations, and none at the start."""
        steps, rows = (t[len(self.lengths) :] for t in self.steps_and_rows)  # all but the first step
        to, source = self._place(steps, rows), self._place(self.lengths[rows] - steps, rows)
        moved = spans.index_select(0, source.to(self.device))
        return torch.zeros_like(spans).index_copy(0, to.to(self.device), moved)

    def sort(self, rows: Tensor, dim: int) -> Tensor:
        return rows if self.order is None else rows.index_select(dim, self.order)

    def unsort(self, rows: Tensor, dim: int) -> Tensor:
        return rows if self.order is None else rows.index_select(dim, torch.argsort(self.order))

    def original_row(self, row: int) -> int:
        return row if self.order is None else int(self.order[row])

    def where(self, index: int) -> str:
        """The place of a walked step, in the caller's numbering."""
        steps, rows = self.steps_and_rows
        return f"row {self.original_row(int(rows[index]))}, step {int(steps[index])}"


class _Places:
    """The arrays of a walk, and where they lie."""

    def __init__(self, *lists: Sequence[int]) -> None:
        self.arrays = [np.asarray(values, np.int64) for values in lists]
        self.pointers = [array.ctypes.data for array in self.arrays]


@functools.lru_cache(maxsize=16)  # a training loop has the same shape again and again
def _dense_places(at_step: range, at_row: range) -> _Places:
    return _Places([len(at_row)] * len(at_step), at_step, at_row)


def check_packed(packed: PackedSequence, name: str) -> None:
    """Refuse a `PackedSequence` whose parts do not fit together: compiled code goes where its batch sizes point."""
    sizes, count = packed.batch_sizes, len(packed.data)
    if not len(sizes) or int(sizes[-1]) < 1 or bool((sizes[1:] > sizes[:-1]).any()):
        problem = f"its batch sizes must be at least 1 and never grow, got {sizes.tolist()}"
    elif count != int(sizes.sum()):
        problem = f"its batch sizes add up to {int(sizes.sum())} steps, but its data have {count}"
    elif not _ordered(packed.sorted_indices, packed.unsorted_indices, int(sizes[0])):
        problem = "its sorted_indices and unsorted_indices must be each other's inverse, of one entry per row"
    else:
        return
    raise ValueError(f"{name} is a damaged PackedSequence: {problem}; make it with pack_padded_sequence")


def _ordered(order: Tensor | None, inverse: Tensor | None, count: int) -> bool:
    """Whether ``order`` and ``inverse`` are permutations of ``count`` rows that undo each other."""
    if order is None or inverse is None:
        return order is None and inverse is None
    if not readable(order):
        return True
    rows = torch.arange(count, device=order.device)
    if order.shape != rows.shape or inverse.shape != rows.shape:
        return False
    least, most = torch.aminmax(inverse)
    return bool(least >= 0) and bool(most < count) and torch.equal(order[inverse], rows)


def check_lengths(lengths: Tensor | Sequence[int], count: int, steps: int) -> Tensor:
    lengths = torch.as_tensor(lengths).cpu()
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be whole numbers, got {lengths.dtype}")
    if tuple(lengths.shape) != (count,):
        raise ValueError(f"lengths must have shape ({count},), one per row, got {tuple(lengths.shape)}")
    wrong = (lengths < 1) | (lengths > steps)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"lengths must be from 1 to {steps}, got {int(lengths[row])} in row {row}; leave out rows without steps"
        )
    return lengths


def check_timespans(walk: Walk, timespans: Tensor | PackedSequence | None, like: Tensor) -> Tensor:
    """The valid gaps (N,), or an error that says which one is wrong."""
    if timespans is None:
        return like.new_ones(len(like))
    spans = walk.flat(timespans, "timespans")
    if spans.dim() != 1:
        raise ValueError(f"packed timespans must hold one gap per step, (N,), got {tuple(spans.shape)}")
    if spans.dtype != like.dtype:
        raise TypeError(
            f"timespans are {spans.dtype}, expected {like.dtype} like input: timespans.to({like.dtype})"
        )
    _refuse(
        walk,
        spans,
        lambda gaps: torch.isfinite(gaps) & (gaps >= 0),
        "timespans must be finite and not negative",
        "they are gaps between observations, not absolute times",
        low=-math.ulp(0.0),
    )
    return spans


def check_values(walk: Walk, data: Tensor, observed: Tensor | None) -> None:
    """Observed values must be numbers, and ``observed`` must say yes or no."""
    if observed is None:
        _refuse(
            walk,
            data,
            torch.isfinite,
            "input must be finite",
            "fill it, or leave it out with `observed` (GRUD) if it is missing",
            low=-math.inf,
        )
        return
    if observed.dtype != torch.bool:
        _refuse(
            walk,
            observed,
            lambda flags: (flags == 0) | (flags == 1),
            "observed must be true or false, 1 or 0",
            "it says which features were measured, not how well",
        )
    _refuse(
        walk,
        data.masked_fill(observed == 0, 0),
        torch.isfinite,
        "input must be finite where it is observed",
        "mark it as not observed if it is missing",
        low=-math.inf,
    )


def _refuse(
    walk: Walk,
    values: Tensor,
    fine: Callable[[Tensor], Tensor],
    rule: str,
    way_out: str,
    *,
    low: float | None = None,
) -> None:
    """Raise for the first walked value that is not fine; where values cannot be read (traced, vmapped), trust them.

    Where all finite values above ``low`` are fine, one pass for the extremes, padding included, settles nearly every
    call.
    """
    if not readable(values):
        return
    values = values.detach()
    if low is not None:
        least, most = (float(v) for v in torch.aminmax(values))
        if low < least and most < math.inf:
            return
    values = walk.gather(values)
    good = fine(values)
    if bool(good.all()):
        return
    index = tuple(int(i) for i in (~good).nonzero()[0])
    feature = f", feature {index[1]}" if len(index) > 1 else ""
    value = values[index].item()
    raise ValueError(f"{rule}, got {value} at {walk.where(index[0])}{feature}; {way_out}")
