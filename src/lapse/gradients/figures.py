"""The figures of the theory, each a function from results to a matplotlib figure at the width it is printed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapse.gradients.adjoint import AdjointGap, MemoryGap
from lapse.gradients.between import Interval
from lapse.gradients.jacobians import LemmaGap
from lapse.gradients.surfaces import Surface
from lapse.gradients.theorems import Growth, LagFlow, MemoryFlow, Refinement
from lapse.models.registry import label_of, look_of
from lapse.palette import COLUMN_WIDTH, PAGE_WIDTH, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D")
# The flow of some models falls below any float; a figure that showed it all would show nothing of the rest.
FLOW_LIMITS = (1e-20, 1e8)


def _panel(height: float = 2.4) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN_WIDTH, height))
    return figure, figure.subplots()


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.0)


def error_flow(flows: Sequence[LagFlow], gap: float) -> Figure:
    """Figure 1: what is left of the error k steps back."""
    figure, axes = _panel(3.5)
    low, high = FLOW_LIMITS
    for flow in flows:
        look = look_of(flow.model)
        median = flow.median(gap)
        lags = torch.arange(len(median))
        axes.plot(
            lags,
            median.clamp_min(low / 10),
            color=look.colour,
            linestyle=look.dash,
            label=label_of(flow.model),
        )
        lower, upper = (edge.clamp_min(low / 10) for edge in flow.quartiles(gap))
        axes.fill_between(lags, lower, upper, color=look.colour, alpha=0.12, linewidth=0)
    axes.axhline(1.0, color="#555555", linewidth=0.6)
    axes.set(yscale="log", ylim=(low, high), xlim=(0, len(lags) - 1))
    axes.set(xlabel="lag (observations before the loss)", ylabel=r"$|\partial L/\partial s|$, 1 at lag 0")
    _legend_below(figure, axes, 3)
    return figure


def flow_by_gap(flows: Sequence[LagFlow], lag: int) -> Figure:
    """One lag, every model, every mean gap: who depends on the clock, and who keeps the error."""
    figure, axes = _panel(2.9)
    low, high = FLOW_LIMITS
    for place, flow in enumerate(reversed(flows)):
        look = look_of(flow.model)
        values = [float(flow.median(gap)[lag].clamp(low, high)) for gap in flow.by_gap]
        axes.plot(values, [place] * len(values), color=look.colour, linewidth=0.8)
        for gap_index, value in enumerate(values):
            filled = look.colour if gap_index == 1 else "white"
            axes.plot(
                value, place, MARKERS[gap_index], color=look.colour, markerfacecolor=filled, markersize=4.5
            )
    axes.axvline(1.0, color="#555555", linewidth=0.6)
    axes.set_yticks(range(len(flows)), [label_of(flow.model) for flow in reversed(flows)])
    axes.set(xscale="log", xlim=(low / 3, high * 3))
    axes.set_xlabel(rf"$|\partial L/\partial s|$ at lag {lag}, 1 at lag 0")
    for gap_index, gap in enumerate(flows[0].by_gap):
        axes.plot(
            [], [], MARKERS[gap_index], color="#333333", label=f"mean gap {gap:g}",
            markerfacecolor="#333333" if gap_index == 1 else "white", markersize=4.5,
        )  # fmt: skip
    _legend_below(figure, axes, 3)
    return figure


def teaching_signal(signals: Mapping[str, Tensor]) -> Figure:
    """Figure 2, left: the gradient of a classification loss on its way back through the events."""
    figure, axes = _panel(2.3)
    for model, signal in signals.items():
        look = look_of(model)
        events = -torch.arange(len(signal))
        axes.plot(
            events,
            signal,
            color=look.colour,
            linestyle=look.dash,
            marker="o",
            markersize=2.5,
            label=label_of(model),
        )
    axes.axhline(1.0, color="#555555", linewidth=0.6)
    axes.set(
        yscale="log",
        xlabel="event, counted back from the label",
        ylabel=r"$|\partial L/\partial s|$, 1 at the label",
    )
    axes.legend(loc="best")
    return figure


def loss_surfaces(surfaces: Mapping[str, Surface]) -> Figure:
    """Figure 2, right: the loss over a plane through the weights, a panel a model, each on its own scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH, 2.3))
    panels = figure.subplots(1, len(surfaces), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (model, surface) in zip(panels, surfaces.items(), strict=True):
        grid = surface.extents.numpy()
        filled = axes.contourf(grid, grid, surface.losses.T.numpy(), levels=14, cmap="viridis")
        axes.plot(0, 0, "+", color="white", markersize=6)
        axes.set(title=f"{label_of(model)}: RMS slope {surface.mean_slope:.2g}", aspect="equal")
        axes.grid(visible=False)
        figure.colorbar(filled, ax=axes, shrink=0.8, label="loss (nats)" if axes is panels[-1] else "")
    panels[0].set_ylabel("along (relative change)")
    figure.supxlabel("across (relative change of every filter)", fontsize=8)
    return figure


def intervals(between: Sequence[Interval]) -> Figure:
    """Table 1: the output (lines) and the memory (dashed) of a few units while nothing is observed."""
    from matplotlib.figure import Figure

    rows = -(-len(between) // 3)
    figure = Figure(figsize=(COLUMN_WIDTH, 0.4 + 0.95 * rows))
    panels = figure.subplots(rows, 3, sharex=True, squeeze=False)
    for axes, interval in zip(panels.flat, between, strict=False):
        look = look_of(interval.model)
        axes.plot(interval.times, interval.output, color=look.colour, linewidth=0.9)
        if interval.memory is not None:
            axes.plot(interval.times, interval.memory, color=look.colour, linewidth=0.7, linestyle=DASHES[1])
        axes.set_title(
            label_of(interval.model), fontsize=6.5, loc="left", x=-0.3
        )  # over the tick labels: the names are long
        axes.tick_params(labelsize=6)
    for axes in panels.flat[len(between) :]:
        axes.set_axis_off()
    for axes in panels.flat[len(between) - 3 : len(between)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("time since the last observation (units)", fontsize=8)
    figure.supylabel("output h (lines), memory (dashed)", fontsize=8)
    return figure


def lemma2(gaps: Sequence[LemmaGap]) -> Figure:
    """How far the printed Lemma 2 is from the Jacobian of the step."""
    figure, axes = _panel()
    for i, gap in enumerate(gaps):
        axes.plot(gap.timespans, gap.relative_error, color=SERIES[i], linestyle=DASHES[i], label=gap.method)
    axes.set(xscale="log", yscale="log", xlabel=r"span of one step, $T$ (units of $1/\tau$)")
    axes.set_ylabel("relative error of Lemma 2\nas printed (spectral norm)")
    axes.legend()
    return figure


def theorem1(growths: Sequence[Growth]) -> Figure:
    """Error flow of the ODE-RNN by regime (colour) and solver (dash)."""
    figure, axes = _panel(2.6)
    regimes = list(dict.fromkeys(growth.regime for growth in growths))
    solvers = list(dict.fromkeys(growth.solver for growth in growths))
    for growth in growths:
        colour, dash = SERIES[regimes.index(growth.regime)], DASHES[solvers.index(growth.solver)]
        axes.plot(growth.spans, growth.norms, color=colour, linestyle=dash)
    for colour, regime in zip(SERIES, regimes, strict=False):
        axes.plot([], [], color=colour, label=regime)
    for dash, solver in zip(DASHES, solvers, strict=False):
        axes.plot([], [], color="#333333", linestyle=dash, label=solver)
    axes.set(
        yscale="log", xlabel=r"span $T$ (units of $1/\tau$)", ylabel=r"$\|\partial h(T)/\partial h(0)\|_2$"
    )
    _legend_below(figure, axes, 4)
    return figure


def theorem2(refinements: Sequence[Refinement]) -> Figure:
    """The factor of n sub-steps converges to that of the exact solution."""
    figure, axes = _panel()
    for i, refinement in enumerate(refinements):
        label = f"{refinement.regime}, {refinement.method}: order {refinement.order:.2f}"
        axes.plot(
            refinement.steps, refinement.error, marker=MARKERS[i], markersize=3.5,
            color=SERIES[i], linestyle=DASHES[i], label=label,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlabel="sub-steps $n$", ylabel=r"distance from $e^{T\xi}$ (relative)"
    )
    axes.legend()
    return figure


def theorem3(memories: Sequence[MemoryFlow]) -> Figure:
    """The memory path of the ODE-LSTM through L steps: measured points on the predicted lines."""
    figure, axes = _panel(2.3)
    for i, memory in enumerate(memories):
        steps = torch.arange(1, len(memory.norms) + 1)
        factor = float(memory.expected[0])
        label = rf"bias {memory.forget_bias:g}: ${factor:.3f}^L$"
        axes.plot(steps, memory.expected, color=SERIES[i], linestyle=DASHES[i], label=label)
        every = max(1, len(steps) // 8)
        axes.plot(steps[::every], memory.norms[::every], MARKERS[i], color=SERIES[i], markersize=3.5)
    axes.set(yscale="log", xlabel="steps $L$ (observations)", ylabel=r"$|\partial c_{t+L}/\partial c_t|$")
    axes.legend()
    return figure


def adjoint_error(gaps: Sequence[AdjointGap]) -> Figure:
    """The adjoint's gradient against that of the same steps, as horizon and tolerance grow."""
    figure, axes = _panel()
    for i, rtol in enumerate(dict.fromkeys(gap.rtol for gap in gaps)):
        of_one = [gap for gap in gaps if gap.rtol == rtol]
        spans = [gap.timespan for gap in of_one]
        axes.plot(
            spans, [gap.error for gap in of_one], marker=MARKERS[i], markersize=3.5,
            color=SERIES[i], label=f"adjoint, rtol {rtol:.0e}",
        )  # fmt: skip
        axes.plot(
            spans, [gap.error_of_steps for gap in of_one], color=SERIES[i], linestyle=DASHES[2], linewidth=1
        )
    axes.plot([], [], color="#333333", linestyle=DASHES[2], linewidth=1, label="through the steps")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=r"span (units of $1/\tau$)",
        ylabel="gradient error (relative)",
    )
    _legend_below(figure, axes, 2)
    return figure


def adjoint_memory(gaps: Sequence[MemoryGap]) -> Figure:
    """What each way keeps for the backward pass."""
    figure, axes = _panel(2.1)
    steps = [gap.steps for gap in gaps]
    axes.plot(
        steps,
        [gap.backprop / 1024 for gap in gaps],
        "o-",
        color=SERIES[0],
        label="through the steps",
        markersize=3.5,
    )
    axes.plot(
        steps,
        [gap.adjoint / 1024 for gap in gaps],
        "s",
        linestyle=DASHES[1],
        color=SERIES[1],
        label="adjoint",
        markersize=3.5,
    )
    axes.set(xscale="log", yscale="log", xlabel="sub-steps of RK4", ylabel="kept for backward (KiB)")
    axes.legend()
    return figure
