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
        settled=_not_negative,
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
            settled=_finite,
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
        settled=_finite,
    )


def _refuse(
    rows: Rows,
    values: Tensor,
    fine: Callable[[Tensor], Tensor],
    rule: str,
    way_out: str,
    *,
    settled: Callable[[Tensor], bool] = lambda _: False,
) -> None:
    """Raise for the first step with a value that is not fine; values that cannot be read (traced, vmapped) are trusted.

    `settled` is one quick pass over all values, padding included: true only if all are fine. It settles nearly every
    call.
    """
    if not readable(values):
        return
    values = values.detach()
    if settled(values):
        return
    values = rows.gather(values)
    good = fine(values)
    if bool(good.all()):
        return
    index = tuple(int(i) for i in (~good).nonzero()[0])
    row, step = (int(walked[index[0]]) for walked in rows.walk)
    feature = f", feature {index[1]}" if len(index) > 1 else ""
    raise ValueError(f"{rule}, got {values[index].item()} at row {row}, step {step}{feature}; {way_out}")


def _finite(values: Tensor) -> bool:
    """Infinities and NaN are never lost in a sum, so a finite one has none; a sum may overflow without them."""
    return math.isfinite(values.sum())


def _not_negative(values: Tensor) -> bool:
    least, most = torch.aminmax(values)
    return float(least) >= 0 and float(most) < math.inf
