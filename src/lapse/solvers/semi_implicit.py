"""Semi-implicit Euler: the linear part of a damped field at the end of the step, the rest at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lapse.arguments import check_count
from lapse.solvers.base import Configurable, check_finite, check_semilinear, check_spans
from lapse.solvers.program import NotCovered, Operations, sub_steps


@dataclass(frozen=True)
class SemiImplicit(Configurable):
    """Semi-implicit Euler for damped fields, the "fused" solver of liquid time-constant networks.

    The field gives its two parts as `source, rate = field.semilinear(y, *drive)`.

    For dy/dt = s(y) − r(y) ⊙ y, one sub-step of length h takes the y behind the rate at its end, and all else at its
    start, which can be solved for it:

        y₁ = (y + h s) / (1 + h r),      s = s(y),  r = r(y)

    Like a step of `Exponential` it is a convex combination of y and s/r, hence bounded for any span. It needs no
    exponential, but damps more slowly: by 1 / (1 + z) where the exact solution and `Exponential` have e^{−z}, with
    z = r·h. Its order is 1. Source: Hasani et al. (2021), Algorithm 1, who divide by h, so that a span of 0 gives NaN.

    Args:
        steps: The number of equal sub-steps.
    """

    steps: int = 6

    settings: ClassVar[tuple[str, ...]] = ("steps",)
    needs_damping: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("steps", self.steps)

    def __call__(self, f: Any, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        check_spans(y0, timespans)
        check_semilinear(self, f)
        y, h = y0, (timespans / self.steps).unsqueeze(-1)  # (B, 1)
        for _ in range(self.steps):
            source, rate = f.semilinear(y, *drive)
            y = (y + h * source) / (1 + h * rate)
        return check_finite(y, timespans, self.steps)

    def program(self, p: Operations, slopes: Any, y: int, out: int) -> None:
        """Write the solve from the register `y` to `out` as operations of the fused loop."""
        if not hasattr(slopes, "semi_implicit"):
            raise NotCovered("no operations for a semi-implicit step of this field")
        sub_steps(p, self.steps, slopes.semi_implicit, y, out)
