"""`lapse fit`, `predict`, `evaluate` and `example`: from a file to a checked model and its answers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from lapse.cli import app
from lapse.estimators.trial import NETWORKS, OURS, Interval, Scored, Trial
from lapse.examples import pbc2
from lapse.heads import Classes
from lapse.report.trial import figure_text, verdict


def lapse(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module", autouse=True)
def few_epochs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.estimators.recipe.epochs", lambda *_: 2)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A fitted model with its table, and what fitting said."""
    folder = tmp_path_factory.mktemp("pbc2")
    assert lapse("example", "pbc2", "-o", folder / "pbc2.csv").exit_code == 0
    done = lapse("fit", folder / "pbc2.csv", "--members", "1", "-o", folder / "model", "--yes")
    assert done.exit_code == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_roles_data_and_rivals_are_shown(folder):
    told, found = (folder / "stderr").read_text(), (folder / "stdout").read_text()
    for expected in ("year (unit unknown)", "drug, age, sex", "205", "False 62.9%", "41 are held out"):
        assert expected in told, expected
    for expected in (
        "lapse",
        "networks alone",
        "boosted trees",
        "logistic regression",
        "majority class",
        "auroc",
    ):
        assert expected in found, expected


def test_the_folder_holds_model_card_and_page(folder):
    card, page = ((folder / "model" / name).read_text() for name in ("card.md", "report.html"))
    assert "| lapse | 0." in card
    assert "serBilir" in card
    assert "Calibration" in page
    assert "<script" not in page
    assert "Content-Security-Policy" in page


def test_predictions_have_ids_first_and_a_column_per_class(folder):
    done = lapse("predict", folder / "model", folder / "pbc2.csv", "-o", folder / "answers.parquet")
    assert done.exit_code == 0, done.stderr
    answers = pd.read_parquet(folder / "answers.parquet")
    assert answers.columns.tolist() == ["id", "prediction", "p_False", "p_True"]
    assert sorted(answers["id"]) == sorted(pbc2()["id"].unique())
    without = folder / "without.csv"
    pbc2().drop(columns="died").to_csv(without, index=False)
    printed = lapse("predict", folder / "model", without).stdout
    assert printed.splitlines()[0] == "id,prediction,p_False,p_True"


def test_evaluate_gives_figures_with_intervals(folder):
    done = lapse("evaluate", folder / "model", folder / "pbc2.csv")
    found = json.loads(done.stdout)
    value, low, high = found["figures"]["lapse"]["auroc"]
    assert found["sequences"] == 205
    assert 0.7 < low < value < high <= 1
    # A person reads it too: a line per figure, and no more digits than mean anything.
    assert f'"auroc": [{value}, {low}, {high}]' in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 60


def test_a_table_that_differs_is_described_by_name(folder):
    def answer(table, command="predict"):
        table.to_csv(folder / "other.csv", index=False)
        return lapse(command, folder / "model", folder / "other.csv")

    done = answer(pbc2().drop(columns="serChol").assign(mood=1))
    assert done.exit_code == 0
    assert "'serChol' is missing" in done.stderr
    done = answer(pbc2().rename(columns={"albumin": "albumine"}))
    assert done.exit_code == 1
    assert "'albumin' is missing" in done.stderr
    done = answer(pbc2().replace({"edema": {"No edema": "swollen"}}))
    assert done.exit_code == 0
    assert "'swollen', which training never had" in done.stderr
    done = answer(pbc2().drop(columns="year"))
    assert done.exit_code == 1
    assert "no column 'year'" in done.stderr
    done = answer(pbc2().drop(columns="died"), "evaluate")
    assert done.exit_code == 1
    assert "no column died" in done.stderr


def test_mistakes_end_in_a_line(folder, tmp_path):
    table = folder / "pbc2.csv"
    for arguments, status, message in (
        (("fit", table, "--target", "dyed"), 2, "did you mean 'died'"),
        (("fit", tmp_path / "none.csv"), 2, "does not exist"),
        (("predict", tmp_path, table), 1, "holds no model"),
        (("example", "pbc2", "-o", tmp_path / "x.doc"), 2, "no '.doc'"),
    ):
        done = lapse(*arguments)
        assert done.exit_code == status
        assert message in " ".join(done.stderr.split())
    assert lapse("example", "pbc3").exit_code == 2


def test_brackets_in_names_are_shown_and_columns_can_be_ignored(tmp_path):
    file, model = tmp_path / "odd.csv", tmp_path / "odd"
    pbc2().rename(columns={"albumin": "albumin [g/l]", "SGOT": "SGOT [/h]"}).to_csv(file, index=False)
    done = lapse("fit", file, "--ignore", "drug,sex", "--members", "1", "--no-boosting", "-o", model, "--yes")
    assert done.exit_code == 0, done.stderr
    told = " ".join(done.stderr.split())
    for expected in ("albumin [g/l]", "SGOT [/h]", "drug (ignored); sex (ignored)", "static features age"):
        assert expected in told, expected
    found = lapse("explain", model, file, "--repeats", "1")
    assert "SGOT [/h]" in found.stdout, found.stderr


def test_a_table_that_is_refused_leaves_no_folder(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert lapse("fit", tmp_path / "a.csv", "-o", tmp_path / "model").exit_code == 2
    assert not (tmp_path / "model").exists()


def test_numbers_and_leaks(tmp_path):
    table = pbc2()[["id", "year", "serBilir", "albumin", "age"]]
    table["years left"] = np.round(100 - table["age"], 3)
    table.to_csv(tmp_path / "age.csv", index=False)
    told = ("--target", "age", "--members", "1", "--yes", "--no-boosting")
    done = lapse("fit", tmp_path / "age.csv", *told, "-o", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    told = " ".join(done.stderr.split())
    # The warning names the way out. It stands before the work, and once more below the figures.
    assert told.count("WARNING: column 'years left' alone ranks the target") == 2
    assert "leave it out: --ignore 'years left'" in told
    assert "ridge regression" in done.stdout
    assert "Predicted and true" in (tmp_path / "model" / "report.html").read_text()


def test_one_answer_per_event_from_a_table_with_dates(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=600)
    table = pd.DataFrame(
        {"machine": np.repeat(range(60), 10), "x": x, "label": np.where(x > 0, "up", "down")}
    )
    table["time"] = np.tile(pd.date_range("2024-01-01", periods=10, freq="7min").astype(str), 60)
    table.to_csv(tmp_path / "machines.csv", index=False)
    done = lapse("fit", tmp_path / "machines.csv", "--members", "1", "--yes", "-o", tmp_path / "model")
    assert done.exit_code == 0, done.stderr
    assert "label, one per event" in done.stderr
    printed = lapse("predict", tmp_path / "model", tmp_path / "machines.csv").stdout.splitlines()
    assert printed[0] == "machine,time,prediction,p_down,p_up"
    assert len(printed) == 601


def test_an_interval_has_as_many_digits_as_it_needs():
    metric = Classes("ab", metrics=("auroc",)).metrics[0]
    assert figure_text(metric, Interval(0.861, 0.834, 0.887)) == "0.861 (0.83–0.89)"
    assert figure_text(metric, Interval(0.999, 0.9981, 1.0)) == "0.999 (0.998–1.000)"
    assert figure_text(metric, Interval(4016.107, 1013.46, 9362.96)) == "4016 (1013–9363)"
    assert figure_text(metric, Interval(np.nan, np.nan, np.nan)) == "nan (nan–nan)"


def test_the_table_of_figures_has_as_many_as_there_is_room_for(folder):
    from rich.console import Console

    from lapse.cli.tables import load_fitted
    from lapse.estimators.trial import score
    from lapse.report.trial import terminal

    ensemble, roles = load_fitted(folder / "model")
    trial = score(ensemble, roles.sequences(pbc2()))
    for width, metrics in ((30, 1), (60, 2), (100, 3)):
        console = Console(width=width, file=(folder / "table.txt").open("w"))
        console.print(terminal(trial, width))
        console.file.close()
        text = (folder / "table.txt").read_text()
        assert "…" not in text or width == 30
        assert [m.name in text for m in trial.metrics[:3]] == [k < metrics for k in range(3)]


@pytest.mark.parametrize(
    ("best", "remedy"), [(NETWORKS, "fit again with --no-boosting"), ("boosted trees", "use the simpler one")]
)
def test_the_verdict_says_what_to_do_where_a_part_is_better(best, remedy):
    head = Classes("ab", metrics=("log_loss",))
    ensemble = SimpleNamespace(head=head, parts="3 networks")
    scores = [
        Scored(OURS, {"log_loss": Interval(0.5, 0.4, 0.6)}),
        Scored(best, {"log_loss": Interval(0.1, 0, 1)}),
    ]
    trial = Trial(ensemble, scores, np.zeros((9, 2)), np.zeros(9), 30, 9)
    assert verdict(trial).endswith(f"beyond the interval of lapse: {remedy}.")
