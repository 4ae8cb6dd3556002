"""What `lapse fit` found: for the terminal, as a model card and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import lapse
from lapse.estimators.trial import NETWORKS, OURS, Interval, Trial, calibration
from lapse.heads import Metric
from lapse.heads.metrics import shown_decimals
from lapse.report import theme
from lapse.report.figures import Figure, canvas_with_axes, finished
from lapse.sequences import Sequences
from lapse.tables import Finding, Roles
from lapse.tables.findings import facts

if TYPE_CHECKING:
    from rich.table import Table

MOST_POINTS = 2000


def figure_text(metric: Metric, found: Interval) -> str:
    """A figure with its interval: "0.861 (0.83–0.89)".

    Args:
        metric: which figure.
        found: its value and interval.
    """
    digits = shown_decimals(found.value, metric.decimals)
    low, high = (f"{end:.{max(0, digits - 1)}f}" for end in found[1:])
    if low == high:  # a narrow interval needs all digits
        low, high = (f"{end:.{digits}f}" for end in found[1:])
    return f"{found.value:.{digits}f} ({low}–{high})"


def terminal(trial: Trial, width: int = 80) -> Table:
    """The figures of all predictors, to print with rich: as many metrics as there is room for, three at most.

    Args:
        trial: what to show.
        width: the number of characters per line.
    """
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="dim")
    names = [scored.name for scored in trial.scores]
    grid.add_column(no_wrap=True)
    columns = [names]
    for metric in trial.metrics[:3]:
        column = [figure_text(metric, scored.figures[metric.name]) for scored in trial.scores]
        if len(columns) > 1 and _width([*columns, [_titled(metric), *column]]) > width:
            break
        columns.append(column)
        grid.add_column(_titled(metric), justify="right", no_wrap=True)
    for name, *cells in zip(*columns, strict=True):
        grid.add_row(name, *cells, style="bold" if name == OURS else "")
    return grid


def _width(columns: Sequence[Sequence[str]]) -> int:
    """The characters per line of columns of text with two spaces between."""
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def verdict(trial: Trial) -> str:
    """Whether the model is worth its effort, in words.

    Args:
        trial: what was found.
    """
    metric, best, ours = trial.metrics[0].name, trial.best, trial.scores[0]
    said = f"{OURS} is {trial.ensemble.parts}. On {trial.test_size:,} held-out ids "
    if best is ours:
        return f"{said}it has the best {metric} of these."
    low, high = ours.figures[metric][1:]
    value = best.figures[metric].value
    said += f"the best {metric} is that of: {best.name}. "
    if low <= value <= high:
        return f"{said}The difference is within the interval of {OURS}: there are too few ids to tell."
    remedy = "fit again with --no-boosting" if best.name == NETWORKS else "use the simpler one"
    return f"{said}The difference is beyond the interval of {OURS}: {remedy}."


def card(trial: Trial, roles: Roles, findings: Sequence[Finding]) -> str:
    """The model card in Markdown.

    Args:
        trial: what was found.
        roles: what the columns of the table are.
        findings: what is odd about the data.
    """
    metrics = trial.metrics
    lines = [
        f"# {', '.join(roles.target)}: {trial.ensemble.head.sentence}",
        "",
        f"Made with lapse {lapse.__version__}: {trial.ensemble.parts}. Fitted to {trial.train_size:,} ids; the figures "
        f"below are from {trial.test_size:,} others, with 95 % intervals from resampling them.",
        "",
        "| | " + " | ".join(_titled(metric) for metric in metrics) + " |",
        "|---|" + "---|" * len(metrics),
        *(
            f"| {s.name} | " + " | ".join(figure_text(m, s.figures[m.name]) for m in metrics) + " |"
            for s in trial.scores
        ),
        "",
        verdict(trial),
        "",
        "## What it takes",
        "",
        *(f"- {role}: {text}" for role, text in roles.described()),
        "",
        "## What to know of the data",
        "",
        *(
            [f"- {'**Warning**: ' if f.grave else ''}{f.text}" for f in findings]
            or ["Nothing odd was found."]
        ),
        "",
        "```bash",
        "lapse predict FOLDER TABLE -o predictions.csv",
        "```",
    ]
    return "\n".join(lines) + "\n"


def page(trial: Trial, roles: Roles, data: Sequences, findings: Sequence[Finding]) -> str:
    """One HTML page; it needs no network and no other file.

    Args:
        trial: what was found.
        roles: what the columns of the table are.
        data: all sequences of the table.
        findings: what is odd about them.
    """
    from lapse.report.page import environment

    template = environment().get_template("trial.html.jinja")
    text: str = template.render(
        trial=trial,
        title=", ".join(roles.target),
        verdict=verdict(trial),
        headings=[_titled(metric) for metric in trial.metrics],
        rows=[
            (scored.name, [figure_text(metric, scored.figures[metric.name]) for metric in trial.metrics])
            for scored in trial.scores
        ],
        ours=OURS,
        facts=[*roles.described(), *facts(data)],
        findings=findings,
        figures=figures(trial),
        theme=theme.css([]),
        version=lapse.__version__,
    )
    return text


def figures(trial: Trial) -> list[Figure]:
    """What the answers are like: a calibration plot for two classes, predicted against true numbers."""
    groups = calibration(trial)
    if groups:
        return [_calibration_plot(groups, list(trial.ensemble.head.contrasts)[1])]
    return [] if trial.ensemble.head.gives_probabilities else [_scatter(trial)]


def _calibration_plot(groups: Sequence[tuple[float, float, int]], outcome: str) -> Figure:
    predicted, observed, counts = (np.array(column) for column in zip(*groups, strict=True))
    spread = 1.96 * np.sqrt(np.maximum(observed * (1 - observed), 1e-9) / counts)
    top = min(1.0, 1.1 * float(max(predicted.max(), (observed + spread).max())))
    with canvas_with_axes() as (canvas, axes):
        axes.plot([0, top], [0, top], color=theme.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.errorbar(
            predicted, observed, yerr=spread, color=theme.INK, marker="o", markersize=3.5, linewidth=1
        )
        axes.set(
            xlabel=f"predicted probability of {outcome}",
            ylabel="observed share",
            xlim=(0, top),
            ylim=(0, top),
        )
        caption = (
            f"Held-out ids in groups of equal size, by predicted probability: the share that is {outcome} should be "
            "near the dotted line. Bars: 95 % intervals."
        )
        return finished(canvas, "Calibration on held-out ids", "Calibration", caption)


def _scatter(trial: Trial) -> Figure:
    truth, answers = (
        array.reshape(len(array), -1)[:MOST_POINTS, 0] for array in (trial.truth, trial.answers)
    )
    known = ~np.isnan(truth)
    ends = [float(np.min(truth[known])), float(np.max(truth[known]))]
    with canvas_with_axes() as (canvas, axes):
        axes.plot(ends, ends, color=theme.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.plot(answers[known], truth[known], ".", color=theme.INK, markersize=3, alpha=0.5)
        axes.set(xlabel="predicted", ylabel="true")
        caption = "Held-out ids: on the dotted line, the prediction is right."
        return finished(canvas, "Predicted against true numbers", "Predicted and true", caption)


def _titled(metric: Metric) -> str:
    arrow = "↑" if metric.maximize else "↓"
    return " ".join(word for word in (metric.name, metric.unit, arrow) if word)
