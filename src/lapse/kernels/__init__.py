"""The one loop over time: `unroll` runs a cell along ragged sequences, by the fastest path that covers the call."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lapse.kernels.contract import CellLike, State
from lapse.kernels.fused import Fused
from lapse.kernels.fused import recompute as recompute
from lapse.kernels.programs import has_program
from lapse.kernels.reference import unroll as unroll_reference
from lapse.kernels.setting import backend as backend
from lapse.kernels.setting import chosen_backend, not_covered
from lapse.kernels.single import step as step
from lapse.kernels.traced import unroll as unroll_traced
from lapse.rows import Rows
from lapse.torch_private import is_exporting, untraced


class Kernel(Protocol):
    """A fast loop over time with the signature of the reference."""

    def __call__(
        self, cell: Any, input: Tensor, state: State | None, timespans: Tensor, rows: Rows, /
    ) -> tuple[Tensor, State] | None:
        """The outputs and final states; None if the kernel does not cover the call.

        What a kernel may not cover: the solver, the number type, the device, the kind of differentiation.
        """
        ...


# The kernels that run the program of any cell. A cell's own ones, its class attribute `kernels`, are tried after them.
KERNELS: tuple[Kernel, ...] = (Fused(),)


def kernels_of(cell: CellLike) -> tuple[Kernel, ...]:
    """The kernels to try for a cell, in this order.

    They serve the very class that declares them: a subclass may compute something else.
    """
    own: tuple[Kernel, ...] = vars(type(cell)).get("kernels", ())
    return (*KERNELS, *own) if has_program(cell) else own


def unroll(
    cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
) -> tuple[Tensor, State]:
    """Run `cell` along a batch; shapes as in `lapse.kernels.reference.unroll`."""
    if torch.compiler.is_compiling():
        return _unroll_compiling(cell, input, state, timespans, rows)
    choice = chosen_backend()
    for kernel in kernels_of(cell) if choice != "reference" else ():
        if (result := kernel(cell, input, state, timespans, rows)) is not None:
            return result
    if choice == "fused":
        raise not_covered(cell)
    return unroll_reference(cell, input, state, timespans, rows)


def _unroll_compiling(
    cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
) -> tuple[Tensor, State]:
    """The loop in a graph that is traced: the operator where it covers the call, otherwise step after step."""
    if (found := unroll_traced(cell, input, state, timespans, rows)) is not None:
        return found
    if rows.even:
        return unroll_reference(cell, input, state, timespans, rows)
    # The number of steps of ragged rows is known when they are there, not while a graph is traced.
    if is_exporting():
        raise RuntimeError(
            f"no fused kernel covers this call of {type(cell).__name__}, so it can be exported for rows of one "
            "length only; call it without lengths"
        )
    return _unroll_untraced(cell, input, state, timespans, rows)


@untraced
def _unroll_untraced(
    cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
) -> tuple[Tensor, State]:
    return unroll(cell, input, state, timespans, rows)
