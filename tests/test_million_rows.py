"""A large table: the same order as a plain sort, and no long wait before the first epoch or for the answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lapse import Sequences
from lapse.models.tabular import _percentiles

ROOT = Path(__file__).parents[1]


def script(*arguments: str) -> dict[str, float]:
    """The seconds of the processor that the benchmark prints, by name."""
    command = [sys.executable, "benchmarks/million_rows.py", *arguments]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        name: float(seconds)
        for name, seconds in re.findall(r"^(.*): [\d.]+ s, of the processor ([\d.]+) s$", shown.stdout, re.M)
    }


def test_more_ids_than_a_16_bit_number_and_equal_times_keep_the_order_of_the_table() -> None:
    random = np.random.default_rng(0)
    ids = random.permutation(np.concatenate([np.arange(70_000), random.integers(0, 70_000, 5_000)]))
    table = pd.DataFrame({"id": ids, "time": random.integers(0, 3, len(ids)), "row": np.arange(len(ids))})
    found = Sequences.from_frame(table, id="id", time="time", values="row")
    order = np.lexsort((table["time"], table["id"]))
    np.testing.assert_array_equal(found.values[:, 0], order)


def test_percentiles_are_those_of_numpy() -> None:
    table = np.random.default_rng(0).normal(size=(50, 4))
    table[::3, 1] = np.nan
    np.testing.assert_array_equal(_percentiles(table, (1, 99)), np.nanpercentile(table, (1, 99), axis=0))


def test_the_benchmark_runs() -> None:
    assert set(script("--rows", "9000", "--ids", "350")) == {"fit: first epoch", "predict"}


@pytest.mark.slow
def test_a_million_rows_wait_for_seconds() -> None:
    """Time of the processor, however busy the machine; about half of each bound where it was written."""
    found = script()
    assert found["fit: first epoch"] < 5
    assert found["predict"] < 10
