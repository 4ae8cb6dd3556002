"""The example data that come with lapse."""

import hashlib
from importlib.resources import files

from lapse.examples import pbc2, pbc2_all


def test_the_table_is_the_published_one() -> None:
    raw = (files("lapse.examples") / "pbc2.csv").read_bytes()
    assert (
        hashlib.sha256(raw).hexdigest() == "81a64cd824925f268edb9ee753084b5ca457de01049e650ccea5cad2b4e46a05"
    )
    visits = pbc2_all()
    assert (len(visits), visits["id"].nunique()) == (1945, 312)
    assert visits.groupby("id")["status"].first().value_counts().to_dict() == {
        "alive": 143,
        "dead": 140,
        "transplanted": 29,
    }


def test_the_question_does_not_give_itself_away() -> None:
    visits, everything = pbc2(), pbc2_all()
    assert visits["year"].max() <= 2
    assert not {"years", "status", "status2"} & set(visits.columns)
    patients = visits.groupby("id")["died"].first()
    assert (len(patients), int(patients.sum())) == (205, 76)
    followed = everything.groupby("id")["years"].first()[patients.index]
    assert followed.min() > 2
    assert (followed[~patients] > 7).all()
