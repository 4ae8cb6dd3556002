"""Ours beside the paper's: one table per task, built from the folders of finished runs and from nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

from lapse.heads import Metric
from lapse.report.collection import Collection, Group, Settings, changed_task_options, short
from lapse.tasks import Score, Task, find

SIGNIFICANCE = 0.05  # two rows are tied unless a Welch test tells them apart at this level

Kind = Literal["model", "baseline"]
Mark = Literal["best", "tied", ""]

# Options that leave a task's data as the paper's authors had them. Lengths from 2 to 31 bits are what the authors'
# code draws, whatever the paper says; another seed is another draw of the same thing.
SAME_AS_THE_PAPERS: dict[str, tuple[Settings, ...]] = {
    "xor-dense": ({"lengths": [2, 32]},),
    "xor-event": ({"lengths": [2, 32]},),
}


class NothingFinished(RuntimeError):
    """There are runs, and none of them is done."""


@dataclass(frozen=True)
class Row:
    """A model with its settings, over its seeds; or a trivial baseline, which has neither.

    ``difference`` is ours minus the paper's in units of its standard deviation; ``seconds_per_epoch`` are those of
    the fastest epoch of all runs.
    """

    name: str
    scores: tuple[float, ...]
    label: str = ""
    kind: Kind = "model"
    paper: Score | None = None
    parameters: int | None = None
    seconds_per_epoch: float | None = None
    epochs: float | None = None
    mark: Mark = ""

    @property
    def count(self) -> int:
        return len(self.scores)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """Over seeds, of a sample; None for one run, which has no spread."""
        return statistics.stdev(self.scores) if self.count > 1 else None

    @property
    def difference(self) -> float | None:
        if self.paper is None or self.paper.std == 0:
            return None
        return (self.mean - self.paper.mean) / self.paper.std


@dataclass(frozen=True)
class Table:
    """The rows of one task on one form of its data, best first, baselines last; a group of runs for each model row."""

    task: str
    options: str
    judged_by: Metric
    rows: tuple[Row, ...]
    shared: str = ""
    notes: tuple[str, ...] = ()
    groups: tuple[Group, ...] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        return f"{self.task} ({self.options})" if self.options else self.task

    @property
    def models(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind == "model")

    @property
    def baselines(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind == "baseline")

    @property
    def metric(self) -> str:
        return self.judged_by.name

    @property
    def maximize(self) -> bool:
        return self.judged_by.maximize

    @property
    def unit(self) -> str:
        return self.judged_by.unit

    @property
    def has_paper(self) -> bool:
        return any(row.paper is not None for row in self.rows)

    def figure(self, value: float | None) -> str:
        return "–" if value is None else f"{value:.{self.judged_by.decimals}f}"

    def with_baselines(self, scores: Mapping[str, float]) -> Table:
        defined = {name: score for name, score in scores.items() if math.isfinite(score)}
        added = tuple(Row(name, (score,), kind="baseline") for name, score in defined.items())
        beaten = _unlearned(self, added)
        return replace(self, rows=(*self.rows, *added), notes=(*self.notes, *beaten))

    def with_note(self, note: str) -> Table:
        return replace(self, notes=(*self.notes, note))


def build_tables(collection: Collection) -> list[Table]:
    """A table for each task, and one more for each other form of its data that runs were done on."""
    if not collection.finished:
        told = " ".join((collection.left_out(), *collection.remarks))
        raise NothingFinished(f"no run in {collection.root} is finished. {told}")
    return [_table(groups, collection) for groups in collection.variants().values()]


def _table(groups: Sequence[Group], collection: Collection) -> Table:
    config = groups[0].config
    task = find(config.task)
    options = changed_task_options(config)
    comparable = _is_the_papers(task, options)
    metric = task.metrics[0]
    shared = shared_settings([group.settings for group in groups])
    pairs = [
        (_row(group, task if comparable else None, metric.name, own), group)
        for group, own in zip(groups, _own_settings(groups, shared), strict=True)
    ]
    pairs.sort(key=lambda pair: -pair[0].mean if metric.maximize else pair[0].mean)
    rows = [row for row, _ in pairs]
    notes = [
        *_paper_notes(task, options, comparable),
        *_agreement_notes(rows),
        *_test_notes(rows),
        collection.left_out(task.name),
    ]
    return Table(
        task=task.name,
        options=short(options),
        judged_by=metric,
        rows=tuple(marked(rows)),
        shared=short(shared),
        notes=tuple(note for note in notes if note),
        groups=tuple(group for _, group in pairs),
    )


def _own_settings(groups: Sequence[Group], shared: Settings) -> list[Settings]:
    """What each row is told apart by: where it departs from its preset, and where another row of its model does."""
    named: dict[str, dict[str, None]] = {}
    for group in groups:
        named.setdefault(group.config.model, {}).update(dict.fromkeys(group.settings))
    told = [group.all_settings | dict(group.settings) for group in groups]
    return [
        {k: all_of[k] for k in named[group.config.model] if k not in shared and k in all_of}
        for group, all_of in zip(groups, told, strict=True)
    ]


def _row(group: Group, paper: Task | None, metric: str, own: Settings) -> Row:
    results = [run.result for run in group.runs]
    return Row(
        name=group.config.model,
        scores=tuple(result.test[metric] for result in results),
        label=short(own),
        paper=paper.published.get(group.config.model) if paper else None,
        parameters=results[0].parameters,
        seconds_per_epoch=min(run.seconds_per_epoch for run in group.runs),
        epochs=statistics.fmean(result.epochs for result in results),
    )


def shared_settings(settings: Sequence[Settings]) -> Settings:
    """What every row has: said once for the table instead of in each row."""
    first, *others = settings
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}


def marked(rows: Sequence[Row]) -> list[Row]:
    """Rows, best first, with the best and those that a test cannot tell from it marked.

    A row of a single run is not called the best: with another seed it might be another.
    """
    best, *others = rows
    first = replace(best, mark="best" if best.count > 1 else "")
    return [first, *(replace(row, mark=_tie(best, row)) for row in others)]


def _tie(best: Row, row: Row) -> Mark:
    p = welch(best.scores, row.scores)
    return "tied" if p is not None and p > SIGNIFICANCE else ""


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The p-value of Welch's t-test, two-sided: are the means the same? None if either has one value only.

    Where neither has any spread the answer is plain: 1 if the values are equal, else 0.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    from scipy.special import stdtr  # the whole of scipy.stats takes a second to load

    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    distance = statistics.fmean(a) - statistics.fmean(b)
    if va + vb == 0:
        return 1.0 if distance == 0 else 0.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return float(2 * stdtr(freedom, -abs(distance) / math.sqrt(va + vb)))


def _is_the_papers(task: Task, options: Settings) -> bool:
    changed = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items() if k != "seed"}
    return not changed or changed in SAME_AS_THE_PAPERS.get(task.name, ())


def _paper_notes(task: Task, options: Settings, comparable: bool) -> Iterable[str]:
    if not task.published:
        yield "The paper has no such task."
    elif not comparable:
        yield f"Other data than the paper's ({short(options)}), so its figures are left out."
    elif any(score.std == 0 for score in task.published.values()):
        yield "No difference is given where the paper's standard deviation is 0."


def agreement(rows: Sequence[Row]) -> tuple[int, int]:
    """How many pairs of models are in the paper's order by their means, of how many whose figures differ there.

    Args:
        rows: rows of a table, best first; rows of one model count by the first of them.
    """
    first = {row.name: (row.mean, row.paper.mean) for row in reversed(rows) if row.paper is not None}
    pairs = [(a, b) for a, b in combinations(first.values(), 2) if a[1] != b[1]]
    return sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs), len(pairs)


def _agreement_notes(rows: Sequence[Row]) -> Iterable[str]:
    same, pairs = agreement(rows)
    if pairs:
        yield f"In the paper's order: {same} of {pairs} pairs of models whose figures differ in the paper."


def _test_notes(rows: Sequence[Row]) -> Iterable[str]:
    single = [row for row in rows if row.count == 1]
    if len(rows) < 2:
        return
    if len(single) == len(rows):
        yield "One run per row: no test of differences is possible, and the first may be first by luck."
    elif rows[0].count == 1:
        yield "The first row has one run: it may be first by luck, and no test can tell the others from it."
    elif single:
        names = ", ".join(dict.fromkeys(row.name for row in single))
        yield f"One run only, so that no test is possible: {names}."


def _unlearned(table: Table, baselines: Sequence[Row]) -> Iterable[str]:
    """Rows that a trivial baseline beats have learned nothing worth having; a table should say so."""
    if not baselines:
        return
    sign = 1 if table.maximize else -1
    top = max(baselines, key=lambda row: sign * row.mean)
    names = [row.name for row in table.models if sign * row.mean <= sign * top.mean]
    if names:
        yield f"No better than the baseline {top.name!r}: {', '.join(dict.fromkeys(names))}."


def described(table: Table) -> dict[str, Any]:
    """A table as plain values, for JSON."""
    return {
        "task": table.task,
        "options": table.options,
        "metric": table.metric,
        "maximize": table.maximize,
        "shared_settings": table.shared,
        "rows": [_values(row) for row in table.rows],
        "notes": list(table.notes),
    }


def _values(row: Row) -> dict[str, Any]:
    return {
        "model": row.name,
        "settings": row.label,
        "kind": row.kind,
        "n": row.count,
        "mean": row.mean,
        "std": row.std,
        "paper_mean": row.paper.mean if row.paper else None,
        "paper_std": row.paper.std if row.paper else None,
        "difference_in_paper_std": row.difference,
        "parameters": row.parameters,
        "seconds_per_epoch": row.seconds_per_epoch,
        "epochs": row.epochs,
        "mark": row.mark,
    }
