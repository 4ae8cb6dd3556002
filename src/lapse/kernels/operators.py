"""`lapse::unroll` and its backward as operators of torch, for graphs that are compiled or exported.

They are functions of their arguments alone: the program of the cell comes as text, the rows come as tensors and
numbers, and what the backward pass needs leaves the forward pass as tensors. Eager calls take the same passes
(`lapse.kernels.passes`) without the detour through torch's dispatcher.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

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
_Numbers = ctypes.c_int64 * 4
NUMBERS = ctypes.sizeof(_Numbers) // torch.float32.itemsize  # of either number type: room enough
_library = torch.library.Library("lapse", "DEF")
# Returns the output, the final states and, unless `kept` is 0, a tensor of `kept` elements with what the backward pass
# needs: packed weights, tape and the numbers of the job, in one tensor because each costs a graph some microseconds.
# Its size depends on the library. It is an argument because torch stores compiled graphs on disk by what is in them.
_library.define(f"unroll({INPUTS}, SymInt kept, int every) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
# Returns the gradients of those inputs that are wanted.
_library.define(
    f"unroll_backward({INPUTS}, Tensor?[] pulls, Tensor kept, bool[] wanted) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)


class _Ready(NamedTuple):
    """A program made ready for one number type, and the shapes that its tensors may have."""

    program: Program
    plan: native.Plan
    input_width: int
    widths: list[int]
    shapes: list[tuple[tuple[int, ...], ...]]

    def check(self, inputs: Sequence[Tensor], states: int, rows: int) -> None:
        """Refuse tensors that are not what the program expects: the library trusts them."""
        x, places = inputs[0], inputs[0].shape[0]
        expected: list[tuple[tuple[int, ...], ...]] = [((places, self.input_width),), ((places,),)]
        expected += [((rows, width),) for width in self.widths[:states]]
        expected += self.shapes
        if len(inputs) != len(expected) or states not in (0, len(self.widths)):
            raise ValueError(
                f"lapse::unroll expected {len(expected)} tensors for this program, got {len(inputs)}"
            )
        for tensor, shapes in zip(inputs, expected, strict=True):
            if tensor.shape not in shapes:
                raise ValueError(
                    f"lapse::unroll expected a tensor of shape {shapes[0]}, got {tuple(tensor.shape)}"
                )
            if tensor.dtype is not x.dtype or not tensor.is_cpu:
                raise TypeError(
                    f"lapse::unroll takes float32 or float64 tensors on the CPU, all alike, got {x.dtype} and "
                    f"{tensor.dtype} on {tensor.device.type}"
                )


@functools.lru_cache(maxsize=256)
def _ready(program: str, dtype: torch.dtype) -> _Ready:
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"lapse::unroll takes float32 or float64 tensors, got {dtype}")
    if native.library() is None:
        raise RuntimeError("this graph was made for lapse's fused kernels, which are not available here")
    made = text.read(program)
    widths = [port.row_stride for port in made.states]
    return _Ready(made, native.Plan(made, dtype), made.input_port.row_stride, widths, made.tensor_shapes())


def _unroll(
    program: str,
    inputs: Sequence[Tensor],
    states: int,
    lengths: Tensor,
    starts: Tensor,
    stride: int,
    room: int,
    backward: bool,
    kept: int,
    every: int,
) -> list[Tensor]:
    ready, places, count = _ready(program, inputs[0].dtype), inputs[0].shape[0], lengths.shape[0]
    ready.check(inputs, states, count)
    rows = Rows(lengths, starts, stride, places, room, backward=backward)
    job = Job.of(ready.program, ready.plan, rows, states, every)
    if not kept:
        found = passes.forward(job, 0, inputs)
        return [found.output, *found.final]
    if kept < kept_size(ready.plan.sizes, count, places, every):
        raise ValueError(f"lapse::unroll cannot keep what the backward pass needs in {kept} elements")
    found = passes.forward(job, kept - ready.plan.packed_size, inputs)
    numbers = _numbers(found.kept)
    numbers[:] = [job.every, job.threads, job.block, found.call.finite]
    return [found.output, *found.final, found.kept]


def kept_size(sizes: tuple[int, int, int], rows: int, places: int, every: int) -> int:
    """How many elements are kept for the backward pass at most, whatever the lengths of the rows are.

    Args:
        sizes: Those of the plan.
        rows: The number of rows.
        places: The number of places that their steps lie in.
        every: How many steps lie between two states that are kept; 0 to keep every step.
    """
    packed, record, state = sizes
    tape = (rows + places // every) * state if every else (rows + places) * record
    return packed + tape + NUMBERS


def plan_sizes(program: str, dtype: torch.dtype) -> tuple[int, int, int]:
    """What `kept_size` takes."""
    return _ready(program, dtype).plan.sizes


def _numbers(kept: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """The last elements of what is kept, which hold the numbers of the job."""
    at = kept.data_ptr() + (kept.shape[0] - NUMBERS) * kept.itemsize
    return _Numbers.from_address(at)


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
    wanted: Sequence[bool],
) -> list[Tensor]:
    ready = _ready(program, kept.dtype)
    rows = Rows(lengths, starts, stride, inputs[0].shape[0], room, backward=backward)
    every, threads, block, finite = _numbers(kept)
    job = Job(ready.program, ready.plan, rows, states, every, threads, block)
    call = job.call()
    call.finite = finite
    found = passes.backward(job, call, kept, inputs, pulls, wanted)
    return [grad for grad in found if grad is not None]


def _fake_unroll(
    program: str, inputs: Sequence[Tensor], states: int, lengths: Tensor, *layout_and_kept: Any
) -> list[Tensor]:
    *_, kept, _ = layout_and_kept
    like, places, rows = inputs[0], inputs[0].shape[0], lengths.shape[0]
    widths = [port.row_stride for port in text.read(program).states]
    found = [like.new_empty(places, widths[0]), *(like.new_empty(rows, n) for n in widths)]
    return [*found, like.new_empty(kept)] if kept else found


def _fake_unroll_backward(program: str, inputs: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, wanted in zip(inputs, rest[-1], strict=True) if wanted]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.program, tensors, ctx.states, lengths, starts, *ctx.layout, ctx.kept, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, lengths, starts, *(output[-1:] if ctx.kept else ()))


def _differentiate(ctx: Any, pulls: list[Tensor | None]) -> tuple[Any, ...]:
    if not ctx.kept:
        raise RuntimeError(
            "this graph was made for inference: it keeps nothing that a backward pass could use"
        )
    *inputs, lengths, starts, kept = ctx.saved_tensors
    wanted = ctx.needs_input_grad[1]
    pulled = iter(
        torch.ops.lapse.unroll_backward(
            ctx.program, inputs, ctx.states, lengths, starts, *ctx.layout, pulls[:-1], kept, wanted
        )
    )
    return None, [next(pulled) if w else None for w in wanted], *([None] * 8)


_library.impl("unroll", _unroll, "CPU")
_library.impl("unroll_backward", _unroll_backward, "CPU")
# Not `register_fake`, which looks through every imported module for the name of its caller: a millisecond each time.
_library.impl("unroll", _fake_unroll, "Meta")
_library.impl("unroll_backward", _fake_unroll_backward, "Meta")
torch.library.register_autograd("lapse::unroll", _differentiate, setup_context=_remember, lib=_library)
