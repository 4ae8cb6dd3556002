"""`lapse::unroll` and its backward as operators of torch, for graphs that are compiled or exported.

They are functions of their arguments alone: the program of the cell comes as text, the rows come as tensors and
numbers, and what the backward pass needs leaves the forward pass as tensors. Eager calls take the same passes
(`lapse.kernels.passes`) without the detour through torch's dispatcher.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lapse.kernels import native, passes, text
from lapse.kernels.passes import Job
from lapse.kernels.program import Program
from lapse.rows import Rows

# `inputs` are the input, the gaps, `states` states before the first step (none if rows start from zeros) and the
# tensors of the program. They are one list because AOTInductor does not pass empty ones.
INPUTS = (
    "str program, Tensor[] inputs, int states, "
    "Tensor lengths, Tensor starts, SymInt stride, SymInt room, bool backward"
)
_library = torch.library.Library("lapse", "DEF")
# Returns the output, the final states and, if they are to be kept, what the backward pass needs: a tensor with packed
# weights and tape, and one with the numbers of the job.
_library.define(f"unroll({INPUTS}, bool keep, int every) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
# Returns the gradients of those inputs that are wanted.
_library.define(
    f"unroll_backward({INPUTS}, Tensor?[] pulls, Tensor kept, Tensor numbers, bool[] wanted) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)


@functools.lru_cache(maxsize=256)
def _plan(program: str, dtype: torch.dtype) -> native.Plan:
    if native.library() is None:
        raise RuntimeError("this graph was made for lapse's fused kernels, which are not available here")
    return native.Plan(text.read(program), dtype)


def _unroll(
    program: str,
    inputs: Sequence[Tensor],
    states: int,
    lengths: Tensor,
    starts: Tensor,
    stride: int,
    room: int,
    backward: bool,
    keep: bool,
    every: int,
) -> list[Tensor]:
    rows = Rows(lengths, starts, stride, inputs[0].shape[0], room, backward=backward)
    _check(text.read(program), rows, inputs, states)
    plan = _plan(program, inputs[0].dtype)
    job = Job.of(text.read(program), plan, rows, states, every)
    found = passes.forward(job, plan.most_tape(rows.batch_size, rows.size, every) if keep else 0, inputs)
    numbers = torch.tensor([job.every, job.threads, job.block, found.call.finite])
    return [found.output, *found.final, *([found.kept, numbers] if keep else [])]


def _unroll_backward(
    program: str,
    inputs: Sequence[Tensor],
    states: int,
    lengths: Tensor,
    starts: Tensor,
    stride: int,
    room: int,
    backward: bool,
    pulls: Sequence[Tensor | None],
    kept: Tensor,
    numbers: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor]:
    rows = Rows(lengths, starts, stride, inputs[0].shape[0], room, backward=backward)
    every, threads, block, finite = numbers.tolist()
    job = Job(text.read(program), _plan(program, kept.dtype), rows, states, every, threads, block)
    call = job.call()
    call.finite = finite
    found = passes.backward(job, call, kept, inputs, pulls, wanted)
    return [grad for grad in found if grad is not None]


def _check(program: Program, rows: Rows, inputs: Sequence[Tensor], states: int) -> None:
    """Refuse tensors that are not what the program expects: the library trusts them."""
    steps, widths = rows.size, [port.row_stride for port in program.states]
    expected: list[tuple[tuple[int, ...], ...]] = [((steps, program.input_port.row_stride),), ((steps,),)]
    expected += [((rows.batch_size, width),) for width in widths[:states]] + program.tensor_shapes()
    found = [tuple(tensor.shape) for tensor in inputs]
    if len(found) != len(expected) or states not in (0, len(widths)):
        raise ValueError(f"lapse::unroll expected {len(expected)} tensors for this program, got {len(found)}")
    for shape, shapes in zip(found, expected, strict=True):
        if shape not in shapes:
            raise ValueError(f"lapse::unroll expected a tensor of shape {shapes[0]}, got {shape}")
    kinds = {(tensor.dtype, tensor.device.type) for tensor in inputs}
    if kinds not in ({(torch.float32, "cpu")}, {(torch.float64, "cpu")}):
        raise TypeError(f"lapse::unroll takes float32 or float64 tensors on the CPU, all alike, got {kinds}")


def _fake_unroll(
    program: str, inputs: Sequence[Tensor], states: int, lengths: Tensor, *layout_and_keep: Any
) -> list[Tensor]:
    *_, keep, every = layout_and_keep
    like, places, rows = inputs[0], inputs[0].shape[0], lengths.shape[0]
    widths = [port.row_stride for port in text.read(program).states]
    found = [like.new_empty(places, widths[0]), *(like.new_empty(rows, n) for n in widths)]
    if keep:
        plan = _plan(program, like.dtype)
        found.append(like.new_empty(plan.packed_size + plan.most_tape(rows, places, every)))
        found.append(lengths.new_empty(4))
    return found


def _fake_unroll_backward(program: str, inputs: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, wanted in zip(inputs, rest[-1], strict=True) if wanted]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.program, tensors, ctx.states, lengths, starts, *ctx.layout, ctx.keep, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, lengths, starts, *(output[-2:] if ctx.keep else ()))


def _differentiate(ctx: Any, pulls: list[Tensor | None]) -> tuple[Any, ...]:
    if not ctx.keep:
        raise RuntimeError(
            "this graph was made for inference: it keeps nothing that a backward pass could use"
        )
    *inputs, lengths, starts, kept, numbers = ctx.saved_tensors
    wanted = ctx.needs_input_grad[1]
    pulled = iter(
        torch.ops.lapse.unroll_backward(
            ctx.program, inputs, ctx.states, lengths, starts, *ctx.layout, pulls[:-2], kept, numbers, wanted
        )
    )
    return None, [next(pulled) if w else None for w in wanted], *([None] * 8)


_library.impl("unroll", _unroll, "CPU")
_library.impl("unroll_backward", _unroll_backward, "CPU")
torch.library.register_fake("lapse::unroll", _fake_unroll, lib=_library)
torch.library.register_fake("lapse::unroll_backward", _fake_unroll_backward, lib=_library)
torch.library.register_autograd("lapse::unroll", _differentiate, setup_context=_remember, lib=_library)
