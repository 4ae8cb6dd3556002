"""The reference loop: plain PyTorch, every cell, every transform. Fused kernels are measured against it."""

from __future__ import annotations

import torch
from torch import Tensor

from lapse.kernels.contract import CellLike, State
from lapse.kernels.walk import Walk
from lapse.solvers import SolverError


def initial_state(cell: CellLike, input: Tensor, walk: Walk) -> State:
    """The cell's own, a row for each row of the batch."""
    return cell.initial_state(walk.batch_sizes[0], device=input.device, dtype=input.dtype)


def unroll(
    cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, walk: Walk
) -> tuple[Tensor, State]:
    """Run ``cell`` along the rows of a batch, as ``walk`` lays them out.

    ``input`` (M, I) and ``timespans`` (M,) are flat; ``state`` has a row for each row of the batch, in walking order,
    and is the cell's own initial one if there is none. Returns the outputs (M, H), zeros where there is no step, and
    each row's state after its last step. A row that has ended is not computed again.
    """
    compute_weights(cell)
    state = initial_state(cell, input, walk) if state is None else state
    sizes = walk.batch_sizes
    ended: list[State] = []
    outputs = []
    # split, not slices: the backward of x[t] writes a whole x for every t.
    steps = zip(walk.gather(input).split(sizes), walk.gather(timespans).split(sizes), sizes, strict=True)
    alive = sizes[0]
    for step, (x, timespan, size) in enumerate(steps):
        if size < alive:
            ended.append(tuple(s[size:] for s in state))
            state, alive = tuple(s[:size] for s in state), size
        try:
            output, state = cell.step(x, state, timespan)
        except SolverError as error:
            raise error.at_step(step) from None
        outputs.append(output)
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return walk.scatter(torch.cat(outputs)), state


def compute_weights(cell: CellLike) -> None:
    """Weights that torch's utilities for pruning and normalising compute anew whenever a module is called.

    A cell is stepped and its field is solved; neither need be called.
    """
    for part in cell.modules():
        for hook in part._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils."):
                hook(part, ())
