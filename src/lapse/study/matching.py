"""Equal terms: the widths at which models have the same number of parameters."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import torch

from lapse.models import Schema
from lapse.runs import RunConfig
from lapse.tasks import find

TOLERANCE = 0.05  # how far from the number that was asked for a model may be
WIDEST = 1 << 14


class Matching:
    """Chooses the `hidden_size` of runs by a number of parameters, readout included.

    Args:
        data_dir: where to look for the tasks' data first, which say how many features a model sees.
    """

    def __init__(self, data_dir: str | Path | None = None) -> None:
        self._data_dir = data_dir
        self._schemas: dict[str, Schema] = {}
        self._widths: dict[str, int] = {}

    def __call__(self, config: RunConfig, parameters: int) -> RunConfig:
        """The run with the width that comes nearest; ValueError if that is more than 5 % off.

        Args:
            config: the run; its `hidden_size` is not looked at.
            parameters: how many parameters its model is to have.
        """
        key = json.dumps([parameters, _question(config), _shape(config)], sort_keys=True)
        if key not in self._widths:
            self._widths[key] = self._width(config, parameters)
        return dataclasses.replace(config, hidden_size=self._widths[key])

    def _width(self, config: RunConfig, parameters: int) -> int:
        @cache
        def count(width: int) -> int:
            return self.count(dataclasses.replace(config, hidden_size=width))

        above = 1
        while count(above) < parameters:
            above *= 2
            if above > WIDEST:
                raise ValueError(f"{config.model} has fewer than {parameters:,} parameters at any width")
        below = above // 2
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if count(middle) < parameters else (below, middle)
        nearest = min((w for w in (below, above) if w), key=lambda width: abs(count(width) - parameters))
        if abs(count(nearest) - parameters) > TOLERANCE * parameters:
            raise ValueError(
                f"{config.model} on {config.task} has {count(nearest):,} parameters with {nearest} units, which is "
                f"nearest to {parameters:,} and more than {TOLERANCE:.0%} off; ask for another number, or change what "
                "does not depend on the units, such as readout_size"
            )
        return nearest

    def count(self, config: RunConfig) -> int:
        """How many parameters the model of a run has.

        Args:
            config: the run.
        """
        task, question = find(config.task), _question(config)
        if question not in self._schemas:
            splits = task.load(self._data_dir, **config.task_options)
            self._schemas[question] = Schema.of(splits.train)
        with torch.random.fork_rng(devices=[]):
            model = task.model(self._schemas[question], config.model_config(task))
        return sum(parameter.numel() for parameter in model.parameters())


def _question(config: RunConfig) -> str:
    """The data of a run."""
    return json.dumps([config.task, dict(config.task_options)], sort_keys=True)


def _shape(config: RunConfig) -> list[object]:
    """What decides the number of parameters beside the data and the width."""
    return [config.model, config.num_layers, dict(config.model_options), dict(config.architecture)]
