"""Every model on every task of the paper at a glance: our figure above the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lapse.report import formats
from lapse.report.collection import Group
from lapse.report.tables import Row, Table
from lapse.tasks import find

NOT_DONE = "not done"


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


def _validated(group: Group, metric: str, absent: float) -> float:
    """The mean of a metric over the runs of a group, on validation data."""
    return statistics.fmean(run.result.validation.get(metric, absent) for run in group.runs)
