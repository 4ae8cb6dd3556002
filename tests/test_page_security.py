"""Whatever runs, tables and benchmarks say, every page shows it as text: no script, no foreign markup, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import lapse
from example_runs import write_failed, write_seeds
from lapse.bench import history
from lapse.cli import app
from lapse.demo import demo
from lapse.report.page import report
from lapse.runs import RunConfig
from lapse.sequences import Sequences
from lapse.tasks import TASKS, Splits
from lapse.tasks.files import Source

# Ends whatever it may stand in: an element, an attribute of either kind, a comment, a style sheet.
# Markup for the page, and between dollar signs what matplotlib would take for mathematics that it cannot read.
EVIL = r"""x$\x$"'--></style></title></svg><script>alert(1)</script><img src=x onerror=alert(2)>"""
NAME = EVIL.replace("/", "").replace(" ", "_")  # for a folder
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Inspector(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.policies: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(values["content"])
        if tag in ("script", "iframe", "object", "embed", "form", "base"):
            self.found.append(tag)
        for name, value in values.items():
            fetched = name in ("src", "href", "xlink:href") and not value.startswith(("data:", "#"))
            if name.startswith("on") or fetched:
                self.found.append(f"{tag} {name}={value}")


def hostile_task() -> object:
    part = Sequences.from_arrays(
        [np.random.default_rng(i).normal(size=(6, 3)) for i in range(30)],
        [np.arange(6.0)] * 30,
        targets=np.arange(30) % 2,
        ids=[EVIL] * 30,
        features=[EVIL, EVIL + "2", EVIL + "3"],
        unit=EVIL,
    )
    part = replace(part, classes=(EVIL, EVIL + "2"))
    splits = Splits(part, part, part, sources=(Source(EVIL, EVIL, EVIL),), notes=(EVIL,))

    def load(data_dir: object = None, evil: str = "") -> Splits:
        return splits

    words = dict.fromkeys(("summary", "time_unit", "source", "licence", "differences"), EVIL)
    return replace(TASKS["mini-digits"], name=NAME, loader=load, input_size=3, caveats=(EVIL,), **words)


def hostile_runs(folder: Path) -> RunConfig:
    """A folder of runs and exhibits in which every string is hostile; the config of one of the runs."""
    config = RunConfig(
        NAME, "lstm", NAME, model_options={"dropout": EVIL, EVIL: EVIL}, task_options={"evil": EVIL}
    )
    write_seeds(folder, config, 60.0, 70.0)
    write_seeds(folder, replace(config, model="gru-d"), 50.0)
    for path in folder.rglob("result.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, "version": EVIL, "test": {**values["test"], EVIL: 1.0}}))
    write_failed(folder, replace(config, hidden_size=3))
    (folder / "gradients.html").write_text(EVIL)  # what earlier versions took in as it was
    theory = folder / NAME
    (theory / "gradients.json").write_text(
        json.dumps([{"name": name, "title": EVIL, "caption": EVIL} for name in ("drawn", "listed")])
    )
    (theory / "drawn.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg"><text>{EVIL}</text></svg>')
    (theory / "listed.csv").write_text(f"{EVIL.replace(',', '')},b\n{EVIL},2\n")
    (folder / "a").mkdir()
    (folder / "a" / "gradients.json").write_text(EVIL)
    return config


def page_of_report(folder: Path) -> str:
    hostile_runs(folder)
    return report(folder)


def page_of_demo(folder: Path) -> str:
    demo(folder, [hostile_runs(folder)])  # the run is done, so that nothing is trained
    return (folder / "report.html").read_text()


def page_of_fit(folder: Path, target: Callable[[pd.Series], pd.Series]) -> str:
    """The page of a table whose columns, ids, words and target have hostile names."""
    random = np.random.default_rng(0)
    table = pd.DataFrame({EVIL + "id": np.repeat([f"{EVIL}{i}" for i in range(120)], 4)})
    table[EVIL + "time"] = np.tile(np.arange(4.0), 120)
    table[EVIL + "value"] = random.normal(size=480)
    table[EVIL + "word"] = random.choice([EVIL + "a", EVIL + "b"], 480)
    table[EVIL + "constant"] = EVIL
    number = np.repeat(random.normal(size=120), 4)
    table[EVIL + "leak"] = 2 * number  # which is told in a warning
    table[EVIL + "target"] = target(pd.Series(number))
    table.to_parquet(folder / "table.parquet")
    told = [word for name in ("id", "time", "target") for word in (f"--{name}", EVIL + name)]
    model = str(folder / "model")
    options = ["--unit", "h", "--members", "1", "--no-boosting", "--yes", "-o", model]
    done = CliRunner().invoke(app, ["fit", str(folder / "table.parquet"), *told, *options])
    assert done.exit_code == 0, done.output
    return (folder / "model" / "report.html").read_text()


def page_of_fit_to_classes(folder: Path) -> str:
    return page_of_fit(folder, lambda number: number.gt(0).map({True: EVIL + "yes", False: EVIL + "no"}))


def page_of_fit_to_numbers(folder: Path) -> str:
    return page_of_fit(folder, lambda number: number)


def page_of_bench(folder: Path) -> str:
    entry = history.Entry(EVIL, EVIL, {EVIL: EVIL}, {EVIL: 1.0, EVIL + "2": 2.0})
    history.keep(folder / "bench.jsonl", [entry], entry)
    return (folder / "bench.html").read_text()


# Every page that lapse writes, with the fewest hostile strings that must be on it, as text.
PAGES = {
    page_of_report: 21,
    page_of_demo: 21,
    page_of_fit_to_classes: 12,
    page_of_fit_to_numbers: 8,
    page_of_bench: 6,
}


@pytest.fixture(scope="module", params=PAGES, ids=lambda make: make.__name__)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """A page, and how many hostile strings it must hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, NAME, hostile_task())
        patch.setattr("lapse.estimators.recipe.epochs", lambda *_: 2)
        yield request.param(tmp_path_factory.mktemp("page")), PAGES[request.param]


def test_no_string_of_a_page_can_act(made: tuple[str, int]) -> None:
    page, fewest = made
    inspector = Inspector()
    inspector.feed(page)
    assert inspector.found == []
    assert not re.search(r"<script|<img src=x", page)
    # The strings are there, as text: it is not for want of them that nothing was found.
    assert page.count("&lt;script&gt;") >= fewest


def test_a_page_allows_no_script_and_no_network(made: tuple[str, int]) -> None:
    page, _ = made
    inspector = Inspector()
    inspector.feed(page)
    assert inspector.policies == [POLICY]
    assert page.index("Content-Security-Policy") < page.index("<style")


def test_there_is_no_other_page() -> None:
    """A new template, or a page that is written without one, has to be added to those that are tested here."""
    source = Path(lapse.__file__).parent
    files = (path for path in source.rglob("*") if path.suffix in (".py", ".jinja", ".html"))
    begins = {path.name for path in files if re.search("<!doctype|<html", path.read_text(), re.IGNORECASE)}
    assert begins == {"page.html.jinja", "trial.html.jinja", "history.html.jinja"}


def test_a_list_of_exhibits_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, NAME, hostile_task())
    page = page_of_report(tmp_path)
    assert re.search(r'class="warning">Left out: .*gradients\.json is no list of exhibits', page)
