"""A fitted forecaster beside simple forecasts, on sequences that none of them has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lapse.estimators.fitting import split
from lapse.estimators.forecasters import IrregularForecaster
from lapse.heads import Metric
from lapse.models import Forecaster
from lapse.models.simple_forecasts import simple_forecasts
from lapse.sequences import Cuts, Sequences

OURS = "lapse"


@dataclass(frozen=True)
class ForecastTrial:
    """What a forecaster reached on held-out sequences, beside simple forecasts.

    Args:
        forecaster: what was fitted.
        figures: by the name of the forecast and of the figure; the forecaster first.
        train_size: the number of sequences that were learned from.
        test: the cuts of the sequences that were held out.
    """

    forecaster: Forecaster
    figures: dict[str, dict[str, float]]
    train_size: int
    test: Cuts

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The figures in the order in which they are shown; the first one decides."""
        return self.forecaster.head.metrics

    @property
    def best(self) -> str:
        """The name of the forecast with the best first figure."""
        metric = self.metrics[0]
        sign = 1 if metric.maximize else -1
        return max(self.figures, key=lambda name: sign * self.figures[name][metric.name])


def run_forecast_trial(
    estimator: IrregularForecaster,
    data: Sequences,
    *,
    test: float = 0.2,
    say: Callable[[str], None] = lambda message: None,
) -> ForecastTrial:
    """Hold out a part of the data by id or group, fit to the rest, and score everything on cuts of the part.

    Args:
        estimator: how to fit; it is fitted in place.
        data: the sequences.
        test: the share that is held out.
        say: hears what is being worked on.
    """
    inside, outside = split(data, test, int(estimator.random_state))
    say(f"fitting to {len(inside):,} sequences; {len(outside):,} are held out")
    model = estimator.fit(data[inside]).forecaster_
    say("scoring on the held-out sequences")
    train, asked = model.conform(estimator.train_), model.conform(estimator.cut(data[outside]))
    outputs = {OURS: model.outputs(asked), **simple_forecasts(model.head, train, asked)}
    figures = {name: _scored(model, output, asked) for name, output in outputs.items()}
    return ForecastTrial(model, figures, len(inside), asked)


def _scored(model: Forecaster, output: Tensor, asked: Cuts) -> dict[str, float]:
    found = model.head.score(output, asked.queries)
    return {metric.name: found[metric.name] for metric in model.head.metrics}
