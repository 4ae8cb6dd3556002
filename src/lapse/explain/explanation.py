"""What each value, each gap and each static feature contributed to an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapse.arguments import check_kind
from lapse.extras import extra
from lapse.heads import Head
from lapse.models.schema import Column, Schema
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAPS = "time between events"


@dataclass(frozen=True, eq=False)
class Explanation:
    """What moved the answers for some sequences away from the answer for a typical sequence.

    The typical sequence, the baseline, has the same measurements with typical values: the middle of the training table
    for every value and static feature, and the unit of time of the model (by default the median gap of training) for
    every gap. The contributions to an answer add up to its difference from that for the baseline. Where the head
    gives probabilities they are in log odds (of more than two classes: of the class against the mean of the others),
    and otherwise in the unit of the target.

    Args:
        head: what is asked.
        sequences: the S sequences, with the F features and K static features that the model uses.
        names: (S,), what is explained of each answer: the name of a class, of a label or of a number.
        outputs: (S, width) raw outputs that are explained; of a model that answers at every event, those at `events`.
        baselines: (S, width) raw outputs for the baselines.
        values: (N, F), what each value contributed; 0 where nothing was observed.
        gaps: (N,), what the gap before each event contributed.
        static: (S, K), what each static feature contributed.
        counts: (S, F), what the number of observations of each feature contributed; 0 for a model without summaries.
        events: (S,), the row of the event whose answer is explained; None for one answer per sequence.
    """

    head: Head
    sequences: Sequences
    names: tuple[str, ...]
    outputs: Tensor
    baselines: Tensor
    values: Array
    gaps: Array
    static: Array
    counts: Array
    events: Array | None = None

    @property
    def change(self) -> Array:
        """(S,), the difference between the answer and that for the baseline, which the contributions add up to."""
        contrasts = self.head.contrasts
        weights = torch.stack([contrasts[name] for name in self.names]).double()
        change: Array = ((self.outputs - self.baselines) * weights).sum(1).numpy()
        return change

    @property
    def error(self) -> Array:
        """(S,), by how much the contributions fail to add up, since an integral was taken as a sum."""
        error: Array = self.change - self.totals().sum(1)
        return error

    @property
    def variables(self) -> tuple[str, ...]:
        """What `totals` has a column for: the features, the static features, and the time between events."""
        return (*self.sequences.features, *self.sequences.static_features, GAPS)

    def totals(self) -> Array:
        """(S, variables), what each variable contributed to each answer, over all its events."""
        firsts = self.sequences.offsets[:-1]
        values = np.add.reduceat(self.values, firsts, axis=0) + self.counts
        totals: Array = np.hstack([values, self.static, np.add.reduceat(self.gaps, firsts)[:, None]])
        return totals

    def what(self, index: int) -> str:
        """What is explained, in words: "probability of died = True".

        Args:
            index: the position of the sequence.
        """
        name, targets = self.names[index], self.sequences.target_names
        if not self.head.gives_probabilities:
            return name
        known = len(targets) == 1 and name not in targets
        return f"probability of {targets[0]} = {name}" if known else f"probability of {name}"

    def sentence(self, index: int) -> str:
        """What was answered, and what would be for the baseline.

        Args:
            index: the position of the sequence.
        """
        s = self.sequences
        id = index if s.ids is None else s.ids[index]
        when = "" if self.events is None else f" at time {s.times[self.events[index]]:.4g}"
        form = ".1%" if self.head.gives_probabilities else ".4g"
        answer, typical = (format(number, form) for number in self.told(index))
        return f"id {id}{when}: {self.what(index)} is {answer}; with typical values and gaps it would be {typical}"

    def told(self, index: int) -> tuple[float, float]:
        """An answer as a reader is told it, a probability or a number, and that for the baseline.

        Args:
            index: the position of the sequence.
        """
        rows = torch.stack([self.outputs[index], self.baselines[index]])
        answer, baseline = self.head.reading(rows, self.names[index]).tolist()
        return answer, baseline

    def frame(self) -> Any:
        """A pandas table with one row per contribution: id, time, variable, value, contribution.

        Rows without a time are those of static features, and of "NAME, number of observations".
        """
        with extra("tables"):
            import pandas as pd

        rows = [row for index in range(len(self.sequences)) for row in self._rows(index)]
        return pd.DataFrame(rows, columns=["id", "time", "variable", "value", "contribution"])

    def _rows(self, index: int) -> list[tuple[Any, ...]]:
        s = self.sequences
        id = index if s.ids is None else plain(s.ids[index])
        found: list[tuple[Any, ...]] = [
            (id, np.nan, name, self.static_value(index, k), self.static[index, k])
            for k, name in enumerate(s.static_features)
        ]
        found += [
            (id, np.nan, f"{name}, number of observations", None, self.counts[index, k])
            for k, name in enumerate(s.features)
            if self.counts[index, k]
        ]
        for row in range(s.offsets[index], s.offsets[index + 1]):
            found.append((id, s.times[row], GAPS, float(s.timespans[row]), self.gaps[row]))
            found += [
                (id, s.times[row], name, value, self.values[row, k])
                for k, name in enumerate(s.features)
                if (value := self.value(row, k)) is not None
            ]
        return found

    def value(self, row: int, feature: int) -> float | str | None:
        """A value as the table has it, a number or a word; None if it was not observed.

        Args:
            row: the event.
            feature: the position of the feature.
        """
        s = self.sequences
        assert s.observed is not None, "`Schema.restricted` always says what was observed"
        words = s.categories.get(s.features[feature])
        return _shown(s.values[row, feature], s.observed[row, feature], words)

    def static_value(self, index: int, feature: int) -> float | str | None:
        """A static feature as the table has it; None if it is not known.

        Args:
            index: the position of the sequence.
            feature: the position of the static feature.
        """
        s = self.sequences
        assert s.static is not None
        assert s.static_observed is not None
        words = s.categories.get(s.static_features[feature])
        return _shown(s.static[index, feature], s.static_observed[index, feature], words)

    def figure(self, index: int = 0) -> Figure:
        """A picture of one sequence: its variables over time, and what each value contributed.

        Args:
            index: the position of the sequence.
        """
        from lapse.explain.picture import draw

        return draw(self, index)

    def save(self, path: str | Path, index: int = 0) -> None:
        """Write the picture of one sequence to a file.

        Args:
            path: a name that ends in .svg, .png or .pdf.
            index: the position of the sequence.
        """
        from lapse.explain.picture import save

        save(self.figure(index), Path(path))


def _shown(value: Any, observed: Any, words: tuple[str, ...] | None) -> float | str | None:
    if not observed:
        return None
    # float32 is written with the digits that it has: 0.1, not 0.10000000149.
    return float(str(value)) if words is None else words[int(value)]


class Amounts(NamedTuple):
    """What each input of a model contributed to its raw outputs, weighted and summed.

    Args:
        values: (N, inputs).
        gaps: (N,).
        static: (S, static inputs).
        counts: (S, inputs), for numbers of observations.
        outputs: (S, width) float64, the raw outputs.
        baselines: (S, width) float64, the raw outputs for the baselines.
    """

    values: Array
    gaps: Array
    static: Array
    counts: Array
    outputs: Tensor
    baselines: Tensor


def folded(amounts: Array, columns: tuple[Column, ...]) -> Array:
    """(rows, columns), from (rows, inputs): the inputs of a column of words, one per category, are summed.

    Args:
        amounts: one amount per input of the model.
        columns: the columns of the training table.
    """
    if not columns:
        return np.zeros((len(amounts), 0))
    starts = np.cumsum([0, *(len(column.inputs) for column in columns[:-1])])
    return np.add.reduceat(amounts, starts, axis=1)


def explained(
    head: Head,
    schema: Schema,
    sequences: Sequences,
    names: tuple[str, ...],
    events: Array | None,
    amounts: Amounts,
) -> Explanation:
    """An explanation in terms of the columns of the table, from amounts per input of a model.

    Args:
        head: what is asked.
        schema: the form of the training table.
        sequences: the sequences as the caller has them.
        names: what is explained of each answer.
        events: see `Explanation`.
        amounts: what each input contributed.
    """
    return Explanation(
        head,
        schema.restricted(sequences),
        names,
        outputs=amounts.outputs,
        baselines=amounts.baselines,
        values=folded(amounts.values, schema.features),
        gaps=amounts.gaps,
        static=folded(amounts.static, schema.static),
        counts=folded(amounts.counts, schema.features),
        events=events,
    )


def chosen_names(head: Head, outputs: Tensor, answer: str | None) -> tuple[str, ...]:
    """What is explained of each answer: what was asked for, or what the head takes for the main thing.

    Args:
        head: what is asked.
        outputs: (S, width) raw outputs.
        answer: the name of a class, a label or a number; None to let the head choose.
    """
    if not len(outputs):
        raise ValueError("there are no sequences whose answers could be explained")
    known = list(head.contrasts)
    if answer is None:
        return tuple(known[k] for k in head.main_contrast(outputs).tolist())
    if str(answer) not in known:
        raise ValueError(f"there is no answer {answer!r} to explain; expected one of {', '.join(known)}")
    return (str(answer),) * len(outputs)


def without_targets(sequences: Sequences) -> Sequences:
    """Sequences of which only answers are wanted.

    Args:
        sequences: any sequences, with targets or without.
    """
    check_kind("sequences", sequences, Sequences)
    return replace(sequences, targets=None, per_step=False, classes=None)


def chosen_events(head: Head, s: Sequences, at: int) -> Array | None:
    """(S,), the row of the event whose answer is explained; None for one answer per sequence.

    Args:
        head: what is asked.
        s: the sequences.
        at: which event of each sequence, counted from 0, or from the end if negative.
    """
    if isinstance(at, bool) or not isinstance(at, int | np.integer):
        raise TypeError(f"at must be the number of an event, got {at!r}")
    if not head.per_step:
        return None
    place = at if at >= 0 else s.lengths + at
    if ((place < 0) | (place >= s.lengths)).any():
        raise ValueError(
            f"at={at} is not an event of every sequence; the shortest has {s.lengths.min()} events"
        )
    events: Array = s.offsets[:-1] + place
    return events
