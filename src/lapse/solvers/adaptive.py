"""A step size of its own for every row, to a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from lapse.arguments import check_count, check_number
from lapse.solvers.base import Configurable, Derivative, SolverError, check_spans
from lapse.solvers.tableaux import DOPRI5, Tableau, Visit, check_tableau, combine, stages, visit_stages


@dataclass(frozen=True)
class Adaptive(Configurable):
    """An embedded method with its own step size for every row; a row that has arrived costs nothing more.

    A step is accepted when the root mean square of error / (atol + rtol · |y|) over the row's units is at most
    1. Time is counted as a fraction of each row's span, so spans of 1e-9 and 1e6 share a batch. The step sizes
    are constants for differentiation: gradients, also those of the spans, are those of the accepted steps.

    Args:
        tableau: The method; it must have an error estimate.
        rtol: The error that is allowed relative to the state. float32 carries 7 digits; tighter tolerances want
            float64.
        atol: The error that is allowed beside that.
        max_steps: How many steps a row may take, rejected ones included.
    """

    tableau: Tableau = DOPRI5
    rtol: float = 1e-4
    atol: float = 1e-6
    max_steps: int = 1000

    settings: ClassVar[tuple[str, ...]] = ("rtol", "atol", "max_steps")
    fixed_work: ClassVar[bool] = False
    sub_steps: ClassVar[int] = 1  # how many there were is not known afterwards

    def __post_init__(self) -> None:
        check_tableau(self.tableau)
        check_count("max_steps", self.max_steps)
        if self.tableau.error is None:
            raise ValueError(
                f"{self.tableau.name} has no embedded error estimate; use DOPRI5 or HEUN, or FixedStep"
            )
        for name in ("rtol", "atol"):
            check_number(name, getattr(self, name), "a finite number and not negative", least=0.0)
        if self.rtol + self.atol == 0:
            raise ValueError(f"rtol and atol must not both be 0, got {self.rtol} and {self.atol}")

    def __call__(self, f: Derivative, y0: Tensor, timespans: Tensor, /, *drive: Tensor) -> Tensor:
        check_spans(y0, timespans)
        return self.integrate(f, y0, timespans, drive)

    def integrate(
        self,
        f: Derivative,
        y0: Tensor,
        timespans: Tensor,
        drive: tuple[Tensor, ...],
        visit: Visit | None = None,
    ) -> Tensor:
        """Solve without checks of the arguments.

        Args:
            f: The field.
            y0: The start, (B, H).
            timespans: Each row's span, (B,).
            drive: What the field is called with beside the state.
            visit: Is shown every stage of every accepted step.
        """
        if not len(y0):
            return y0.clone()
        rows = torch.arange(len(y0), device=y0.device)
        arrived: list[tuple[Tensor, Tensor]] = []
        y, spans, slope = y0, timespans, f(y0, *drive)
        # The fraction of its span that each row has ahead, in float64 where there is one: near the start of a
        # long span a step can be too small to be seen beside 1 in float32.
        clock = torch.float32 if y0.device.type == "mps" else torch.float64
        remaining = torch.ones_like(timespans, dtype=clock)
        step = self._first_step(y, spans, slope).to(clock)
        for _ in range(self.max_steps):
            h = spans * step.to(spans.dtype)
            y, slope, accepted, ratio = self._attempt(f, y, h, slope, rows, drive, visit)
            remaining = torch.where(accepted, remaining - step, remaining)
            step = torch.minimum(step * self._growth(ratio), remaining)
            ahead = remaining > 0
            if not bool(ahead.all()):
                done, keep = (~ahead).nonzero().squeeze(1), ahead.nonzero().squeeze(1)
                arrived.append((rows[done], y.index_select(0, done)))
                if not len(keep):
                    return _reassemble(arrived)
                y, spans, slope = (t.index_select(0, keep) for t in (y, spans, slope))
                rows, remaining, step = rows[keep], remaining[keep], step[keep]
                drive = tuple(d.index_select(0, keep) for d in drive)
            # A last step may be that short, when the one before ended a rounding error ahead of the end.
            stuck = (step <= torch.finfo(clock).eps) & (step < remaining)
            if bool(stuck.any()):
                self._fail(
                    int(stuck.nonzero()[0]),
                    rows,
                    spans,
                    remaining,
                    step,
                    "the step size fell to nothing, so the field is not finite or too steep",
                )
        self._fail(0, rows, spans, remaining, step, f"not there after {self.max_steps} steps")

    def _attempt(
        self,
        f: Derivative,
        y: Tensor,
        spans: Tensor,
        slope: Tensor,
        rows: Tensor,
        drive: tuple[Tensor, ...],
        visit: Visit | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One try of every row: the new state and slope where accepted, the old ones elsewhere."""
        h = spans.unsqueeze(-1)
        points, slopes = stages(self.tableau, f, y, h, drive, slope)
        y1 = y + h * combine(self.tableau.b, slopes)
        ratio = self._error_ratio(y, y1, h, slopes)
        accepted = ratio <= 1  # False for NaN
        if not bool(accepted.all()) and not _all_finite(y1, *slopes):
            # torch.where would hide a rejected row's NaN from the value but not from the gradient: the same
            # steps again, of length 0 for the rejected rows, leave no trace of them.
            h = torch.where(accepted, spans, 0.0).unsqueeze(-1)
            points, slopes = stages(self.tableau, f, y, h, drive, slope)
            y1 = y + h * combine(self.tableau.b, slopes)
        if visit is not None:
            visit_stages(
                visit, self.tableau, points, torch.where(accepted.unsqueeze(-1), h, 0.0), rows, drive
            )
        y1 = torch.where(accepted.unsqueeze(-1), y1, y)
        if self.tableau.reuses_last_stage:
            slope1 = torch.where(accepted.unsqueeze(-1), slopes[-1], slope)
        else:
            slope1 = f(y1, *drive)
        return y1, slope1, accepted, ratio

    @torch.no_grad()
    def _error_ratio(self, y: Tensor, y1: Tensor, h: Tensor, slopes: Sequence[Tensor]) -> Tensor:
        assert self.tableau.error is not None
        error = h * combine(self.tableau.error, slopes)
        ratio = _rms(error / self._allowed(torch.maximum(y.abs(), y1.abs())))
        # Beside an infinite y1 no error is large.
        return torch.where(torch.isfinite(y1).all(-1), ratio, torch.inf)

    def _allowed(self, size: Tensor) -> Tensor:
        # Not 0 where atol and the state are: a unit that stays at 0 has an error of 0, and 0 / 0 would reject it.
        return max(self.atol, torch.finfo(size.dtype).tiny) + self.rtol * size

    @torch.no_grad()
    def _first_step(self, y: Tensor, spans: Tensor, slope: Tensor) -> Tensor:
        """The step whose error is a hundredth of what is allowed, if all derivatives are like the first."""
        change = _rms(slope * spans.unsqueeze(-1) / self._allowed(y.abs()))
        step = (0.01 / torch.nan_to_num(change, nan=torch.inf)) ** (1 / self.tableau.order)
        return torch.clamp(step, min=1e-6, max=1.0)

    def _growth(self, ratio: Tensor) -> Tensor:
        """By how much the next step may differ; a failed estimate (NaN) counts as far too large."""
        ratio = torch.nan_to_num(ratio, nan=torch.inf, posinf=torch.inf)
        return torch.clamp(0.9 * ratio ** (-1 / self.tableau.order), min=0.2, max=10.0)

    def _fail(
        self, i: int, rows: Tensor, spans: Tensor, remaining: Tensor, step: Tensor, reason: str
    ) -> NoReturn:
        span = float(spans[i].detach())
        raise SolverError(
            row=int(rows[i]),
            reached=span * (1 - float(remaining[i])),
            timespan=span,
            step_size=span * float(step[i]),
            reason=reason,
            remedy="Raise max_steps, loosen rtol and atol, use float64, count time in a larger unit, "
            "or use Exponential if the field is damped.",
        )


def _reassemble(arrived: list[tuple[Tensor, Tensor]]) -> Tensor:
    rows = torch.cat([rows for rows, _ in arrived])
    return torch.cat([y for _, y in arrived]).index_select(0, torch.argsort(rows))


def _all_finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()
