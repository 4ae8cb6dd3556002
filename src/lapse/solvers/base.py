"""What every solver shares: the contract, the failure, the checks, and the settings that make up its word."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from lapse.torch_private import readable

Derivative = Callable[..., Tensor]
"""dy/dt as `f(y, *drive)`."""


@runtime_checkable
class Solver(Protocol):
    """What cells ask of a solver: move every row through its own span.

    A solver of one's own is any callable of this kind. It may declare `needs_damping = True` if it asks the
    field for its two parts with `f.semilinear(y, *drive)`; a cell without damping then refuses it when it is
    made.
    """

    def __call__(self, f: Any, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor: ...


class Configurable(ABC):
    """A solver with settings, which can be stored as a word: `rk4:8`, `exponential:4:2`, `dopri5:rtol=1e-05`.

    Class attributes:

    - `settings`: the names of the fields that a word may give, in the order in which it may give them without
      names.
    - `needs_damping`: whether the field must give its two parts, as damped fields do.
    - `fixed_work`: whether the number of steps is known without a look at the data, so that a solve can be captured
      as a graph.
    """

    settings: ClassVar[tuple[str, ...]]
    needs_damping: ClassVar[bool] = False
    fixed_work: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, f: Any, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor: ...

    def setting_values(self) -> dict[str, Any]:
        """The settings with their values, in order."""
        return {name: getattr(self, name) for name in self.settings}

    def with_settings(self, **values: Any) -> Self:
        """The same kind of solver with other settings."""
        return dataclasses.replace(self, **values)  # type: ignore[type-var]

    @property
    def word(self) -> str:
        """The word that `lapse.solvers.find` turns back into this solver."""
        from lapse.solvers.words import word_of  # the table of words comes after all kinds of solvers

        return word_of(self)

    def __str__(self) -> str:
        try:
            return self.word
        except ValueError:
            return repr(self)


@dataclass(eq=False)
class SolverError(RuntimeError):
    """A row could not be solved: which one, how far it came, and what to do.

    Args:
        row: The row of the batch.
        reached: The time up to which it was solved.
        timespan: Its whole span.
        step_size: The length of the step that failed.
        reason: What happened.
        remedy: What to do about it.
        step: The step of the row, if a sequence was being computed.
    """

    row: int
    reached: float
    timespan: float
    step_size: float
    reason: str
    remedy: str
    step: int | None = None

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        return (
            f"row {self.row}{step}: {self.reason} at time {self.reached:.6g} of its span of {self.timespan:.6g} "
            f"(step size {self.step_size:.3g}). {self.remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), dataclasses.astuple(self)  # an exception is rebuilt from its positional arguments

    def at_row(self, row: int) -> SolverError:
        """The same failure under the row number that the caller knows."""
        return dataclasses.replace(self, row=row)

    def at_step(self, step: int) -> SolverError:
        """The same failure with the step of the sequence at which it happened."""
        return dataclasses.replace(self, step=step)


def not_finite(row: int, span: float, steps: int) -> SolverError:
    """The failure of a solve in `steps` sub-steps that arrived at a state which is not finite."""
    return SolverError(
        row=row,
        reached=span,
        timespan=span,
        step_size=span / steps,
        reason="the state is not finite",
        remedy="Its start, its input or the weights are not finite already, or the steps are too long for the "
        "field: take more steps, use Exponential (damped fields, any gap) or Adaptive, or clip the gradients.",
    )


def check_finite(y: Tensor, timespans: Tensor, steps: int) -> Tensor:
    """The end `y` of a solve in `steps` sub-steps, or a `SolverError` for its first row that is not finite."""
    if readable(y) and not bool(torch.isfinite(y).all()):
        row = int((~torch.isfinite(y)).any(-1).nonzero()[0])
        raise not_finite(row, float(timespans[row].detach()), steps)
    return y


def check_spans(y0: Tensor, timespans: Tensor) -> None:
    """Refuse spans of another shape: (B, 1) would broadcast to a wrong answer, so even the inner loop checks this."""
    if not (isinstance(y0, Tensor) and isinstance(timespans, Tensor)):
        raise TypeError(
            "a solver takes tensors for y0 and timespans, got "
            f"{type(y0).__name__} for y0 and {type(timespans).__name__} for timespans"
        )
    if y0.dim() != 2 or timespans.shape != y0.shape[:1]:
        raise ValueError(
            f"a solver takes y0 (B, H) and timespans (B,), got {tuple(y0.shape)} and {tuple(timespans.shape)}"
        )


def check_semilinear(solver: object, field: object) -> None:
    """Refuse a field that does not give its source and its rate, for a solver that asks for both."""
    if not hasattr(field, "semilinear"):
        raise TypeError(
            f"{type(solver).__name__} needs a damped field with a `semilinear` method, got {type(field).__name__}; "
            "use FixedStep or Adaptive for a field without damping"
        )
