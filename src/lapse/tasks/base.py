"""What a task is: data with honest splits, a question, the paper's settings and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lapse.extras import extra
from lapse.heads import Head, Metric
from lapse.models import ModelConfig, Schema
from lapse.models.base import Model
from lapse.sequences import Sequences
from lapse.tasks.files import Source
from lapse.tasks.questions import Question, Seen


@dataclass(frozen=True)
class Splits:
    """The data of a task.

    Args:
        train: the sequences to learn from.
        validation: the sequences that choose the best epoch.
        test: the sequences that the result is measured on, once.
        sources: the files that the data came from.
        notes: what to know about the data.
    """

    train: Sequences
    validation: Sequences
    test: Sequences
    sources: tuple[Source, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def parts(self) -> dict[str, Sequences]:
        """The three parts by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


class Score(NamedTuple):
    """A published result: mean and standard deviation over the paper's five runs."""

    mean: float
    std: float


@dataclass(frozen=True)
class PaperSettings:
    """Table S2 of the paper. Only the number of epochs differs between its tasks.

    Args:
        epochs: how many passes over the training split.
        hidden_size: the units of each model.
        batch_size: the sequences per step.
        optimizer: the name of the optimiser.
        learning_rate: its step size.
    """

    epochs: int
    hidden_size: int = 64
    batch_size: int = 256
    optimizer: str = "rmsprop"
    learning_rate: float = 5e-3


@dataclass(frozen=True)
class Task:
    """A question with the data to learn it from.

    Args:
        name: how commands, folders and tables call the task.
        summary: what it asks, in a line.
        loader: gives the data; its first argument is the folder to look in first, or None. The others are the task's
            options, keywords with defaults.
        head: makes a fresh head: what is asked, by which loss it is learned, and by which metrics it is judged. Results
            are compared by the first metric.
        input_size: the number of features.
        time_unit: what a timespan of 1 means.
        source: where the data come from.
        licence: under which licence they are.
        differences: where the data differ from the paper's authors' files, and why.
        caveats: what is missing from the data, or can mislead whoever learns from them.
        standardize: whether inputs are standardised; the paper's tasks are learned raw.
        paper: the paper's settings, if it has this task.
        published: the paper's results by model.
        question: what a model is shown of a sequence and which kind of model answers: `Seen` or `Ahead`.
    """

    name: str
    summary: str
    loader: Callable[..., Splits]
    head: Callable[[], Head]
    input_size: int
    time_unit: str
    source: str
    licence: str
    differences: str
    caveats: tuple[str, ...] = ()
    standardize: bool = False
    paper: PaperSettings | None = None
    published: Mapping[str, Score] = field(default_factory=dict)
    question: Question = field(default_factory=Seen)

    def model(self, schema: Schema, config: ModelConfig) -> Model[Any]:
        """An untrained model of the kind that answers this task.

        Args:
            schema: the form of the training table.
            config: everything else that a user chooses.
        """
        return self.question.model(schema, self.head(), config)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What results are judged by; they are compared by the first."""
        return self.head().metrics

    @property
    def options(self) -> dict[str, Any]:
        """The options that `load` takes, with their defaults."""
        parameters = inspect.signature(self.loader).parameters.values()
        return {p.name: p.default for p in parameters if p.name != "data_dir"}

    def load(self, data_dir: str | Path | None = None, **options: Any) -> Splits:
        """The task's splits, from files or generated.

        Args:
            data_dir: the folder to look in first; then come those that `lapse.tasks.files` names.
            options: the task's own options, see `options`.
        """
        if unknown := sorted(set(options) - set(self.options)):
            known = ", ".join(self.options) or "no options"
            raise ValueError(f"task {self.name!r} has no option {unknown[0]!r}; it takes {known}")
        with extra("tasks"):
            return self.loader(data_dir, **options)
