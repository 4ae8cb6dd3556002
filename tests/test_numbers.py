"""Numbers and dates at the edge of their types: kept exactly, or refused by name; never changed in silence."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lapse import Sequences

TABLES: dict[str, Callable[[Any], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
}
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a value beyond float32": ({"values": [[1.0, 1e39]]}, r"row 1 \(id 0\) has 1e\+39 in 'feature 0'"),
    "a value below float32": ({"values": [[-1e39, 1.0]]}, r"row 0 .* float32 can hold"),
    "a static beyond float32": ({"static": [[1e39]]}, "static feature 'static 0' of id 0"),
    "a target beyond float32": ({"targets": [1e39]}, r"target 0 is 1e\+39, expected a number that float32"),
    "a target beyond int64": ({"targets": np.array([2**63 + 5], np.uint64)}, "target 0 is 9223372036854775813"),
    "a gap beyond float32": ({"times": [[0.0, 1e39]]}, r"times span 1e\+39, more than float32 can hold"),
    "a gap beyond float64": ({"times": [[-1.7e308, 1.7e308]]}, "times span inf"),
    "a start before all time": ({"starts": [-np.inf]}, "sequence 0 starts at -inf"),
    "a start that is NaN": ({"starts": [np.nan]}, "sequence 0 starts at nan"),
    "a start too long ago": ({"starts": [-1e39]}, r"times span 1e\+39"),
    "complex values": ({"values": [[1j, 2.0]]}, "values of sequence 0: expected real numbers, got dtype complex128"),
    "complex times": ({"times": [[0, 1j]]}, "times of sequence 0: expected real numbers"),
    "complex static": ({"static": [[1j]]}, "static: expected real numbers"),
    "complex starts": ({"starts": [1j]}, "starts: expected real numbers"),
    "complex targets": ({"targets": [1j]}, "targets have dtype complex128"),
    "dates for values": ({"values": [np.array(["2020", "2021"], "datetime64[D]")]}, "expected real numbers"),
    "dates for times": ({"times": [np.array(["2020", "2021"], "datetime64[D]")]}, "expected real numbers"),
    "numbers beyond float64": ({"values": [np.array([10**400, 1], object)]}, "got int too large"),
    "words for values": ({"values": [["x", "y"]]}, "expected real numbers, got .*'x'"),
    "times that float64 rounds": ({"times": [[2**53, 2**53 + 1]]}, "times of sequence 0 has whole numbers up to"),
    "unsigned times that float64 rounds": (
        {"times": [np.array([2**63, 2**63 + 1], np.uint64)]},
        "whole numbers up to 9223372036854775809",
    ),
    "static without columns": ({"static": [1.0]}, r"static has shape \(1,\), expected \(S, K\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_whose_numbers_would_change_are_refused(case: str) -> None:
    arguments, message = REFUSED[case]
    usual: dict[str, Any] = {"values": [[1.0, 2.0]], "times": [[0.0, 1.0]]}
    with pytest.raises(ValueError, match=message):
        Sequences.from_arrays(**(usual | arguments))


def test_the_largest_numbers_are_kept() -> None:
    s = Sequences.from_arrays(
        [[LARGEST_FLOAT32, -LARGEST_FLOAT32]],
        [[0.0, LARGEST_FLOAT32]],
        targets=np.array([2**63 - 1], np.uint64),
    )
    assert s.values[:, 0].tolist() == [LARGEST_FLOAT32, -LARGEST_FLOAT32]
    assert s.timespans.tolist() == [0.0, LARGEST_FLOAT32]
    assert s.targets is not None
    assert s.targets.tolist() == [2**63 - 1]


def read(kind: str, **columns: Any) -> Sequences:
    table: dict[str, Any] = {"id": ["a", "a"], "time": [0.0, 1.0], "value": [1.0, 2.0], **columns}
    target = "target" if "target" in columns else None
    return Sequences.from_frame(
        TABLES[kind](table), id="id", time="time", values="value", target=target, unit="s"
    )


@pytest.mark.parametrize("kind", TABLES)
def test_tables_whose_numbers_would_change_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"row 1 \(id 'a'\) has 1e\+39 in 'value'"):
        read(kind, value=[1.0, 1e39])
    with pytest.raises(ValueError, match="target 0 is 18446744073709551615"):
        read(kind, target=np.array([2**64 - 1] * 2, np.uint64))
    with pytest.raises(ValueError, match="time column 'time' has whole numbers up to 18446744073709551615"):
        read(kind, time=np.array([0, 2**64 - 1], np.uint64))
    if kind != "pyarrow":  # which has no complex numbers
        with pytest.raises(ValueError, match=r"column 'value' has 1j in row 1, expected numbers"):
            read(kind, value=np.array([1, 1j]))


@pytest.mark.parametrize("kind", TABLES)
def test_large_whole_numbers_are_values_as_any_other(kind: str) -> None:
    assert read(kind, value=np.array([1, 2**64 - 1], np.uint64)).values[1, 0] == np.float32(2**64)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_durations_do_not_overflow(kind: str, unit: str) -> None:
    if kind == "polars" and unit == "s":
        pytest.skip("polars has no durations of whole seconds")
    seconds = 2**62 / {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1}[unit]
    s = read(kind, time=np.array([0, 2**62], f"timedelta64[{unit}]"))
    np.testing.assert_allclose(s.times, [0, seconds], rtol=1e-15)


@pytest.mark.parametrize("kind", TABLES)
def test_dates_further_apart_than_int64_nanoseconds(kind: str) -> None:
    s = read(kind, time=np.array(["1700-01-01", "2200-01-01"], "datetime64[ns]"))
    assert s.times.tolist() == [0.0, 182_621 * 86_400]


BERLIN = ["2024-01-01 00:30", "2024-01-01 12:00", "2024-01-02 00:30"]
# Midnight of the second day where the table comes from, in every way to say it.
MIDNIGHT: list[Any] = [
    "2024-01-02",
    np.datetime64("2024-01-02"),
    datetime.date(2024, 1, 2),
    datetime.datetime(2024, 1, 2),
    pd.Timestamp("2024-01-02"),
    pd.Timestamp("2024-01-02", tz="Europe/Berlin"),
    "2024-01-02T00:00+01:00",
    datetime.datetime(2024, 1, 1, 23, tzinfo=datetime.UTC),
]


def berlin(kind: str = "pandas") -> Sequences:
    local = pd.to_datetime(pd.Series(BERLIN)).dt.tz_localize("Europe/Berlin")
    table = pd.DataFrame({"id": "a", "time": local, "value": [1.0, 2.0, 3.0]})
    convert = {"pandas": lambda t: t, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}[kind]
    return Sequences.from_frame(convert(table), id="id", time="time", values="value", unit="h")


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("moment", MIDNIGHT, ids=repr)
def test_a_date_is_read_in_the_zone_of_the_table(kind: str, moment: Any) -> None:
    before, after = berlin(kind).cut_at(moment)
    assert (before.times.tolist(), after.times.tolist()) == ([0.0, 11.5], [24.0])


def test_the_zone_is_saved(tmp_path: Any) -> None:
    berlin().save(tmp_path / "s")
    again = Sequences.load(tmp_path / "s")
    assert again.zone == "Europe/Berlin"
    assert again.cut_at("2024-01-02")[1].times.tolist() == [24.0]


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        ("2024-03-31 02:30", "got '2024-03-31 02:30': 2024-03-31 02:30:00 is a nonexistent time"),
        ("2024-10-27 02:30", r"2024-10-27 02:30:00"),
        ("nonsense", "a boundary must be a date or a number, got 'nonsense'"),
        (None, "got None: it is no date at all"),
        (pd.NaT, "it is no date at all"),
        (True, "a boundary must be a date or a number, got True"),
        ([1], r"a boundary must be a date or a number, got \[1\]"),
        (np.nan, "a boundary must be a finite time, got nan"),
        (np.inf, "a boundary must be a finite time, got inf"),
    ],
    ids=repr,
)
def test_a_moment_that_never_was_is_refused(moment: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        berlin().cut_at(moment)


def test_a_zone_means_nothing_to_dates_without_one() -> None:
    s = read("pandas", time=pd.to_datetime(["2024-01-01", "2024-01-03"]))
    assert s.cut_at("2024-01-02")[0].num_events == 1
    with pytest.raises(ValueError, match="the dates of these sequences have no time zone"):
        s.cut_at("2024-01-02T00:00+01:00")


def test_dates_far_from_1970_can_be_cut() -> None:
    s = read("pandas", time=np.array(["0001-01-01", "9999-01-01"], "datetime64[us]"))
    assert s.cut_at("1066-10-14")[0].num_events == 1
