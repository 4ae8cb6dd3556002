"""What the documentation's site makes from the runs in `results`, so that no table of theirs is typed by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lapse.cli.train import configure
from lapse.report import formats
from lapse.report.collection import Collection, Group, short
from lapse.report.comparison import Comparison
from lapse.report.page import report, with_baselines
from lapse.report.tables import Row, Table, build_tables
from lapse.runs import RunConfig
from lapse.study.plan import Plan
from lapse.tasks.biology import SYSTEMS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = "paper.html"
sys.path.append(str(ROOT / "benchmarks"))  # where the models of others' code are that some runs have
# Models of others' code, and the model of ours that each is another reading of.
READINGS = {"authors_models:SubtractedDecay": "rnn-decay"}


def _built(study: str) -> list[Table]:
    return build_tables(Collection.read(RESULTS / study))


def tables(study: str) -> str:
    """The tables of the finished runs, each under a heading of the second level, as `lapse table` prints them."""
    return formats.markdown(_built(study))


def comparison(study: str) -> str:
    """Every model on every task of the paper, ours above the paper's."""
    found = Comparison.of(_built(study))
    assert found is not None, "the repository has runs of more than one task of the paper"
    return found.markdown()


def verdict(study: str) -> str:
    """What the comparison with the paper comes to, in a paragraph, and what it has cost."""
    collection = Collection.read(RESULTS / study)
    found = Comparison.of(build_tables(collection))
    assert found is not None, "the repository has runs of more than one task of the paper"
    cost = (
        f"{len(collection.finished)} runs, {collection.hours:.1f} hours of one core with nothing else on it."
    )
    return " ".join([*found.verdict(), cost])


def overview(study: str) -> str:
    """One row per task, with what trivial baselines reach: their data must be here, or be generated."""
    return formats.overview([with_baselines(table)[0] for table in _built(study)])


def reasons(study: str) -> str:
    """What becomes of a figure that is far from the paper's if one thing is changed: a row per experiment."""
    # Of several rows of one model, the first and best.
    usual = {
        (table.title, row.name): (row, group)
        for table in _built("paper")
        for row, group in reversed(_pairs(table))
    }
    lines = ["| task | model | changed | with it | without | paper |", "|---|---|---|---:|---:|---:|"]
    for table in _built(study):
        for row, group in _pairs(table):
            before, than = usual[table.title, READINGS.get(row.name, row.name)]
            settings = {k: v for k, v in group.settings.items() if than.settings.get(k) != v}
            changed = short(settings) or f"`{row.name}`"
            figures = (
                formats.score(table, row),
                formats.score(table, before),
                formats.published(table, before),
            )
            lines.append(
                f"| {table.task}, {table.metric} | {before.name} | {changed} | {' | '.join(figures)} |"
            )
    return "\n".join(lines)


def matched(study: str) -> str:
    """Each model of a study under each number of parameters that its grids ask for, one table per task."""
    budgets = {
        _of_any_width(config): grid.parameters
        for grid in Plan.read(ROOT / "studies" / f"{study}.toml").grids
        for config in grid.configs(_configured, lambda config, _: config)
        if grid.parameters is not None
    }
    found = [
        (table, [(row, group, budgets.get(_of_any_width(group.config))) for row, group in _pairs(table)])
        for table in _built(study)
    ]
    return "\n\n".join(_by_budget(table, [cell for cell in cells if cell[2]]) for table, cells in found)


def _by_budget(table: Table, cells: list[tuple[Row, Group, int]]) -> str:
    """Rows come best first: the first of a column is its best, and models are in the order of their best rows."""
    columns = sorted({budget for _, _, budget in cells})
    names: dict[tuple[str, str], dict[int, str]] = {}
    for row, group, budget in cells:
        best = all(budget not in shown for shown in names.values())
        score = formats.score(table, row)
        shown = names.setdefault((row.name, group.config.model_options.get("form", "")), {})
        shown[budget] = f"**{score}**" if best else score
    head = [
        f"| {table.task}, {table.metric} | {' | '.join(f'{budget:,}' for budget in columns)} |",
        "|---|" + "---:|" * len(columns),
    ]
    body = [
        f"| {name}{f', {form}' if form else ''} | {' | '.join(shown.get(column, '') for column in columns)} |"
        for (name, form), shown in names.items()
    ]
    return "\n".join([*head, *body])


def _configured(task: str, model: str, seed: int, settings: list[str]) -> RunConfig:
    return configure(task, model, "default", seed, settings)


def _of_any_width(config: RunConfig) -> Path:
    """What runs share that differ in nothing but width and seed."""
    return replace(config, hidden_size=1, train=replace(config.train, seed=0)).folder(RESULTS)


def _pairs(table: Table) -> list[tuple[Row, Group]]:
    return list(zip(table.models, table.groups, strict=True))


def systems(_: str) -> str:
    """The biological systems, with their sources."""
    rows = [
        f"| `physiome-{name}` | {system.summary} | {', '.join(system.states)} | {system.duration:g} {system.unit} "
        f"| {system.constants_spread:.0%}, {system.states_spread:.0%} | {system.source} |"
        for name, system in SYSTEMS.items()
    ]
    head = ["| task | what | channels | duration | spread | source |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


# What a comment in a page is replaced by.
MARKS: dict[str, Callable[[str], str]] = {
    r"<!-- the tables of results/(\w+) -->": tables,
    r"<!-- the comparison of results/(\w+) -->": comparison,
    r"<!-- the verdict of results/(\w+) -->": verdict,
    r"<!-- the experiments of results/(\w+) -->": reasons,
    r"<!-- the models of results/(\w+) by parameters -->": matched,
    r"<!-- the overview of results/(\w+) -->": overview,
    r"<!-- the systems of (biology) -->": systems,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for each page, with the text of its file."""
    for mark, text in MARKS.items():
        for found in re.finditer(mark, markdown):
            markdown = markdown.replace(found[0], text(found[1]))
    return markdown


def on_post_build(config: Any) -> None:
    """mkdocs calls this when the site is written."""
    (Path(config["site_dir"]) / PAGE).write_text(report(RESULTS / "paper"), encoding="utf-8")
