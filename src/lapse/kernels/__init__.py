"""The one loop over time: ``unroll`` runs a cell along ragged sequences, by the fastest path that covers the call."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from lapse.cells import AugmentedLSTMCell, Cell, State
from lapse.kernels.fused import Fused
from lapse.kernels.fused import recompute as recompute
from lapse.kernels.reference import unroll as unroll_reference
from lapse.kernels.setting import Choices, Setting
from lapse.kernels.single import step as step
from lapse.kernels.steps import STEPS
from lapse.kernels.torch_lstm import TorchLSTM
from lapse.walk import Walk


class Kernel(Protocol):
    """A fused loop for one type of cell, with the reference's signature."""

    def __call__(
        self, cell: Any, input: Tensor, state: State | None, timespans: Tensor, walk: Walk, /
    ) -> tuple[Tensor, State] | None:
        """None where it does not cover the call: solver, dtype, device, kind of differentiation."""
        ...


Backend = Literal["auto", "fused", "reference"]

# A fused kernel serves exactly one type of cell: a subclass may compute something else. The first that covers a call.
FUSED: dict[type[Cell], tuple[Kernel, ...]] = dict.fromkeys(STEPS, (Fused(),))
FUSED[AugmentedLSTMCell] += (TorchLSTM(),)  # where there is no compiler, and on other devices

_backend: Choices[Backend] = Choices("auto")


class backend(Setting[Backend]):
    """Choose the path that layers take: ``lapse.backend("reference")``, also as ``with lapse.backend(...):``.

    "auto" takes a fused kernel where one covers the call and the reference loop elsewhere, "reference" always the
    loop, and "fused" raises where no kernel covers the call, so that a benchmark or test cannot miss it. The choice
    holds for every thread of the process; the latest one that has not ended counts.

    Args:
        name: "auto", "fused" or "reference".
    """

    def __init__(self, name: Backend) -> None:
        if name not in ("auto", "fused", "reference"):
            raise ValueError(f"backend must be 'auto', 'fused' or 'reference', got {name!r}")
        super().__init__(_backend, name)


def unroll(
    cell: Cell, input: Tensor, state: State | None, timespans: Tensor, walk: Walk
) -> tuple[Tensor, State]:
    """Run ``cell`` along a batch; shapes as in :func:`lapse.kernels.reference.unroll`."""
    if torch.compiler.is_compiling():
        return unroll_reference(cell, input, state, timespans, walk)
    choice = _backend.get()
    for kernel in FUSED.get(type(cell), ()) if choice != "reference" else ():
        if (result := kernel(cell, input, state, timespans, walk)) is not None:
            return result
    if choice == "fused":
        raise RuntimeError(f"no fused kernel covers this call of {type(cell).__name__}; use backend('auto')")
    return unroll_reference(cell, input, state, timespans, walk)
