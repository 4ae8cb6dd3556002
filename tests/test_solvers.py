"""Solvers: order, independent oracles, one span a row, gradients both ways, stability, and how they fail."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torchdiffeq
import torchode
from scipy.integrate import solve_ivp
from torch import Tensor, nn

from lapse.recurrent.fields import DampedTanhField, MLPField, TanhField
from lapse.recurrent.gru_ode import GRUField
from lapse.solvers import (
    DOPRI5,
    EULER,
    HEUN,
    RK4,
    SOLVERS,
    Adaptive,
    Adjoint,
    Exponential,
    FixedStep,
    SemiImplicit,
    Solver,
    SolverError,
    Tableau,
)

TABLEAUX = [EULER, HEUN, RK4, DOPRI5]
# torchdiffeq's "rk4" is Kutta's 3/8 rule, not the classical method.
THREE_EIGHTHS = Tableau(
    "three-eighths", 4, a=((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)), b=(1 / 8, 3 / 8, 3 / 8, 1 / 8)
)
# The solvers that ask a field for its source and its rate, by the number of sub-steps.
SEMILINEAR: list[Callable[[int], Solver]] = [Exponential, partial(Exponential, order=2), SemiImplicit]
SEMILINEAR_NAMES = ["exponential", "exponential2", "semi-implicit"]
TIGHT = Adaptive(DOPRI5, rtol=1e-10, atol=1e-12)


def label(value: Any) -> str:
    """What a parameter of a test is called."""
    return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def spans_of(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def build(kind: type[nn.Module], *sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A field with all weights random, those of the damping and biases too."""
    module = kind(*sizes).to(dtype)
    with torch.no_grad():
        for i, weight in enumerate(module.parameters()):
            weight.copy_(0.6 * randn(*weight.shape, seed=seed + i))
    return module


def pendulum(y: Tensor) -> Tensor:
    return torch.stack([y[..., 1], -torch.sin(y[..., 0])], -1)


def predators(y: Tensor) -> Tensor:
    """Lotka and Volterra's. On the pendulum Dormand–Prince is better than its order for too long."""
    prey, hunters = y.unbind(-1)
    return torch.stack([prey * (1 - hunters), hunters * (prey - 1)], -1)


def logistic(y: Tensor) -> Tensor:
    return y * (1 - y)


def exact(
    f: Callable[..., Tensor],
    y0: Tensor,
    spans: Tensor,
    *drive: Tensor,
    method: str = "DOP853",
    rtol: float = 1e-13,
) -> Tensor:
    """SciPy's answer, one row after the other: by default that of the eighth-order method at rounding level."""
    rows = []
    for i in range(len(y0)):
        row_drive = [d[i : i + 1] for d in drive]

        def slope(_: float, y: np.ndarray, row_drive: list[Tensor] = row_drive) -> np.ndarray:
            with torch.no_grad():
                return f(torch.from_numpy(y).unsqueeze(0), *row_drive).squeeze(0).numpy()

        start = y0[i].detach().double().numpy()
        answer = solve_ivp(slope, (0, float(spans[i])), start, method=method, rtol=rtol, atol=rtol / 100)
        assert answer.success
        rows.append(torch.from_numpy(answer.y[:, -1]))
    return torch.stack(rows)


def measured_order(solve: Callable[[int], Tensor], truth: Tensor, steps: Sequence[int]) -> float:
    """The slope of log error over log step size."""
    errors = [float((solve(n) - truth).detach().norm()) for n in steps]
    return -float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


class TestOrder:
    # Few enough to be above the rounding errors, many enough to be in the asymptotic range.
    STEPS: ClassVar[dict[int, Sequence[int]]] = {
        1: (128, 256, 512),
        2: (64, 128, 256),
        4: (32, 64, 128),
        5: (32, 64, 128),
    }

    @pytest.mark.parametrize("tableau", [*TABLEAUX, THREE_EIGHTHS], ids=label)
    def test_fixed_step(self, tableau: Tableau) -> None:
        y0, spans = randn(3, 2).abs() + 0.5, spans_of(1.0, 2.0, 4.0)
        truth = exact(predators, y0, spans)
        order = measured_order(
            lambda n: FixedStep(tableau, n)(predators, y0, spans), truth, self.STEPS[tableau.order]
        )
        assert order == pytest.approx(tableau.order, abs=0.2)

    @pytest.mark.parametrize("tableau", [HEUN, DOPRI5], ids=label)
    def test_embedded_method_is_one_order_lower(self, tableau: Tableau) -> None:
        assert tableau.error is not None
        weights = tuple(b - e for b, e in zip(tableau.b, tableau.error, strict=True))
        embedded = Tableau("embedded", tableau.order - 1, tableau.a, weights)
        y0, spans = randn(3, 2).abs() + 0.5, spans_of(1.0, 2.0, 4.0)
        truth = exact(predators, y0, spans)
        order = measured_order(
            lambda n: FixedStep(embedded, n)(predators, y0, spans), truth, self.STEPS[embedded.order]
        )
        assert order == pytest.approx(embedded.order, abs=0.2)

    @pytest.mark.parametrize("make", SEMILINEAR, ids=SEMILINEAR_NAMES)
    @pytest.mark.parametrize("kind", [DampedTanhField, GRUField])
    def test_semilinear(self, kind: type[nn.Module], make: Callable[[int], Solver]) -> None:
        """GRU-ODE's rate depends on the state, CT-RNN's does not."""
        f = build(kind, 2, 3)
        y0, spans, drive = (
            randn(4, 3, seed=1),
            spans_of(0.3, 1.0, 2.0, 3.0),
            f.drive(randn(4, 2, seed=2)).detach(),
        )
        truth = exact(f, y0, spans, drive)
        order = getattr(make(1), "order", 1)
        measured = measured_order(lambda n: make(n)(f, y0, spans, drive), truth, self.STEPS[order])
        assert measured == pytest.approx(order, abs=0.2)

    @pytest.mark.parametrize("tableau", TABLEAUX, ids=label)
    def test_weights_are_consistent(self, tableau: Tableau) -> None:
        assert sum(tableau.b) == pytest.approx(1, abs=1e-15)
        assert [len(row) for row in tableau.a] == list(range(len(tableau.b)))
        if tableau.error is not None:
            assert sum(tableau.error) == pytest.approx(0, abs=1e-15)
        assert tableau.reuses_last_stage == (tableau is DOPRI5)

    def test_linear_part_is_exact(self) -> None:
        """With a constant source one exponential sub-step is the solution, whatever the gap."""

        class Linear(nn.Module):
            def semilinear(self, y: Tensor) -> tuple[Tensor, Tensor]:
                return torch.full_like(y, 3.0), torch.full_like(y, 0.5)

        y0, spans = randn(4, 2), spans_of(0.0, 1e-9, 1.0, 1e6)
        expected = 6 + (y0 - 6) * torch.exp(-0.5 * spans).unsqueeze(-1)
        for order in (1, 2):
            torch.testing.assert_close(Exponential(1, order=order)(Linear(), y0, spans), expected)


def with_torchdiffeq(f: Callable[..., Tensor], y0: Tensor, spans: Tensor, **options: Any) -> Tensor:
    """torchdiffeq has one time vector for the whole batch, so it is asked row by row."""
    rows = []
    for y, span in zip(y0, spans, strict=True):
        times = torch.stack([torch.zeros_like(span), span])
        rows.append(torchdiffeq.odeint(lambda _, y: f(y), y, times, **options)[-1])
    return torch.stack(rows)


@cache
def nine_decades(kind: type[nn.Module]) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """Field, states, spans from 1e-6 to 1e3, held input, and SciPy's answer."""
    f = build(kind, 2, 3)
    spans = torch.logspace(-6, 3, 10, dtype=torch.float64)
    y0, drive = randn(10, 3, seed=1), f.drive(randn(10, 2, seed=2)).detach()
    # An explicit method would need thousands of steps to rest at a fixed point for 1e3; LSODA sees that it rests.
    return f, y0, spans, drive, exact(f, y0, spans, drive, method="LSODA", rtol=1e-12)


class TestOracles:
    @pytest.mark.parametrize(
        ("tableau", "method"), [(EULER, "euler"), (HEUN, "heun2"), (THREE_EIGHTHS, "rk4")], ids=label
    )
    def test_fixed_step_equals_torchdiffeq(self, tableau: Tableau, method: str) -> None:
        y0, spans = randn(3, 2), spans_of(0.5, 1.0, 4.0)
        theirs = torch.cat(
            [
                with_torchdiffeq(
                    pendulum,
                    y0[i : i + 1],
                    spans[i : i + 1],
                    method=method,
                    options={"step_size": float(spans[i]) / 8},
                )
                for i in range(3)
            ]
        )
        torch.testing.assert_close(FixedStep(tableau, 8)(pendulum, y0, spans), theirs, rtol=1e-13, atol=1e-13)

    def test_rk4_meets_the_other_fourth_order_method(self) -> None:
        y0, spans = randn(3, 2), spans_of(0.5, 1.0, 2.0)
        classical, other = (FixedStep(t, 200)(pendulum, y0, spans) for t in (RK4, THREE_EIGHTHS))
        torch.testing.assert_close(classical, other, rtol=0, atol=1e-9)

    def test_adaptive_agrees_with_torchdiffeq(self) -> None:
        y0, spans = randn(4, 2), spans_of(1e-6, 0.1, 1.0, 6.0)
        theirs = with_torchdiffeq(pendulum, y0, spans, method="dopri5", rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(TIGHT(pendulum, y0, spans), theirs, rtol=1e-7, atol=1e-8)

    def test_adaptive_agrees_with_torchode(self) -> None:
        y0, spans = randn(4, 2), spans_of(1e-6, 0.1, 1.0, 6.0)
        term = torchode.ODETerm(lambda _, y: pendulum(y))
        controller = torchode.IntegralController(atol=1e-12, rtol=1e-10, term=term)
        problem = torchode.InitialValueProblem(
            y0=y0,
            t_start=torch.zeros_like(spans),
            t_end=spans,
            t_eval=torch.stack([torch.zeros_like(spans), spans], 1),
        )
        solution = torchode.AutoDiffAdjoint(torchode.Dopri5(term=term), controller).solve(problem)
        assert not solution.status.any()
        torch.testing.assert_close(TIGHT(pendulum, y0, spans), solution.ys[:, -1], rtol=1e-7, atol=1e-8)

    @pytest.mark.parametrize(("rtol", "atol"), [(1e-3, 1e-5), (1e-6, 1e-8), (1e-9, 1e-11)])
    @pytest.mark.parametrize("kind", [DampedTanhField, GRUField])
    def test_adaptive_against_scipy_over_nine_decades(
        self, kind: type[nn.Module], rtol: float, atol: float
    ) -> None:
        f, y0, spans, drive, truth = nine_decades(kind)
        ours = Adaptive(DOPRI5, rtol, atol)(f, y0, spans, drive).detach()
        # The tolerance is for one step; a damped field forgets the errors of earlier ones, so few add up.
        torch.testing.assert_close(ours, truth, rtol=5 * rtol, atol=5 * atol)

    def test_adaptive_heun_against_scipy(self) -> None:
        y0, spans = randn(4, 2).abs(), spans_of(1e-6, 1e-2, 1.0, 10.0)
        ours = Adaptive(HEUN, 1e-4, 1e-6)(logistic, y0, spans)
        torch.testing.assert_close(ours, exact(logistic, y0, spans), rtol=1e-3, atol=1e-5)

    def test_float32_reaches_its_tolerance(self) -> None:
        y0, spans = (
            randn(4, 2, dtype=torch.float32).abs(),
            spans_of(1e-6, 1e-2, 1.0, 10.0, dtype=torch.float32),
        )
        ours = Adaptive(DOPRI5, 1e-5, 1e-6)(logistic, y0, spans)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact(logistic, y0, spans), rtol=5e-5, atol=5e-6)


EVERY_SOLVER: dict[str, Solver] = {**SOLVERS, "adaptive heun": Adaptive(HEUN, 1e-3, 1e-5)}


class TestOneSpanARow:
    def test_a_last_step_of_one_rounding_error(self) -> None:
        """From this slope the first step is 1/11 and the second ten times as long: 1 − 1e-16 of the span."""
        slope = 0.01 * 11**5 * 1e-6
        y = Adaptive()(
            lambda y: torch.full_like(y, slope), torch.zeros(1, 1, dtype=torch.float64), spans_of(1.0)
        )
        assert float(y) == pytest.approx(slope)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("name", EVERY_SOLVER)
    def test_zero_spans_are_the_identity(self, name: str, dtype: torch.dtype) -> None:
        """In value, and in gradient: dy/dspan at 0 is the field, dy/dy0 is 1."""
        f = build(DampedTanhField, 2, 3, dtype=dtype)
        drive = f.drive(randn(4, 2, seed=2, dtype=dtype)).detach()
        y0 = (randn(4, 3, seed=1, dtype=dtype) * 10).requires_grad_()
        spans = spans_of(0.0, 1.0, 0.0, 0.0, dtype=dtype).requires_grad_()
        weights = randn(4, 3, seed=3, dtype=dtype)
        y = EVERY_SOLVER[name](f, y0, spans, drive)
        (y * weights).sum().backward()
        still = [0, 2, 3]
        assert torch.equal(y[still], y0[still])
        assert y0.grad is not None
        assert spans.grad is not None
        torch.testing.assert_close(y0.grad[still], weights[still])
        torch.testing.assert_close(spans.grad[still], (weights * f(y0, drive)).sum(-1)[still])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_units_that_stay_at_zero_with_a_relative_tolerance_alone(self, dtype: torch.dtype) -> None:
        y0, spans = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=dtype), spans_of(1.0, 0.0, dtype=dtype)
        y = Adaptive(DOPRI5, rtol=1e-5, atol=0.0)(torch.neg, y0, spans)
        expected = y0 * torch.exp(-spans).unsqueeze(-1)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("solver", [Adaptive(), FixedStep(RK4, 3), FixedStep(EULER, 4)], ids=repr)
    def test_spans_of_1e_minus_9_and_1e6_share_a_batch(self, solver: Solver, dtype: torch.dtype) -> None:
        """dy/dt = y₂ (constant in itself) and dy₂/dt = 0: the answer is known for any span."""

        def drift(y: Tensor) -> Tensor:
            return torch.stack([y[..., 1], torch.zeros_like(y[..., 1])], -1)

        y0, spans = randn(5, 2, dtype=dtype), spans_of(1e6, 1e-9, 0.0, 1.0, 1e-12, dtype=dtype)
        expected = torch.stack([y0[:, 0] + spans * y0[:, 1], y0[:, 1]], -1)
        torch.testing.assert_close(solver(drift, y0, spans), expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_adaptive_nonlinear_1e_minus_9_and_1e6(self, dtype: torch.dtype) -> None:
        """A slow field in the long row, a fast one in the short row: dy/dt = −k y³, y = y₀ / √(1 + 2 k y₀² t)."""
        y0, spans, k = (
            torch.ones(4, 1, dtype=dtype),
            spans_of(1e6, 1e-9, 1.0, 1e3, dtype=dtype),
            spans_of(1.0, 1e9, 1.0, 1e-3, dtype=dtype),
        )
        ours = Adaptive(DOPRI5, 1e-5, 1e-7)(lambda y, k: -k * y**3, y0, spans, k.unsqueeze(-1))
        expected = (1 / (1 + 2 * k * spans).sqrt()).unsqueeze(-1)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=0)

    @pytest.mark.parametrize("name", EVERY_SOLVER)
    def test_a_row_does_not_depend_on_the_others(self, name: str) -> None:
        solver = EVERY_SOLVER[name]
        f = build(DampedTanhField, 2, 3)
        y0, spans = randn(6, 3, seed=1), spans_of(0.0, 1e-6, 0.1, 1.0, 5.0, 0.7)
        drive = f.drive(randn(6, 2, seed=2)).detach()
        together = solver(f, y0, spans, drive)
        for i in range(6):
            row = slice(i, i + 1)
            # A matrix product may round differently in another batch size, nothing else may.
            torch.testing.assert_close(
                together[row], solver(f, y0[row], spans[row], drive[row]), rtol=1e-13, atol=1e-13
            )

    @pytest.mark.parametrize("solver", [Adaptive(), Adaptive(HEUN, 1e-3, 1e-5), FixedStep()], ids=repr)
    def test_and_not_in_a_single_bit_without_matrix_products(self, solver: Solver) -> None:
        y0, spans = randn(6, 2, seed=1), spans_of(0.0, 1e-6, 0.1, 0.5, 1.5, 0.7)
        together = solver(lambda y: -(y**3) + y[..., [1, 0]], y0, spans)
        alone = [
            solver(lambda y: -(y**3) + y[..., [1, 0]], y0[i : i + 1], spans[i : i + 1]) for i in range(6)
        ]
        assert torch.equal(together, torch.cat(alone))

    @pytest.mark.parametrize("name", EVERY_SOLVER)
    def test_no_rows_at_all(self, name: str) -> None:
        f = build(DampedTanhField, 2, 3)
        empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
        y = EVERY_SOLVER[name](
            f, empty, torch.zeros(0, dtype=torch.float64), torch.zeros(0, 3, dtype=torch.float64)
        )
        assert y.shape == (0, 3)
        y.sum().backward()

    def test_rows_permute(self) -> None:
        y0, spans, order = (
            randn(6, 2),
            spans_of(3.0, 1e-6, 0.1, 1.0, 15.0, 0.7),
            torch.tensor([3, 1, 5, 0, 4, 2]),
        )
        assert torch.equal(
            Adaptive()(pendulum, y0[order], spans[order]), Adaptive()(pendulum, y0, spans)[order]
        )

    @pytest.mark.parametrize("tableau", [HEUN, DOPRI5], ids=label)
    def test_finished_rows_stop_costing(self, tableau: Tableau) -> None:
        """The batch costs what its rows cost alone, to the single evaluation."""
        sizes: list[int] = []

        def counted(y: Tensor) -> Tensor:
            sizes.append(len(y))
            return logistic(y)

        solver = Adaptive(tableau, 1e-4, 1e-6)
        y0, spans = randn(5, 2).abs(), spans_of(0.0, 1e-3, 0.5, 5.0, 50.0)
        solver(counted, y0, spans)
        together = sizes.copy()
        assert together == sorted(together, reverse=True)
        assert together[0] == 5
        assert together[-1] == 1
        costs = []
        for i in range(5):
            sizes.clear()
            solver(counted, y0[i : i + 1], spans[i : i + 1])
            costs.append(sum(sizes))
        assert costs == sorted(costs)
        assert sum(together) == sum(costs)
        assert sum(together) < 0.7 * 5 * max(costs)


GRADIENT_CASES: dict[str, Solver] = {
    **{t.name: FixedStep(t, 3) for t in TABLEAUX},
    "exponential": Exponential(3),
    "exponential2": Exponential(3, order=2),
    "adaptive": Adaptive(DOPRI5, 1e-7, 1e-9),
}


class TestGradientsThroughTheSteps:
    @pytest.mark.parametrize("kind", [DampedTanhField, GRUField])
    @pytest.mark.parametrize("name", GRADIENT_CASES)
    def test_gradcheck(self, name: str, kind: type[nn.Module]) -> None:
        """For the state, the spans (0 among them), the held input and every weight."""
        f = build(kind, 2, 2)
        y0, spans = randn(3, 2, seed=1).requires_grad_(), spans_of(0.0, 0.3, 1.7).requires_grad_()
        x = randn(3, 2, seed=2).requires_grad_()
        names, weights = zip(*f.named_parameters(), strict=True)

        def solve(y0: Tensor, spans: Tensor, x: Tensor, *values: Tensor) -> Tensor:
            class Bound:
                def __call__(self, *arguments: Tensor) -> Tensor:
                    return torch.func.functional_call(f, dict(zip(names, values, strict=True)), arguments)

                def semilinear(self, y: Tensor, drive: Tensor) -> Any:
                    return call_method(f, "semilinear", dict(zip(names, values, strict=True)), y, drive)

            drive = call_method(f, "drive", dict(zip(names, values, strict=True)), x)
            return GRADIENT_CASES[name](Bound(), y0, spans, drive)

        # Fast mode looks along random directions of all arguments at once.
        torch.manual_seed(0)
        assert torch.autograd.gradcheck(
            solve, (y0, spans, x, *weights), atol=1e-5, fast_mode=name == "adaptive"
        )

    @pytest.mark.parametrize("name", ["euler", "rk4", "exponential", "exponential2"])
    def test_second_derivatives(self, name: str) -> None:
        f = build(DampedTanhField, 2, 2)
        drive = f.drive(randn(2, 2, seed=2)).detach()
        y0, spans = randn(2, 2, seed=1).requires_grad_(), spans_of(0.3, 1.2).requires_grad_()
        assert torch.autograd.gradgradcheck(lambda y, s: GRADIENT_CASES[name](f, y, s, drive), (y0, spans))

    @pytest.mark.parametrize("name", ["euler", "heun", "rk4", "exponential", "exponential2"])
    def test_function_transforms(self, name: str) -> None:
        f = build(DampedTanhField, 2, 3)
        solver = SOLVERS[name]
        y0, spans = randn(2, 3, seed=1), spans_of(0.3, 1.2)
        drive = f.drive(randn(2, 2, seed=2)).detach()

        def solve(y0: Tensor, spans: Tensor) -> Tensor:
            return solver(f, y0, spans, drive)

        for argnum in (0, 1):
            reverse = torch.func.jacrev(solve, argnum)(y0, spans)
            by_autograd = torch.autograd.functional.jacobian(solve, (y0, spans))[argnum]
            torch.testing.assert_close(reverse, by_autograd)

        many = randn(4, 2, 3, seed=5)
        looped = torch.stack([solve(y, spans) for y in many])
        torch.testing.assert_close(torch.func.vmap(solve, (0, None))(many, spans), looped)
        many_spans = randn(4, 2, seed=6).abs()
        looped = torch.stack([solve(y0, s) for s in many_spans])
        torch.testing.assert_close(torch.func.vmap(solve, (None, 0))(y0, many_spans), looped)


def call_method(module: nn.Module, method: str, weights: dict[str, Tensor], *arguments: Tensor) -> Any:
    """A method of a module with other weights in place of its own."""

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *arguments: Tensor) -> Any:
            return getattr(self.module, method)(*arguments)

    return torch.func.functional_call(Caller(), {f"module.{n}": w for n, w in weights.items()}, arguments)


def gradients(solver: Solver, f: nn.Module, seed: int = 1, scale: float = 1.0) -> dict[str, Tensor]:
    """Of a weighted sum of the result, for everything that it depends on."""
    y0, spans = randn(5, 3, seed=seed).requires_grad_(), spans_of(0.0, 1e-6, 0.1, 1.0, 2.0).requires_grad_()
    drive = f.drive(randn(5, 2, seed=seed + 1)).detach().requires_grad_()
    f.zero_grad()
    loss = scale * (solver(f, y0, spans, drive) * randn(5, 3, seed=seed + 2)).sum()
    loss.backward()
    grads = {"y0": y0.grad, "spans": spans.grad, "drive": drive.grad}
    grads |= {n: p.grad for n, p in f.named_parameters() if p.grad is not None}
    return {n: g.clone() for n, g in grads.items() if g is not None}


class TestAdjoint:
    @pytest.mark.parametrize("kind", [TanhField, DampedTanhField, GRUField])
    @pytest.mark.parametrize(
        ("solver", "tolerance"),
        [
            (FixedStep(RK4, 100), 1e-7),
            (FixedStep(DOPRI5, 60), 1e-9),
            (FixedStep(HEUN, 200), 1e-3),
            (Adaptive(DOPRI5, 1e-9, 1e-11), 1e-7),
            (Adaptive(DOPRI5, 1e-5, 1e-7), 1e-3),
            (Adaptive(HEUN, 1e-4, 1e-6), 1e-2),
        ],
        ids=repr,
    )
    def test_agrees_with_gradients_through_the_steps(
        self, kind: type[nn.Module], solver: FixedStep | Adaptive, tolerance: float
    ) -> None:
        f = build(kind, 2, 3)
        direct, adjoint = gradients(solver, f), gradients(Adjoint(solver), f)
        assert {"y0", "spans", "drive"} < direct.keys() <= adjoint.keys()
        for name, grad in adjoint.items():
            expected = direct.get(name, torch.zeros_like(grad))  # weights of the drive alone
            torch.testing.assert_close(
                grad, expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )

    def test_same_forward(self) -> None:
        f = build(MLPField, 3)
        y0, spans = randn(4, 3), spans_of(0.0, 0.1, 1.0, 3.0)
        for solver in (FixedStep(), Adaptive()):
            assert torch.equal(solver(f, y0, spans), Adjoint(solver)(f, y0, spans))

    def test_memory_does_not_grow_with_the_steps(self) -> None:
        f = build(DampedTanhField, 2, 3)
        y0, spans = randn(5, 3, seed=1).requires_grad_(), spans_of(0.0, 1e-6, 0.1, 1.0, 2.0)
        drive = f.drive(randn(5, 2, seed=2)).detach()

        def kept_bytes(solver: Solver) -> int:
            kept = 0

            def pack(tensor: Tensor) -> Tensor:
                nonlocal kept
                kept += tensor.numel() * tensor.element_size()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                solver(f, y0, spans, drive)
            return kept

        few, many = FixedStep(RK4, 4), FixedStep(RK4, 64)
        assert kept_bytes(many) > 10 * kept_bytes(few)
        assert kept_bytes(Adjoint(few)) == kept_bytes(Adjoint(many)) < kept_bytes(few) / 10
        loose, tight = Adaptive(DOPRI5, 1e-3, 1e-3), TIGHT
        assert kept_bytes(tight) > 3 * kept_bytes(loose)
        assert kept_bytes(Adjoint(loose)) == kept_bytes(Adjoint(tight)) == kept_bytes(Adjoint(few))

    def test_drifts_from_the_steps_as_damped_spans_grow(self) -> None:
        """What the paper's section 3 says of it, so that nobody takes it for exact."""
        f = build(DampedTanhField, 2, 3)
        nn.init.constant_(f.decay, 2.0)
        drive = f.drive(randn(1, 2)).detach()

        def drift(span: float) -> float:
            y0 = randn(1, 3).requires_grad_()
            solver = FixedStep(RK4, int(4 * span))  # the same step size for every span
            direct, adjoint = (
                torch.autograd.grad(s(f, y0, spans_of(span), drive).sum(), y0)[0]
                for s in (solver, Adjoint(solver))
            )
            return float((adjoint - direct).norm() / direct.norm())

        drifts = [drift(span) for span in (1.0, 3.0, 6.0, 12.0)]
        assert drifts == sorted(drifts)
        assert drifts[-1] > 5 * drifts[0] > 0

    @pytest.mark.parametrize("solver", [FixedStep(RK4, 50), Adaptive(DOPRI5, 1e-8, 1e-10)], ids=repr)
    def test_fields_that_leave_something_out(self, solver: FixedStep | Adaptive) -> None:
        """No parameters, frozen parameters, no dependence on the state, or on the held input."""

        class Decay(nn.Module):
            def forward(self, y: Tensor, drive: Tensor) -> Tensor:
                return -y

        class Held(nn.Module):
            def forward(self, y: Tensor, drive: Tensor) -> Tensor:
                return drive

        for f in (Decay(), Held(), build(DampedTanhField, 2, 3).requires_grad_(False)):
            y0, drive = randn(3, 3, seed=1).requires_grad_(), randn(3, 3, seed=2).requires_grad_()
            spans = spans_of(0.0, 0.5, 2.0).requires_grad_()
            inputs = (y0, spans, drive)
            direct, adjoint = (
                torch.autograd.grad(
                    s(f, *inputs).square().sum(), inputs, allow_unused=True, materialize_grads=True
                )
                for s in (solver, Adjoint(solver))
            )
            torch.testing.assert_close(adjoint, direct, rtol=1e-6, atol=1e-6)

    def test_without_parameters_and_held_input(self) -> None:
        class Decay(nn.Module):
            def forward(self, y: Tensor) -> Tensor:
                return -y

        y0 = randn(2, 3).requires_grad_()
        Adjoint(FixedStep(RK4, 50))(Decay(), y0, spans_of(0.5, 2.0)).sum().backward()
        expected = torch.exp(-spans_of(0.5, 2.0)).unsqueeze(-1).expand(2, 3)
        torch.testing.assert_close(y0.grad, expected, rtol=1e-6, atol=0)

    def test_works_without_gradients(self) -> None:
        f = build(MLPField, 3)
        with torch.no_grad():
            y = Adjoint(Adaptive())(f, randn(2, 3), spans_of(1.0, 2.0))
        assert not y.requires_grad

    def test_needs_a_module(self) -> None:
        with pytest.raises(TypeError, match=r"nn\.Module.*function"):
            Adjoint(FixedStep())(pendulum, randn(2, 2), spans_of(1.0, 1.0))  # type: ignore[arg-type]

    def test_first_derivatives_only(self) -> None:
        f = build(MLPField, 3)
        y0 = randn(2, 3).requires_grad_()
        y = Adjoint(FixedStep())(f, y0, spans_of(1.0, 2.0))
        (grad,) = torch.autograd.grad(y.square().sum(), y0, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


class TestAnyGap:
    GAPS = (0.0, 1e-12, 1e-3, 1.0, 30.0, 1e3, 1e6, 1e9, 1e12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("make", SEMILINEAR, ids=SEMILINEAR_NAMES)
    @pytest.mark.parametrize("kind", [DampedTanhField, GRUField])
    def test_it_is_stable(
        self, kind: type[nn.Module], make: Callable[[int], Solver], dtype: torch.dtype
    ) -> None:
        f = build(kind, 2, 3, dtype=dtype)
        rows = len(self.GAPS)
        y0 = randn(rows, 3, seed=1, dtype=dtype).requires_grad_()
        spans = spans_of(*self.GAPS, dtype=dtype).requires_grad_()
        y = make(4)(f, y0, spans, f.drive(randn(rows, 2, seed=2, dtype=dtype)))
        y.square().sum().backward()
        assert torch.isfinite(y).all()
        assert y.abs().max() < 20
        for grad in (y0.grad, spans.grad, *(p.grad for p in f.parameters())):
            assert grad is not None
            assert torch.isfinite(grad).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("make", SEMILINEAR, ids=SEMILINEAR_NAMES)
    def test_stays_between_the_state_and_the_attractor(
        self, make: Callable[[int], Solver], dtype: torch.dtype
    ) -> None:
        gru, damped = build(GRUField, 2, 3, dtype=dtype), build(DampedTanhField, 2, 3, dtype=dtype)
        rows = len(self.GAPS)
        y0, spans = 3 * randn(rows, 3, seed=1, dtype=dtype), spans_of(*self.GAPS, dtype=dtype)
        x = randn(rows, 2, seed=2, dtype=dtype)
        y = make(4)(gru, y0, spans, gru.drive(x))
        assert (y.abs() <= torch.clamp(y0.abs(), min=1.0) * (1 + 1e-6)).all()
        y = make(4)(damped, y0, spans, damped.drive(x))
        limit = (damped.scale.abs() / nn.functional.softplus(damped.decay)).detach()
        assert (y.abs() <= torch.maximum(y0.abs(), limit) * (1 + 1e-6)).all()

    @pytest.mark.parametrize("make", SEMILINEAR[::2], ids=SEMILINEAR_NAMES[::2])
    def test_it_finds_the_resting_state(self, make: Callable[[int], Solver]) -> None:
        """After a gap beyond all time scales, more sub-steps walk to where the field is zero."""
        f = build(DampedTanhField, 2, 3)
        drive = f.drive(randn(2, 2, seed=2)).detach()
        y = make(200)(f, randn(2, 3), spans_of(1e9, 1e12), drive)
        torch.testing.assert_close(f(y, drive), torch.zeros(2, 3, dtype=torch.float64), rtol=0, atol=1e-9)

    def test_euler_explodes_there(self) -> None:
        f = build(DampedTanhField, 2, 3)
        drive = f.drive(randn(1, 2, seed=2)).detach()
        assert FixedStep(EULER, 4)(f, randn(1, 3), spans_of(1e3), drive).abs().max() > 1e6
        with pytest.raises(SolverError, match="Exponential"):
            FixedStep(EULER, 4)(f.float(), randn(1, 3).float(), spans_of(1e12).float(), drive.float())

    @pytest.mark.parametrize("make", SEMILINEAR, ids=SEMILINEAR_NAMES)
    def test_it_needs_a_damped_field(self, make: Callable[[int], Solver]) -> None:
        with pytest.raises(TypeError, match=r"semilinear.*MLPField.*FixedStep or Adaptive"):
            make(4)(build(MLPField, 2), randn(1, 2), spans_of(1.0))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_short_gaps_lose_no_digits(self, dtype: torch.dtype) -> None:
        """φ changes from its series to its closed form on the way; neither value nor gradient may jump."""

        class Linear(nn.Module):
            def semilinear(self, y: Tensor) -> tuple[Tensor, Tensor]:
                return 2 - y.square(), torch.ones_like(y)

        spans = torch.logspace(-8, 0.5, 86, dtype=torch.float64)
        y0 = torch.full((86, 1), 0.5, dtype=torch.float64)
        for order in (1, 2):
            solver = Exponential(1, order=order)
            low = spans.clone().to(dtype).requires_grad_()
            ours = solver(Linear(), y0.to(dtype), low)
            # The same with φ from its Taylor series, which converges for these gaps.
            z = low.detach().double().clone().requires_grad_()
            h = z.unsqueeze(-1)
            expected = torch.exp(-h) * y0 + h * taylor_phi(h) * (2 - y0.square())
            if order == 2:
                mean = 2 - (y0.square() + expected.square()) / 2
                expected = torch.exp(-h) * y0 + h * taylor_phi(h) * mean
            tolerance = 20 * torch.finfo(dtype).eps
            torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)
            ours.sum().backward()
            expected.sum().backward()
            assert low.grad is not None
            assert z.grad is not None
            tolerance = 1e-7 if dtype == torch.float64 else 1e-4
            torch.testing.assert_close(low.grad.double(), z.grad, rtol=tolerance, atol=tolerance)


def taylor_phi(z: Tensor) -> Tensor:
    """(1 − e^{−z}) / z = Σ (−z)^j / (j + 1)!"""
    total, term = torch.zeros_like(z), torch.ones_like(z)
    for j in range(60):
        total = total + term
        term = term * -z / (j + 2)
    return total


class TestRejectedSteps:
    """A step that is tried and rejected may overflow; it must leave no trace, in any row's value or gradient."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize(
        ("f", "start"), [(lambda y: -(y**3), 1e6), (lambda y: -torch.sinh(y), 8.0)], ids=["cube", "sinh"]
    )
    def test_gradients(self, f: Callable[[Tensor], Tensor], start: float, dtype: torch.dtype) -> None:
        """Whether an overflow reaches the new state or only its slope depends on the span, so try several."""
        for span in (1, 2, 13, 14):
            weight = torch.ones((), dtype=dtype, requires_grad=True)
            y0 = torch.tensor([[0.1], [start]], dtype=dtype, requires_grad=True)
            spans = spans_of(0.1, float(span), dtype=dtype).requires_grad_()
            y = Adaptive(rtol=1e-2, atol=1e-2)(lambda y, w=weight: f(w * y), y0, spans)
            grads = torch.autograd.grad(y.sum(), (weight, y0, spans))
            assert all(torch.isfinite(g).all() for g in (y, *grads)), span
            alone = Adaptive(rtol=1e-2, atol=1e-2)(lambda y, w=weight: f(w * y), y0[:1], spans[:1])
            (expected,) = torch.autograd.grad(alone.sum(), y0)
            torch.testing.assert_close(grads[1][0], expected[0])


class TestFailure:
    def test_too_few_steps(self) -> None:
        with pytest.raises(SolverError) as caught:
            Adaptive(max_steps=5)(pendulum, randn(3, 2), spans_of(1e-3, 100.0, 1e-3))
        error = caught.value
        assert error.row == 1
        assert 0 < error.reached < error.timespan == 100.0
        assert 0 < error.step_size < 100.0
        for words in (
            "row 1",
            "time",
            "of its span of 100",
            "step size",
            "5 steps",
            "Raise max_steps",
            "Exponential",
        ):
            assert words in str(error)

    def test_blow_up_in_finite_time(self) -> None:
        """dy/dt = y² from 1 is 1 / (1 − t): there is nothing beyond 1."""
        for dtype in (torch.float32, torch.float64):
            with pytest.raises(SolverError) as caught:
                Adaptive()(torch.square, torch.ones(2, 1, dtype=dtype), spans_of(0.5, 2.0, dtype=dtype))
            assert caught.value.row == 1
            assert caught.value.reached == pytest.approx(1, rel=1e-2)
            assert caught.value.step_size < 1e-3

    @pytest.mark.parametrize(
        "solver", [FixedStep(), Adaptive(), Exponential(), Exponential(order=2)], ids=repr
    )
    @pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=str)
    def test_fields_that_are_not_finite(self, solver: Solver, bad: float) -> None:
        class Broken(nn.Module):
            """Fine, but for rows that have passed 2."""

            def semilinear(self, y: Tensor) -> tuple[Tensor, Tensor]:
                return torch.where(y > 2, bad, 4.0), torch.ones_like(y)

            def forward(self, y: Tensor) -> Tensor:
                source, rate = self.semilinear(y)
                return source - rate * y

        with pytest.raises(SolverError, match=r"row 2: .* finite.*span of 5 \(step size .*\)\. .*"):
            solver(Broken(), torch.zeros(3, 2, dtype=torch.float64), spans_of(0.1, 0.2, 5.0))

    @pytest.mark.parametrize(
        "solver", [FixedStep(), Adaptive(), Exponential(), Adjoint(FixedStep())], ids=repr
    )
    def test_nan_in_the_start(self, solver: Solver) -> None:
        f = build(DampedTanhField, 2, 3)
        y0 = randn(3, 3)
        y0[1, 0] = torch.nan
        with pytest.raises(SolverError, match="row 1"):
            solver(f, y0, spans_of(1.0, 1.0, 1.0), f.drive(randn(3, 2)))

    @pytest.mark.parametrize("solver", [FixedStep(), Adaptive(), Adaptive(HEUN)], ids=repr)
    def test_states_that_grow_beyond_all_numbers(self, solver: Solver) -> None:
        """Fields that stay finite themselves, so that no error estimate sees it."""
        with pytest.raises(SolverError, match="row 1"):
            solver(
                lambda y: torch.full_like(y, 1e308),
                torch.zeros(2, 1, dtype=torch.float64),
                spans_of(1.0, 10.0),
            )
        with pytest.raises(SolverError, match="row 1"):
            solver(torch.tanh, torch.tensor([[0.0], [torch.inf]]), spans_of(1.0, 1.0, dtype=torch.float32))

    @pytest.mark.parametrize("span", [torch.nan, torch.inf], ids=str)
    @pytest.mark.parametrize("solver", [FixedStep(), Adaptive(), Exponential()], ids=repr)
    def test_spans_that_are_not_finite(self, solver: Solver, span: float) -> None:
        f = build(DampedTanhField, 2, 3)
        with pytest.raises(SolverError, match="row 1"):
            solver(f, randn(2, 3), spans_of(1.0, span), f.drive(randn(2, 2)))

    @pytest.mark.parametrize("wrap", [lambda s: s, Adjoint], ids=["direct", "adjoint"])
    def test_fixed_steps_name_their_size(self, wrap: Callable[[FixedStep], Solver]) -> None:
        f = build(DampedTanhField, 2, 3)
        with pytest.raises(SolverError, match=r"span of 1e\+100 \(step size 1e\+99\)"):
            wrap(FixedStep(RK4, 10))(f, randn(1, 3), spans_of(1e100), f.drive(randn(1, 2)))

    def test_an_adjoint_that_explodes_says_so(self) -> None:
        """Forward the state comes to rest; in reverse Heun's steps overshoot where it came from."""

        class Steep(nn.Module):
            def forward(self, y: Tensor) -> Tensor:
                return -torch.sinh(3 * y)

        y0 = torch.tensor([[0.1], [0.5]], dtype=torch.float64, requires_grad=True)
        y = Adjoint(FixedStep(HEUN, 60))(Steep(), y0, spans_of(0.1, 20.0))
        with pytest.raises(SolverError, match=r"row 1: .* not finite"):
            y.sum().backward()

    @pytest.mark.parametrize("solver", [FixedStep(), Adaptive(max_steps=3)], ids=repr)
    def test_errors_about_spans_that_want_gradients(self, solver: Solver) -> None:
        """Turning such a span into a number warns, and a warning instead of the error would hide it."""
        with pytest.raises(SolverError, match=r"span of 1e\+06"):
            solver(lambda y: -(y**3), torch.ones(1, 1), torch.tensor([1e6], requires_grad=True))

    def test_long_damped_span_says_what_to_use(self) -> None:
        f = build(DampedTanhField, 2, 3)
        with pytest.raises(SolverError, match=r"row 1: not there after 100 steps.*use Exponential if"):
            Adaptive(max_steps=100)(f, randn(2, 3), spans_of(1e-9, 1e6), f.drive(randn(2, 2)))

    def test_error_survives_pickling_and_renumbering(self) -> None:
        error = SolverError(3, 0.5, 2.0, 1e-3, "a reason", "A remedy.")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is SolverError
        assert isinstance(copy, RuntimeError)
        assert str(copy) == str(error)
        assert (copy.row, copy.reached, copy.timespan, copy.step_size) == (3, 0.5, 2.0, 1e-3)
        assert error.at_row(7).row == 7
        assert str(error.at_row(7)).replace("row 7", "row 3") == str(error)


class TestConstruction:
    @pytest.mark.parametrize("count", [0, -1, 1.5, "3", None])
    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda n: FixedStep(RK4, n), "steps"),
            (lambda n: Exponential(n), "steps"),
            (lambda n: Adaptive(max_steps=n), "max_steps"),
        ],
        ids=["fixed", "exponential", "adaptive"],
    )
    def test_counts(self, make: Callable[[Any], Solver], name: str, count: Any) -> None:
        with pytest.raises(ValueError, match=f"^{name} must be a whole number of at least 1, got {count!r}"):
            make(count)

    @pytest.mark.parametrize("order", [0, 3, "1"])
    def test_order(self, order: Any) -> None:
        with pytest.raises(ValueError, match="order must be 1 or 2"):
            Exponential(order=order)

    @pytest.mark.parametrize(("rtol", "atol"), [(-1e-3, 1e-3), (1e-3, -1e-3), (0.0, 0.0), (np.nan, 1.0)])
    def test_tolerances(self, rtol: float, atol: float) -> None:
        with pytest.raises(ValueError, match=r"(rtol|atol) must"):
            Adaptive(DOPRI5, rtol, atol)

    @pytest.mark.parametrize("tableau", [EULER, RK4], ids=label)
    def test_adaptive_needs_an_error_estimate(self, tableau: Tableau) -> None:
        with pytest.raises(ValueError, match=f"{tableau.name} has no embedded error"):
            Adaptive(tableau)

    @pytest.mark.parametrize("kind", [FixedStep, Adaptive])
    def test_tableau_by_name(self, kind: Callable[[Any], Solver]) -> None:
        with pytest.raises(TypeError, match=r"tableau must be a Tableau.*got 'rk4'"):
            kind("rk4")

    def test_adjoint_wraps_explicit_solvers(self) -> None:
        with pytest.raises(TypeError, match=r"FixedStep or Adaptive, got Exponential"):
            Adjoint(Exponential())  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", EVERY_SOLVER)
    def test_solvers_are_values(self, name: str) -> None:
        solver = EVERY_SOLVER[name]
        assert isinstance(solver, Solver)
        copy = pickle.loads(pickle.dumps(solver))
        assert copy == solver
        assert hash(copy) == hash(solver)
        with pytest.raises(AttributeError):
            solver.steps = 7  # type: ignore[attr-defined]

    @pytest.mark.parametrize("name", EVERY_SOLVER)
    @pytest.mark.parametrize(
        ("state", "spans"),
        [((3, 2), (3, 1)), ((3, 2), (2,)), ((3, 2), ()), ((3,), (3,)), ((3, 4, 2), (3,))],
        ids=str,
    )
    def test_wrong_shapes(self, name: str, state: tuple[int, ...], spans: tuple[int, ...]) -> None:
        f = build(MLPField, 2)
        with pytest.raises(ValueError, match=r"y0 \(B, H\) and timespans \(B,\), got") as caught:
            EVERY_SOLVER[name](f, torch.zeros(state), torch.zeros(spans))
        assert str(state) in str(caught.value)
        assert str(spans) in str(caught.value)
