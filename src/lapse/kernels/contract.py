"""What the loop over time asks of a cell: its state, its step, and the parts that a fused program is written for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]


class CellLike(Protocol):
    """The contract of `lapse.Cell` as the kernels see it: they come before the cells in the order of imports."""

    input_size: int
    hidden_size: int
    training: bool

    @property
    def state_sizes(self) -> tuple[int, ...]: ...

    def initial_state(
        self, batch_size: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State: ...

    def step(self, input: Tensor, state: State, timespan: Tensor, /) -> tuple[Tensor, State]: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


def zero_state(
    cell: CellLike,
    batch_size: int,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> State:
    """The state before the first observation: zeros, one row per row of the batch.

    This is the default of `Cell.initial_state`. The fused loop recognises it and makes the zeros by itself.

    Args:
        cell: The cell whose state it is.
        batch_size: How many rows the batch has.
        device: Where the state lives.
        dtype: The number type of the state.
    """
    return tuple(torch.zeros(batch_size, size, device=device, dtype=dtype) for size in cell.state_sizes)
