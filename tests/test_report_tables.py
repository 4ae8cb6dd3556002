"""Tables: the right figures in the right rows, marks that a test supports, and nothing averaged in that is not done."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from example_runs import write_failed, write_run, write_seeds, write_unfinished
from lapse.cli import app
from lapse.heads import Classes, Numbers
from lapse.report import formats, theme
from lapse.report.collection import Collection, NoRuns, departures
from lapse.report.page import Section, with_baselines
from lapse.report.tables import Table, build_tables, welch
from lapse.runs import RunConfig, default_config, paper_config
from lapse.sequences import Sequences
from lapse.tasks import TASKS, Splits
from lapse.tasks.baselines import baselines, simple_features

ODE = default_config(TASKS["xor-event"], "ode-lstm")
LSTM = RunConfig("xor-event", "lstm")


def table_of(root: Path) -> Table:
    (table,) = build_tables(Collection.read(root))
    return table


def test_a_row_has_mean_std_and_the_papers_figures(tmp_path: Path) -> None:
    write_seeds(tmp_path, ODE, 98.0, 99.0, 100.0)
    (row,) = table_of(tmp_path).rows
    assert (row.name, row.count, row.mean, row.std) == ("ode-lstm", 3, 99.0, 1.0)
    assert row.paper == (98.89, 0.26)
    assert row.difference == pytest.approx((99.0 - 98.89) / 0.26)
    assert (row.parameters, row.seconds_per_epoch, row.mark) == (1000, 0.5, "best")


def test_less_is_better_for_an_error(tmp_path: Path) -> None:
    write_seeds(tmp_path, RunConfig("walker", "lstm"), 1.1, 1.0)
    write_seeds(tmp_path, RunConfig("walker", "ode-lstm"), 0.90, 0.91)
    assert [(row.name, row.mark) for row in table_of(tmp_path).rows] == [
        ("ode-lstm", "best"),
        ("lstm", "tied"),
    ]
    write_seeds(tmp_path, RunConfig("walker", "ct-rnn"), 1.20, 1.21)
    assert table_of(tmp_path).rows[-1].mark == ""


def test_ties_are_those_welch_does_not_tell_apart(tmp_path: Path) -> None:
    write_seeds(tmp_path, ODE, 98.0, 99.0, 100.0)
    write_seeds(tmp_path, LSTM, 97.0, 98.5, 99.5)
    write_seeds(tmp_path, RunConfig("xor-event", "ode-rnn"), 50.0, 51.0, 52.0)
    marks = {row.name: row.mark for row in table_of(tmp_path).rows}
    assert marks == {"ode-lstm": "best", "lstm": "tied", "ode-rnn": ""}


def test_welch_agrees_with_scipy() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        a, b = random.normal(0, 1, 5), random.normal(1, 3, 4)
        assert welch(a.tolist(), b.tolist()) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_welch_without_spread_or_with_one_run() -> None:
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert welch([1.0], [2.0, 3.0]) is None


@pytest.mark.parametrize(
    ("ours", "others", "said"),
    [
        ((99.0,), (98.0,), "One run per row: no test"),
        ((99.0,), (98.0, 98.5), "The first row has one run"),
        ((99.0, 98.5), (98.0,), "no test is possible: lstm"),
    ],
)
def test_one_run_allows_no_test_and_the_table_says_so(
    tmp_path: Path, ours: tuple[float, ...], others: tuple[float, ...], said: str
) -> None:
    write_seeds(tmp_path, ODE, *ours)
    write_seeds(tmp_path, LSTM, *others)
    table = table_of(tmp_path)
    assert [row.mark for row in table.rows] == ["best" if len(ours) > 1 else "", ""]
    assert any(said in note for note in table.notes)


@pytest.mark.parametrize(
    ("scores", "said"),
    [((99.0,), " comes first, in a single run: 99.00 %."), ((99.0, 98.0), " is best: 98.50 ± 0.71 %.")],
)
def test_a_single_seed_is_not_called_best_on_the_page(
    tmp_path: Path, scores: tuple[float, ...], said: str
) -> None:
    write_seeds(tmp_path, ODE, *scores)
    write_seeds(tmp_path, LSTM, 50.0)
    headline = Section(TASKS["xor-event"], table_of(tmp_path), ()).headline
    assert headline.endswith(said)


def test_other_settings_are_other_rows_named_by_what_differs(tmp_path: Path) -> None:
    small = replace(ODE, hidden_size=32)
    write_run(tmp_path, replace(small, model_options={"form": "driven"}), 98.0)
    write_run(tmp_path, small, 99.0)
    table = table_of(tmp_path)
    assert [(row.name, row.label) for row in table.rows] == [
        ("ode-lstm", "form=autonomous"),
        ("ode-lstm", "form=driven"),
    ]
    assert table.shared == "hidden_size=32"


def test_a_preset_is_named_and_not_spelled_out(tmp_path: Path) -> None:
    paper = paper_config(TASKS["xor-event"], "ode-lstm")
    assert departures(paper) == {"preset": "paper"}
    write_run(tmp_path, paper, 98.0)
    write_run(tmp_path, ODE, 99.0)
    assert [row.label for row in table_of(tmp_path).rows] == ["", "paper preset"]


def test_seconds_are_those_of_the_fastest_epoch(tmp_path: Path) -> None:
    """Other work on the machine, here in one epoch of one run, is no property of the model."""
    write_seeds(tmp_path, RunConfig("walker", "lstm"), 1.1, 1.0)
    path = next(tmp_path.rglob("metrics.csv"))
    path.write_text(path.read_text().replace(",0.5,1000", ",50.0,10", 2))
    (table,) = build_tables(Collection.read(tmp_path))
    assert table.rows[0].seconds_per_epoch == 0.5
    path.unlink()
    (table,) = build_tables(Collection.read(tmp_path))
    assert table.rows[0].seconds_per_epoch == 0.5, "without figures per epoch, those of the result"


def test_other_data_are_another_table(tmp_path: Path) -> None:
    write_run(tmp_path, ODE, 98.0)
    write_run(tmp_path, replace(ODE, task_options={"lengths": [2, 9]}), 99.0)
    write_run(tmp_path, replace(ODE, task_options={"lengths": [2, 32]}), 99.0)
    write_run(tmp_path, replace(ODE, task_options={"distinct": False}), 97.0)  # the default, so the same data
    usual, authors, short = sorted(build_tables(Collection.read(tmp_path)), key=lambda table: table.options)
    assert (short.options, authors.options, usual.options) == ("lengths=[2,9]", "lengths=[2,32]", "")
    assert [table.has_paper for table in (short, authors, usual)] == [False, True, True]
    assert any("Other data than the paper's" in note for note in short.notes)


def test_runs_that_are_not_done_are_counted_and_never_averaged(tmp_path: Path) -> None:
    write_run(tmp_path, ODE, 98.0)
    write_failed(tmp_path, LSTM)
    write_unfinished(tmp_path, RunConfig("xor-event", "gru-d"))
    broken = write_unfinished(tmp_path, RunConfig("xor-event", "ct-gru"))
    (broken / "result.json").write_text("{")
    table = table_of(tmp_path)
    assert len(table.rows) == 1
    note = next(note for note in table.notes if note.startswith("Runs left out"))
    assert "1 failed" in note
    assert "1 not finished" in note
    assert "1 with a result that cannot be read" in note


def test_no_runs_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(NoRuns, match=r"expected folders with config\.json"):
        Collection.read(tmp_path)
    with pytest.raises(NoRuns, match="not a folder"):
        Collection.read(tmp_path / "absent")


def test_baselines_of_a_regression_by_hand() -> None:
    values = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    steps = Sequences(
        values=values,
        times=np.arange(4.0),
        offsets=np.array([0, 4]),
        targets=values + 1,
        per_step=True,
    )
    task = replace(TASKS["walker"], head=partial(Numbers, scale=False, per_step=True))
    scores = baselines(task, Splits(steps, steps, steps))
    assert scores["mean"] == pytest.approx(1.25)
    assert scores["persistence"] == pytest.approx(1.0)
    assert scores["linear"] == pytest.approx(0.0, abs=1e-6)
    assert "majority class" not in scores
    assert scores["boosting"] == pytest.approx(1.25)  # four rows are too few for any leaf, so it is the mean


def test_baselines_of_classes() -> None:
    scores = baselines(TASKS["mini-digits"], TASKS["mini-digits"].load())
    assert 9 < scores["majority class"] < 12
    assert scores["majority class"] + 10 < scores["linear"] < 60
    assert scores["majority class"] + 10 < scores["boosting"] < 60
    assert set(scores) == {"majority class", "linear", "boosting"}


def test_boosting_sees_what_no_linear_map_can() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(600, 2))
    signs = (values[:, 0] * values[:, 1] > 0).astype(int)
    data = Sequences.from_arrays(values[:, None], np.zeros((600, 1)), targets=signs)
    task = replace(TASKS["mini-digits"], head=partial(Classes, (0, 1)))
    scores = baselines(task, Splits(data[:400], data[400:500], data[500:]))
    assert scores["boosting"] > scores["linear"] + 20


def test_simple_features_count_observed_values_only() -> None:
    s = Sequences(
        values=np.array([[2.0], [0.0], [4.0]], np.float32),
        times=np.array([0.0, 1.0, 3.0]),
        offsets=np.array([0, 3]),
        observed=np.array([[True], [False], [True]]),
        targets=np.array([0]),
    )
    mean, last, integral, events, duration, seen = simple_features(s)[0]
    assert (mean, last, integral, events, duration, seen) == (3.0, 4.0, 8.0, 3, 3.0, 2)


def test_a_row_that_a_baseline_beats_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, RunConfig("mini-digits", "ode-lstm"), 95.0)
    write_run(tmp_path, RunConfig("mini-digits", "ode-rnn"), 10.0)
    table, splits = with_baselines(table_of(tmp_path))
    assert splits is not None
    assert [row.name for row in table.baselines] == ["majority class", "linear", "boosting"]
    assert "No better than the baseline 'linear': ode-rnn." in table.notes


def test_without_the_data_there_are_no_baselines_and_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LAPSE_DATA", raising=False)
    monkeypatch.setattr("lapse.tasks.files._download", lambda *_: pytest.fail("a table downloads nothing"))
    write_run(tmp_path, RunConfig("walker", "lstm"), 1.0)
    table, splits = with_baselines(table_of(tmp_path))
    assert splits is None
    assert not table.baselines
    assert "No baselines: the data are not on this machine" in table.notes[-1]


@pytest.fixture
def two_models(tmp_path: Path) -> Path:
    write_seeds(tmp_path, ODE, 98.0, 99.0, 100.0)
    write_seeds(tmp_path, replace(LSTM, model_options={"a_b": "c|d"}), 89.0, 90.0, 91.0)
    return tmp_path


def test_markdown(two_models: Path) -> None:
    text = formats.markdown([table_of(two_models)])
    assert "| model | accuracy (N) | paper | difference | parameters | s/epoch |" in text
    assert "| ode-lstm | **99.00 ± 1.00 (3)** | 98.89 ± 0.26 | +0.4 | 1,000 | 0.50 |" in text
    assert "lstm (a_b=c\\|d)" in text


def test_csv_and_json_hold_unrounded_figures(two_models: Path) -> None:
    tables = [table_of(two_models)]
    first, second = csv.DictReader(io.StringIO(formats.csv_text(tables)))
    assert (first["model"], float(first["mean"]), first["mark"]) == ("ode-lstm", 99.0, "best")
    assert second["settings"] == "a_b=c|d"
    (loaded,) = json.loads(formats.json_text(tables))
    assert loaded["rows"][0]["difference_in_paper_std"] == pytest.approx(0.11 / 0.26)


def test_latex_escapes_what_latex_reads(two_models: Path) -> None:
    text = formats.latex([table_of(two_models).with_baselines({"linear": 50.0})])
    assert r"ode-lstm & \textbf{99.00 $\pm$ 1.00 (3)} & 98.89 $\pm$ 0.26" in text
    assert r"lstm (a\_b=c|d)" in text
    assert text.count("{") == text.count("}")
    assert text.index(r"\midrule", text.index("lstm")) < text.index("linear")


def test_an_overview_has_a_row_for_each_task(two_models: Path) -> None:
    write_run(two_models, RunConfig("mini-digits", "ode-lstm"), 95.0)
    bits, digits = build_tables(Collection.read(two_models))
    text = formats.overview([bits.with_baselines({"linear": 50.0}), digits])
    head, rule, first, second, _, *notes = text.splitlines()
    assert head == "| task | metric | ode-lstm | lstm (a_b=c\\|d) | linear |"
    assert rule.count("|") == head.replace("\\|", "").count("|")
    assert first.startswith("| xor-event | accuracy in %, more is better | **99.00 ± 1.00 (3)** |")
    assert first.endswith("| 50.00 |")
    assert second.endswith("| 95.00 (1) | – | – |")
    assert not any("The paper has no such task" in note for note in notes)  # not said of both


def test_the_command_keeps_data_and_messages_apart(two_models: Path) -> None:
    write_failed(two_models, RunConfig("xor-event", "gru-d"))
    done = CliRunner().invoke(app, ["table", str(two_models), "--format", "csv", "--no-baselines"])
    assert done.exit_code == 0
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == 2
    assert "1 failed" in done.stderr


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_has_the_figures(two_models: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["table", str(two_models), "--format", name, "--no-baselines"])
    assert done.exit_code == 0
    assert "99.0" in done.stdout


def test_wrong_use_exits_with_2(tmp_path: Path, two_models: Path) -> None:
    wrong = CliRunner().invoke(app, ["table", str(two_models), "--format", "markdwon"])
    assert wrong.exit_code == 2
    assert "markdown" in wrong.stderr
    assert CliRunner().invoke(app, ["table", str(tmp_path / "absent")]).exit_code == 2


def test_nothing_finished_is_a_failure(tmp_path: Path) -> None:
    write_failed(tmp_path, LSTM)
    for command in ("table", "report"):
        done = CliRunner().invoke(app, [command, str(tmp_path)])
        assert done.exit_code == 1
        assert "is finished. Runs left out: 1 failed" in done.stderr
        assert not done.stdout


def test_every_model_has_its_two_colours() -> None:
    from lapse import MODELS

    assert len({theme.model_colour(model) for model in MODELS}) == len(MODELS)


DOCS = (Path(__file__).parents[1] / "docs" / "reading-results.md").read_text()


@pytest.mark.parametrize(("named", "key"), re.findall(r"pytest (tests/\w+\.py) -k (\w+)", DOCS))
def test_the_tests_that_the_documentation_names_exist(named: str, key: str) -> None:
    assert re.search(rf"def test_\w*{key}", (Path(__file__).parents[1] / named).read_text())


def test_the_documentation_names_every_baseline_and_format() -> None:
    from lapse.heads import HEADS

    names = {head.baseline_name for head in HEADS.values()} | {"persistence", "linear", "boosting"}
    assert all(f"| {name} |" in DOCS for name in names)
    assert all(name in DOCS for name in formats.FORMATS if name != "rich")
