"""What `lapse fit --forecast` and `lapse predict` do for forecasts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

if TYPE_CHECKING:
    from lapse.estimators.forecast_trial import ForecastTrial
    from lapse.models import Predictions
    from lapse.sequences import Sequences
    from lapse.tables import Roles


def features_alone(roles: Roles) -> Roles:
    """The roles without a target: a column that looks like an outcome is no feature of a forecast.

    Args:
        roles: the roles of the columns as they were guessed.
    """
    unused = {**roles.unused, **dict.fromkeys(roles.target, "an outcome, which is not forecast")}
    return replace(roles, target=(), per_step=False, unused=unused)


def time_or_number(text: str) -> float | str:
    """A number as one; anything else, such as "6h", as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def predicted(folder: Path, data: Sequences, at: str, ahead: str) -> Predictions:
    """Forecasts of a stored model at the times that the command line names.

    Args:
        folder: the model.
        data: what is known.
        at: times, with commas between: numbers in the unit of the table, "36h", or dates.
        ahead: times after the last event of each id, with commas between: "1h,6h".
    """
    from lapse import Forecaster
    from lapse.sequences.splits import as_dates

    if bool(at) == bool(ahead):
        raise typer.BadParameter(
            "this model forecasts; say when with --ahead 1h,6h (after the last event of each id) or --at 24,48"
        )

    numbers = [_asked(data, "--at" if at else "--ahead", text.strip()) for text in (at or ahead).split(",")]
    model = Forecaster.load(folder)
    found = model.predict(data, numbers) if at else model.predict(data, ahead=numbers)
    return replace(found, times=as_dates(data, np.asarray(found.times)))


def _asked(data: Sequences, option: str, text: str) -> float:
    """A time of the command line, in the unit of the table: a number, "36h", or, for --at, a date."""
    from lapse.sequences.bins import width_in_unit
    from lapse.sequences.splits import time_number

    try:
        found = time_or_number(text)
        if isinstance(found, str):
            date = option == "--at" and not re.fullmatch(r"[\d.]+\s*[A-Za-z]+", found)
            found = time_number(data, found) if date else width_in_unit(data, found)
        if not math.isfinite(found) or (option == "--ahead" and found < 0):
            raise ValueError(
                f"expected a finite time{', not negative' if option == '--ahead' else ''}, got {text!r}"
            )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    return found


def evaluated(folder: Path, data: Sequences) -> dict[str, Any]:
    """The figures of a stored forecaster on random cuts of sequences, as far ahead as it has learned.

    Args:
        folder: the model.
        data: sequences that were not learned from.
    """
    from lapse import Cuts, Forecaster
    from lapse.training import evaluate

    model = Forecaster.load(folder)
    asked: Any = model.head
    cuts = Cuts.random(model.schema.conform(data), asked.names, queries=None, horizon=float(model.farthest))
    return {"sequences": len(data), "queries": len(cuts.spans), "figures": evaluate(model, cuts)}


def terminal(trial: ForecastTrial) -> Any:
    """The figures of all forecasts, to print with rich.

    Args:
        trial: what to show.
    """
    from rich.table import Table

    from lapse.estimators.forecast_trial import OURS

    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column(no_wrap=True)
    for metric in trial.metrics:
        grid.add_column(metric.name, justify="right", no_wrap=True)
    for name, figures in trial.figures.items():
        cells = [f"{figures[metric.name]:.{metric.decimals}f}" for metric in trial.metrics]
        grid.add_row(name, *cells, style="bold" if name == OURS else "")
    return grid


def verdict(trial: ForecastTrial) -> str:
    """Whether the forecaster is worth its effort, in words.

    Args:
        trial: what was found.
    """
    from lapse.estimators.forecast_trial import OURS

    metric, queries = trial.metrics[0], len(trial.test.spans)
    on = f"{queries:,} queries about {len(set(trial.test.index.tolist())):,} held-out sequences"
    if trial.best == OURS:
        return f"By {metric.name}, lapse is the best of these on {on}."
    return f"By {metric.name}, {trial.best} is better than lapse on {on}: use that, or give it more data."
