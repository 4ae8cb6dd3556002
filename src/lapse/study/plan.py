"""A study written down in a TOML file, so that one command repeats it.

preset = "paper"                 # optional; `lapse list` and docs/reproduce.md say which there are
models = ["ode-lstm", "gru-d"]   # optional: those of grids that name none; "all" if it is left out
[settings]                       # for every run, as `--set` takes them
"train.schedule" = "cosine"

[[grids]]                        # any number of grids: every task with every model with every seed
tasks = ["walker"]
models = "all"                   # optional; or a list
seeds = 5
settings = { "train.epochs" = 100 }   # these have the last word over those of the file
match = { parameters = 30000 }   # optional: widths at which every model has so many parameters, within 5 %
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.models import MODELS
from lapse.runs import RunConfig
from lapse.study.grid import Grid, Match, name_of, which_of

# A run's config from preset, task, model, seed and the settings that concern it.
PresetConfigure = Callable[[str, str, str, int, list[str]], RunConfig]

GRID_WORDS = ("tasks", "models", "seeds", "settings", "match")
PLAN_WORDS = ("preset", "models", "settings", "grids")


class BadPlan(ValueError):
    """The file does not describe a study; the message says where and what was expected."""


@dataclass(frozen=True)
class Plan:
    """The grids of a study and the preset that their runs start from."""

    preset: str
    grids: tuple[Grid, ...]

    @staticmethod
    def read(path: str | Path) -> Plan:
        """The study that the TOML file at `path` describes."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadPlan(f"{path} cannot be read as a study: {error}") from error
        try:
            _check_words(content, PLAN_WORDS, "the file")
            shared = _settings(content.get("settings", {}))
            models = content.get("models", "all")
            grids = tuple(
                _grid({"models": models, **grid}, shared)
                for grid in _tables("grids", content.get("grids", []))
            )
            _check_used(shared, grids)
        except (TypeError, ValueError) as error:
            raise BadPlan(f"{path}: {error}") from error
        if not grids:
            raise BadPlan(
                f"{path} has no [[grids]]; a study needs at least one, with tasks, models and seeds"
            )
        return Plan(content.get("preset", "default"), grids)

    def configs(self, configure: PresetConfigure, match: Match | None = None) -> list[RunConfig]:
        """All runs, seed by seed over all grids, so that a study that is cut short has something of everything.

        Args:
            configure: makes the config of a run.
            match: chooses widths; needed only if a grid says how many parameters models are to have.
        """
        made = [
            config
            for grid in self.grids
            for config in grid.configs(lambda *words: configure(self.preset, *words), match)
        ]
        return sorted(made, key=lambda config: config.train.seed)


def _grid(values: Mapping[str, Any], shared: Sequence[str]) -> Grid:
    _check_words(values, GRID_WORDS, "a grid")
    models = values["models"]
    names = list(MODELS) if models == "all" else _strings("models", models)
    seeds = values.get("seeds", 5)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ValueError(f"seeds must be a whole number of at least 1, got {seeds!r}")
    tasks = _strings("tasks", values.get("tasks"))
    own = _settings(values.get("settings", {}))
    # A setting of the whole file for one task or model concerns only the grids that have it. What a grid says of all
    # its runs has the last word, also over what the file says of one task or model.
    said = {name_of(setting) for setting in own if not which_of(setting)}
    concerned = [s for s in shared if which_of(s) in ("", *tasks, *names) and name_of(s) not in said]
    settings = [*concerned, *own]
    return Grid(tasks, names, range(seeds), settings, _parameters(values.get("match")))


def _parameters(match: Any) -> int | None:
    """How many parameters `match` asks for; None if there is no such word."""
    if match is None:
        return None
    parameters = match.get("parameters") if isinstance(match, dict) and len(match) == 1 else None
    if not isinstance(parameters, int) or isinstance(parameters, bool) or parameters < 1:
        raise ValueError(f"match must be a number of parameters, {{ parameters = 30000 }}, got {match!r}")
    return parameters


def _check_used(shared: Sequence[str], grids: Sequence[Grid]) -> None:
    for setting in shared:
        which = which_of(setting)
        if grids and not any(which in ("", *grid.tasks, *grid.models) for grid in grids):
            raise ValueError(f"no grid has a task or model {which!r}, which {setting!r} is for")


def _strings(name: str, values: Any) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} must be a list of names, got {values!r}")
    return values


def _tables(name: str, values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{name} must be tables, each below a line [[{name}]]; got {values!r}")
    return values


def _settings(values: Mapping[str, Any]) -> list[str]:
    """As words of `--set`; one that begins with `WHICH:` is for one task or model."""
    if not isinstance(values, dict):
        raise ValueError(f"settings must be a table of NAME = VALUE, got {values!r}")
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def _check_words(values: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for word in values:
        if word not in allowed:
            near = difflib.get_close_matches(word, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(allowed)}"
            raise ValueError(f"{where} has {word!r}; {hint}")
