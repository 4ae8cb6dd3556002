"""What a task is: data with honest splits, a loss, metrics, the paper's settings and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lapse.extras import extra
from lapse.sequences import Sequences
from lapse.tasks.files import Source


@dataclass(frozen=True)
class Splits:
    """A task's data: three parts, the files they came from, and what to know of them."""

    train: Sequences
    validation: Sequences
    test: Sequences
    sources: tuple[Source, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def parts(self) -> dict[str, Sequences]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


class Metric(NamedTuple):
    """A figure of merit: `accuracy`, `mse`, `auroc`, `auprc`; and whether more is better."""

    name: str
    maximize: bool


class Score(NamedTuple):
    """A published result: mean and standard deviation over the paper's five runs."""

    mean: float
    std: float


@dataclass(frozen=True)
class PaperSettings:
    """Table S2 of the paper. Only the number of epochs differs between its tasks."""

    epochs: int
    hidden_size: int = 64
    batch_size: int = 256
    optimizer: str = "rmsprop"
    learning_rate: float = 5e-3


@dataclass(frozen=True)
class Task:
    """One of the tasks `lapse` knows by name; `load` gets its data.

    readout          "last": one answer a sequence; "every": one a step
    loss             "cross_entropy" or "mse"
    metrics          the first is the one results are compared by
    output_size      classes, or numbers to predict
    standardize      whether inputs should be standardised; the paper's tasks are learned raw
        time_unit        what a timespan of 1 means
    caveats          what is missing from the data, or can mislead whoever learns from them

    differences      where the data differ from the authors' files, and why
    """

    name: str
    summary: str
    loader: Callable[..., Splits]
    readout: Literal["last", "every"]
    loss: Literal["cross_entropy", "mse"]
    metrics: tuple[Metric, ...]
    input_size: int
    output_size: int
    time_unit: str
    source: str
    licence: str
    differences: str
    caveats: tuple[str, ...] = ()
    standardize: bool = False
    paper: PaperSettings | None = None
    published: Mapping[str, Score] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """What `load` can be told beside the folder, with the defaults."""
        parameters = inspect.signature(self.loader).parameters.values()
        return {p.name: p.default for p in parameters if p.name != "data_dir"}

    def load(self, data_dir: str | Path | None = None, **options: Any) -> Splits:
        """The task's splits, from files found by the search order of `lapse.tasks.files`, or generated."""
        if unknown := sorted(set(options) - set(self.options)):
            known = ", ".join(self.options) or "no options"
            raise ValueError(f"task {self.name!r} has no option {unknown[0]!r}; it takes {known}")
        with extra("tasks"):
            return self.loader(data_dir, **options)


ACCURACY = Metric("accuracy", maximize=True)
MSE = Metric("mse", maximize=False)
