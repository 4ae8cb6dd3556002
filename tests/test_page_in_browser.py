"""The page as a person gets it: opened in Chromium, wide and narrow, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from example_runs import write_failed, write_seeds
from lapse.report.page import report
from lapse.runs import RunConfig

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, PHONE = 1280, 390

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="chromium is not installed, so nobody looked at the page: apt-get install chromium",
)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    bits = RunConfig("xor-event", task_options={"lengths": [2, 9], "size": 500})
    write_seeds(root, bits, 98.0, 99.0, 100.0)
    write_seeds(root, replace(bits, model_options={"form": "driven"}), 97.0, 99.0, 99.5)
    write_seeds(root, replace(bits, model="ode-rnn", model_options={}), 51.0, 52.0, 53.0)
    write_seeds(root, RunConfig("mini-digits", "gru-d"), 91.0)
    write_seeds(root, RunConfig("walker", "ode-lstm"), 0.90, 0.91)
    write_failed(root, RunConfig("walker", "lstm"))
    (root / "theory").mkdir()
    (root / "theory" / "gradients.json").write_text(
        '[{"name": "one", "title": "One", "caption": "A table."}]'
    )
    (root / "theory" / "one.csv").write_text("model,norm\nlstm,0.5\n")
    path = root / "page.html"
    path.write_text(report(root), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


class Visit:
    """The page open at one width and theme, with everything it said or asked for."""

    def __init__(self, browser: Any, file: Path, width: int, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *exception: object) -> None:
        self.page.close()

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return [" ".join(text.split()) for text in found]


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_asks_for_nothing_complains_of_nothing_and_fits(
    browser: Any, page_file: Path, width: int, scheme: str
) -> None:
    with Visit(browser, page_file, width, scheme) as visit:
        assert visit.complaints == []
        assert [url for url in visit.requests if not url.startswith("data:")] == [page_file.as_uri()]
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        cut_off = (
            "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert visit.page.evaluate(cut_off) == 0


def test_the_tables_have_the_right_numbers(browser: Any, page_file: Path) -> None:
    with Visit(browser, page_file, WIDE) as visit:
        bits = 'table[data-task^="xor-event"]'
        assert visit.texts(f"{bits} tr.model .score") == [
            "99.00 ± 1.00 (3)",
            "98.50 ± 1.32 (3)",
            "52.00 ± 1.00 (3)",
        ]
        assert visit.texts(f"{bits} tr.model th") == [
            "ODE-LSTM best form=autonomous",
            "ODE-LSTM tied form=driven",
            "ODE-RNN",
        ]
        assert visit.texts(f"{bits} tr.baseline th") == ["majority class", "linear", "boosting"]
        walker = 'table[data-task="walker"] tr.model td'
        assert visit.texts(walker) == ["0.905 ± 0.007 (2)", "0.883 ± 0.014", "+1.6", "1,000", "0.50"]
        assert "Runs left out: 1 failed" in visit.texts(".warning")[0]


def test_the_figures_are_drawn(browser: Any, page_file: Path) -> None:
    with Visit(browser, page_file, PHONE) as visit:
        titles = visit.texts("#xor-event--lengths--2-9---size-500 figure h3")
        assert titles == ["Learning curves", "Score against cost", "One sequence", "Gaps"]
        drawings = visit.page.locator(".task figure > svg")
        for box in (drawings.nth(i).bounding_box() for i in range(drawings.count())):
            assert box["width"] > 250
            assert box["height"] > 120
        described = drawings.evaluate_all("all => all.every(e => e.getAttribute('aria-label').length > 40)")
        assert described


def test_ids_are_unique_and_colours_follow_the_theme(browser: Any, page_file: Path) -> None:
    ink = "getComputedStyle(document.querySelector('.task figure > svg text')).fill"
    with Visit(browser, page_file, WIDE, "light") as light, Visit(browser, page_file, WIDE, "dark") as dark:
        ids = light.page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        assert light.page.evaluate(ink) != dark.page.evaluate(ink)


def test_configs_unfold_and_theory_is_taken_in(browser: Any, page_file: Path) -> None:
    with Visit(browser, page_file, PHONE) as visit:
        assert visit.texts("#gradients h2") == ["Gradient flow"]
        config = visit.page.locator(".config pre").first
        assert not config.is_visible()
        visit.page.locator("details > summary", has_text="Full configs").first.click()
        visit.page.locator(".config > summary").first.click()
        assert config.is_visible()
        assert '"form": "autonomous"' in config.inner_text()
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE
