"""Tables in: three libraries, wide and long, every kind of time, and every way a table can be wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_sequences import same
from lapse import Sequences

LIBRARIES = {"pandas": lambda t: t, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}


@pytest.fixture(params=LIBRARIES)
def convert(request: pytest.FixtureRequest) -> Any:
    return LIBRARIES[request.param]


def vitals() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "patient": ["b", "a", "b", "a"],
            "hour": [2.0, 1.0, 1.0, 5.0],
            "pulse": [60.0, 70.0, np.nan, 80.0],
            "temp": [36, 37, 38, 39],
            "died": ["no", "yes", "no", "yes"],
            "age": [50, 60, 50, 60],
            "ward": [1, 2, 1, 2],
        }
    )


READ: dict[str, Any] = {"id": "patient", "time": "hour", "values": ["pulse", "temp"]}


def test_wide_table(convert: Any) -> None:
    s = Sequences.from_frame(convert(vitals()), **READ, target="died", static="age", group="ward", unit="h")
    assert s.ids is not None
    assert s.ids.tolist() == ["a", "b"]
    assert s.times.tolist() == [1, 5, 1, 2]
    assert s.values.tolist() == [[70, 37], [80, 39], [0, 38], [60, 36]]
    assert s.observed is not None
    assert s.observed.tolist() == [[True, True], [True, True], [False, True], [True, True]]
    assert s.classes == ("no", "yes")
    assert s.targets is not None
    assert s.targets.tolist() == [1, 0]
    assert s.static is not None
    assert s.static.tolist() == [[60], [50]]
    assert s.groups is not None
    assert s.groups.tolist() == [2, 1]
    assert (s.features, s.static_features, s.unit) == (("pulse", "temp"), ("age",), "h")


def test_all_libraries_and_their_nulls_agree() -> None:
    table = vitals().astype({"temp": "Int64"})
    table.loc[0, "temp"] = pd.NA
    first, *others = (Sequences.from_frame(c(table), **READ, target="died") for c in LIBRARIES.values())
    assert first.missing == 0.25
    for other in others:
        same(first, other)


def test_a_target_for_every_step(convert: Any) -> None:
    s = Sequences.from_frame(
        convert(vitals()), id="patient", time="hour", values="pulse", target="temp", per_step=True
    )
    assert s.per_step
    assert s.targets is not None
    assert s.targets.tolist() == [37, 39, 38, 36]


def test_several_targets_at_once(convert: Any) -> None:
    s = Sequences.from_frame(
        convert(vitals()), id="patient", time="hour", values="temp", target=["temp", "age"], per_step=True
    )
    assert s.targets is not None
    assert s.targets.tolist() == [[37, 60], [39, 60], [38, 50], [36, 50]]


def test_booleans_and_categories_are_classes(convert: Any) -> None:
    table = vitals().assign(died=[False, True, False, True], ward=pd.Categorical(list("xyxy")))
    assert Sequences.from_frame(convert(table), **READ, target="died").classes == (False, True)
    assert Sequences.from_frame(convert(table), **READ, target="ward").classes == ("x", "y")


def test_a_second_table_with_a_row_an_id(convert: Any) -> None:
    people = pd.DataFrame({"patient": ["b", "a"], "score": [0.5, 1.5], "height": [np.nan, 180.0]})
    s = Sequences.from_frame(
        convert(vitals()), **READ, target="score", static=["height"], per_id=convert(people)
    )
    assert s.targets is not None
    assert s.targets.tolist() == [1.5, 0.5]
    assert s.static_observed is not None
    assert s.static_observed.tolist() == [[True], [False]]


def test_equal_times_keep_the_order_of_the_table(convert: Any) -> None:
    table = pd.DataFrame({"i": [1, 0, 1, 0, 1], "t": [2, 1, 1, 1, 1], "x": [9, 1, 2, 3, 4]})
    s = Sequences.from_frame(convert(table), id="i", time="t", values="x")
    assert s.values.ravel().tolist() == [1, 3, 2, 4, 9]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99)), min_size=1, unique=True), st.integers(0, 99)
)
def test_shuffled_rows_give_the_same_sequences(keys: list[tuple[int, int]], seed: int) -> None:
    table = pd.DataFrame(keys, columns=["i", "t"])
    table["x"] = np.arange(len(table), dtype=float)
    table.loc[1:, "y"] = 1.0 * table["t"]
    table["y"] = table["y"].fillna(0.0) if table["y"].isna().all() else table["y"]
    shuffled = table.sample(frac=1, random_state=seed)
    read: dict[str, Any] = {"id": "i", "time": "t", "values": ["x", "y"], "target": "x", "per_step": True}
    same(Sequences.from_frame(table, **read), Sequences.from_frame(shuffled, **read))
    tall = table.melt(["i", "t"], ["x", "y"]).sample(frac=1, random_state=seed)
    named: dict[str, Any] = {"id": "i", "time": "t", "variable": "variable", "value": "value"}
    wide = Sequences.from_frame(table, id="i", time="t", values=["x", "y"])
    same(wide, Sequences.from_long(tall, **named))


# Words


def test_words_become_categories(convert: Any) -> None:
    table = vitals().assign(drug=["x", None, "y", "x"], sex=["m", "f", "m", "f"])
    s = Sequences.from_frame(convert(table), id="patient", time="hour", values=["temp", "drug"], static="sex")
    assert s.categories == {"drug": ("x", "y"), "sex": ("f", "m")}
    assert s.values.tolist() == [[37, 0], [39, 0], [38, 1], [36, 0]]
    assert s.observed is not None
    assert s.observed[:, 1].tolist() == [False, True, True, True]
    assert s.static is not None
    assert s.static.tolist() == [[0], [1]]


def test_categories_of_numbers_stay_categories() -> None:
    table = vitals().assign(ward=pd.Categorical([10, 2, 10, None]))
    s = Sequences.from_frame(table, id="patient", time="hour", values="ward")
    assert s.categories["ward"] == ("10", "2")


def test_words_in_a_second_table_and_on_disk(convert: Any, tmp_path: Path) -> None:
    people = pd.DataFrame({"patient": ["b", "a"], "sex": ["m", None]})
    s = Sequences.from_frame(convert(vitals()), **READ, static="sex", per_id=convert(people))
    s.save(tmp_path / "s")
    same(Sequences.load(tmp_path / "s"), s)
    assert s.categories == {"sex": ("m",)}
    assert s.static_observed is not None
    assert s.static_observed.tolist() == [[False], [True]]


def test_free_text_is_no_category(convert: Any) -> None:
    n = 101
    table = pd.DataFrame({"i": np.arange(n), "t": 0.0, "note": [f"note {i}" for i in range(n)]})
    with pytest.raises(ValueError, match=r"'note' holds 101 different words, expected at most 100"):
        Sequences.from_frame(convert(table), id="i", time="t", values="note")


def test_one_column_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="values names 'temp' twice"):
        Sequences.from_frame(vitals(), id="patient", time="hour", values=["temp", "temp"])


def test_a_record_that_lacks_a_feature_is_read(convert: Any) -> None:
    s = Sequences.from_frame(convert(vitals().assign(pulse=np.nan)), **READ)
    assert s.observed is not None
    assert not s.observed[:, 0].any()
    s = Sequences.from_long(convert(labs().assign(v=[1, None, None, 1, 1, 1])), **LONG)
    assert s.observed is not None
    assert not s.observed[:, s.features.index("Na")].any()


# Dates, durations, units


@pytest.mark.parametrize(("unit", "gap"), [("s", 5400.0), ("min", 90.0), ("h", 1.5), ("D", 0.0625)])
@pytest.mark.parametrize("resolution", ["s", "ms", "us", "ns"])
def test_dates_in_a_told_unit(convert: Any, unit: str, gap: float, resolution: str) -> None:
    dates = pd.to_datetime(["2024-03-01 12:00", "2024-03-01 13:30"]).astype(f"datetime64[{resolution}]")
    s = Sequences.from_frame(
        convert(pd.DataFrame({"i": [1, 1], "t": dates, "x": [1, 2]})), id="i", time="t", values="x", unit=unit
    )
    assert s.times.tolist() == [0, gap]
    assert s.origin is not None
    assert np.datetime64(s.origin) == np.datetime64("2024-03-01T12:00")


def test_time_zones_and_nanoseconds_are_exact(convert: Any) -> None:
    dates = pd.to_datetime([0, 1, 3]).tz_localize("UTC").tz_convert("Europe/Vienna")
    s = Sequences.from_frame(
        convert(pd.DataFrame({"i": [1, 1, 1], "t": dates, "x": 0.0})), id="i", time="t", values="x", unit="ns"
    )
    assert s.timespans.tolist() == [0, 1, 2]


def test_days_and_durations(convert: Any) -> None:
    table = pd.DataFrame({"i": [1, 1], "t": pd.to_timedelta(["1h", "3h"]), "x": [1, 2]})
    s = Sequences.from_frame(convert(table), id="i", time="t", values="x", unit="h")
    assert s.times.tolist() == [1, 3]
    days = pl.DataFrame({"i": [1, 1], "t": ["2024-02-28", "2024-03-01"], "x": [1, 2]}).with_columns(
        pl.col("t").str.to_date()
    )
    assert Sequences.from_frame(days, id="i", time="t", values="x", unit="D").times.tolist() == [0, 2]


def test_dates_without_a_unit_are_refused(convert: Any) -> None:
    table = pd.DataFrame({"i": [1], "t": pd.to_datetime(["2024-01-01"]), "x": [1]})
    with pytest.raises(ValueError, match=r"holds dates, so the unit of time must be told: got unit=None"):
        Sequences.from_frame(convert(table), id="i", time="t", values="x")
    with pytest.raises(ValueError, match=r"got unit='fortnight'"):
        Sequences.from_frame(convert(table), id="i", time="t", values="x", unit="fortnight")


def test_dates_that_are_all_missing() -> None:
    table = pd.DataFrame({"i": [1], "t": pd.to_datetime([None]), "x": [1]})
    with pytest.raises(ValueError, match=r"row 0 .* has time nan"):
        Sequences.from_frame(table, id="i", time="t", values="x", unit="h")


def test_numbers_in_a_column_of_objects() -> None:
    table = vitals().assign(pulse=np.array([1, None, 2.5, "3"], object))
    assert Sequences.from_frame(table, **READ).values[:, 0].tolist() == [0, 3, 2.5, 1]


def test_whole_numbers_too_large_for_a_float_are_refused() -> None:
    table = pd.DataFrame({"i": [1], "t": [633790226051280329], "x": [1]})
    with pytest.raises(ValueError, match="subtract a common start"):
        Sequences.from_frame(table, id="i", time="t", values="x")


# Long tables


def labs() -> pd.DataFrame:
    rows = [
        ("p", 0.0, "HR", 70.0),
        ("q", 1.0, "Na", 140.0),
        ("p", 0.0, "Na", 138.0),
        ("p", 2.0, "Urine", 50.0),
        ("p", 2.0, "HR", 75.0),
        ("p", 2.0, "Urine", 20.0),
    ]
    return pd.DataFrame(rows, columns=["stay", "h", "what", "v"])


LONG: dict[str, Any] = {"id": "stay", "time": "h", "variable": "what", "value": "v"}


def test_long_table(convert: Any) -> None:
    s = Sequences.from_long(convert(labs()), **LONG)
    assert s.features == ("HR", "Na", "Urine")
    assert s.times.tolist() == [0, 2, 2, 1]
    assert s.values.tolist() == [[70, 138, 0], [75, 0, 50], [0, 0, 20], [0, 140, 0]]
    assert s.observed is not None
    assert s.observed.sum() == len(labs())


def test_long_table_with_chosen_variables_and_outcomes(convert: Any) -> None:
    outcomes = pd.DataFrame({"stay": ["q", "p"], "died": [1, 0], "age": [30.0, 40.0]})
    s = Sequences.from_long(
        convert(labs()), **LONG, variables=["Urine", "Na", "HR"], target="died", static="age",
        per_id=convert(outcomes),
    )  # fmt: skip
    assert s.features == ("Urine", "Na", "HR")
    assert s.targets is not None
    assert s.targets.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"row 3 has variable 'Urine', expected one of \['HR', 'Na'\]"):
        Sequences.from_long(convert(labs()), **LONG, variables=["HR", "Na"])


# Every way a table can be wrong


def broken(**columns: Any) -> pd.DataFrame:
    return vitals().assign(**columns)


WRONG = {
    "missing column": (vitals().drop(columns="pulse"), "has no column 'pulse'; its columns are"),
    "misspelt column": (vitals().rename(columns={"pulse": "puls"}), "did you mean 'puls'?"),
    "text value": (
        broken(pulse=["60", "n/a", "1", "2"]),
        "column 'pulse' has 'n/a' in row 1, expected numbers",
    ),
    "infinite value": (broken(pulse=[1, 2, np.inf, 3]), "row 2 .id 'b'. has inf in 'pulse'"),
    "infinite time": (broken(hour=[1, np.inf, 2, 3]), "row 1 .id 'a'. has time inf, expected a finite time"),
    "no time": (broken(hour=[1, 2, 3, None]), "row 3 .id 'a'. has time nan"),
    "empty table": (vitals()[:0], "the table is empty"),
    "no id": (broken(patient=["a", None, "b", "b"]), "row 1 has no id"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_wide_table(convert: Any, case: str) -> None:
    table, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        Sequences.from_frame(convert(table), **READ)


WRONG_LONG = {
    "missing column": (labs().drop(columns="v"), "has no column 'v'"),
    "text value": (labs().assign(v=["1", "2", "low", "4", "5", "6"]), "'low' in row 2"),
    "no time": (labs().assign(h=[0, 1, None, 2, 2, 2]), "has time nan"),
    "no variable": (labs().assign(what=["HR", None, "Na", "HR", "Na", "Na"]), "row 1 names no variable"),
    "empty table": (labs()[:0], "the table is empty"),
    "words": (
        labs().assign(v=["low", "high", "low", "low", "low", "low"]),
        "'low' in row 0, expected numbers",
    ),
}


@pytest.mark.parametrize("case", WRONG_LONG)
def test_a_wrong_long_table(convert: Any, case: str) -> None:
    table, message = WRONG_LONG[case]
    with pytest.raises(ValueError, match=message):
        Sequences.from_long(convert(table), **LONG)


def test_wrong_targets_and_tables_of_ids(convert: Any) -> None:
    people = pd.DataFrame({"patient": ["b", "a", "c"], "score": [0.5, 1.5, 2.5]})

    def read(table: pd.DataFrame = vitals(), **options: Any) -> Sequences:  # noqa: B008 - read only
        return Sequences.from_frame(convert(table), **READ, **options)

    with pytest.raises(ValueError, match=r"id 'c' .row 2 of the table of ids. has no rows"):
        read(target="score", per_id=convert(people))
    with pytest.raises(ValueError, match="id 'b' is not in the table of ids"):
        read(target="score", per_id=convert(people[1:2]))
    with pytest.raises(ValueError, match="has id 'a' twice"):
        read(target="score", per_id=convert(people.assign(patient=["a", "b", "a"])))
    with pytest.raises(ValueError, match="the table of ids has no column 'scor'"):
        read(target="scor", per_id=convert(people[:2]))
    with pytest.raises(ValueError, match=r"column 'temp' changes within id 'b' .row 2.*per_step=True"):
        read(target="temp")
    with pytest.raises(ValueError, match="static feature 'age' of id 'a' is inf"):
        read(broken(age=[50, np.inf, 50, np.inf]), static="age")
    with pytest.raises(ValueError, match="id 'a' has no group"):
        read(broken(ward=["x", None, "x", None]), group="ward")


def test_weights_and_the_names_of_targets(convert: Any) -> None:
    def read(**columns: Any) -> Sequences:
        return Sequences.from_frame(convert(broken(**columns)), **READ, target=["age", "height"], weight="w")

    weighted = read(w=[2, 1, 2, 1], height=1.5)
    assert weighted.weights is not None
    assert weighted.weights.tolist() == [1, 2]
    assert weighted[[1]].batch([0]).weights.tolist() == [2]
    assert weighted.target_names == ("age", "height")
    with pytest.raises(ValueError, match="the weight of id 'b' is -2"):
        read(w=[-2, 1, -2, 1], height=1.5)
    with pytest.raises(ValueError, match="every weight is 0"):
        read(w=[0, 0, 0, 0], height=1.5)


def test_a_target_that_is_null_is_not_known(convert: Any) -> None:
    def targets(**columns: Any) -> list[Any]:
        read = Sequences.from_frame(convert(broken(**columns)), **READ, target=list(columns))
        assert read.targets is not None
        return [read.targets.tolist(), read.classes]

    nan = pytest.approx([np.nan, 0], nan_ok=True)
    assert targets(died=["no", None, "no", None]) == [nan, ("no",)]
    assert targets(died=[0, None, 0, None]) == [nan, None]
    assert targets(died=[0.0, np.nan, 0.0, np.nan]) == [nan, None]
    both = targets(died=[0, None, 0, None], age=[3.5, 1.5, 3.5, 1.5])
    assert both[0][0] == pytest.approx([np.nan, 1.5], nan_ok=True)
    assert both[0][1] == [0, 3.5]


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a pandas, polars or pyarrow table"):
        Sequences.from_frame([[1, 2]], **READ)
    with pytest.raises(TypeError, match="lazy frame must be collected"):
        Sequences.from_frame(pl.from_pandas(vitals()).lazy(), **READ)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_million_events_in_two_seconds_and_ten_times_the_memory(shuffled: bool) -> None:
    import time
    import tracemalloc

    n = 1_000_000
    random = np.random.default_rng(0)
    table = pd.DataFrame({"i": np.arange(n) // 100, "t": np.arange(n) % 100 * 0.5})
    table[["x", "y", "z"]] = random.normal(size=(n, 3))
    table = table.iloc[random.permutation(n)].reset_index(drop=True) if shuffled else table
    read: dict[str, Any] = {"id": "i", "time": "t", "values": ["x", "y", "z"]}
    started = time.process_time()  # what it costs, however busy the machine
    Sequences.from_frame(table, **read)
    assert time.process_time() - started < 2.0
    tracemalloc.start()
    Sequences.from_frame(table, **read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * table.memory_usage(deep=True).sum()
