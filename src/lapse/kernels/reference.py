"""The reference loop: plain PyTorch, every cell, every transform. Fused kernels are measured against it."""

from __future__ import annotations

import torch
from torch import Tensor

from lapse.cells import Cell, State


def unroll(
    cell: Cell, input: Tensor, state: State, timespans: Tensor, batch_sizes: list[int]
) -> tuple[Tensor, State]:
    """Run ``cell`` along a batch packed as in ``PackedSequence``.

    ``input`` (N, I) and ``timespans`` (N,) hold the valid steps only, time-major, rows sorted by falling length;
    ``batch_sizes[t]`` rows are alive at step t; ``state`` has a row for each of the B = batch_sizes[0] rows. Returns
    the outputs (N, H) and each row's state after its last step. A row that has ended is not computed again.
    """
    ended: list[State] = []
    outputs = []
    # split, not slices: the backward of x[t] writes a whole x for every t.
    steps = zip(input.split(batch_sizes), timespans.split(batch_sizes), batch_sizes, strict=True)
    alive = batch_sizes[0]
    for x, timespan, size in steps:
        if size < alive:
            ended.append(tuple(s[size:] for s in state))
            state, alive = tuple(s[:size] for s in state), size
        output, state = cell.step(x, state, timespan)
        outputs.append(output)
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return torch.cat(outputs), state
