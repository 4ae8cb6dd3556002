"""The fused loop in a graph that is traced: what is known of a cell beforehand becomes a constant of the graph."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lapse.kernels import native, operators, text
from lapse.kernels.contract import CellLike, State, zero_state
from lapse.kernels.fused import kept_every
from lapse.kernels.programs import has_program, program_of
from lapse.kernels.reference import initial_state
from lapse.kernels.setting import chosen_backend
from lapse.rows import Rows
from lapse.torch_private import constant, is_exporting


def unroll(
    cell: CellLike, input: Tensor, state: State | None, timespans: Tensor, rows: Rows
) -> tuple[Tensor, State] | None:
    """The outputs and final states; None if the operator does not cover the call."""
    # The settings are arguments, so that the graph is made anew when one of them is another one.
    program = _program(cell, *[_attribute(cell, name) for name in _setting_names(cell)])
    if not program or input.device.type != "cpu" or input.dtype not in (torch.float32, torch.float64):
        return None
    if state is None:
        state = () if _starts_from_zeros(cell) else initial_state(cell, input, rows)
    weights = [_attribute(cell, name) for name in _tensor_names(program)]
    inputs: list[Any] = [input, timespans, *state, *weights]
    keep = torch.is_grad_enabled() and not is_exporting() and any(tensor.requires_grad for tensor in inputs)
    layout = rows.lengths, rows.starts, rows.stride, rows.room, rows.backward
    every = kept_every() if keep else 0
    sizes = _plan_sizes(program, input.dtype)
    kept = operators.kept_size(sizes, rows.batch_size, rows.size, every) if keep else 0
    output, *rest = torch.ops.lapse.unroll(program, inputs, len(state), *layout, kept, every)
    return output, tuple(rest[:-1] if keep else rest)


def _attribute(cell: CellLike, name: str) -> Any:
    """An attribute of the cell or of one of its parts, by a name with dots."""
    return reduce(getattr, name.split("."), cell)


@constant
def _setting_names(cell: CellLike) -> tuple[str, ...]:
    return tuple(program_of(cell)[0].setting_names) if has_program(cell) else ()


@constant
def _program(cell: CellLike, *settings: object) -> str:
    """The program of the cell as text; empty if it has none that can run here, or the reference was asked for."""
    if not has_program(cell) or chosen_backend() == "reference" or native.library() is None:
        return ""
    written, parts = program_of(cell)
    if written.program is None or written.tensors(parts) is None:
        return ""
    return text.write(written.program)


@constant
def _tensor_names(program: str) -> tuple[str, ...]:
    return tuple(text.read(program).tensors)


@constant
def _plan_sizes(program: str, dtype: torch.dtype) -> tuple[int, int, int]:
    return operators.plan_sizes(program, dtype)


@constant
def _starts_from_zeros(cell: CellLike) -> bool:
    return getattr(cell.initial_state, "__func__", None) is zero_state
