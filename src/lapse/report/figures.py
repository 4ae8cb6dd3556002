"""The figures of the page, drawn once for light and dark; each comes with a sentence for those who cannot see it."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lapse import palette
from lapse.models.registry import label_of
from lapse.report import theme
from lapse.report.collection import Group
from lapse.report.tables import Row, Table
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.tasks import Splits, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

SIZE = (3.9, 2.5)  # inches; small, so that its letters are still readable on a phone
MOST_BARS = 40  # different gaps that still get a bar each
DRAWN_FEATURES = 4
LABEL = 6.5  # letters beside a point
DRAWN_EVENTS = 64

_RC: Any = {
    "svg.fonttype": "none",  # letters stay letters: they take the page's font and can be read aloud
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "text.color": theme.INK,
    "axes.labelcolor": theme.MUTED,
    "axes.edgecolor": theme.MUTED,
    "xtick.color": theme.MUTED,
    "ytick.color": theme.MUTED,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": theme.RULE,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Figure:
    """A drawing to put on the page, its title and what it shows."""

    title: str
    caption: str
    svg: str


def data_figures(task: Task, splits: Splits) -> list[Figure]:
    """What the data are like: one sequence of them, and the gaps they are made of."""
    return [example_sequence(task, splits.train), gap_histogram(task, splits.train)]


def run_figures(table: Table) -> list[Figure]:
    """What the runs did: how they learned, and what their result cost."""
    drawn = [learning_curves(table)] if any(run.history for run in _runs(table)) else []
    return [*drawn, score_against_cost(table)]


def learning_curves(table: Table) -> Figure:
    column = f"validation_{table.metric}"
    with canvas_with_axes() as (canvas, axes):
        for group, variant in zip(table.groups, variants(table), strict=True):
            _curve(axes, group, variant, column)
        for row in _reference(table):
            axes.axhline(row.mean, color=theme.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.set(xlabel="epoch", ylabel=f"validation {_metric(table)}")
        if not table.maximize:
            # An error falls by factors; what matters happens where it is small.
            axes.set_yscale("log")
            _plain_log_ticks(axes.yaxis)
        axes.margins(x=0.01)
        caption = f"Validation {table.metric} after each epoch; line: mean over seeds, band: their range."
        for row in _reference(table):
            caption += (
                f" Dotted, grey: the baseline '{row.name}' on the test split, {table.figure(row.mean)}."
            )
        return finished(canvas, f"Learning curves, {table.title}", "Learning curves", caption, table)


def _curve(axes: Axes, group: Group, variant: int, column: str) -> None:
    histories = [[row[column] for row in run.history] for run in group.runs]
    histories = [history for history in histories if history]
    if not histories:
        return
    # Seeds stop at different epochs; a mean over the remaining ones would jump, so the curve ends with the first.
    shortest = min(map(len, histories))
    values = np.array([history[:shortest] for history in histories])
    epochs = np.arange(1, shortest + 1)
    colour, dash = theme.model_colour(group.config.model), theme.model_dash(group.config.model, variant)
    axes.plot(
        epochs, values.mean(axis=0), color=colour, linestyle=dash, marker="o" if shortest == 1 else None
    )
    if len(histories) > 1:
        axes.fill_between(
            epochs, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0
        )


def score_against_cost(table: Table) -> Figure:
    with canvas_with_axes() as (canvas, axes):
        axes.set_xscale("log")
        places = []
        for row, variant in zip(table.models, variants(table), strict=True):
            seconds = (row.seconds_per_epoch or 0) * (row.epochs or 0)
            colour = theme.model_colour(row.name)
            axes.errorbar(
                seconds, row.mean, yerr=row.std, fmt="o" if variant == 0 else "D", color=colour, markersize=4.5,
                elinewidth=1,
            )  # fmt: skip
            places.append((seconds, row.mean, row.name))
        axes.margins(x=0.28, y=0.15)
        axes.set(xlabel="seconds of training, all epochs of one run", ylabel=f"test {_metric(table)}")
        _plain_log_ticks(axes.xaxis)
        _label_points(canvas, axes, places)
        better = "up and to the left" if table.maximize else "down and to the left"
        caption = f"Test {table.metric} against the time one training took; better is {better}."
        if any(row.std for row in table.models):
            caption += " Bars: one standard deviation."
        return finished(
            canvas, f"Test {table.metric} against cost, {table.title}", "Score against cost", caption, table
        )


@dataclass(frozen=True)
class _Box:
    """Where a label or a point lies, in points of print."""

    left: float
    low: float
    width: float
    height: float

    def covers(self, other: _Box) -> float:
        """The area that both have."""
        wide = min(self.left + self.width, other.left + other.width) - max(self.left, other.left)
        high = min(self.low + self.height, other.low + other.height) - max(self.low, other.low)
        return max(wide, 0.0) * max(high, 0.0)


def _spots(x: float, y: float, width: float, height: float) -> list[_Box]:
    """Places for a label around a point, best first: beside it, then higher and lower, then farther."""
    sides = (x + 6, x - 6 - width, x - width / 2)
    rises = (0.0, 0.9, -0.9, 1.8, -1.8, 2.7, -2.7)
    return [
        _Box(left, y + rise * height - height / 2, width, height)
        for rise in rises
        for left in sides
        if rise or left != sides[2]
    ]


def _label_points(canvas: Canvas, axes: Axes, places: Sequence[tuple[float, float, str]]) -> None:
    """Models' names, each in the first free spot around its point, so that none covers a point or another.

    In a crowd a name may stand a little away: its colour says whose it is.
    """
    canvas.draw_without_rendering()
    points = [axes.transData.transform(place[:2]) * 72 / canvas.dpi for place in places]
    taken = [_Box(x - 3, y - 3, 6, 6) for x, y in points]
    for (x, y), (seconds, value, model) in zip(points, places, strict=True):
        label = label_of(model)
        width, height = 0.56 * LABEL * len(label), 1.05 * LABEL
        spot = min(_spots(x, y, width, height), key=lambda box: sum(box.covers(other) for other in taken))
        taken.append(spot)
        # Widths are estimates: the edge that faces the point is the one to hold on to.
        side, edge = ("right", spot.left + width) if spot.left + width < x else ("left", spot.left)
        rise = spot.low - y + height / 2
        axes.annotate(
            label,
            (seconds, value),
            (edge - x, rise),
            textcoords="offset points",
            ha=side,
            va="center",
            fontsize=LABEL,
            color=theme.model_colour(model),
        )


def gap_histogram(task: Task, train: Sequences) -> Figure:
    gaps = train.gaps
    with canvas_with_axes() as (canvas, axes):
        median = float(np.median(gaps)) if len(gaps) else 0.0
        if len(gaps):
            _bars(axes, gaps)
            axes.axvline(median, color=theme.INK, linewidth=0.8, linestyle=(0, (3, 2)))
            axes.annotate(
                f"median {median:.3g}", (median, 1), (3, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", fontsize=6.5,
            )  # fmt: skip
        axes.set(xlabel=f"gap between two events (1 = {task.time_unit})", ylabel="% of gaps")
        caption = f"Time between events in the training split: {len(gaps):,} gaps, median {median:.3g}"
        if len(gaps):
            caption += f", from {gaps.min():.3g} to {gaps.max():.3g}"
        return finished(canvas, f"Histogram of gaps, {task.name}", "Gaps", caption + ".")


def _bars(axes: Axes, gaps: Array) -> None:
    """A bar for each gap where there are few different ones; else bins, even in the logarithm if gaps vary much."""
    # Rounded, because times that were subtracted differ in their last bits.
    values, counts = np.unique(gaps.round(6), return_counts=True)
    # The middle 98 % decide: one gap of a microsecond among many of a second is no reason for a logarithm.
    low, high = np.quantile(gaps, (0.01, 0.99))
    wide = low > 0 and high / low > 100
    look: Any = {"color": theme.DATA, "alpha": 0.85}
    if len(values) <= MOST_BARS and not wide:
        step = np.diff(values).min() if len(values) > 1 else 1.0
        axes.bar(values, 100 * counts / counts.sum(), width=0.8 * step, **look)
        return
    shown = gaps[gaps > 0] if wide else gaps
    low, high = float(shown.min()), float(shown.max())
    bins = np.geomspace(low, high, MOST_BARS) if wide else np.linspace(low, high, MOST_BARS)
    axes.hist(shown, bins=bins.tolist(), weights=np.full(len(shown), 100 / len(gaps)), **look)
    if wide:
        axes.set_xscale("log")
        _plain_log_ticks(axes.xaxis)


def example_sequence(task: Task, train: Sequences) -> Figure:
    """The training sequence of median length: its most-observed features at the times they were observed."""
    one = train[int(np.argsort(train.lengths, kind="stable")[len(train) // 2])]
    features = _shown_features(one)
    with canvas_with_axes(rows=len(features)) as (canvas, panels):
        for axes, feature in zip(np.atleast_1d(panels), features, strict=True):
            _events(axes, one, feature)
        np.atleast_1d(panels)[-1].set_xlabel(f"time (1 = {task.time_unit})")
        caption = _example_caption(one, len(features))
        return finished(canvas, f"Example sequence, {task.name}", "One sequence", caption)


def _events(axes: Axes, one: Sequences, feature: int) -> None:
    seen = slice(None) if one.observed is None else one.observed[:DRAWN_EVENTS, feature]
    times, values = one.times[:DRAWN_EVENTS][seen], one.values[:DRAWN_EVENTS, feature][seen]
    colour = theme.DATA
    if len(np.unique(values)) <= 2:
        _held(axes, one, times, values)
    else:
        axes.plot(times, values, color=colour, linewidth=0.7, alpha=0.6)
    axes.plot(times, values, "o", color=colour, markersize=3 if len(times) < 40 else 1.8)
    # A name may hold dollars, which are no mathematics; and may be long, so that it stands above and not beside.
    axes.set_title(
        one.features[feature], loc="left", fontsize=LABEL, color=theme.MUTED, pad=2, parse_math=False
    )
    axes.grid(visible=False, axis="x")


def _held(axes: Axes, one: Sequences, times: Array, values: Array) -> None:
    """A value of two as the level that ends with its event: what an event coding stands for."""
    start = times[0] if one.starts is None else one.starts[0]
    colour = theme.DATA
    edges = np.concatenate([[start], times])
    axes.stairs(values, edges, fill=True, color=colour, alpha=0.18)
    axes.stairs(values, edges, color=colour, linewidth=0.8)
    levels = sorted({0.0, *values.tolist()})
    room = 0.15 * ((levels[-1] - levels[0]) or 1.0)
    axes.set(yticks=levels, ylim=(levels[0] - room, levels[-1] + room))


def _shown_features(one: Sequences) -> list[int]:
    if one.observed is None:
        return list(range(min(one.num_features, DRAWN_FEATURES)))
    order = np.argsort(-one.observed.sum(axis=0), kind="stable")
    return [int(i) for i in order[:DRAWN_FEATURES]]


def _example_caption(one: Sequences, shown: int) -> str:
    parts = [f"A training sequence of median length, {one.num_events} events"]
    if one.num_events > DRAWN_EVENTS:
        parts.append(f"the first {DRAWN_EVENTS} drawn")
    if shown < one.num_features:
        parts.append(f"{shown} of {one.num_features} features")
    if one.targets is not None and not one.per_step:
        label = one.targets[0] if one.classes is None else one.classes[int(one.targets[0])]
        parts.append(f"target: {label}")
    return "; ".join(parts) + "."


def variants(table: Table) -> list[int]:
    """For each model row, how many of the same model stand above it: what tells their lines apart."""
    names = [row.name for row in table.models]
    return [names[:place].count(name) for place, name in enumerate(names)]


def _reference(table: Table) -> list[Row]:
    """The one baseline worth a line: the best."""
    sign = 1 if table.maximize else -1
    return sorted(table.baselines, key=lambda row: -sign * row.mean)[:1]


def _runs(table: Table) -> Iterator[Any]:
    return (run for group in table.groups for run in group.runs)


def _metric(table: Table) -> str:
    return f"{table.metric} (%)" if table.unit else table.metric


def _plain_log_ticks(axis: Axis) -> None:
    """1, 2, 5, 10, 20 rather than powers: times and errors seldom span two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def canvas_with_axes(rows: int = 1) -> Iterator[tuple[Canvas, Any]]:
    """A figure in the page's look; no window, no pyplot, nothing left open."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    height = SIZE[1] if rows == 1 else 0.5 + 0.66 * rows
    with palette.drawing(mathematics=False), matplotlib.rc_context(_RC):
        canvas = Canvas(figsize=(SIZE[0], max(height, SIZE[1])))
        yield canvas, canvas.subplots(rows, sharex=True)


def finished(
    canvas: Canvas, description: str, title: str, caption: str, table: Table | None = None
) -> Figure:
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None})
    described = html.escape(f"{description}. {caption}", quote=True)
    models = [row.name for row in table.models] if table else []
    return Figure(title, caption, theme.inline_svg(buffer.getvalue(), described, models))
