"""A user's table: reading it, the roles of its columns, what is odd about it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars
import pytest

from lapse import Sequences
from lapse.examples import pbc2, pbc2_all
from lapse.tables import Roles, RolesError, examine, guess, read_table
from lapse.tables.files import write_table
from lapse.tables.findings import facts, strength


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".feather", ".arrow"])
def test_every_kind_of_file_gives_the_same_table(tmp_path, ending):
    write_table(pbc2(), tmp_path / f"pbc2{ending}")
    pd.testing.assert_frame_equal(read_table(tmp_path / f"pbc2{ending}"), pbc2(), check_dtype=False)


def test_an_arrow_stream_and_a_compressed_file_are_read(tmp_path):
    polars.from_pandas(pbc2()).write_ipc_stream(tmp_path / "pbc2.arrow")
    pbc2().to_csv(tmp_path / "pbc2.csv.gz", index=False)
    assert (
        len(read_table(tmp_path / "pbc2.arrow")) == len(read_table(tmp_path / "pbc2.csv.gz")) == len(pbc2())
    )


@pytest.mark.parametrize(
    "form", [{"sep": ";"}, {"sep": ";", "decimal": ","}, {"sep": "|"}, {"sep": "\t", "decimal": ","}]
)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_other_separators_and_decimal_commas_are_seen(tmp_path, form, ending):
    pbc2().to_csv(tmp_path / f"pbc2{ending}", index=False, **form)
    pd.testing.assert_frame_equal(read_table(tmp_path / f"pbc2{ending}"), pbc2(), check_dtype=False)


def test_a_point_among_semicolons_is_a_decimal_point(tmp_path):
    (tmp_path / "a.csv").write_text("id;note;x\n1;high, low;2.5\n2;3,four;1.5\n")
    assert read_table(tmp_path / "a.csv")["x"].tolist() == [2.5, 1.5]


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "latin.csv").write_bytes("id,Temp °C\n1,2\n".encode("latin-1"))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("x")
    (tmp_path / "empty.csv").write_text("a,b\n")
    for name, reason in (
        ("notes.txt", "no known kind"),
        ("broken.parquet", "cannot be read"),
        ("empty.csv", "no rows"),
        ("latin.csv", "save it in UTF-8"),
    ):
        with pytest.raises(ValueError, match=rf"{name}.*{reason}"):
            read_table(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="no known kind"):
        write_table(pbc2(), tmp_path / "out.xlsx")


def test_roles_of_the_example_are_guessed():
    roles = guess(pbc2())
    assert (roles.id, roles.time, roles.target) == ("id", "year", ("died",))
    assert roles.static == ("drug", "age", "sex")
    assert "serBilir" in roles.values
    assert not roles.unused
    assert len(roles.sequences(pbc2())) == 205


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        ({"id": "Patient ID", "year": "Time (h)"}, "h"),
        ({"id": "PatientID", "year": "Time [days]"}, "D"),
        ({"id": "pump-id", "year": "time"}, None),
        ({"id": "cell serial", "year": "Hours"}, "h"),
    ],
)
def test_names_are_known_in_other_spellings(names, unit):
    roles = guess(pbc2().rename(columns=names))
    assert (roles.id, roles.time, roles.unit) == (*names.values(), unit)


def test_of_two_names_that_may_be_ids_none_is_guessed():
    table = pbc2().rename(columns={"id": "pump-id"}).assign(**{"site-id": 1})
    with pytest.raises(RolesError, match="which column is the id"):
        guess(table)


def test_everything_that_is_not_known_is_asked_for_at_once():
    with pytest.raises(
        RolesError, match=r"the id, and which the time, and which the target\?.*--id and --time"
    ):
        guess(pbc2().rename(columns={"id": "a", "year": "b", "died": "c"}))


def test_another_table_must_have_ids_and_times():
    with pytest.raises(RolesError, match="no column 'year'; did you mean 'years'"):
        guess(pbc2()).sequences(pbc2().rename(columns={"year": "years"}))


def test_words_among_numbers_are_named_and_make_no_free_text():
    albumin = pbc2()["albumin"].astype(str) + np.arange(631).astype(
        str
    )  # more values than a category may have
    albumin[3] = "-"
    table = pbc2().assign(albumin=albumin)
    with pytest.raises(ValueError, match="'albumin' has '-' in row 3, expected numbers"):
        guess(table).sequences(table)


def test_row_numbers_free_text_and_empty_columns_take_no_part():
    table = pbc2().assign(
        row=range(631),
        note=[f"visit {i}" for i in range(631)],
        gone=np.nan,
        site="A",
        year2=pd.Timestamp("2024-01-01"),
    )
    assert set(guess(table).unused) == {"row", "note", "gone", "site", "year2"}


def test_an_ignored_column_takes_no_part_and_has_no_role():
    roles = guess(pbc2(), {"ignore": ("drug", "serBilir")})
    assert roles.static == ("age", "sex")
    assert "serBilir" not in roles.values
    assert dict(roles.unused) == {"drug": "ignored", "serBilir": "ignored"}
    with pytest.raises(RolesError, match="'drug' is to be ignored"):
        guess(pbc2(), {"ignore": ("drug",), "static": ("drug",)})
    with pytest.raises(RolesError, match=r"no column 'drugs'; did you mean 'drug'\?"):
        guess(pbc2(), {"ignore": ("drugs",)})


def test_what_is_told_is_not_overruled():
    roles = guess(pbc2(), {"values": ("albumin", "age"), "static": ("sex",), "target": ("histologic",)})
    assert roles.values == ("albumin", "age")
    assert roles.static == ("sex",)
    assert roles.target == ("histologic",)
    assert roles.per_step  # it changes within a patient
    assert set(roles.unused.values()) == {"not named"}


def long_table():
    return pd.DataFrame(
        {
            "stay": [1, 1, 1, 2, 2],
            "hour": [0, 0, 2, 1, 3],
            "name": ["hr", "bp", "hr", "hr", "bp"],
            "value": [80, 120, 90, 70, 110],
            "age": [50, 50, 50, 60, 60],
            "died": [0, 0, 0, 1, 1],
        }
    )


@pytest.mark.parametrize("told", [{}, {"long": True}, {"variable": "name", "value": "value"}])
def test_a_long_table_is_seen(told):
    roles = guess(long_table(), told)
    assert (roles.variable, roles.value, roles.static, roles.unit) == ("name", "value", ("age",), "h")
    sequences = roles.sequences(long_table())
    assert sequences.features == ("bp", "hr")
    assert sequences.targets.tolist() == [0, 1]


def test_dates_in_text_are_dates_and_get_a_unit():
    days = pd.date_range("2024-01-01", periods=6, freq="36h").astype(str)
    table = pd.DataFrame({"who": [1, 1, 1, 2, 2, 2], "date": days, "x": range(3, 9), "y": [0, 0, 0, 1, 1, 1]})
    roles = guess(table)
    assert roles.unit == "D"
    assert roles.sequences(table).gaps.tolist() == [1.5] * 4
    assert guess(table.iloc[[0, 2, 1, 5, 3, 4]]).unit == "D"  # whatever the order of the rows
    with pytest.raises(RolesError, match="'soon', expected numbers, or dates"):
        guess(table.assign(date="soon"))


@pytest.mark.parametrize(
    ("change", "told", "message"),
    [
        (lambda t: t.rename(columns={"id": "a", "year": "b"}), {}, "which column is the id"),
        (lambda t: t.rename(columns={"year": "b"}), {}, "which column is the time"),
        (lambda t: t.rename(columns={"died": "b"}), {}, "which column is the target"),
        (lambda t: t, {"target": ("dyed",)}, "no column 'dyed'; did you mean 'died'"),
        (lambda t: t, {"unit": "fortnight"}, "unit of time must be one of"),
        (lambda t: t[["id", "year", "died"]], {}, "no column is left for the values"),
    ],
)
def test_roles_that_cannot_be_told_are_asked_for(change, told, message):
    with pytest.raises(RolesError, match=message):
        guess(change(pbc2()), told)


def test_roles_are_stored(tmp_path):
    roles = guess(pbc2())
    roles.save(tmp_path / "table.json")
    assert Roles.load(tmp_path / "table.json") == roles
    with pytest.raises(ValueError, match="not fitted to a file"):
        Roles.load(tmp_path / "other.json")


def grave(table, **told):
    return [f.text for f in examine(guess(table, told).sequences(table)) if f.grave]


@pytest.mark.parametrize(("column", "number"), [("albumin", -999.0), ("age", 999.0), ("platelets", -1e6)])
def test_a_number_that_stands_for_missing_is_named(column, number):
    patients = pbc2()["id"] % 10 == 0
    table = pbc2().assign(**{column: pbc2()[column].where(~patients, number)})
    found = [f.text for f in examine(guess(table).sequences(table))]
    assert any(f"column {column!r} is {number:g} in" in text for text in found)


def test_words_that_differ_in_capitals_or_spaces_are_named():
    table = pbc2()
    told = [finding.text for finding in examine(guess(table).sequences(table))]
    assert not any("capitals" in text for text in told)
    table["mode"] = np.resize(["Normal", "normal ", "boost"], len(table))
    told = [finding.text for finding in examine(guess(table).sequences(table))]
    assert any("'mode'" in text and "'Normal' and 'normal '" in text for text in told), told


def test_the_example_holds_no_such_number():
    assert examine(guess(pbc2()).sequences(pbc2())) == []


def test_the_honest_question_has_no_leak():
    assert grave(pbc2()) == []


def test_columns_that_give_the_target_away_are_named():
    told = {"target": ("status2",)}
    found = grave(pbc2_all(), **told)
    assert any("'status' alone ranks the target" in text for text in found)
    assert any("'years' looks like the length of the follow-up" in text for text in found)
    numbers = pbc2().assign(code=lambda t: 100.0 * t["died"] + np.random.default_rng(0).random(len(t)))
    assert any("'code'" in text for text in grave(numbers))
    presence = pbc2().assign(autopsy=lambda t: np.where(t["died"], 1.0, np.nan))
    assert any("'autopsy'" in text for text in grave(presence))


def test_a_follow_up_that_the_outcome_ends_is_named():
    def ended(visits):
        return visits[~visits["died"] | (visits["year"] < 0.3)]

    texts = grave(ended(pbc2()))
    assert any("did the outcome end the follow-up" in text for text in texts)
    milder = examine(guess(pbc2_all(), {"target": ("status2",)}).sequences(pbc2_all()))
    assert any("follow-up" in f.text for f in milder if not f.grave)


def test_other_oddities_are_told():
    visits = pbc2()
    few = visits[visits["id"].isin(visits["id"].unique()[:40])].copy()
    few.loc[few.index[1:], "serChol"] = np.nan
    few.loc[few.index[0], "serChol"] = 200.0
    few = pd.concat([few, few.iloc[-1:]])
    rare = few.assign(died=few["id"] == few["id"].iloc[0])
    text = " ".join(f.text for f in examine(guess(rare).sequences(rare)))
    for expected in ("are few", "seldom observed", "exact copies", "is rare"):
        assert expected in text, expected


def test_strength_of_numbers_words_and_nothing():
    random = np.random.default_rng(0)
    x = random.normal(size=200)
    assert strength(x, np.exp(x)) == pytest.approx(1.0)
    assert strength(random.normal(size=200), x) < 0.6
    words = np.repeat([0.0, 1.0, 2.0, 3.0], 50)
    labels = np.repeat([0, 1, 0, 1], 50)
    assert strength(words, labels, words=True) == 1.0
    assert strength(words, labels) < 0.8
    assert strength(np.ones(200), labels) == 0.5


def test_facts_say_what_the_data_are():
    text = dict(facts(guess(pbc2()).sequences(pbc2())))
    assert text["sequences"] == "205"
    assert text["target"] == "False 62.9%, True 37.1%"
    regression = guess(pbc2(), {"target": ("age",)})
    assert "numbers, median" in dict(facts(regression.sequences(pbc2())))["target"]


@pytest.mark.parametrize(
    "dates", [["2024-02-08 04:29", "2024-02-09"], ["08.02.2024 04:29", "09.02.2024 00:00"]]
)
def test_the_only_column_of_dates_in_text_is_the_time_whatever_its_name(dates):
    table = pd.DataFrame(
        {"patient": [1, 1, 2, 2], "visit": dates * 2, "pulse": [60, 61, 62, 63], "y": [0, 0, 1, 1]}
    )
    roles = guess(table)
    assert roles.time == "visit"
    assert roles.sequences(table).origin[:16] == "2024-02-08T04:29"


def test_dates_that_could_be_read_in_two_ways_are_refused():
    table = pd.DataFrame({"id": [1, 1], "time": ["05/01/2024", "06/01/2024"], "pulse": [60, 61], "y": [0, 0]})
    with pytest.raises(RolesError, match="nobody can tell the day from the month"):
        guess(table)


def test_numbers_in_text_are_no_dates():
    table = pd.DataFrame({"id": [1, 1], "code": ["2020", "x"], "pulse": [60, 61], "y": [0, 0]})
    with pytest.raises(RolesError, match="which column is the time"):
        guess(table)


def test_what_chance_can_do_is_no_finding():
    random = np.random.default_rng(3)
    lengths, labels = random.integers(2, 9, 100), random.permutation(np.arange(100) % 2)
    values, times = [np.zeros((n, 1)) for n in lengths], [np.sort(random.uniform(0, 30, n)) for n in lengths]
    found = examine(Sequences.from_arrays(values, times, targets=labels))
    assert not any("follow-up" in finding.text for finding in found)
    told = examine(Sequences.from_arrays(values, times, targets=(lengths > 5).astype(int)))
    assert any("follow-up" in finding.text for finding in told)
