"""Permutation importance: how much worse the answers get when a variable is dealt out anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lapse.arguments import check_choice, check_count, check_kind
from lapse.explain.explanation import GAPS
from lapse.extras import extra
from lapse.heads import Head, Metric
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SEQUENCES = 2000


@dataclass(frozen=True, eq=False)
class Importance:
    """How much worse a figure gets when one variable tells nothing any more.

    Args:
        metric: the figure.
        figure: its value on the sequences as they are.
        variables: the features, the static features, and the time between events.
        worse: (variables, repeats), by how much the figure is worse than `figure`; negative where it is better.
        sequences: the number of sequences that it was measured on.
    """

    metric: Metric
    figure: float
    variables: tuple[str, ...]
    worse: Array
    sequences: int

    @property
    def order(self) -> Array:
        """Positions of the variables, the most important first."""
        return np.argsort(-self.worse.mean(1), kind="stable")

    def frame(self) -> Any:
        """A pandas table, the most important variable first: variable, the mean of `worse`, its spread."""
        with extra("tables"):
            import pandas as pd

        columns = {
            "variable": np.array(self.variables, object)[self.order],
            f"{self.metric.name} worse by": self.worse.mean(1)[self.order],
            "spread": self.worse.std(1)[self.order],
        }
        return pd.DataFrame(columns)

    def picture(self) -> Figure:
        """The variables as bars, the most important first."""
        from lapse.explain.picture import draw_importance

        return draw_importance(self)

    def save(self, path: str | Path) -> None:
        """Write the picture to a file.

        Args:
            path: a name that ends in .svg, .png or .pdf.
        """
        from lapse.explain.picture import save

        save(self.picture(), Path(path))


def permutation_importance(
    outputs: Callable[[Sequences], Tensor],
    head: Head,
    data: Sequences,
    *,
    metric: str | None = None,
    repeats: int = 5,
    seed: int = 0,
    most: int = MOST_SEQUENCES,
    say: Callable[[str], None] = lambda message: None,
) -> Importance:
    """How much worse the answers of a trained model get when a variable is dealt out anew among the sequences.

    The values of a feature change places with each other wherever it was observed, so that which values are missing
    stays as it was; static features change places among sequences, and gaps among events. Of two variables that say
    the same, both may look unimportant, since each can stand in for the other.

    Args:
        outputs: raw outputs for sequences, such as `SequenceModel.outputs`.
        head: what is asked.
        data: sequences with targets, best those that the model has not seen.
        metric: the name of the figure, one of those that the head has; None for its first one.
        repeats: how often each variable is dealt out anew.
        seed: decides how.
        most: of more sequences than this, so many are drawn.
        say: hears which variable is being worked on.
    """
    check_count("repeats", repeats)
    check_count("most", most)
    check_count("seed", seed, 0)
    check_kind("data", data, Sequences)
    random = np.random.default_rng(seed)
    if len(data) > most:
        data = data[np.sort(random.choice(len(data), most, replace=False))]
    judge = _metric(head, metric)
    conformed = head.conform(data)
    targets = head.targets_of(conformed)
    truth = targets.values.double().masked_fill(~targets.known, np.nan).numpy()
    known = ~np.isnan(truth.reshape(len(truth), -1)).all(axis=1)

    def figure(s: Sequences) -> float:
        answers = head.answer(outputs(s).double()).cpu().numpy()
        return judge.measure(answers[known], truth[known])

    start = figure(conformed)
    worse = []
    for name, shuffled in _shuffles(conformed, random):
        say(name)
        worse.append([(start - figure(shuffled())) * (1 if judge.maximize else -1) for _ in range(repeats)])
    names = (*data.features, *data.static_features, GAPS)
    return Importance(judge, start, names, np.array(worse), len(data))


def _metric(head: Head, name: str | None) -> Metric:
    known = {metric.name: metric for metric in (*head.metrics, *head.available)}
    if name is not None:
        check_choice("metric", name, known)
    return head.metrics[0] if name is None else known[name]


def _shuffles(s: Sequences, random: np.random.Generator) -> Iterator[tuple[str, Callable[[], Sequences]]]:
    """Each variable with a function that deals it out anew."""
    for k, name in enumerate(s.features):
        yield name, partial(_shuffled, s, "values", k, random)
    for k, name in enumerate(s.static_features):
        yield name, partial(_shuffled, s, "static", k, random)
    yield GAPS, lambda: replace(s, times=_with_other_gaps(s, random))


def _shuffled(s: Sequences, field: str, column: int, random: np.random.Generator) -> Sequences:
    """The sequences with the observed values of one column in another order."""
    values: Array = getattr(s, field)
    observed = s.observed if field == "values" else s.static_observed
    rows = np.arange(len(values)) if observed is None else np.flatnonzero(observed[:, column])
    changed = values.copy()
    changed[rows, column] = values[random.permutation(rows), column]
    new: dict[str, Any] = {field: changed}
    return replace(s, **new)


def _with_other_gaps(s: Sequences, random: np.random.Generator) -> Array:
    """(N,), times at which sequences begin as they did, with gaps in another order."""
    inside = np.ones(s.num_events, bool)
    inside[s.offsets[:-1]] = False
    gaps = np.diff(s.times, prepend=s.times[:1])
    gaps[inside] = random.permutation(gaps[inside])
    gaps[~inside] = 0.0
    since = np.cumsum(gaps)
    firsts = s.offsets[:-1]
    times: Array = np.repeat(s.times[firsts] - since[firsts], s.lengths) + since
    return times
