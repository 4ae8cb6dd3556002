"""What the documentation's site makes from the runs in `results/paper`, so that no table of theirs is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lapse.report.collection import Collection
from lapse.report.comparison import Comparison
from lapse.report.formats import markdown
from lapse.report.page import report
from lapse.report.tables import build_tables

RESULTS = Path(__file__).parents[1] / "results" / "paper"
MARK = "<!-- the tables of results/paper -->"  # where they stand in a page
COMPARISON_MARK = "<!-- the comparison of results/paper -->"
PAGE = "paper.html"


def tables() -> str:
    """The tables of the finished runs, each under a heading of the third level, as `lapse table` prints them."""
    return markdown(build_tables(Collection.read(RESULTS)))


def comparison() -> str:
    """Every model on every task, ours above the paper's."""
    found = Comparison.of(build_tables(Collection.read(RESULTS)))
    assert found is not None, "the repository has runs of more than one task of the paper"
    return found.markdown()


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for each page, with the text of its file."""
    for mark, make in ((COMPARISON_MARK, comparison), (MARK, tables)):
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def on_post_build(config: Any) -> None:
    """mkdocs calls this when the site is written."""
    (Path(config["site_dir"]) / PAGE).write_text(report(RESULTS), encoding="utf-8")
