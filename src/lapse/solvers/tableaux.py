"""Explicit Runge–Kutta methods as frozen tableaux of weights.

Fields have no explicit time argument (one that needs the time carries a clock in its state), so there are no
nodes c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lapse.solvers.base import Derivative

NOT_USED = -1  # the register of a slope that nothing looks at

Visit = Callable[[Tensor, Tensor, Tensor, tuple[Tensor, ...]], None]
"""Called with the points of a step's stages, their weights, the rows they belong to and the drive of those rows."""


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge–Kutta method.

    Args:
        name: Its name.
        order: Its order of convergence.
        a: For each stage, the weights of the earlier slopes.
        b: The weights of the slopes in the step.
        error: b minus the weights of the embedded method of lower order; None if there is none.
    """

    name: str
    order: int
    a: tuple[tuple[float, ...], ...] = field(repr=False)
    b: tuple[float, ...] = field(repr=False)
    error: tuple[float, ...] | None = field(repr=False, default=None)

    @property
    def reuses_last_stage(self) -> bool:
        """Whether the last stage is the first one of the next step ("first same as last")."""
        return self.a[-1] == self.b[:-1] and self.b[-1] == 0.0

    @property
    def stages(self) -> list[tuple[tuple[float, ...], float]]:
        """Each stage's weights of the earlier slopes, and its own weight in the step; without those that only error
        estimates and the next step of an adaptive solver look at."""
        stages = list(zip(self.a, self.b, strict=True))
        while stages[-1][1] == 0.0:
            stages.pop()
        return stages

    def looks_at(self, i: int, *, in_last_step: bool = False) -> bool:
        """Whether the slope of stage `i` has a weight in a later stage that is itself looked at, or in the step unless
        that is the last one."""
        later = any(
            weights[i] != 0.0 and self.looks_at(j)
            for j, (weights, _) in enumerate(self.stages[i + 1 :], i + 1)
        )
        return later or (self.b[i] != 0.0 and not in_last_step)


EULER = Tableau("euler", 1, a=((),), b=(1.0,))
HEUN = Tableau("heun", 2, a=((), (1.0,)), b=(0.5, 0.5), error=(-0.5, 0.5))
RK4 = Tableau("rk4", 4, a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), b=(1 / 6, 1 / 3, 1 / 3, 1 / 6))
# Dormand & Prince (1980), "A family of embedded Runge-Kutta formulae", Table 2: RK5(4)7M.
DOPRI5 = Tableau(
    "dopri5",
    5,
    a=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
)


def stages(
    tableau: Tableau,
    f: Derivative,
    y: Tensor,
    h: Tensor,
    drive: tuple[Tensor, ...],
    first: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The points at which a step looks at the field, and the slopes that it finds there.

    Args:
        tableau: The method.
        f: The field.
        y: The state at the start of the step, (B, H).
        h: The length of each row's step, (B, 1).
        drive: What the field is called with beside the state.
        first: The slope at `y`, if it is known already.
    """
    points, slopes = [y], [f(y, *drive) if first is None else first]
    for weights in tableau.a[1:]:
        points.append(y + h * combine(weights, slopes))
        slopes.append(f(points[-1], *drive))
    return points, slopes


def combine(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    """Σ weight · slope; slopes with a weight of 0 are not looked at."""
    terms = [(w, k) for w, k in zip(weights, slopes, strict=True) if w != 0.0]
    total = terms[0][0] * terms[0][1]
    for w, k in terms[1:]:
        total = torch.add(total, k, alpha=w)
    return total


def visit_stages(
    visit: Visit, tableau: Tableau, points: list[Tensor], h: Tensor, rows: Tensor, drive: tuple[Tensor, ...]
) -> None:
    """Call `visit` for every stage that has a weight in the step."""
    for weight, point in zip(tableau.b, points, strict=True):
        if weight != 0.0:
            visit(point, weight * h, rows, drive)


def check_tableau(tableau: object) -> None:
    """Refuse what is not a tableau."""
    if not isinstance(tableau, Tableau):
        raise TypeError(f"tableau must be a Tableau, such as RK4 or DOPRI5 of lapse.solvers, got {tableau!r}")
