"""The same number of equal sub-steps for every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lapse.arguments import check_count
from lapse.solvers.base import Configurable, Derivative, check_finite, check_spans
from lapse.solvers.program import Operations, Slopes, sub_steps
from lapse.solvers.tableaux import (
    NOT_USED,
    RK4,
    Tableau,
    Visit,
    check_tableau,
    combine,
    stages,
    visit_stages,
)


@dataclass(frozen=True)
class FixedStep(Configurable):
    """`steps` equal sub-steps of an explicit method through every row's span.

    Explicit steps on a damped field explode once rate · span / steps passes the method's stability limit (2 for
    Euler): a result that is not finite raises `SolverError`, and `Exponential` has no such limit.

    Args:
        tableau: The method.
        steps: The number of sub-steps.
    """

    tableau: Tableau = RK4
    steps: int = 3

    settings: ClassVar[tuple[str, ...]] = ("steps",)

    def __post_init__(self) -> None:
        check_tableau(self.tableau)
        check_count("steps", self.steps)

    def __call__(self, f: Derivative, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        check_spans(y0, timespans)
        return check_finite(self.integrate(f, y0, timespans, drive), timespans, self.steps)

    @property
    def sub_steps(self) -> int:
        """The number of sub-steps that a failure is reported with."""
        return self.steps

    def integrate(
        self,
        f: Derivative,
        y0: Tensor,
        timespans: Tensor,
        drive: tuple[Tensor, ...],
        visit: Visit | None = None,
    ) -> Tensor:
        """Solve without checks.

        Args:
            f: The field.
            y0: The start, (B, H).
            timespans: Each row's span, (B,).
            drive: What the field is called with beside the state.
            visit: Is shown every stage of every step.
        """
        y, h = y0, (timespans / self.steps).unsqueeze(-1)  # (B, 1)
        for _ in range(self.steps):
            points, slopes = stages(self.tableau, f, y, h, drive)
            if visit is not None:
                rows = torch.arange(len(y), device=y.device)
                visit_stages(visit, self.tableau, points, h, rows, drive)
            y = y + h * combine(self.tableau.b, slopes)
        return y

    def program(self, p: Operations, slopes: Slopes, y: int, out: int) -> None:
        """Write the solve from the register `y` to `out` as operations of the fused loop."""

        def one(p: Operations, y: int, out: int, steps: int) -> None:
            found: list[int] = []
            for i, (weights, _) in enumerate(self.tableau.stages):
                if not self.tableau.looks_at(i):
                    found.append(NOT_USED)
                    continue
                point = y
                if any(weights):
                    point = p.register(p.size(out))
                    p.combine(steps, point, y, found, weights)
                found.append(slopes.slope(p, point, steps))
            p.combine(steps, out, y, found, [b for _, b in self.tableau.stages])

        sub_steps(p, self.steps, one, y, out)
