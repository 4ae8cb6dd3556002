"""The order in which a batch of ragged sequences is walked, and the checks at the layers' edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lapse.solvers import readable


class Walk:
    """Valid steps of a batch, time-major, rows sorted by falling length: the order of a ``PackedSequence``.

    ``gather`` brings (B, T, ...) into that order and ``scatter`` back. Only valid steps are ever touched, so what
    the padding holds cannot matter, NaN included. ``order[i]`` is the row of the batch that is walked i-th; None
    where rows keep their places.
    """

    def __init__(
        self, lengths: Tensor, order: Tensor | None, batch_sizes: list[int], width: int, device: torch.device
    ) -> None:
        self.lengths = lengths  # (B,), sorted, on the CPU
        self.order = order
        self.batch_sizes = batch_sizes
        self.width = width  # T of padded tensors, which may be more than the longest row
        self.device = device
        # Whether every step of every row is valid, in the rows' own order: nothing to pick out.
        self.dense = order is None and batch_sizes == [len(lengths)] * width
        self.steps, self.rows = self._places()  # of everything walked, (N,) each; rows as sorted
        sizes = torch.tensor(batch_sizes)
        self.begin = sizes.cumsum(0) - sizes  # where each step begins in the walk, (T,)

    @staticmethod
    def of(input: Tensor | PackedSequence, lengths: Tensor | Sequence[int] | None) -> Walk:
        if isinstance(input, PackedSequence):
            sizes = input.batch_sizes
            lengths = (sizes.unsqueeze(1) > torch.arange(int(sizes[0]))).sum(0)
            return Walk(lengths, input.sorted_indices, sizes.tolist(), len(sizes), input.data.device)
        count, steps = input.shape[:2]
        if lengths is None:
            return Walk(torch.full((count,), steps), None, [count] * steps, steps, input.device)
        lengths = check_lengths(lengths, count, steps)
        lengths, order = torch.sort(lengths, descending=True, stable=True)
        alive = lengths.unsqueeze(0) > torch.arange(int(lengths[0])).unsqueeze(1)  # (T, B)
        return Walk(lengths, order.to(input.device), alive.sum(1).tolist(), steps, input.device)

    def flip(self) -> Tensor:
        """The walk of every row from its last valid step to its first; its own inverse, (N,)."""
        return (self.begin[self.lengths[self.rows] - 1 - self.steps] + self.rows).to(self.device)

    def reversed_spans(self, spans: Tensor) -> Tensor:
        """The gaps of the flipped walk: the same gap between the same two observations, and none at the start."""
        count = len(self.lengths)
        flipped = spans.index_select(0, self.flip())
        previous = self.begin[self.steps[count:] - 1] + self.rows[count:]
        return torch.cat([spans.new_zeros(count), flipped.index_select(0, previous.to(self.device))])

    def gather(self, values: Tensor | PackedSequence, name: str) -> Tensor:
        """(B, T, ...) or packed to (N, ...)."""
        if isinstance(values, PackedSequence):
            return self._repacked(values, name)
        if self.dense:
            return values.transpose(0, 1).flatten(0, 1)
        return values.flatten(0, 1).index_select(0, self._flat())

    def _repacked(self, packed: PackedSequence, name: str) -> Tensor:
        """Packed values in this walk's order: equal lengths may have been sorted another way."""
        count = len(self.lengths)
        theirs = torch.arange(count) if packed.unsorted_indices is None else packed.unsorted_indices.cpu()
        where = (
            theirs if self.order is None else theirs[self.order.cpu()]
        )  # our i-th row is their where[i]-th
        same = packed.batch_sizes.tolist() == self.batch_sizes and len(where) == count
        if not same or not torch.equal(self.lengths[where], self.lengths):
            raise ValueError(
                f"{name} is packed with other lengths than input; pack both with the same lengths"
            )
        if torch.equal(where, torch.arange(count)):
            return packed.data
        return packed.data.index_select(0, (self.begin[self.steps] + where[self.rows]).to(self.device))

    def scatter(self, walked: Tensor) -> Tensor:
        """(N, H) back to (B, T, H), zeros past each row's length."""
        count = len(self.lengths)
        if self.dense:
            return walked.view(self.width, count, -1).transpose(0, 1)
        padded = walked.new_zeros(count * self.width, walked.shape[-1])
        # In place: a copy of all the padding costs as much as the fused loop over short rows.
        return padded.index_copy_(0, self._flat(), walked).view(count, self.width, -1)

    def _flat(self) -> Tensor:
        """Where each walked step lies in a flattened (B, T, ...) tensor, (N,)."""
        rows, steps = self.rows.to(self.device), self.steps.to(self.device)
        return (rows if self.order is None else self.order[rows]) * self.width + steps

    def _places(self) -> tuple[Tensor, Tensor]:
        steps = torch.arange(len(self.batch_sizes)).unsqueeze(1)
        rows = torch.arange(len(self.lengths)).unsqueeze(0)
        if self.dense:
            steps, rows = torch.broadcast_tensors(steps, rows)
            return steps.flatten(), rows.flatten()
        steps, rows = (steps < self.lengths.unsqueeze(0)).nonzero(as_tuple=True)
        return steps, rows

    def sort(self, rows: Tensor, dim: int) -> Tensor:
        return rows if self.order is None else rows.index_select(dim, self.order)

    def unsort(self, rows: Tensor, dim: int) -> Tensor:
        return rows if self.order is None else rows.index_select(dim, torch.argsort(self.order))

    def original_row(self, row: int) -> int:
        return row if self.order is None else int(self.order[row])

    def where(self, index: int) -> str:
        """The place of a walked step, in the caller's numbering."""
        return f"row {self.original_row(int(self.rows[index]))}, step {int(self.steps[index])}"


def check_lengths(lengths: Tensor | Sequence[int], count: int, steps: int) -> Tensor:
    lengths = torch.as_tensor(lengths).cpu()
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be whole numbers, got {lengths.dtype}")
    if tuple(lengths.shape) != (count,):
        raise ValueError(f"lengths must have shape ({count},), one a row, got {tuple(lengths.shape)}")
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
    spans = walk.gather(timespans, "timespans")
    if spans.dim() != 1:
        raise ValueError(f"packed timespans must hold one gap a step, (N,), got {tuple(spans.shape)}")
    if spans.dtype != like.dtype:
        raise TypeError(
            f"timespans are {spans.dtype}, expected {like.dtype} like input: timespans.to({like.dtype})"
        )
    _refuse(
        walk,
        lambda: torch.isfinite(spans) & (spans >= 0),
        spans,
        "timespans must be finite and not negative",
        "they are gaps between observations, not absolute times",
    )
    return spans


def check_values(walk: Walk, data: Tensor, observed: Tensor | None) -> None:
    """Observed values must be numbers, and ``observed`` must say yes or no."""
    if observed is None:
        _refuse(
            walk,
            lambda: torch.isfinite(data),
            data,
            "input must be finite",
            "fill it, or leave it out with `observed` (GRUD) if it is missing",
        )
        return
    _refuse(
        walk,
        lambda: (observed == 0) | (observed == 1),
        observed,
        "observed must be true or false, 1 or 0",
        "it says which features were measured, not how well",
    )
    _refuse(
        walk,
        lambda: torch.isfinite(data) | (observed == 0),
        data,
        "input must be finite where it is observed",
        "mark it as not observed if it is missing",
    )


def _refuse(walk: Walk, fine: Callable[[], Tensor], values: Tensor, rule: str, way_out: str) -> None:
    """Raise for the first value that is not fine; where values cannot be read (traced, vmapped), trust them."""
    if not readable(values) or bool((good := fine()).all()):
        return
    index = tuple(int(i) for i in (~good).nonzero()[0])
    feature = f", feature {index[1]}" if len(index) > 1 else ""
    value = values[index].item()
    raise ValueError(f"{rule}, got {value} at {walk.where(index[0])}{feature}; {way_out}")
