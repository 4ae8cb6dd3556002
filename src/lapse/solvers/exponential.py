"""Exponential Runge–Kutta: the linear part of a damped field is solved exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lapse.arguments import check_count
from lapse.solvers.base import Configurable, check_finite, check_semilinear, check_spans
from lapse.solvers.program import Operations, Slopes, sub_steps


@dataclass(frozen=True)
class Exponential(Configurable):
    """Exponential Runge–Kutta for damped fields: the linear part is solved exactly, so any gap is stable.

    The field gives its two parts as `source, rate = field.semilinear(y, *drive)`.

    For dy/dt = s(y) − r(y) ⊙ y, one sub-step of length h is, with z = r·h,

        order 1:  y₁ = e^{−z} y + h φ(z) s,      s = s(y),  r = r(y),      φ(z) = (1 − e^{−z}) / z
        order 2:  the same from y, with the means of s and r at y and at y₁

    Either is a convex combination of y and s/r, hence bounded for any span; order 1 costs as much as Euler,
    order 2 as much as Heun. Order 1 is ETD1 of Cox & Matthews (2002). Order 2 is the Magnus method of a linear
    equation whose coefficients move; their ETD2RK is as cheap, but where the rate changes with the state
    (GRU-ODE) it divides the change by the first rate, and explodes on a long gap if that was small.

    Args:
        steps: The number of equal sub-steps.
        order: 1 or 2.
    """

    steps: int = 4
    order: Literal[1, 2] = 1

    settings: ClassVar[tuple[str, ...]] = ("steps", "order")
    needs_damping: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        if isinstance(self.order, bool) or self.order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {self.order!r}")

    def __call__(self, f: Any, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        check_spans(y0, timespans)
        check_semilinear(self, f)
        y, h = y0, (timespans / self.steps).unsqueeze(-1)  # (B, 1)
        for _ in range(self.steps):
            y = self._step(f, y, h, drive)
        return check_finite(y, timespans, self.steps)

    def _step(self, f: Any, y: Tensor, h: Tensor, drive: tuple[Tensor, ...]) -> Tensor:
        source, rate = f.semilinear(y, *drive)
        y1 = _relax(y, h, source, rate)
        if self.order == 1:
            return y1
        source1, rate1 = f.semilinear(y1, *drive)
        return _relax(y, h, (source + source1) / 2, (rate + rate1) / 2)

    def program(self, p: Operations, slopes: Slopes, y: int, out: int) -> None:
        """Write the solve from the register `y` to `out` as operations of the fused loop."""
        slopes.begin(p, self.steps, self.order)
        sub_steps(p, self.steps, slopes.exponential, y, out)


def _relax(y: Tensor, h: Tensor, source: Tensor, rate: Tensor) -> Tensor:
    """dy/dt = source − rate · y, solved exactly over `h` for a constant source and rate."""
    z = rate * h
    return torch.exp(-z) * y + h * _phi(z) * source


def _phi(z: Tensor) -> Tensor:
    """(1 − e^{−z}) / z, with its limit and its gradient at 0."""
    small = z.abs() < torch.finfo(z.dtype).eps ** (1 / 3)  # where the series errs by less than a rounding
    safe = torch.where(small, 1.0, z)
    return torch.where(small, 1 - z / 2 + z * z / 6, -torch.expm1(-safe) / safe)
