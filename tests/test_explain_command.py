"""`lapse explain`: one answer as text, picture or table, or what matters in a whole table."""

from __future__ import annotations

import pandas as pd
import pytest
from typer.testing import CliRunner

from lapse.cli import app
from lapse.estimators import IrregularClassifier
from lapse.examples import pbc2
from lapse.tables import guess


def lapse(*arguments):
    return CliRunner().invoke(app, ["explain", *(str(argument) for argument in arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    table = pbc2()
    roles = guess(table)
    settings = {"members": 1, "hidden_size": 4, "epochs": 1}
    IrregularClassifier(**settings).fit(roles.sequences(table)).save(folder / "model")
    roles.save(folder / "model" / "table.json")
    table.to_csv(folder / "pbc2.csv", index=False)
    table.drop(columns="died").to_csv(folder / "new.csv", index=False)
    return folder


def test_one_answer_as_text_picture_and_table(folder):
    done = lapse(folder / "model", folder / "new.csv", "--id", "14", "-o", folder / "14.svg")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("id 14: probability of died = True is ")
    assert "contribution (log odds)" in done.stdout
    assert "<svg" in (folder / "14.svg").read_text()
    done = lapse(
        folder / "model", folder / "new.csv", "--id", "14", "--answer", "False", "-o", folder / "14.csv"
    )
    assert "probability of died = False" in done.stdout
    assert pd.read_csv(folder / "14.csv").columns.tolist() == [
        "id",
        "time",
        "variable",
        "value",
        "contribution",
    ]


def test_without_an_id_what_matters_in_the_table(folder):
    arguments = ("--repeats", "1", "--metric", "auroc", "-o", folder / "importance.png")
    done = lapse(folder / "model", folder / "pbc2.csv", *arguments)
    assert done.exit_code == 0, done.stderr
    assert "auroc is 0." in done.stdout
    assert "time between events" in done.stdout
    assert (folder / "importance.png").stat().st_size > 1000


def test_a_forecast_is_refused_by_name(folder, monkeypatch):
    monkeypatch.setattr("lapse.cli.explain.is_forecaster", lambda model: True)
    done = lapse(folder / "model", folder / "new.csv", "--id", "14")
    assert done.exit_code == 2
    assert "holds a forecast" in done.stderr


def test_mistakes_end_in_a_line_before_the_work(folder):
    done = lapse(folder / "model", folder / "new.csv", "--id", "9999")
    assert done.exit_code == 2
    assert "no id '9999' in the table" in done.stderr
    done = lapse(folder / "model", folder / "new.csv", "--id", "14", "-o", folder / "x.doc")
    assert done.exit_code == 2
    done = lapse(folder / "model", folder / "new.csv", "--id", "14", "--answer", "maybe")
    assert done.exit_code == 1
    assert "expected one of False, True" in done.stderr
    done = lapse(folder / "model", folder / "new.csv")
    assert done.exit_code == 1
    assert "--id explains the answer for one id" in " ".join(done.stderr.split())
