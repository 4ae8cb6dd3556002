"""What a solver writes its part of a fused program with.

A solver with a fused path defines `program(self, p, slopes, y, out)`. The fused loop serves it only if its very
class does: a subclass that inherits `program` may compute something else. The builder of `lapse.kernels` is
what it is handed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class NotCovered(Exception):
    """The operations do not cover what a cell asks for, for example its solver: the reference loop takes the call."""


class Operations(Protocol):
    """The part of the builder that a solver needs; registers are numbered."""

    solver_steps: int  # the number of sub-steps that a failure is reported with

    def register(self, size: int) -> int:
        """A new register of `size` units."""
        ...

    def size(self, register: int, /) -> int:
        """How many units a register has."""
        ...

    def combine(self, steps: int, out: int, y: int, slopes: Sequence[int], weights: Sequence[float]) -> None:
        """Write out = y + h Σ weight · slope, where h is the gap over `steps`."""


class Slopes(Protocol):
    """The right-hand side of an ODE as operations, for a solve over the gap."""

    def slope(self, p: Any, y: int, steps: int) -> int:
        """Write dy/dt at the register `y`, and return the register that holds it."""
        ...

    def begin(self, p: Any, steps: int, order: int) -> None:
        """Write what all sub-steps of an exponential integrator of this order share, or raise `NotCovered`."""

    def exponential(self, p: Any, y: int, out: int, steps: int) -> None:
        """Write one exponential sub-step from the register `y` to `out`."""


class SubStep(Protocol):
    """One of the equal sub-steps of a solve, from the register `y` to `out`."""

    def __call__(self, p: Any, y: int, out: int, steps: int, /) -> None: ...


def sub_steps(p: Operations, steps: int, one: SubStep, y: int, out: int) -> None:
    """Write `steps` sub-steps from the register `y` to `out`.

    Args:
        p: The program.
        steps: The number of sub-steps.
        one: Writes one of them.
        y: The register with the start.
        out: The register for the end.
    """
    p.solver_steps = steps
    for i in range(steps):
        end = out if i == steps - 1 else p.register(p.size(out))
        one(p, y, end, steps)
        y = end
