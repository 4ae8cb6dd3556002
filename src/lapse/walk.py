"""The order in which a batch of ragged sequences is walked, and the checks at the layers' edge."""

from __future__ import annotations

from collections.abc import Sequence

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
    def of(input: Tensor | PackedSequence | None, lengths: Tensor | Sequence[int] | None) -> Walk:
        if isinstance(input, PackedSequence):
            sizes = input.batch_sizes
            lengths = (sizes.unsqueeze(1) > torch.arange(int(sizes[0]))).sum(0)
            return Walk(lengths, input.sorted_indices, sizes.tolist(), len(sizes), input.data.device)
        assert input is not None
        count, steps = input.shape[:2]
        if count == 0 or steps == 0:
            raise ValueError(f"input has no {'rows' if count == 0 else 'steps'}: {tuple(input.shape)}")
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

    def gather(self, padded: Tensor | PackedSequence | None, name: str) -> Tensor:
        """(B, T, ...) or packed to (N, ...)."""
        if isinstance(padded, PackedSequence):
            if padded.batch_sizes.tolist() != self.batch_sizes:
                raise ValueError(
                    f"{name} is packed with other lengths than input; pack both with the same lengths"
                )
            return padded.data
        assert padded is not None
        expected = (len(self.lengths), self.width)
        if tuple(padded.shape[:2]) != expected:
            raise ValueError(
                f"{name} must begin with the axes of input, {expected} rows and steps, got {tuple(padded.shape)} "
                "(batch first)"
            )
        if self.dense:
            return padded.transpose(0, 1).flatten(0, 1)
        return padded.flatten(0, 1).index_select(0, self._flat())

    def scatter(self, walked: Tensor) -> Tensor:
        """(N, H) back to (B, T, H), zeros past each row's length."""
        count = len(self.lengths)
        if self.dense:
            return walked.view(self.width, count, -1).transpose(0, 1)
        padded = walked.new_zeros(count * self.width, walked.shape[-1])
        return padded.index_copy(0, self._flat(), walked).view(count, self.width, -1)

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
    if isinstance(timespans, Tensor) and timespans.dim() != 2:
        hint = "; drop its last axis with timespans.squeeze(-1)" if timespans.shape[-1:] == (1,) else ""
        raise ValueError(
            f"timespans must be (B, T), one gap an observation, got {tuple(timespans.shape)} (batched){hint}"
        )
    spans = walk.gather(timespans, "timespans")
    if spans.dim() != 1:
        raise ValueError(f"packed timespans must hold one gap a step, (N,), got {tuple(spans.shape)}")
    if spans.dtype != like.dtype:
        raise TypeError(
            f"timespans are {spans.dtype}, expected {like.dtype} like input: timespans.to({like.dtype})"
        )
    if readable(spans):
        wrong = ~(torch.isfinite(spans) & (spans >= 0))
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            raise ValueError(
                f"timespans must be finite and not negative, got {float(spans[index])} at {walk.where(index)}; they "
                "are gaps between observations, not absolute times"
            )
    return spans
