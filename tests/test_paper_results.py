"""The runs that the repository keeps, and the pages that are built from them."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import standins
from lapse.cli import app
from lapse.cli.train import configure
from lapse.report.collection import Collection
from lapse.runs import RunConfig
from lapse.study.plan import Plan
from lapse.tasks import physiome

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "paper"
STUDIES = ("paper", "physiome", "successors", "reasons")


@pytest.fixture(autouse=True)
def others_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of others' code, which some runs have, can be found."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The functions that the site's build calls, in docs/hooks.py."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import hooks

    yield hooks
    del sys.modules["hooks"]


@pytest.mark.parametrize("study", STUDIES)
def test_every_run_that_is_kept_belongs_to_the_study(study: str) -> None:
    results = ROOT / "results" / study
    kept = {
        path.parent: RunConfig.from_dict(json.loads(path.read_text()))
        for path in results.rglob("config.json")
    }
    assert kept
    assert all(config.folder(results) == folder for folder, config in kept.items())
    # Widths that give a number of parameters need the data, which are not everywhere.
    found = {of_width_1(config).folder(results) for config in kept.values()}
    plan = Plan.read(ROOT / "studies" / f"{study}.toml")
    made = plan.configs(
        lambda preset, task, model, seed, s: configure(task, model, preset, seed, s),
        lambda config, parameters: config,
    )
    assert found <= {of_width_1(config).folder(results) for config in made}


def of_width_1(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, hidden_size=1)


@pytest.mark.parametrize("study", STUDIES)
def test_every_run_that_is_kept_is_whole(study: str) -> None:
    collection = Collection.read(ROOT / "results" / study)
    assert not collection.left_out()
    assert not collection.remarks
    assert all(run.history for run in collection.finished)


@pytest.mark.parametrize("study", STUDIES)
def test_only_small_files_are_kept(study: str) -> None:
    names = {path.name for path in (ROOT / "results" / study).rglob("*") if path.is_file()}
    assert names == {"config.json", "metrics.csv", "result.json"}


def test_the_site_shows_every_result(hooks: ModuleType, tmp_path: Path) -> None:
    page = hooks.on_page_markdown((ROOT / "docs" / "reproduce.md").read_text())
    shown = CliRunner().invoke(app, ["table", str(RESULTS), "--no-baselines", "--format", "markdown"])
    assert shown.exit_code == 0
    assert shown.stdout.strip() in page
    assert "are in its order here" in page
    assert "| person, accuracy | rnn-decay | `authors_models:SubtractedDecay` |" in page
    assert "<!--" not in page
    tables = json.loads(
        CliRunner().invoke(app, ["table", str(RESULTS), "--no-baselines", "-f", "json"]).stdout
    )
    assert tables
    hooks.on_post_build({"site_dir": str(tmp_path)})
    html = (tmp_path / hooks.PAGE).read_text()
    assert all(path.parent.name in html for path in RESULTS.rglob("result.json"))


def test_the_site_shows_what_came_after_the_paper(hooks: ModuleType) -> None:
    page = hooks.on_page_markdown((ROOT / "docs" / "successors.md").read_text())
    shown = CliRunner().invoke(
        app, ["table", str(ROOT / "results" / "successors"), "--no-baselines", "-f", "markdown"]
    )
    assert shown.exit_code == 0
    assert shown.stdout.strip() in page
    assert "<!--" not in page
    by_parameters = page[page.index("| walker, mse | 30,000 | ") :].splitlines()
    driven = next(line for line in by_parameters if line.startswith("| ode-lstm, driven | "))
    assert driven.endswith(" | 0.543 ± 0.006 (3) |")


def test_the_site_shows_every_forecast(
    hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other data than those of the runs, made in an instant: the page and the command are compared, not the figures.
    monkeypatch.setattr("lapse.tasks.prepared.cache_folder", lambda: tmp_path)
    standins.watch_for_a_while(monkeypatch)
    page = hooks.on_page_markdown((ROOT / "docs" / "physiome.md").read_text())
    shown = CliRunner().invoke(app, ["table", str(ROOT / "results" / "physiome"), "-f", "overview"])
    assert shown.exit_code == 0
    assert shown.stdout.strip() in page
    assert "persistence | mean | linear |" in page
    assert all(f"| `{name}` |" in page for name in physiome.TASKS)
    assert "<!--" not in page
