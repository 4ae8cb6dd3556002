"""A linear recurrence along ragged rows, x_k = a_k x_{k−1} + b_k, without a loop over steps in Python."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from lapse.arguments import check_kind
from lapse.kernels import native
from lapse.rows import Rows

# `torch.library.custom_op` would say the same in fewer lines, but takes three milliseconds of every `import lapse`.
_library = torch.library.Library("lapse", "FRAGMENT")
_library.define(
    "scan(Tensor a, Tensor b, Tensor lengths, Tensor starts) -> Tensor", tags=torch.Tag.pt2_compliant_tag
)
_library.define(
    "scan_backward(Tensor d_x, Tensor a, Tensor x, Tensor lengths, Tensor starts) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
_INTEGERS = ("count", "channels", "threads")
_POINTERS = ("lengths", "starts", "a", "b", "x", "d_x", "d_a", "d_b", "parallel")


class _Call(ctypes.Structure):
    """The arguments of one call, as `csrc/scan.cpp` has them."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _INTEGERS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


def scan(a: Tensor, b: Tensor, rows: Rows) -> Tensor:
    """All states of x_k = a_k x_{k−1} + b_k along each row, from x = 0 before its first step: (N, 2C).

    The C numbers of a step are complex; all their real parts come before all their imaginary parts, which is how
    vectors are loaded. The work is linear in N, forward and backward, and threads share rows and channels. Where there
    is no compiled library, and on other devices, the recurrence is doubled ⌈log₂ T⌉ times instead, T being the length
    of the longest row.

    Args:
        a: (N, 2C), the factor of each step; those of first steps have no effect.
        b: (N, 2C), what each step adds.
        rows: where the steps of each row lie; they lie end to end.
    """
    for name, given, kind in (("a", a, Tensor), ("b", b, Tensor), ("rows", rows, Rows)):
        check_kind(name, given, kind)
    fit = a.shape == b.shape and a.dtype == b.dtype and a.dim() == 2 and a.shape[1] % 2 == 0
    if not fit or a.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            "a and b must have one shape (N, 2C) and be float32 or float64, "
            f"got {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
        )
    found: Tensor = torch.ops.lapse.scan(a, b, rows.lengths, rows.starts)
    return found


def _planes(x: Tensor) -> Tensor:
    return torch.cat([x.real, x.imag], -1)


def _complex(planes: Tensor) -> Tensor:
    return torch.complex(*planes.chunk(2, -1))


def _new(a: Tensor) -> Tensor:
    """Room for a result, which the library fills from its first to its last number: `a` may lie in another order."""
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _scan(a: Tensor, b: Tensor, lengths: Tensor, starts: Tensor) -> Tensor:
    _check_rows(a, lengths, starts)
    if not _compiled(a):
        return _planes(_doubled(_complex(a), _complex(b), Rows.flat(lengths)))
    x = _new(a)
    _run("scan", a, lengths, starts, b=b, x=x)
    return x


def _fake_scan(a: Tensor, b: Tensor, lengths: Tensor, starts: Tensor) -> Tensor:
    return _new(a)


def _scan_backward(
    d_x: Tensor, a: Tensor, x: Tensor, lengths: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    _check_rows(a, lengths, starts)
    if not _compiled(a):
        return _doubled_backward(_complex(d_x), _complex(a), _complex(x), Rows.flat(lengths))
    d_a, d_b = _new(a), _new(a)
    _run("scan_backward", a, lengths, starts, x=x, d_x=d_x, d_a=d_a, d_b=d_b)
    return d_a, d_b


def _fake_scan_backward(
    d_x: Tensor, a: Tensor, x: Tensor, lengths: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    return _new(a), _new(a)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    a, _, lengths, starts = inputs
    ctx.save_for_backward(a, output, lengths, starts)


def _gradients(ctx: Any, d_x: Tensor) -> tuple[Tensor, Tensor, None, None]:
    a, x, lengths, starts = ctx.saved_tensors
    d_a, d_b = torch.ops.lapse.scan_backward(d_x, a, x, lengths, starts)
    return d_a, d_b, None, None


for _name, _pass, _fake in (
    ("scan", _scan, _fake_scan),
    ("scan_backward", _scan_backward, _fake_scan_backward),
):
    _library.impl(_name, _pass, "CompositeExplicitAutograd")
    _library.impl(_name, _fake, "Meta")
torch.library.register_autograd("lapse::scan", _gradients, setup_context=_keep, lib=_library)


def _check_rows(a: Tensor, lengths: Tensor, starts: Tensor) -> None:
    """Refuse rows that do not lie end to end or are not all of the tensor: the library reads what they name."""
    ends = lengths.cumsum(0)
    last = int(ends[-1]) if len(ends) else 0
    if last != len(a) or not torch.equal(starts, ends - lengths) or bool((lengths < 1).any()):
        raise ValueError(
            f"rows must lie end to end in {len(a)} steps, as Rows.flat makes them, got {last} steps"
        )


def _compiled(a: Tensor) -> bool:
    return a.device.type == "cpu" and native.library() is not None


def _run(name: str, a: Tensor, lengths: Tensor, starts: Tensor, **tensors: Tensor) -> None:
    """Call the library with contiguous copies of what it reads; what it writes is contiguous already."""
    loaded = native.library()
    assert loaded is not None
    assert loaded.lapse_scan_layout() == ctypes.sizeof(_Call)
    held = {"a": a, "lengths": lengths, "starts": starts, **tensors}
    held = {key: tensor.contiguous() for key, tensor in held.items()}
    pointers = {key: tensor.data_ptr() for key, tensor in held.items()}
    call = _Call(
        len(lengths), a.shape[1] // 2, torch.get_num_threads(), parallel=native.parallel(), **pointers
    )
    kind = "f32" if a.dtype == torch.float32 else "f64"
    getattr(loaded, f"lapse_{name}_{kind}")(ctypes.byref(call))


def _doubled(a: Tensor, b: Tensor, rows: Rows) -> Tensor:
    """Each step first knows the sum over itself, then over two steps, over four, and so on."""
    step, distance = rows.step.to(a.device).unsqueeze(-1), 1
    while distance < rows.steps:
        # Nothing comes from before the first step of a row, not even NaN.
        within = step[distance:] >= distance
        b = torch.cat([b[:distance], b[distance:] + torch.where(within, a[distance:] * b[:-distance], 0.0)])
        a = torch.cat([a[:distance], a[distance:] * a[:-distance]])
        distance *= 2
    return b


def _doubled_backward(d_x: Tensor, a: Tensor, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The gradients of a and b; their adjoint is the same recurrence from last to first step, with conj(a_{k+1})."""
    after = torch.cat([a[1:], torch.zeros_like(a[:1])]).conj()
    adjoint = _doubled(after.flip(0), d_x.flip(0), Rows.flat(rows.lengths.flip(0))).flip(0)
    first = (rows.step == 0).to(x.device).unsqueeze(-1)
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]]).masked_fill(first, 0.0)
    return _planes(adjoint * before.conj()), _planes(adjoint)
