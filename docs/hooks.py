"""What the documentation's site makes from the runs in `results`, so that no table of theirs is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lapse.report import formats
from lapse.report.collection import Collection
from lapse.report.comparison import Comparison
from lapse.report.page import report, with_baselines
from lapse.report.tables import Table, build_tables
from lapse.tasks.biology import SYSTEMS

RESULTS = Path(__file__).parents[1] / "results"
PAGE = "paper.html"


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


def overview(study: str) -> str:
    """One row per task, with what trivial baselines reach: their data must be here, or be generated."""
    return formats.overview([with_baselines(table)[0] for table in _built(study)])


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
