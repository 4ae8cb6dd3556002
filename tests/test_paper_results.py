"""The runs of the paper's tables that the repository keeps, and the page that is built from them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from lapse.cli import app
from lapse.cli.train import configure
from lapse.report.collection import Collection
from lapse.study.plan import Plan

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "paper"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The functions that the site's build calls, in docs/hooks.py."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import hooks

    yield hooks
    del sys.modules["hooks"]


def test_every_run_that_is_kept_belongs_to_the_study() -> None:
    plan = Plan.read(ROOT / "studies" / "paper.toml")
    made = plan.configs(lambda preset, task, model, seed, s: configure(task, model, preset, seed, s))
    folders = {config.folder(RESULTS) for config in made}
    kept = {path.parent for path in RESULTS.rglob("config.json")}
    assert kept
    assert kept <= folders


def test_every_run_that_is_kept_is_whole() -> None:
    collection = Collection.read(RESULTS)
    assert not collection.left_out()
    assert not collection.remarks
    assert all(run.history for run in collection.finished)


def test_only_small_files_are_kept() -> None:
    names = {path.name for path in RESULTS.rglob("*") if path.is_file()}
    assert names == {"config.json", "metrics.csv", "result.json"}


def test_the_site_shows_every_result(hooks: ModuleType, tmp_path: Path) -> None:
    page = hooks.on_page_markdown((ROOT / "docs" / "reproduce.md").read_text())
    shown = CliRunner().invoke(app, ["table", str(RESULTS), "--no-baselines", "--format", "markdown"])
    assert shown.exit_code == 0
    assert shown.stdout.strip() in page
    tables = json.loads(
        CliRunner().invoke(app, ["table", str(RESULTS), "--no-baselines", "-f", "json"]).stdout
    )
    assert tables
    hooks.on_post_build({"site_dir": str(tmp_path)})
    html = (tmp_path / hooks.PAGE).read_text()
    assert all(path.parent.name in html for path in RESULTS.rglob("result.json"))
