"""Search for hyperparameters with Optuna: every trial is a run, judged by validation and never by test.

A trial's run stops before the test split is looked at. Trials are kept in a journal beside the runs, so that a search
can be cut off and taken up again, or done by several processes at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.extras import extra
from lapse.models.registry import declared
from lapse.runs import RunBusy, RunConfig, hold, run_without_test
from lapse.solvers import SolverError
from lapse.tasks import find as find_task
from lapse.training import NonFiniteError

BROKE = "training broke down"  # marks a trial in the journal


class TuningFailed(RuntimeError):
    """No trial came to an end."""


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, list(self.values))


@dataclass(frozen=True)
class LogRange:
    """A number between two others, every order of magnitude as likely."""

    low: float
    high: float

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_float(name, self.low, self.high, log=True)


Space = Mapping[str, Choice | LogRange]


def space_for(model: str) -> Space:
    """What decided most in trials by hand: step size, batch, width, the unit of time, and the form of the model."""
    space: dict[str, Choice | LogRange] = {
        "train.learning_rate": LogRange(3e-4, 2e-2),
        "train.batch_size": Choice((32, 64, 128, 256)),
        "hidden_size": Choice((32, 64, 128)),
        "train.median_gap": Choice((True, False)),
    }
    forms = declared(model, "forms", {})
    return space | {"form": Choice(tuple(forms))} if forms else space


def with_parameters(config: RunConfig, parameters: Mapping[str, Any]) -> RunConfig:
    """The config with these settings, by the names that `RunConfig.with_setting` knows."""
    for name, value in parameters.items():
        config = config.with_setting(name, value)
    return config


@dataclass(frozen=True)
class Tuned:
    """The best trial: its config, its validation metric, and how many trials were finished."""

    config: RunConfig
    parameters: Mapping[str, Any]
    metric: str
    value: float
    trials: int

    def command(self, root: str | Path) -> str:
        """The command that does the run of the best trial; only the test is left to do."""
        words = ["lapse", "train", self.config.task, "--model", self.config.model, "--seed"]
        words += [str(self.config.train.seed), "--output", str(root)]
        for name, value in self.parameters.items():
            words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return shlex.join(words)


def tune(
    config: RunConfig,
    root: str | Path,
    trials: int,
    *,
    space: Space | None = None,
    data_dir: str | Path | None = None,
    progress: bool = False,
    after_trial: Callable[[Any], None] = lambda trial: None,
) -> Tuned:
    """Search until there have been `trials` trials, those of earlier calls among them.

    A trial whose training broke down counts too, so that every model gets as many trials as any other. One that was cut
    off does not: it is done again.

    Args:
        config: the run that trials start from.
        root: the folder of the trials.
        trials: how many there are to be in all.
        space: what is searched; what `space_for` says of the model if not given.
        data_dir: where to look for the task's data first.
        progress: whether to show how each training goes.
        after_trial: is called with each trial that has ended.
    """
    search = _Search(config, Path(root), space or space_for(config.model), data_dir, progress)
    study = search.open()
    search.take_up(study)
    for _ in range(trials - search.spent(study)):
        after_trial(search.one(study))
    if not search.finished(study):
        raise TuningFailed(f"every trial failed; see error.txt in the folders of the runs in {root}")
    best = study.best_trial
    metric = find_task(config.task).metrics[0].name
    return Tuned(
        with_parameters(config, best.params), best.params, metric, best.value, search.finished(study)
    )


@dataclass(frozen=True)
class _Search:
    config: RunConfig
    root: Path
    space: Space
    data_dir: str | Path | None
    progress: bool

    def open(self) -> Any:
        optuna = _import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.root.mkdir(parents=True, exist_ok=True)
        journal = optuna.storages.journal.JournalFileBackend(str(self.root / "trials.journal"))
        metric = find_task(self.config.task).metrics[0]
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(journal),
            sampler=optuna.samplers.TPESampler(seed=self.config.train.seed),
            study_name=f"{self.config.task} {self.config.model} {self.config.preset} {self.config.digest}",
            direction="maximize" if metric.maximize else "minimize",
            load_if_exists=True,
        )

    def finished(self, study: Any) -> int:
        return sum(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))

    def spent(self, study: Any) -> int:
        """How many trials have come to an end of their own."""
        trials = study.get_trials(deepcopy=False)
        return sum(trial.state.name == "COMPLETE" or BROKE in trial.user_attrs for trial in trials)

    def take_up(self, study: Any) -> None:
        """Trials of a search that was killed are asked for again; their runs go on from their last epoch."""
        for trial in study.get_trials(deepcopy=False):
            if trial.state.name == "RUNNING" and not self._is_held(trial.params):
                study.tell(trial.number, state=_import_optuna().trial.TrialState.FAIL)
                study.enqueue_trial(trial.params)

    def _is_held(self, parameters: Mapping[str, Any]) -> bool:
        try:
            with hold(with_parameters(self.config, parameters).folder(self.root), patience=0):
                return False
        except RunBusy:
            return True

    def one(self, study: Any) -> Any:
        """A trial from start to end; a training that breaks down counts as a failed trial, not as the end."""
        trial = study.ask()
        parameters = {name: kind.suggest(trial, name) for name, kind in self.space.items()}
        config = with_parameters(self.config, parameters)
        try:
            fitted = run_without_test(config, self.root, data_dir=self.data_dir, progress=self.progress)
        except RunBusy:
            return study.tell(trial, state=_import_optuna().trial.TrialState.FAIL)
        except (NonFiniteError, SolverError):
            # The traceback is in error.txt of the run; the journal remembers not to come back here.
            trial.set_user_attr(BROKE, True)
            return study.tell(trial, state=_import_optuna().trial.TrialState.FAIL)
        return study.tell(trial, fitted.best_value)


def _import_optuna() -> Any:
    with extra("tune"):
        import optuna
    return optuna
