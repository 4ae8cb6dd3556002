"""Figures as they leave matplotlib and enter the page: themed, described, and right about odd data."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from example_runs import write_run, write_seeds
from lapse.cli import app
from lapse.report import figures, theme
from lapse.report.collection import Collection
from lapse.report.tables import Table, build_tables
from lapse.runs import RunConfig
from lapse.sequences import Sequences
from lapse.tasks import TASKS, Splits
from lapse.tasks.baselines import baselines

TASK = TASKS["physionet2012"]


def stays(count: int = 40, length: int = 100) -> Sequences:
    """Patients with five features, half of the values missing, gaps over four decades; the ill are measured oftener."""
    random = np.random.default_rng(0)
    ill = np.arange(count) % 2
    values = [
        np.where(random.random((length, 5)) < 0.5, np.nan, random.normal(i, 1, (length, 5))) for i in ill
    ]
    times = [np.cumsum(10 ** random.uniform(-2, 2, length)) for _ in range(count)]
    names = ("pulse", "cost ($a$b)", "c", "d", "e")
    return Sequences.from_arrays(
        values, times, targets=ill, features=names, static=ill[:, None].astype(float)
    )


def table_of(root: Path) -> Table:
    (table,) = build_tables(Collection.read(root))
    return table


def test_an_example_shows_the_most_observed_features_and_says_what_it_leaves_out() -> None:
    figure = figures.example_sequence(TASK, stays())
    assert "100 events; the first 64 drawn; 4 of 5 features; target: " in figure.caption
    assert "cost ($a$b)" in figure.svg


def test_gaps_over_decades_get_a_logarithmic_axis_and_gaps_of_zero_none() -> None:
    wide = figures.gap_histogram(TASK, stays())
    assert "3,960 gaps" in wide.caption
    even = Sequences.from_arrays([np.zeros((200, 1))], [np.sqrt(np.arange(200.0))])
    assert "199 gaps" in figures.gap_histogram(TASK, even).caption
    single = Sequences.from_arrays([np.zeros((1, 1))], [np.zeros(1)])
    assert "0 gaps, median 0." in figures.gap_histogram(TASK, single).caption


def test_a_ranking_metric_has_baselines_too() -> None:
    data = stays()
    scores = baselines(TASK, Splits(data, data, data))
    assert scores["majority class"] == pytest.approx(0.5)
    assert scores["linear"] > 0.95


def test_curves_that_are_gone_are_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path, RunConfig("xor-event", "lstm"), 90.0)
    titles = [figure.title for figure in figures.run_figures(table_of(tmp_path))]
    assert titles == ["Learning curves", "Score against cost"]
    (folder / "metrics.csv").unlink()
    other = RunConfig("xor-event", "gru-d")
    assert [figure.title for figure in figures.run_figures(table_of(tmp_path))] == ["Score against cost"]
    write_run(tmp_path, other, 91.0)
    assert figures.run_figures(table_of(tmp_path))[0].title == "Learning curves"


def test_settings_of_one_model_share_its_colour_and_differ_in_dash(tmp_path: Path) -> None:
    config = RunConfig("xor-event", "ode-lstm")
    write_seeds(tmp_path, config, 98.0, 99.0)
    write_seeds(tmp_path, replace(config, model_options={"form": "driven"}), 97.0, 98.0)
    table = table_of(tmp_path)
    assert figures.variants(table) == [0, 1]
    assert theme.model_dash("ode-lstm", 0) != theme.model_dash("ode-lstm", 1)
    svg = figures.learning_curves(table).svg
    assert "var(--m-ode-lstm)" in svg
    assert not re.search(r"(?:stroke|fill): #", svg), "a colour that the theme cannot change"


def test_a_drawing_has_its_own_ids_and_no_style_for_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, RunConfig("xor-event", "lstm"), 90.0)
    first, second = (figure.svg for figure in figures.run_figures(table_of(tmp_path)))
    ids = [set(re.findall(r'\bid="([^"]*)"', svg)) for svg in (first, second)]
    assert not ids[0] & ids[1]
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", first))
    assert used <= ids[0]
    assert "<style" not in first
    assert first.startswith("<svg")
    assert figures.learning_curves(table_of(tmp_path)).svg == first, "the same runs give the same page"


def test_the_command_writes_the_page_and_tells_where(tmp_path: Path) -> None:
    write_run(tmp_path, RunConfig("mini-digits", "lstm"), 90.0)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "90.00 (1)" in page
    assert str(tmp_path) not in page, "a page is for others: it names no folder of this machine"
    assert "<script" not in page
    assert CliRunner().invoke(app, ["report", str(tmp_path / "absent")]).exit_code == 2
