"""Whatever a folder of runs says, a page shows it as text: no script, no foreign markup, nothing from the network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from example_runs import write_failed, write_seeds
from lapse.report.page import report
from lapse.runs import RunConfig
from lapse.sequences import Sequences
from lapse.tasks import TASKS, Splits
from lapse.tasks.files import Source

# Ends whatever it may stand in: an element, an attribute of either kind, a comment, a style sheet.
EVIL = """x"'--></style></title></svg><script>alert(1)</script><img src=x onerror=alert(2)>"""
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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tmp_path = tmp_path_factory.mktemp("runs")
    config = RunConfig(
        NAME, "lstm", NAME, model_options={"dropout": EVIL, EVIL: EVIL}, task_options={"evil": EVIL}
    )
    write_seeds(tmp_path, config, 60.0, 70.0)
    write_seeds(tmp_path, replace(config, model="gru-d"), 50.0)
    for path in tmp_path.rglob("result.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, "version": EVIL, "test": {**values["test"], EVIL: 1.0}}))
    write_failed(tmp_path, replace(config, hidden_size=3))
    (tmp_path / "gradients.html").write_text(EVIL)  # what earlier versions took in as it was
    theory = tmp_path / NAME
    (theory / "gradients.json").write_text(
        json.dumps([{"name": name, "title": EVIL, "caption": EVIL} for name in ("drawn", "listed")])
    )
    (theory / "drawn.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg"><text>{EVIL}</text></svg>')
    (theory / "listed.csv").write_text(f"{EVIL.replace(',', '')},b\n{EVIL},2\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "gradients.json").write_text(EVIL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, NAME, hostile_task())
        yield report(tmp_path)


def test_no_string_of_a_page_can_act(page: str) -> None:
    inspector = Inspector()
    inspector.feed(page)
    assert inspector.found == []
    assert not re.search(r"<script|<img src=x", page)
    # The strings are there, as text: it is not for want of them that nothing was found.
    assert page.count("&lt;script&gt;") > 20


def test_a_page_allows_no_script_and_no_network(page: str) -> None:
    inspector = Inspector()
    inspector.feed(page)
    assert inspector.policies == [POLICY]
    assert page.index("Content-Security-Policy") < page.index("<style")


def test_a_list_of_exhibits_that_cannot_be_read_is_named(page: str) -> None:
    assert re.search(r'class="warning">Left out: .*gradients\.json is no list of exhibits', page)
