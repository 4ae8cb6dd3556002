"""Which runs a study consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lapse.runs import RunConfig

# A run's config from task, model, seed and the settings that concern it.
Configure = Callable[[str, str, int, list[str]], RunConfig]
# The same run with another width, that of so many parameters: see `lapse.study.matching.Matching`.
Match = Callable[[RunConfig, int], RunConfig]


@dataclass(frozen=True)
class Grid:
    """Every task with every model with every seed.

    Args:
        tasks: the names of the tasks.
        models: the names of the models.
        seeds: the seeds.
        settings: `NAME=VALUE` for all runs, or `WHICH:NAME=VALUE` for the runs of one task or one model:
            `ode-lstm:form=autonomous`, `walker:train.epochs=50`.
        parameters: how many parameters every model is to have, within 5 %, by the choice of its width; None for the
            widths that the settings say.
    """

    tasks: Sequence[str]
    models: Sequence[str]
    seeds: Sequence[int]
    settings: Sequence[str] = ()
    parameters: int | None = None

    def __post_init__(self) -> None:
        for setting in self.settings:
            which = which_of(setting)
            if setting.startswith(":"):
                raise ValueError(f"{setting!r} names no task or model before its colon; leave the colon out")
            if which and which not in (*self.tasks, *self.models):
                raise ValueError(
                    f"{setting!r} is for {which!r}, which is not in this study; "
                    f"expected one of {', '.join((*self.tasks, *self.models))}"
                )

    def configs(self, configure: Configure, match: Match | None = None) -> list[RunConfig]:
        """All runs, seed by seed, so that a study that is cut short has something of everything.

        Args:
            configure: makes the config of a run.
            match: chooses widths; needed only if there are `parameters`.
        """
        made = [
            configure(task, model, seed, self._settings_for(task, model))
            for seed in self.seeds
            for task in self.tasks
            for model in self.models
        ]
        if self.parameters is None:
            return made
        if match is None:
            raise ValueError("a grid with a number of parameters needs `match`, which chooses the widths")
        return [match(config, self.parameters) for config in made]

    def _settings_for(self, task: str, model: str) -> list[str]:
        """The general ones first, so that what is said of one task or model has the last word."""
        concerned = [s for s in self.settings if which_of(s) in ("", task, model)]
        return [s.removeprefix(f"{which_of(s)}:") for s in sorted(concerned, key=lambda s: bool(which_of(s)))]


def which_of(setting: str) -> str:
    """The task or model that a setting is for, empty if it is for all: ``WHICH:NAME=VALUE``."""
    name, _, _ = setting.partition("=")
    return name.rpartition(":")[0]


def name_of(setting: str) -> str:
    """What a setting sets, without the task or model that it is for: the NAME of ``WHICH:NAME=VALUE``."""
    name, _, _ = setting.partition("=")
    return name.rpartition(":")[2]
