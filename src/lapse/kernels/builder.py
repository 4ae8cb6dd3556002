"""What a cell writes its fused program with: the operations of `lapse.kernels.program`, and whole ODE solves.

A cell with a fused path defines `program(self, p)` and describes one step to the builder `p`: its input, its
states, and operations in the order of its equations. Its field and its solver do the same for a solve over the
gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lapse.kernels.program import BEFORE as BEFORE
from lapse.kernels.program import MOST_SCALES as MOST_SCALES
from lapse.kernels.program import NONE as NONE
from lapse.kernels.program import Program
from lapse.solvers import FixedStep, Solver
from lapse.solvers.program import NotCovered as NotCovered
from lapse.solvers.program import Slopes

MOST_WEIGHTS = 7  # of one combination: an operation has room for that many


class Builder(Program):
    """The program of one cell while it is being written."""

    def emit(self, name: str, *registers: int, numbers: Sequence[float] = (), **rest: Any) -> None:
        """Add an operation, see `Program.emit`.

        A constant that is a tensor is not covered: it may be learned, and may change unseen.
        """
        if any(isinstance(number, Tensor) for number in numbers):
            raise NotCovered(f"{name} takes numbers, and one of them is a tensor")
        super().emit(name, *registers, numbers=numbers, **rest)

    def solve(self, solver: Solver, slopes: Slopes, y: int, out: int) -> None:
        """Write the solve that moves the register `y` through the gap into `out`.

        Args:
            solver: The solver of the cell. Its very class must have a program: a subclass may compute something
                else.
            slopes: The right-hand side.
            y: The register with the start.
            out: The register for the end.
        """
        if "program" not in vars(type(solver)):
            raise NotCovered(f"no operations for the solver {solver}")
        written: Any = solver
        written.program(self, slopes, y, out)
        self.emit("Check", out)

    def terms(self, name: str, rows: int, sources: Sequence[int], segments: int = 1) -> list[tuple[int, int]]:
        """The terms of `linear` for a weight whose columns are those of several registers, side by side.

        Args:
            name: The name of the weight as an attribute of the cell.
            rows: The number of rows of each matrix.
            sources: The registers that the input is made of.
            segments: The number of matrices, one below the other.
        """
        found, offset, stride = [], 0, sum(self.size(x) for x in sources)
        for x in sources:
            columns = self.size(x)
            found.append(
                (x, self.matrix(name, rows, columns, segments=segments, stride=stride, offset=offset))
            )
            offset += columns
        return found

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
        if len(used) > MOST_WEIGHTS:
            raise NotCovered(f"an operation has room for {MOST_WEIGHTS} weights, and there are {len(used)}")
        self.emit(operation, out, y, *(k for k, _ in used), numbers=[steps, *(w for _, w in used)])


def explicit_solver(solver: Solver) -> FixedStep:
    """The solver as one with a tableau and equal sub-steps, for a field that follows another variable than h."""
    if type(solver) is not FixedStep:
        raise NotCovered(f"no operations for the solver {solver}")
    return solver
