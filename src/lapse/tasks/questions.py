"""How the sequences of a task become the examples of a model, and which kind of model answers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lapse.heads import Head
from lapse.models import Forecaster, SequenceModel
from lapse.models.base import Model
from lapse.models.simple_forecasts import simple_forecasts
from lapse.sequences import Cuts, Sequences
from lapse.sequences.batches import Examples


class Question(ABC):
    """What a model is shown of a sequence, and what it is asked about it; the head says what an answer is.

    Class attributes:

    - `model`: the kind of model that answers.
    """

    model: ClassVar[type[Model[Any]]]

    @abstractmethod
    def examples(self, sequences: Sequences) -> Examples:
        """What `model` is trained and judged on."""

    @abstractmethod
    def asked(self, sequences: Sequences) -> Sequences:
        """Sequences whose targets are what is asked, as the head counts them."""

    @abstractmethod
    def sentence(self, head: Head) -> str:
        """What is asked and how often."""

    @abstractmethod
    def one_event(self, input_size: int, head: Head) -> Sequences:
        """One event of so many features, from which a model can be made before there are data."""

    @abstractmethod
    def simple_answers(self, head: Head, train: Sequences, test: Sequences) -> Mapping[str, Tensor]:
        """Raw outputs for `test` of what needs no network, by name, learned from `train`."""


@dataclass(frozen=True)
class Seen(Question):
    """The model is shown whole sequences, and asked once per sequence or at each event, as their targets are."""

    model = SequenceModel

    def examples(self, sequences: Sequences) -> Sequences:
        return sequences

    def asked(self, sequences: Sequences) -> Sequences:
        return sequences

    def sentence(self, head: Head) -> str:
        return head.sentence

    def one_event(self, input_size: int, head: Head) -> Sequences:
        return Sequences.from_arrays([np.zeros((1, input_size))], [[0.0]])

    def simple_answers(self, head: Head, train: Sequences, test: Sequences) -> Mapping[str, Tensor]:
        from lapse.tasks.baselines import simple_answers  # scikit-learn, which is slow to import

        return simple_answers(head, train, test)


@dataclass(frozen=True)
class Ahead(Question):
    """The model is shown the events up to a time, and asked for the values of features at all later events.

    Args:
        cut: the last time that is shown, in the unit of the sequences. Nothing after it is in a batch.
    """

    cut: float

    model = Forecaster

    def examples(self, sequences: Sequences) -> Cuts:
        return Cuts.until(sequences, self.cut)

    def asked(self, sequences: Sequences) -> Sequences:
        return self.examples(sequences).queries

    def sentence(self, head: Head) -> str:
        return f"{head.question} at each event after time {self.cut:g}, from those up to it"

    def one_event(self, input_size: int, head: Head) -> Sequences:
        names: tuple[str, ...] = getattr(head, "names", ())
        others = (f"feature {i}" for i in range(len(names), input_size))
        return Sequences.from_arrays([np.zeros((1, input_size))], [[0.0]], features=(*names, *others))

    def simple_answers(self, head: Head, train: Sequences, test: Sequences) -> Mapping[str, Tensor]:
        from lapse.tasks.baselines import boosted_forecast  # scikit-learn, which is slow to import

        before, now = self.examples(train), self.examples(test)
        answers = simple_forecasts(head, before, now)
        if (boosted := boosted_forecast(head, before, now)) is not None:
            answers["boosting"] = boosted
        return answers
