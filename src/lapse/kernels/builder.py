"""What a cell writes its fused program with: the operations of `lapse.kernels.program`, and whole ODE solves.

A cell with a fused path defines `program(self, p)` and describes one step to the builder `p`: its input, its
states, and operations in the order of its equations. A field does the same for a solve over the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lapse.kernels.program import BEFORE as BEFORE
from lapse.kernels.program import NONE as NONE
from lapse.kernels.program import Program
from lapse.solvers import Exponential, FixedStep, Solver, Tableau

MOST_STAGES = 7  # of a tableau: an operation has room for that many weights

Stage = tuple[tuple[float, ...], float]


class NotCovered(Exception):
    """The operations do not cover what a cell asks for, for example its solver: the reference loop takes the call."""


class Slopes(Protocol):
    """The right-hand side of an ODE as operations, for a solve over the gap."""

    def begin(self, p: Builder, steps: int, order: int) -> None:
        """Write what all sub-steps of an exponential integrator share.

        Args:
            p: The program of the cell.
            steps: The number of sub-steps.
            order: The order of the integrator.
        """

    def slope(self, p: Builder, y: int, steps: int) -> int:
        """Write dy/dt at the register `y`, and return the register that holds it."""
        ...

    def exponential(self, p: Builder, y: int, out: int, steps: int) -> None:
        """Write one exponential sub-step from `y` to `out`; raise `NotCovered` if there is none of that order."""


class Builder(Program):
    """The program of one cell while it is being written."""

    def solve(self, solver: Solver, field: Slopes, y: int, out: int) -> None:
        """Write the solve that moves the register `y` through the gap into `out`.

        Args:
            solver: The solver of the cell.
            field: The right-hand side.
            y: The register with the start.
            out: The register for the end.
        """
        if type(solver) is Exponential:
            field.begin(self, solver.steps, solver.order)
            self._sub_steps(solver.steps, field.exponential, y, out)
        else:
            explicit = explicit_solver(solver)
            self._sub_steps(explicit.steps, _RungeKutta(explicit.tableau, field), y, out)

    def _sub_steps(self, steps: int, sub_step: SubStep, y: int, out: int) -> None:
        self.solver_steps = steps
        for i in range(steps):
            end = out if i == steps - 1 else self.register(self.size(out))
            sub_step(self, y, end, steps)
            y = end
        self.emit("Check", out)

    def combine(
        self,
        steps: int,
        out: int,
        y: int,
        slopes: Sequence[int],
        weights: Sequence[float],
        operation: str = "Combine",
    ) -> None:
        """Write out = y + h Σ weight · slope, where h is the gap over `steps`.

        Args:
            steps: The number of sub-steps of the solve.
            out: The register for the result.
            y: The register of the start.
            slopes: The registers of the slopes; those with a weight of 0 are not looked at.
            weights: One weight per slope.
            operation: "Combine", or "Integrate" for a sum of values that are not slopes.
        """
        used = [(k, w) for k, w in zip(slopes, weights, strict=True) if w != 0.0]
        self.emit(operation, out, y, *(k for k, _ in used), numbers=[steps, *(w for _, w in used)])


class SubStep(Protocol):
    """One of the equal sub-steps of a solve."""

    def __call__(self, p: Builder, y: int, out: int, steps: int, /) -> None: ...


class _RungeKutta:
    """One sub-step of an explicit method."""

    def __init__(self, tableau: Tableau, field: Slopes) -> None:
        self.stages, self.field = stages_of(tableau), field

    def __call__(self, p: Builder, y: int, out: int, steps: int) -> None:
        slopes: list[int] = []
        for i, (weights, _) in enumerate(self.stages):
            if not looked_at(self.stages, i):
                slopes.append(NONE)
                continue
            point = y
            if any(weights):
                point = p.register(p.size(out))
                p.combine(steps, point, y, slopes, weights)
            slopes.append(self.field.slope(p, point, steps))
        p.combine(steps, out, y, slopes, [b for _, b in self.stages])


def explicit_solver(solver: Solver) -> FixedStep:
    """The solver as one with a tableau and equal sub-steps, which the operations cover; others raise `NotCovered`."""
    if type(solver) is not FixedStep or len(solver.tableau.b) > MOST_STAGES:
        raise NotCovered(f"no operations for the solver {solver}")
    return solver


def stages_of(tableau: Tableau) -> list[Stage]:
    """Each stage's weights of the earlier slopes, and its own weight in the step."""
    stages = list(zip(tableau.a, tableau.b, strict=True))
    while stages[-1][1] == 0.0:  # it serves error estimates and the next step of an adaptive solver only
        stages.pop()
    return stages


def looked_at(stages: list[Stage], i: int, last: bool = False) -> bool:
    """Whether a later stage, or the step itself unless it is the last one, has a weight for the slope of stage `i`."""
    return (stages[i][1] != 0.0 and not last) or any(weights[i] != 0.0 for weights, _ in stages[i + 1 :])
