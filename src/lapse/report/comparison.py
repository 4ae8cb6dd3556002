"""Every model on every task of the paper at a glance: our figure above the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lapse.report import formats
from lapse.report.collection import Group
from lapse.report.tables import Row, Table, agreement
from lapse.tasks import find
from lapse.tasks.published import PROPOSED

NOT_DONE = "not done"
FAR = 3.0  # of the paper's standard deviations: where our figure is further from the paper's, that asks for a reason


@dataclass(frozen=True)
class Comparison:
    """The tables that can be compared with the paper, side by side, one column each.

    Args:
        tables: those tables.
        models: the models of the paper, in its order.
    """

    tables: tuple[Table, ...]
    models: tuple[str, ...]

    @staticmethod
    def of(tables: Sequence[Table]) -> Comparison | None:
        """The comparison of the tables that have figures of the paper; None for fewer than two of them."""
        comparable = tuple(table for table in tables if table.has_paper)
        if len(comparable) < 2:
            return None
        models = dict.fromkeys(model for table in comparable for model in find(table.task).published)
        return Comparison(comparable, tuple(models))

    def row(self, model: str, table: Table) -> Row | None:
        """The row of a model in a table, None if it has none; among several settings, the best on validation data."""
        sign = 1 if table.maximize else -1
        groups = zip(table.models, table.groups, strict=True)
        scored = {
            row: sign * _validated(group, table.metric, -sign * math.inf)
            for row, group in groups
            if row.name == model
        }
        return max(scored, key=lambda row: scored[row], default=None)

    def ours(self, model: str, table: Table) -> str:
        """Our figure, with the number of runs in brackets."""
        row = self.row(model, table)
        return NOT_DONE if row is None else formats.score(table, row)

    def paper(self, model: str, table: Table) -> str:
        """The paper's figure."""
        score = find(table.task).published.get(model)
        return "–" if score is None else f"{table.figure(score.mean)} ± {table.figure(score.std)}"

    def mark(self, model: str, table: Table) -> str:
        """Whether our figure is the best of its column, or cannot be told from the best."""
        row = self.row(model, table)
        return "" if row is None else row.mark

    def rows(self, table: Table) -> list[Row]:
        """The row of every model that has one in a table, best first."""
        chosen = [self.row(model, table) for model in self.models]
        sign = -1 if table.maximize else 1
        return sorted((row for row in chosen if row is not None), key=lambda row: sign * row.mean)

    def verdict(self) -> list[str]:
        """What the comparison comes to, in sentences: the place of the paper's model, its order, what is far off."""
        return [sentence for sentence in (self._standing(), self._order(), self._far()) if sentence]

    def _standing(self) -> str:
        """Where the model that the paper proposes is first, where tied with the first, and where behind which."""
        standings: dict[str, list[str]] = {"first": [], "tied": [], "behind": []}
        for table in self.tables:
            rows = self.rows(table)
            for row in rows:
                if row.name == PROPOSED:
                    kind, remarks = _place(row, rows)
                    standings[kind].append(
                        f"{table.title} ({'; '.join(remarks)})" if remarks else table.title
                    )
        count = sum(map(len, standings.values()))
        if not count:
            return ""
        words = {
            "first": "first on",
            "tied": "not told from the first by a Welch test on",
            "behind": "behind on",
        }
        told = "; ".join(f"{words[kind]} {', '.join(names)}" for kind, names in standings.items() if names)
        ahead = len(standings["first"]) + len(standings["tied"])
        return f"The {PROPOSED} is first or tied with the first on {ahead} of {count} tables: {told}."

    def _order(self) -> str:
        """How far the paper's order of the models holds."""
        found = {table.title: agreement(self.rows(table)) for table in self.tables}
        found = {title: counts for title, counts in found.items() if counts[1]}
        if not found:
            return ""
        same, pairs = (sum(counts[i] for counts in found.values()) for i in (0, 1))
        each = ", ".join(f"{title} {counts[0]} of {counts[1]}" for title, counts in found.items())
        return f"Of the pairs of models that differ in the paper, {same} of {pairs} are in its order here: {each}."

    def _far(self) -> str:
        """Which figures are further from the paper's than `FAR`, in units of its standard deviation."""
        cells = [
            (table, row) for table in self.tables for row in self.rows(table) if row.difference is not None
        ]
        far = [(table, row) for table, row in cells if abs(row.difference or 0.0) > FAR]
        if not cells:
            return ""
        better = sum(((row.difference or 0.0) > 0) == table.maximize for table, row in far)
        return (
            f"{len(far)} of {len(cells)} figures are further than {FAR:g} of the paper's standard deviations from its "
            f"own, {better} of them better and {len(far) - better} worse."
        )

    def markdown(self) -> str:
        """As a table of Markdown, with our figure above the paper's in every cell."""
        around = {"best": "**", "tied": "*", "": ""}
        head = ["model", *(f"{table.title}, {table.metric}" for table in self.tables)]
        lines = [head, ["---", *["---:"] * len(self.tables)]]
        for model in self.models:
            marks = [around[self.mark(model, table)] for table in self.tables]
            cells = [
                f"{mark}{self.ours(model, table)}{mark}<br>{self.paper(model, table)}"
                for mark, table in zip(marks, self.tables, strict=True)
            ]
            lines.append([model, *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\nMarks: {formats.KEY}.\n"


def _place(row: Row, rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Whether a row is first, tied with the first or behind, with remarks; equal figures share a place."""
    means = [other.mean for other in rows]
    place, equals = means.index(row.mean), means.count(row.mean) - 1
    single = ["one run"] if row.count == 1 else []
    if place == 0:
        return "first", [f"as {equals} more"] * (equals > 0) + single
    if row.mark == "tied":
        return "tied", [f"with {rows[0].name}", *single]
    return "behind", [f"{_ordinal(place + 1)}, after {rows[0].name}", *single]


def _ordinal(place: int) -> str:
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place, 'th') }"


def _validated(group: Group, metric: str, absent: float) -> float:
    """The mean of a metric over the runs of a group, on validation data."""
    return statistics.fmean(run.result.validation.get(metric, absent) for run in group.runs)
