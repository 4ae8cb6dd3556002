"""Random tables and damaged files: every one is read right or refused with a ValueError that names it.

pytest tries a few of each; `make fuzz SECONDS=60` goes on for as long as it is told.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import sys
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_sequences import ragged, same
from lapse import Sequences
from lapse.runs import Result, RunConfig, UnreadableResult
from lapse.study.plan import BadPlan, Plan
from lapse.tasks import DataFileError, files

SCALARS: dict[str, Any] = {
    "small numbers": st.floats(-1e3, 1e3),
    "any numbers": st.floats(allow_nan=True, allow_infinity=True),
    "whole numbers": st.integers(-(2**63), 2**63 - 1),
    "few whole numbers": st.integers(0, 3),
    "booleans": st.booleans(),
    "words": st.text(max_size=3),
    "numbers as words": st.sampled_from(["1", "2.5", "-3e2", "n/a"]),
    "dates": st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    "durations": st.timedeltas(datetime.timedelta(-1000), datetime.timedelta(1000)),
    "anything": st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=2),
}
LIBRARIES = {"pandas": pd.DataFrame, "polars": lambda d: pl.DataFrame(d, strict=False), "pyarrow": pa.table}


@st.composite
def columns(draw: st.DrawFn, rows: int) -> list[Any]:
    """A column of one kind, some of it missing."""
    kind = draw(st.sampled_from(sorted(SCALARS)))
    values = st.one_of(SCALARS[kind], st.none()) if draw(st.booleans()) else SCALARS[kind]
    return draw(st.lists(values, min_size=rows, max_size=rows))


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    rows = draw(st.integers(0, 6))
    sane = {
        "id": st.lists(st.sampled_from(["a", "b", "c"]), min_size=rows, max_size=rows),
        "time": st.lists(st.floats(-100, 100), min_size=rows, max_size=rows),
        "x": st.lists(st.floats(-9, 9), min_size=rows, max_size=rows),
        "y": st.lists(st.integers(0, 2), min_size=rows, max_size=rows),
    }
    odd = draw(st.sets(st.sampled_from(sorted(sane)), max_size=2))
    return {name: draw(columns(rows)) if name in odd else draw(usual) for name, usual in sane.items()}


def unless_refused(call: Callable[[], Any], kinds: Any = ValueError, naming: object = "") -> Any:
    """What the call gives; None if it was refused with words that name the file, which is as good."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is neither
        try:
            return call()
        except kinds as error:
            if not str(error) or str(naming) not in str(error):
                raise AssertionError(f"{error!r} does not name {naming}") from error
    return None


def check_sound(s: Sequences) -> None:
    assert np.isfinite(s.values).all()
    assert np.isfinite(s.times).all()
    assert np.isfinite(s.timespans).all()
    assert (s.timespans >= 0).all()
    assert (s.lengths >= 1).all()
    assert s.offsets[0] == 0
    assert s.offsets[-1] == len(s.times) == len(s.values)
    assert s.values.dtype == np.float32


@given(tables(), st.sampled_from(sorted(LIBRARIES)), st.sampled_from([None, "y"]), st.booleans())
def test_a_wide_table(table: dict[str, Any], library: str, target: str | None, per_step: bool) -> None:
    try:
        frame = LIBRARIES[library](table)
    except (TypeError, ValueError, OverflowError, pa.ArrowException, pl.exceptions.PolarsError):
        return  # the library itself takes no such column
    s = unless_refused(
        lambda: Sequences.from_frame(
            frame, id="id", time="time", values=["x"], target=target, per_step=per_step, unit="s"
        )
    )
    if s is not None:
        check_sound(s)
        assert s.num_events == len(table["id"])


@given(tables(), st.sampled_from(sorted(LIBRARIES)))
def test_a_long_table(table: dict[str, Any], library: str) -> None:
    try:
        frame = LIBRARIES[library](table)
    except (TypeError, ValueError, OverflowError, pa.ArrowException, pl.exceptions.PolarsError):
        return
    s = unless_refused(
        lambda: Sequences.from_long(frame, id="id", time="time", variable="y", value="x", unit="s")
    )
    if s is not None:
        check_sound(s)
        known = sum(1 for value in table["x"] if value is not None and not math.isnan(float(value)))
        seen = s.values.size if s.observed is None else int(s.observed.sum())
        assert seen == known


@given(st.data())
def test_lists_of_arrays(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 4), max_size=3))
    kind = SCALARS[data.draw(st.sampled_from(sorted(SCALARS)))]
    values = [data.draw(st.lists(kind, min_size=n, max_size=n)) for n in lengths]
    times = [data.draw(st.lists(st.floats(), min_size=n, max_size=n)) for n in lengths]
    s = unless_refused(lambda: Sequences.from_arrays(values, times))
    if s is not None:
        check_sound(s)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99), st.sampled_from([0.0, 0.5]))
def test_what_is_saved_comes_back(lengths: list[int], seed: int, missing: float) -> None:
    s = ragged(lengths, seed=seed, missing=missing)
    with TemporaryDirectory() as folder:
        s.save(Path(folder, "s"))
        same(Sequences.load(Path(folder, "s")), s)


@cache
def stored_sequences() -> bytes:
    with TemporaryDirectory() as folder:
        ragged([3, 1, 4], missing=0.3).save(Path(folder, "s"))
        return Path(folder, "s").read_bytes()


@cache
def stored_result() -> bytes:
    values = {
        "config": RunConfig("mini-digits", "lstm").as_dict(),
        "test": {"loss": 0.5, "accuracy": 90.0},
        "validation": {"loss": 0.5, "accuracy": 90.0},
        "best_epoch": 1,
        "epochs": 2,
        "parameters": 3,
        "seconds_per_epoch": 0.5,
        "events_per_second": 1e4,
    }
    return json.dumps(values).encode()


@cache
def archives() -> dict[str, bytes]:
    packed, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar, zipfile.ZipFile(zipped, "w") as archive:
        for name in ("a.txt", "folder/b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 300
            tar.addfile(info, io.BytesIO(bytes(300)))
            archive.writestr(name, bytes(300))
    return {"x.tar.gz": packed.getvalue(), "x.zip": zipped.getvalue()}


PLAN = b"""preset = "default"
[settings]
"train.epochs" = 3
[[grids]]
tasks = ["mini-digits"]
models = ["lstm", "gru-d"]
seeds = 2
settings = { "lstm:hidden_size" = 4 }
"""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with pieces changed, removed, repeated or put in; or something else altogether."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(changed)))
        end = min(len(changed), place + draw(st.integers(0, 30)))
        piece = draw(st.one_of(st.binary(max_size=8), st.just(bytes(changed[place:end])), st.just(b"")))
        changed[place : draw(st.sampled_from([place, end]))] = piece
    return bytes(changed)


@given(st.data())
def test_a_damaged_file_of_sequences(data: st.DataObject) -> None:
    content = data.draw(damaged(stored_sequences()))
    with TemporaryDirectory() as folder:
        path = Path(folder, "s")
        path.write_bytes(content)
        # Without verification, changed numbers may pass.
        unless_refused(lambda: Sequences.load(path, verify=False), naming=path)
        if unless_refused(lambda: Sequences.load(path), naming=path) is not None:
            assert content == stored_sequences()


@given(st.data())
def test_a_damaged_result(data: st.DataObject) -> None:
    content = data.draw(damaged(stored_result()))
    unless_refused(lambda: Result.parse(content), UnreadableResult, "result.json")


@given(st.data(), st.sampled_from(["x.tar.gz", "x.zip"]))
def test_a_damaged_archive(data: st.DataObject, name: str) -> None:
    content = data.draw(damaged(archives()[name]))
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        unless_refused(lambda: files._members(path), DataFileError, path)


@given(st.data())
def test_a_damaged_plan(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "plan.toml")
        path.write_bytes(data.draw(damaged(PLAN)))
        unless_refused(lambda: Plan.read(path), BadPlan, path)


def main(seconds: float) -> None:
    """Try random cases of every kind until the time is over."""
    many = settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    tests = [many(test) for name, test in globals().items() if name.startswith("test_")]
    end, tried = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for test in tests:
            test()
            tried += 200
        print(f"{tried} tried, 0 failed", file=sys.stderr)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
