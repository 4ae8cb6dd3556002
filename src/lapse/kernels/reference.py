"""The reference loop: plain PyTorch, every cell, every transform. Fused kernels are measured against it."""

from __future__ import annotations

import torch
from torch import Tensor

from lapse.kernels.contract import CellLike, State
from lapse.rows import Rows
from lapse.solvers import SolverError


def initial_state(cell: CellLike, input: Tensor, rows: Rows) -> State:
    """The cell's own initial state, one row per row of the batch."""
    return cell.initial_state(rows.batch_size, device=input.device, dtype=input.dtype)


def unroll(
    cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
) -> tuple[Tensor, State]:
    """Run a cell along the rows of a batch. A row that has ended is not computed again.

    Args:
        cell: The cell.
        input: (M, I), flat: `rows` says where each step lies.
        state: The state before the first step, one row per row of the batch; None for the cell's own.
        timespans: (M,), the gap before each step.
        rows: Where the steps lie, and which way they are walked.

    Returns:
        The outputs (M, H), zeros where there is no step, and the state of each row after its last step.
    """
    compute_weights(cell)
    state = rows.sort(initial_state(cell, input, rows) if state is None else state)
    sizes = rows.batch_sizes
    ended: list[State] = []
    outputs = []
    # split, not slices: the backward of x[t] writes a whole x for every t.
    steps = zip(rows.gather(input).split(sizes), rows.gather(timespans).split(sizes), sizes, strict=True)
    alive = sizes[0]
    for step, (x, timespan, size) in enumerate(steps):
        if size < alive:
            ended.append(tuple(s[size:] for s in state))
            state, alive = tuple(s[:size] for s in state), size
        try:
            output, state = cell.step(x, state, timespan)
        except SolverError as error:
            raise _of_batch(error, rows, step) from None
        outputs.append(output)
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return rows.scatter(torch.cat(outputs)), rows.unsort(state)


def _of_batch(error: SolverError, rows: Rows, step: int) -> SolverError:
    """The error with the row and the step as the batch numbers them."""
    row = error.row if rows.order is None else int(rows.order[error.row])
    return error.at_row(row).at_step(int(rows.step_of(torch.tensor(row), torch.tensor(step))))


def compute_weights(cell: CellLike) -> None:
    """Weights that torch's utilities for pruning and normalising compute anew whenever a module is called.

    A cell is stepped and its field is solved; neither need be called.
    """
    for part in cell.modules():
        for hook in part._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils."):
                hook(part, ())
