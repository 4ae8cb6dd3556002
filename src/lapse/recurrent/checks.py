"""The checks of values at a layer's edge: gaps, inputs and flags, with the row and the step of what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lapse.rows import Rows
from lapse.torch_private import readable


def check_timespans(rows: Rows, spans: Tensor, like: Tensor) -> None:
    """Refuse flat gaps (M,) that are not finite, not positive or 0, or of another type than the input `like`."""
    if spans.dim() != 1:
        raise ValueError(f"packed timespans must hold one gap per step, (N,), got {tuple(spans.shape)}")
    if spans.dtype != like.dtype:
        raise TypeError(
            f"timespans are {spans.dtype}, expected {like.dtype} like input: timespans.to({like.dtype})"
        )
    check_device("timespans", spans, like)
    _refuse(
        rows,
        spans,
        lambda gaps: torch.isfinite(gaps) & (gaps >= 0),
        "timespans must be finite and not negative",
        "they are gaps between observations, not absolute times",
        low=-math.ulp(0.0),
    )


def check_device(name: str, given: Tensor, like: Tensor) -> None:
    """Refuse what came beside the input on another device."""
    if given.device != like.device:
        raise ValueError(f"{name} must be on {like.device} like input, got {given.device}")


def check_values(rows: Rows, data: Tensor, observed: Tensor | None) -> None:
    """Refuse flat inputs (M, F) that are not finite where they are observed, and flags other than yes and no."""
    if observed is None:
        _refuse(
            rows,
            data,
            torch.isfinite,
            "input must be finite",
            "fill it, or leave it out with `observed` (GRUD) if it is missing",
            low=-math.inf,
        )
        return
    if observed.dtype != torch.bool:
        _refuse(
            rows,
            observed,
            lambda flags: (flags == 0) | (flags == 1),
            "observed must be true or false, 1 or 0",
            "it says which features were measured, not how well",
        )
    _refuse(
        rows,
        data.masked_fill(observed == 0, 0),
        torch.isfinite,
        "input must be finite where it is observed",
        "mark it as not observed if it is missing",
        low=-math.inf,
    )


def _refuse(
    rows: Rows,
    values: Tensor,
    fine: Callable[[Tensor], Tensor],
    rule: str,
    way_out: str,
    *,
    low: float | None = None,
) -> None:
    """Raise for the first step with a value that is not fine; values that cannot be read (traced, vmapped) are trusted.

    Where all finite values above `low` are fine, one pass for the extremes, padding included, settles nearly every
    call.
    """
    if not readable(values):
        return
    values = values.detach()
    if low is not None:
        least, most = (float(v) for v in torch.aminmax(values))
        if low < least and most < math.inf:
            return
    values = rows.gather(values)
    good = fine(values)
    if bool(good.all()):
        return
    index = tuple(int(i) for i in (~good).nonzero()[0])
    row, step = (int(walked[index[0]]) for walked in rows.walk)
    feature = f", feature {index[1]}" if len(index) > 1 else ""
    raise ValueError(f"{rule}, got {values[index].item()} at row {row}, step {step}{feature}; {way_out}")
