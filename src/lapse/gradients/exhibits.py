"""What ``lapse gradients`` shows: every experiment with its figure, its numbers and what they say.

An exhibit is a function of `Settings`; ``EXHIBITS`` is the list, in the order of docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from lapse.gradients import figures
from lapse.gradients.adjoint import adjoint_gap, damped_field, memory_gap
from lapse.gradients.between import between_observations
from lapse.gradients.jacobians import jacobians_along, judge, lemma_gap, log_product_norms
from lapse.gradients.parity import ParityClassifier, parity_events, parity_surface, teaching_signal
from lapse.gradients.theorems import (
    REGIMES,
    THEOREM1_SOLVERS,
    LagFlow,
    growth,
    irregular_batch,
    lag_flow,
    make_layer,
    memory_flow,
    memory_start,
    refinement,
)
from lapse.models.registry import find_layer, layers
from lapse.recurrent import Cell
from lapse.solvers import DOPRI5, EULER, HEUN, RK4, FixedStep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, object]


@dataclass(frozen=True)
class Settings:
    """What to show: the models, how far back, how large. The defaults are the paper's width and longest task."""

    models: tuple[str, ...] = field(default_factory=lambda: tuple(layers()))
    lags: int = 256
    hidden_size: int = 128
    mean_gaps: tuple[float, float, float] = (0.1, 1.0, 10.0)
    rows: int = 5  # sequences for each mean gap: a median and its quartiles
    adjoint_spans: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)  # units of 1/τ
    surface_points: int = 15  # a side
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("name at least one model")
        for model in self.models:
            find_layer(model)
        if self.lags < 2:
            raise ValueError(f"lags must be at least 2, got {self.lags}")


@dataclass(frozen=True)
class Exhibit:
    """One finding: its numbers, and a figure if it has one. ``name`` is also that of its files."""

    name: str
    title: str
    caption: str
    table: list[Row]
    figure: Callable[[], Figure] | None = None


def error_flows(settings: Settings) -> Iterator[Exhibit]:
    """Figure 1, and the same at one lag by mean gap."""
    flows = [
        lag_flow(
            make_layer(model, 4, settings.hidden_size, seed=settings.seed),
            model,
            settings.lags,
            mean_gaps=settings.mean_gaps,
            rows=settings.rows,
            seed=settings.seed,
        )
        for model in settings.models
    ]
    gap, lag = settings.mean_gaps[1], min(100, settings.lags)
    ranked = sorted(flows, key=lambda flow: -float(flow.median(gap)[lag]))
    left = ", ".join(f"{flow.model} {float(flow.median(gap)[lag]):.2g}" for flow in ranked)
    yield Exhibit(
        "error-flow",
        "Error flow back in time (Figure 1)",
        f"Gradient of a unit vector against the last output, at the whole state k observations earlier, for untrained "
        f"models of {settings.hidden_size} units. Gaps are exponential with mean {gap:g} unit of time; line and band "
        f"are median and quartiles of {settings.rows} sequences; curves leave the axis below "
        f"{figures.FLOW_LIMITS[0]:g}. At lag {lag}: {left}.",
        [row for flow in flows for row in _flow_rows(flow)],
        partial(figures.error_flow, flows, gap),
    )
    yield Exhibit(
        "error-flow-gaps",
        f"Error flow at lag {lag}, by gap",
        f"The same for mean gaps of {', '.join(f'{g:g}' for g in settings.mean_gaps)} units; values outside the axis "
        "are drawn at its ends. A model whose three marks lie together does not lose error to time itself.",
        [_gap_row(flow, g, lag) for flow in flows for g in settings.mean_gaps],
        partial(figures.flow_by_gap, flows, lag),
    )


def _flow_rows(flow: LagFlow) -> Iterator[Row]:
    for gap in flow.by_gap:
        lower, upper = flow.quartiles(gap)
        for lag, values in enumerate(
            zip(flow.median(gap).tolist(), lower.tolist(), upper.tolist(), strict=True)
        ):
            yield {"model": flow.model, "mean_gap": gap, "lag": lag} | dict(
                zip(("median", "lower_quartile", "upper_quartile"), values, strict=True)
            )


def _gap_row(flow: LagFlow, gap: float, lag: int) -> Row:
    median = float(flow.median(gap)[lag])
    return {
        "model": flow.model,
        "mean_gap": gap,
        "lag": lag,
        "median": median,
        "factor_per_step": median ** (1 / lag),
    }


def definition1(settings: Settings) -> Iterator[Exhibit]:
    """The verdict of Definition 1 on one step of every model, beside norms that cannot cancel."""
    steps = min(32, settings.lags)
    yield Exhibit(
        "definition1",
        "Definition 1, unit by unit",
        "One step of the untrained models (16 units, mean gap 1): the share of units that vanish (|signed row sum| "
        "below 0.99) or explode (above 1) by the paper's definition, the spectral norm of the step, and that of the "
        f"product over {steps} steps as a factor per step. The first two and the last can disagree.",
        [_verdict_row(model, steps, settings.seed) for model in settings.models],
    )


def _verdict_row(model: str, steps: int, seed: int) -> Row:
    cell = make_layer(model, 4, 16, seed=seed).cells[0]
    assert isinstance(cell, Cell)
    jacobians = jacobians_along(cell, **irregular_batch(1, steps + 1, 4, seed=seed))
    verdict = judge(jacobians[-1], epsilon=0.01)
    total = float(log_product_norms(jacobians)[-1].exp())
    return {
        "model": model,
        "vanishing_units": float(verdict.vanishing.double().mean()),
        "exploding_units": float(verdict.exploding.double().mean()),
        "spectral_norm": float(verdict.spectral_norm),
        f"product_norm_{steps}_steps": total,
        "factor_per_step": total ** (1 / steps),
    }


def lemma2(settings: Settings) -> Iterator[Exhibit]:
    """The printed Lemma 2 against the Jacobian of the step, as the step grows."""
    field = damped_field(16, settings.seed)
    timespans = torch.logspace(-3, 1, 41, dtype=torch.float64)
    generator = torch.Generator().manual_seed(settings.seed)
    h, x = torch.randn(2, 16, generator=generator, dtype=torch.float64).mul(0.5)
    h, drive = (part.expand(len(timespans), -1) for part in (h, field.drive(x)))
    gaps = [lemma_gap(tableau, field, h, drive, timespans) for tableau in (HEUN, RK4, DOPRI5)]
    one = int((timespans - 1).abs().argmin())
    off = ", ".join(f"{gap.method} {float(gap.relative_error[one]):.0%}" for gap in gaps)
    yield Exhibit(
        "lemma2",
        "Lemma 2 as printed",
        "One step of the damped field (16 units, starting weights): the formula with its stages held constant against "
        f"the derivative of the step. It is off by {off} at T = 1, and by T²/2 · J² for small T. For Euler "
        "(Lemma 1) the two are the same.",
        [
            {"method": gap.method, "timespan": t, "relative_error": e}
            for gap in gaps
            for t, e in zip(gap.timespans.tolist(), gap.relative_error.tolist(), strict=True)
        ],
        partial(figures.lemma2, gaps),
    )


def theorems_1_and_2(settings: Settings) -> Iterator[Exhibit]:
    """Vanish, stay, rotate, explode under every solver; refinement does not cure it."""
    spans = torch.linspace(0.25, 6.0, 24, dtype=torch.float64).tolist()
    growths = [growth(regime, solver, spans) for regime in REGIMES for solver in THEOREM1_SOLVERS]
    fitted = ", ".join(f"{g.regime} {g.fitted:.3f} (ξ = {g.xi:g})" for g in growths if g.solver == "adaptive")
    yield Exhibit(
        "theorem1",
        "Theorem 1: the ODE-RNN vanishes, explodes, or stays",
        f'Two units, τ = 1, near rest. Exponents fitted under the adaptive solver: {fitted}. The case "rotate" moves '
        "and still loses nothing: the exception that the theorem does not list. Euler with 16 sub-steps makes it "
        "explode.",
        [
            {
                "regime": g.regime,
                "solver": g.solver,
                "timespan": t,
                "norm": n,
                "fitted_xi": g.fitted,
                "xi": g.xi,
            }
            for g in growths
            for t, n in zip(g.spans.tolist(), g.norms.tolist(), strict=True)
        ],
        partial(figures.theorem1, growths),
    )
    counts = {EULER: (16, 32, 64, 128, 256, 512), RK4: (8, 16, 32, 64)}
    refinements = [
        refinement(regime, FixedStep(tableau), steps)
        for regime in ("vanish", "explode")
        for tableau, steps in counts.items()
    ]
    yield Exhibit(
        "theorem2",
        "Theorem 2: finer steps converge to e^{Tξ}, not to 1",
        "The factor over a span of 4 units for n sub-steps, relative to the exact solution's e^{Tξ} (ξ = −0.5 and "
        "0.5): the error falls with the order of the method, the factor stays what it is.",
        [
            {
                "regime": r.regime,
                "method": r.method,
                "steps": int(n),
                "norm": v,
                "limit": r.limit,
                "order": r.order,
            }
            for r in refinements
            for n, v in zip(r.steps.tolist(), r.norms.tolist(), strict=True)
        ],
        partial(figures.theorem2, refinements),
    )


def theorem3(settings: Settings) -> Iterator[Exhibit]:
    """The memory path of the ODE-LSTM, for three forget biases."""
    memories = [memory_flow(bias, settings.lags, seed=settings.seed) for bias in (1.0, 3.0, 5.0)]
    kept = ", ".join(f"bias {m.forget_bias:g}: {float(m.norms[-1]):.2g}" for m in memories)
    yield Exhibit(
        "theorem3",
        "Theorem 3: the memory path of the ODE-LSTM",
        f"dc_(t+L)/dc_t at the theorem's weights over random gaps (marks) on σ(bias)^L (lines). One step of bias 1 "
        f"keeps {float(memories[0].norms[0]):.7f}; {settings.lags} steps keep {kept}. No gap changes it.",
        [
            {"forget_bias": m.forget_bias, "steps": i + 1, "measured": a, "expected": b}
            for m in memories
            for i, (a, b) in enumerate(zip(m.norms.tolist(), m.expected.tolist(), strict=True))
        ],
        partial(figures.theorem3, memories),
    )
    lag = min(100, settings.lags)
    starts = [
        memory_start(bias, lag, near_zero=near_zero, hidden_size=settings.hidden_size, seed=settings.seed)
        for bias in (1.0, 3.0, 5.0)
        for near_zero in (False, True)
    ]
    yield Exhibit(
        "theorem3-start",
        "Theorem 3 and the weights a model starts from",
        "The ODE-LSTM with the library's start (orthogonal R) and with the theorem's (R_z, R_i, R_f, W_f at 0): "
        "extremes of the forget gate dc'/dc and of its signed row sums with the path through h, at one step; and the "
        f"error flow of the whole state and of c alone at lag {lag}, mean gap 1. What is more than σ(bias)^{lag} of it "
        "has come through h.",
        [dict(vars(start)) for start in starts],
    )


def adjoint(settings: Settings) -> Iterator[Exhibit]:
    """The adjoint method's gradient error and memory."""
    gaps = [
        adjoint_gap(span, rtol, seed=settings.seed)
        for rtol in (1e-3, 1e-5, 1e-7)
        for span in settings.adjoint_spans
    ]
    worst = gaps[len(settings.adjoint_spans) - 1]
    yield Exhibit(
        "adjoint-error",
        "The adjoint method is lossy",
        "Gradients of the same adaptive solve (dopri5, 16 damped units) by the adjoint and through the steps. Over "
        f"{worst.timespan:g} units at rtol {worst.rtol:.0e} the adjoint is off by {worst.error:.0%} and makes of "
        f"|∂L/∂h(0)| = {worst.start_norm:.2g} a {worst.start_norm_adjoint:.2g}. It vanishes no less.",
        [dict(vars(gap)) for gap in gaps],
        partial(figures.adjoint_error, gaps),
    )
    memories = [memory_gap(FixedStep(RK4, steps)) for steps in (1, 4, 16, 64, 256)]
    yield Exhibit(
        "adjoint-memory",
        "What the adjoint saves",
        "Bytes kept for the backward pass, weights apart (4 rows, 16 units, float64): "
        f"{memories[-1].backprop / 1024:.0f} KiB against {memories[-1].adjoint / 1024:.1f} KiB at 256 sub-steps.",
        [dict(vars(memory)) for memory in memories],
        partial(figures.adjoint_memory, memories),
    )


# Figure 2 compares the ODE-RNN with the ODE-LSTM; Eq. 1 of the paper has damping, which is the CT-RNN here.
FIGURE2_MODELS = ("ode-rnn", "ct-rnn", "ode-lstm")


def figure2(settings: Settings) -> Iterator[Exhibit]:
    """The teaching signal of a label at the end, and the loss surfaces."""
    events = parity_events(64, generator=torch.Generator().manual_seed(settings.seed))
    models = {
        name: ParityClassifier(make_layer(name, 1, 32, seed=settings.seed).float()) for name in FIGURE2_MODELS
    }
    signals = {name: teaching_signal(model, events) for name, model in models.items()}
    arrives = ", ".join(f"{name} {float(signal[-1]):.2g}" for name, signal in signals.items())
    count = len(next(iter(signals.values()))) - 1
    yield Exhibit(
        "teaching-signal",
        "The teaching signal back in time (Figure 2, left)",
        f"Untrained models of 32 units on event-coded parity of 32 bits, a bit a unit of time: median over 64 streams "
        f"of the loss's gradient at the state, 1 at the last event. {count} events back there is {arrives}.",
        [
            {"model": m, "events_back": i, "signal": v}
            for m, s in signals.items()
            for i, v in enumerate(s.tolist())
        ],
        partial(figures.teaching_signal, signals),
    )
    surfaces = {
        name: parity_surface(model, events, settings.seed, settings.surface_points)
        for name, model in models.items()
    }
    slopes = ", ".join(f"{name} {surface.mean_slope:.2g}" for name, surface in surfaces.items())
    yield Exhibit(
        "loss-surfaces",
        "Loss surfaces (Figure 2, right)",
        "The same models' loss along two random filter-normalised directions, each panel on a scale of its own. "
        f"Flatness is the root mean square slope, in nats per unit of relative change (smaller is flatter): {slopes}.",
        [
            {"model": m, "across": a, "along": b, "loss": float(s.losses[i, j]), "mean_slope": s.mean_slope}
            for m, s in surfaces.items()
            for i, a in enumerate(s.extents.tolist())
            for j, b in enumerate(s.extents.tolist())
        ],
        partial(figures.loss_surfaces, surfaces),
    )


def table1(settings: Settings) -> Iterator[Exhibit]:
    """What the state of every model does between two observations."""
    between = [between_observations(model, seed=settings.seed) for model in settings.models]
    untouched = [i.model for i in between if i.memory_kept == 1.0]
    yield Exhibit(
        "table1",
        "The state between two observations (Table 1)",
        "Four units of every untrained model after ten observations, from its own `flow`: output h (lines) and, where "
        f"there is one, memory (dashed). Time leaves the memory of {', '.join(untouched) or 'none of these'} alone.",
        [
            {"model": i.model, "time": t, "unit": u, "output": float(i.output[k, u])}
            | {"memory": None if i.memory is None else float(i.memory[k, u])}
            for i in between
            for k, t in enumerate(i.times.tolist())
            for u in range(i.output.shape[1])
        ],
        partial(figures.intervals, between),
    )


EXHIBITS: dict[str, Callable[[Settings], Iterator[Exhibit]]] = {
    "error flow": error_flows,
    "definition 1": definition1,
    "lemma 2": lemma2,
    "theorems 1 and 2": theorems_1_and_2,
    "theorem 3": theorem3,
    "adjoint": adjoint,
    "figure 2": figure2,
    "table 1": table1,
}
