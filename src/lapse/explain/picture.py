"""Pictures: what moved one answer, and which variables matter in a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapse import palette
from lapse.explain.explanation import Explanation
from lapse.explain.permutation import Importance
from lapse.extras import extra
from lapse.sequences.ragged import Array
from lapse.sequences.storage import write_atomically
from lapse.sequences.units import NANOSECONDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWERS, RAISES = palette.SERIES[0], palette.SERIES[1]  # blue and red, apart for every kind of colour vision
NEUTRAL, LINE, EDGE, MUTED, INK = "#f2f2f2", "#b8b5b0", "#5c5a57", "#6b6862", "#1c1b1a"
KINDS = (".svg", ".png", ".pdf")
MOST_ROWS = 12  # variables that are drawn; the others are one bar together
ROW_HEIGHT, WIDTH = 0.42, 9.6  # inches
MOST_LETTERS = 24
# Diameters of the dots, in points: of a value that did nothing, and of the one that did most.
SMALLEST, LARGEST = 3.0, 9.0


def draw(explanation: Explanation, index: int) -> Figure:
    """One sequence: a row per variable with its values over time, and a bar for what it contributed in all.

    Args:
        explanation: what contributed what.
        index: the position of the sequence.
    """
    with extra("cli"), palette.drawing(mathematics=False):
        from matplotlib.figure import Figure

        rows = _rows(explanation, index)
        figure = Figure(figsize=(WIDTH, 1.5 + ROW_HEIGHT * len(rows)))
        left, right = figure.subplots(1, 2, width_ratios=(2.6, 1), sharey=True)
        figure.suptitle(explanation.sentence(index), x=0.01, ha="left", fontsize=10)
        left.set_title(
            "red raises the answer, blue lowers it; the larger the dot, the more", loc="left", color=MUTED
        )
        _timeline(left, explanation, index, rows)
        _bars(right, explanation, index, rows)
        return figure


def draw_importance(importance: Importance) -> Figure:
    """A bar per variable, the most important first, with one dot per repeat.

    Args:
        importance: what was measured.
    """
    with extra("cli"), palette.drawing(mathematics=False):
        from matplotlib.figure import Figure

        order = importance.order[: 2 * MOST_ROWS]
        figure = Figure(figsize=(7.2, 1.2 + 0.26 * len(order)))
        axes = figure.subplots()
        places = np.arange(len(order))
        axes.barh(places, importance.worse.mean(1)[order], color=LOWERS, height=0.62)
        for place, row in zip(places, importance.worse[order], strict=True):
            axes.plot(row, np.full(len(row), place), ".", color=INK, markersize=3, clip_on=False)
        axes.axvline(0, color=LINE, linewidth=0.8)
        axes.set_yticks(places, [_short(importance.variables[k]) for k in order])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        name = importance.metric.name
        axes.set_xlabel(f"{name} worse by (dots: each repeat)")
        axes.set_title(
            f"{name} is {importance.figure:.4g} on {importance.sequences:,} sequences; it gets worse without:",
            loc="left",
            fontsize=9,
        )
        return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture to a file, whole or not at all.

    Args:
        figure: the picture.
        path: a name that ends in .svg, .png or .pdf.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ValueError(f"{path} is of no known kind; expected a name that ends in {', '.join(KINDS)}")
    with palette.drawing():
        # The same picture is the same file: no date in it.
        dated: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind)
        write_atomically(
            path,
            lambda file: figure.savefig(file, format=kind[1:], metadata=dated, facecolor="white", dpi=150),
        )


def _rows(e: Explanation, index: int) -> list[int]:
    """Positions of the variables that are drawn: those that moved the answer most, in the order of their bars."""
    size, total = _sizes(e, index), np.abs(e.totals()[index])
    chosen = [int(k) for k in np.argsort(-size, kind="stable")[:MOST_ROWS] if size[k] > 0] or [0]
    return sorted(chosen, key=lambda k: -total[k])


def _sizes(e: Explanation, index: int) -> Array:
    """(variables,), how much each one moved the answer, one way or the other at each of its events."""
    rows = slice(e.sequences.offsets[index], e.sequences.offsets[index + 1])
    values = np.abs(e.values[rows]).sum(0) + np.abs(e.counts[index])
    return np.hstack([values, np.abs(e.static[index]), np.abs(e.gaps[rows]).sum()])


def _timeline(axes: Axes, e: Explanation, index: int, rows: list[int]) -> None:
    s = e.sequences
    events = np.arange(s.offsets[index], s.offsets[index + 1])
    times = s.times[events]
    largest = _largest(e, index)
    for place, variable in enumerate(rows):
        if variable < s.num_features:
            seen = np.array([e.value(row, variable) is not None for row in events])
            heights = place + 0.32 - 0.64 * _within(s.values[events, variable], seen)
            _dots(axes, times[seen], heights[seen], e.values[events[seen], variable], largest)
            _ends(axes, e, events[seen], variable, place)
        elif variable < s.num_features + len(s.static_features):
            k = variable - s.num_features
            value = e.static_value(index, k)
            _beside(axes, place, "not known" if value is None else _number(value))
        else:
            _stems(axes, times, s.timespans[events], e.gaps[events], place, largest)
    names = [_short(e.variables[variable]) for variable in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.04)
    axes.set_xlabel(f"time ({s.unit})" if s.unit else "time")
    if s.origin is not None and s.unit in NANOSECONDS:
        _date_ticks(axes, s.origin, NANOSECONDS[s.unit])


def _dots(axes: Axes, times: Array, heights: Array, amounts: Array, largest: float) -> None:
    """Values over time; colour and size say which way each one moved the answer, and how far."""
    axes.plot(times, heights, color=LINE, linewidth=0.8, zorder=2)
    share = np.abs(amounts) / largest
    axes.scatter(
        times,
        heights,
        s=(SMALLEST + (LARGEST - SMALLEST) * np.sqrt(share)) ** 2,
        c=[_colour(amount / largest) for amount in amounts],
        edgecolors=EDGE,
        linewidths=0.5,
        zorder=3,
    )


def _ends(axes: Axes, e: Explanation, events: Array, variable: int, place: int) -> None:
    """The least and the largest value of a row, or its words, beside it."""
    if not len(events):
        return
    values = [e.value(int(row), variable) for row in events]
    shown = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    text = _number(shown[0]) if len(shown) == 1 else f"{_number(shown[0])} – {_number(shown[-1])}"
    _beside(axes, place, _short(text))


def _stems(axes: Axes, times: Array, gaps: Array, amounts: Array, place: int, largest: float) -> None:
    """The time between two events as a line from one to the other, coloured by what it did to the answer."""
    for k in range(len(times)):
        colour = _colour(amounts[k] / largest)
        axes.plot([times[k] - gaps[k], times[k]], [place, place], color=LINE, linewidth=0.8, zorder=2)
        if gaps[k] > 0:
            width = 1.0 + 5.0 * np.sqrt(abs(amounts[k]) / largest)
            middle = [times[k] - 0.85 * gaps[k], times[k] - 0.15 * gaps[k]]
            axes.plot(middle, [place, place], color=colour, linewidth=width, solid_capstyle="round", zorder=3)


def _bars(axes: Axes, e: Explanation, index: int, rows: list[int]) -> None:
    totals = e.totals()[index]
    shown = totals[rows]
    places = np.arange(len(rows))
    axes.barh(places, shown, color=[RAISES if amount > 0 else LOWERS for amount in shown], height=0.5)
    for place, amount in zip(places, shown, strict=True):
        side = 1 if amount >= 0 else -1
        axes.annotate(
            f"{amount:+.3g}".replace("-", "−"),
            (amount, place),
            (3 * side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=7,
        )
    axes.axvline(0, color=LINE, linewidth=0.8)
    axes.margins(x=0.28)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.spines["left"].set_visible(False)
    unit = "log odds" if e.head.gives_probabilities else f"in the unit of {e.names[index]}"
    axes.set_xlabel(f"contribution ({unit}){_others(e, index, rows)}")


def _others(e: Explanation, index: int, rows: list[int]) -> str:
    left_out = len(e.variables) - len(rows)
    rest = e.totals()[index].sum() - e.totals()[index][rows].sum()
    return f"\n{left_out} more variables: {rest:+.3g}" if left_out else ""


def _largest(e: Explanation, index: int) -> float:
    """The largest contribution of a single value or gap."""
    rows = slice(e.sequences.offsets[index], e.sequences.offsets[index + 1])
    return max(float(np.abs(e.values[rows]).max(initial=0)), float(np.abs(e.gaps[rows]).max()), 1e-12)


def _colour(share: float) -> tuple[float, float, float]:
    """From the colour of what lowers an answer (-1) over a light grey (0) to that of what raises it (1)."""
    from matplotlib.colors import to_rgb

    end, middle = to_rgb(RAISES if share > 0 else LOWERS), to_rgb(NEUTRAL)
    part = min(1.0, abs(share)) ** 0.5
    red, green, blue = (m + part * (e - m) for m, e in zip(middle, end, strict=True))
    return red, green, blue


def _within(values: Array, seen: Array) -> Array:
    """Values between 0 and 1, from the least to the largest that was seen; one half if all are the same."""
    if not seen.any():
        return np.full(len(values), 0.5)
    low, high = values[seen].min(), values[seen].max()
    return (values - low) / (high - low) if high > low else np.full(len(values), 0.5)


def _beside(axes: Axes, place: int, text: str) -> None:
    axes.annotate(
        text,
        (1.0, place),
        (2, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=6.5,
        color=MUTED,
    )


def _number(value: float | str | None) -> str:
    return _short(value) if isinstance(value, str) else f"{value:.4g}"


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _date_ticks(axes: Axes, origin: str, unit: int) -> None:
    """Dates along the axis, in place of numbers of units since the first date of the table."""
    low, high = axes.get_xlim()
    resolution = "D" if (high - low) * unit > 5 * NANOSECONDS["D"] else "m"
    first = np.datetime64(origin).astype("datetime64[ns]")

    def text(number: float, place: float) -> str:
        stamp = first + np.timedelta64(round(number * unit), "ns")
        return str(stamp.astype(f"datetime64[{resolution}]")).replace("T", "\n")

    axes.xaxis.set_major_formatter(text)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel("")
