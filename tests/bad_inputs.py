"""What does not belong into an argument, by the kind of argument: one table of named bad inputs for each kind."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lapse.rows import Rows

NAN, INF, HUGE = float("nan"), float("inf"), 2**70
ROWS, STEPS, FEATURES, UNITS = 2, 3, 2, 4  # of the inputs of layers
# Good arguments for two sequences; what is bad is made from them.
VALUES = [np.arange(3.0), np.arange(2.0)]
TIMES = [np.array([0.0, 1.0, 3.0]), np.array([5.0, 6.0])]
TABLE = {
    "who": ["a", "a", "b", "b"],
    "at": [0.0, 1.0, 0.0, 2.0],
    "x": [1.0, 2.0, 3.0, 4.0],
    "y": [0, 0, 1, 1],
}


def floats(*shape: int) -> Tensor:
    return torch.linspace(0.1, 1.0, int(np.prod(shape))).reshape(shape)


def holding(value: float, *shape: int) -> Tensor:
    """Usual numbers with one that is not."""
    tensor = floats(*shape).double()
    tensor.view(-1)[-1] = value
    return tensor.float()


def packed(data: Tensor, *sizes: int) -> PackedSequence:
    return PackedSequence(data, torch.tensor(sizes))


def no_tensors(*shape: int) -> dict[str, Any]:
    """What is no tensor of this shape."""
    return {
        "a list": floats(*shape).tolist(),
        "an array": floats(*shape).numpy(),
        "a word": "x",
        "a number": 1.5,
        "an axis more": floats(*shape, 1),
        "an axis less": floats(*shape[1:]),
        "another size": floats(*shape[:-1], shape[-1] + 1),
        "no rows": floats(0, *shape[1:]),
    }


def other_types(*shape: int) -> dict[str, Any]:
    """What is not of float32 on the processor."""
    dtypes = (torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)
    return {str(dtype): torch.ones(shape, dtype=dtype) for dtype in dtypes} | {
        "meta": torch.ones(shape, device="meta")
    }


def tensors(*shape: int, **numbers: float) -> dict[str, Any]:
    """What is no finite float32 tensor of this shape on the processor."""
    strange = {"nan": NAN, "inf": INF, "1e39": 1e39, **numbers}
    return (
        no_tensors(*shape) | other_types(*shape) | {name: holding(n, *shape) for name, n in strange.items()}
    )


def no_arrays(good: list[Any]) -> dict[str, Any]:
    """What is no list of arrays of finite numbers, one per sequence."""
    first, rest = good[0], good[1:]
    return {
        "none": None,
        "a number": 3,
        "a word": "x",
        "none inside": [None, *rest],
        "a row less": rest,
        "a row more": [first, *good],
        "a step less": [first[:-1], *rest],
        "a step more": [np.concatenate([first, first[:1]]), *rest],
        "two axes more": [first[..., None, None], *rest],
        "words": [np.full(first.shape, "x"), *rest],
        "objects": [np.full(first.shape, object(), object), *rest],
        "complex": [first + 0j, *rest],
        "dates": [first.astype("M8[s]"), *rest],
        "inf": [np.full(first.shape, INF), *rest],
        "1e308": [np.linspace(0.0, 1e308, first.size).reshape(first.shape), *rest],
        "on no device": [torch.zeros(first.shape, device="meta"), *rest],
    }


def without(bad: dict[str, Any], *names: str) -> dict[str, Any]:
    """A table without what is good after all."""
    assert set(names) <= set(bad)
    return {name: value for name, value in bad.items() if name not in names}


# fmt: off
NO_NUMBER = {"none": None, "a word": "x", "complex": 1j, "a list": [1.0], "nan": NAN, "inf": INF, "truth": True}
COUNT = NO_NUMBER | {"zero": 0, "negative": -1, "fraction": 1.5}
SHARE = NO_NUMBER | {"one": 1.0, "negative": -0.1}
CHOICE = {"none": None, "a number": 3, "empty": "", "unknown": "nothing", "a list": ["lstm"]}
FILE = {"none": None, "a number": 3, "missing": Path("nowhere"), "a folder": Path("folder"), "empty": Path("empty"),
        "of something else": Path("other")}
NEW = {"none": None, "a number": 3, "below a file": Path("other/x"), "not writable": Path("/proc/x")}
COLUMN = {"none": None, "a number": 3, "empty": "", "unknown": "xx", "a list": ["x", "z"]}
LENGTHS = {
    "zero": [3, 0], "negative": [3, -1], "fractions": [3.0, 2.0], "truths": [True, True], "words": ["3", "2"],
    "none inside": [3, None], "an axis more": [[3, 2]], "a number": 3, "a word": "x", "huge": [3, HUGE], "nan": [3,
    NAN],
    "complex": torch.tensor([3, 2], dtype=torch.complex64), "meta": torch.tensor([3, 2], device="meta"),
    "objects": [object(), 3],
}
WIDTH = without(NO_NUMBER, "none") | {
    "zero": 0, "negative": -1.0, "too fine": 1e-300, "no unit": "1", "no such unit": "1y", "negative hours": "-1h",
}
SEQUENCES = {
    "none": None, "a number": 3, "a word": "x", "a table": pd.DataFrame(TABLE), "an array": np.zeros((2, 3)),
    "a list": VALUES, "a tensor": floats(2, 3),
}
Y = {
    "a number": 3, "a word": "x", "a row less": [0, 1] * 3, "a row more": [0, 1] * 5, "inf": [INF, 1.0] * 4,
    "complex": [1j, 0] * 4, "none inside": [None, 1] * 4, "objects": [object()] * 8, "ragged": [[1], [1, 2]] * 4,
}

BAD: dict[str, dict[str, Any]] = {
    "count": COUNT,
    "seed": without(COUNT, "zero"),
    "share": SHARE,
    "share above 0": SHARE | {"zero": 0.0},
    "positive": NO_NUMBER | {"zero": 0.0, "negative": -1.0},
    "number": NO_NUMBER,
    "flag": {"none": None, "a word": "False", "zero": 0, "a list": [True]},
    "choice": CHOICE,
    "name": CHOICE | {
        "nowhere": "nowhere.module:Name", "no such name": "lapse:nothing", "of another kind": "lapse:Rows",
    },
    "names": {"a number": 3, "numbers": [1, 2], "twice": ["x", "x"], "none inside": [None, "x"]},
    "unit": {"a number": 3, "a list": ["h"]},
    "time unit": without(NO_NUMBER, "none") | {"zero": 0, "negative": -1.0},
    # Layers and solvers.
    "input": tensors(ROWS, STEPS, FEATURES) | {
        "none": None, "no steps": floats(ROWS, 0, FEATURES), "packed too short": packed(floats(2, FEATURES), 2, 1),
        "packed and growing": packed(floats(3, FEATURES), 1, 2), "packed and empty": packed(floats(0, FEATURES), 0),
    },
    "gaps": tensors(ROWS, STEPS, negative=-1.0) | {
        "steps first": floats(STEPS, ROWS), "packed otherwise": packed(floats(3), 2, 1),
    },
    "mask": tensors(ROWS, STEPS, FEATURES, two=2.0),
    "state": no_tensors(1, ROWS, UNITS) | other_types(1, ROWS, UNITS) | {
        "nothing": (), "too many": (floats(1, ROWS, UNITS),) * 9,
    },
    "lengths": LENGTHS | {"too long": [3, 4], "a row less": [3], "a row more": [3, 2, 1]},
    "flat lengths": LENGTHS,
    "y0": without(no_tensors(ROWS, UNITS), "another size"),
    "spans": no_tensors(ROWS),
    # Sequences.
    "values": no_arrays([v[:, None] for v in VALUES]) | {
        "empty": [], "no events": [np.zeros((0, 1)), VALUES[1][:, None]], "a feature more": [VALUES[0], np.zeros((2,
        2))],
        "in need of a gradient": [torch.arange(3.0, requires_grad=True), VALUES[1]],
    },
    "times": no_arrays(TIMES) | {
        "nan": [np.array([0.0, NAN, 1.0]), TIMES[1]], "huge": [np.array([0, 1, 2**60]), TIMES[1]],
        "beyond int64": [np.array([0, 1, 2**64 - 1], np.uint64), TIMES[1]],
    },
    "targets": {
        "a number": 3, "a word": "x", "a row less": [1], "a row more": [1, 2, 3], "words": ["a", "b"],
        "complex": [1j, 2j], "objects": [object(), object()], "none inside": [None, 1.0], "inf": [INF, 0.0],
        "1e39": [1e39, 0.0], "beyond int64": np.array([2**64 - 1, 0], np.uint64), "huge": [HUGE, 0],
        "dates": np.array([0, 1], "M8[s]"), "ragged": [[1.0, 2.0], [1.0]],
    },
    "step targets": {
        "none": None, "a number": 3, "one per row": [0, 1], "a row less": [[0, 1, 0]], "a step less": [[0, 1], [0, 1]],
        "a step more": [[0, 1, 0, 1], [0, 1]], "words": [["a"] * 3, ["b"] * 2], "complex": [[1j] * 3, [1j] * 2],
        "1e39": [[1e39] * 3, [0.0] * 2], "of other widths": [np.zeros((3, 1)), np.zeros((2, 2))],
    },
    "static": {
        "a number": 3, "a word": "x", "one axis": [1.0, 2.0], "three axes": np.zeros((2, 1, 1)), "a row less": [[1.0]],
        "a row more": [[1.0]] * 3, "words": [["a"], ["b"]], "complex": [[1j], [1j]], "inf": [[INF], [0.0]],
        "1e39": [[1e39], [0.0]], "ragged": [[1.0], [1.0, 2.0]], "objects": [[object()], [object()]],
    },
    "starts": {
        "a number": 0.0, "a word": "x", "a row less": [0.0], "a row more": [0.0] * 3, "nan": [NAN, 0.0],
        "-inf": [-INF, 0.0], "after the first event": [0.5, 0.0], "complex": [0j, 0j], "words": ["a", "b"],
        "dates": np.array([0, 0], "M8[s]"), "an axis more": [[0.0], [0.0]], "too long ago": [-1e39, 0.0],
    },
    "labels of sequences": {
        "a number": 3, "a row less": ["a"], "a row more": ["a", "b", "c"], "ragged": [["a"], ["a", "b"]],
        "none inside": ["a", None], "nan": [1.0, NAN], "an axis more": [["a"], ["b"]],
    },
    "weights": {
        "a number": 3, "a word": "x", "a row less": [1.0], "a row more": [1.0] * 3, "nan": [NAN, 1.0], "inf": [INF,
        1.0],
        "negative": [-1.0, 1.0], "all zero": [0.0, 0.0], "complex": [1j, 1.0], "words": ["a", "b"],
        "an axis more": [[1.0], [1.0]], "1e39": [1e39, 1.0],
    },
    "table": {
        "none": None, "a number": 3, "a word": "x.csv", "a dictionary": TABLE, "a list": [TABLE],
        "an array": np.zeros((4, 4)), "a column": pd.Series([1.0]), "lazy": pl.LazyFrame(TABLE),
        "without rows": pd.DataFrame(TABLE).head(0), "without columns": pd.DataFrame(),
    },
    "column": COLUMN,
    "optional column": without(COLUMN, "none", "empty"),
    "columns": {
        "none": None, "a number": 3, "empty": [], "unknown": "xx", "one unknown": ["x", "z"], "none inside": ["x",
        None],
        "twice": ["x", "x"],
    },
    "positions": {
        "none": None, "a word": "x", "fractions": [0.0, 1.0], "truths": [True, False], "beyond": [99], "before": [-99],
        "two axes": [[0, 1]], "objects": [object()], "complex": [1j], "huge": [HUGE],
    },
    "fractions": {
        "none": None, "a number": 1.0, "empty": (), "too much": (0.8, 0.8), "too little": (0.1, 0.1), "nan": (NAN, 1.0),
        "negative": (1.5, -0.5), "zero": (1.0, 0.0), "words": ("a", "b"), "too fine": (0.999, 0.001),
        "complex": (0.5 + 0j, 0.5), "two axes": ((0.5, 0.5),),
    },
    "moment": NO_NUMBER | {
        "before all": -1e9, "after all": 1e9, "a date": datetime.date(2020, 1, 1), "no date": "32.13.2020",
    },
    "width": WIDTH | {"none": None},
    "bin": WIDTH,
    "series": {"none": None, "a number": 3, "three axes": np.zeros((2, 2, 2)), "ragged": [[1], [1, 2]]},
    "offsets": {
        "a number": 3, "a word": "x", "empty": [], "fractions": [0, 1.5, 3], "not from 0": [1, 3],
        "not to the end": [0, 2], "falling": [0, 3, 1, 3], "two axes": [[0, 3]], "none inside": [0, None, 3],
        "huge": [0, HUGE],
    },
    # Streams and forecasts.
    "scanned": without(no_tensors(5, 4) | other_types(5, 4), "meta") | {"an odd width": floats(5, 3)},
    "rows": {"none": None, "a list": [3, 2], "too long": Rows.flat([300_000, 2]), "too short": Rows.flat([3]),
             "with padding": Rows.padded(2, 3, [2, 3])},
    "event time": NO_NUMBER | {
        "beyond floats": 10**400, "no date": "12", "NaT": np.datetime64("NaT"), "pandas' NaT": pd.NaT,
        "complex of NumPy": np.complex64(1j), "beyond float32": 1e300, "a tensor": torch.tensor(3.0),
    },
    "start": without(NO_NUMBER, "none"),
    "event times": {
        "none": None, "a word": "x", "an axis more": [[3.0]], "none inside": [None], "truths": [True],
        "complex": [1j], "NaT": np.array(["NaT"], "M8[s]"), "nan": [NAN], "inf": [INF], "too few": [], "1e300": [1e300],
    },
    "event values": {
        "none": None, "a number": 3.0, "a word": "x", "words": ["1", "2"], "too few": [1.0], "a set": {1.0, 2.0},
        "dates": np.array([1, 2], "M8[s]"), "complex": [1j, 2.0], "nested": [[1.0], [2.0]], "inf": [INF, 1.0],
        "beyond floats": [10**400, 1.0], "1e39": [1.0, 1e39], "objects": [object(), 1.0],
        "by another name": {"xx": 1.0},
        "complex of NumPy": np.array([1j, 2.0]), "an axis more": np.ones((2, 1)),
    },
    "values of events": {
        "none": None, "a number": 3.0, "words": np.array([["1", "2"]]), "complex": np.array([[1j, 2.0]]),
        "dates": np.array([[1, 2]], "M8[s]"), "another width": np.ones((1, 3)), "an axis less": np.ones(2),
        "too many": np.ones((2, 2)), "inf": np.full((1, 2), INF), "1e39": np.full((1, 2), 1e39),
    },
    "event ids": {"none": None, "a number": 3, "a word": "a", "too many": ["a", "b"], "nan": [NAN]},
    "asked": {
        "a word": "x", "words": ["1"], "none inside": [None], "nan": [NAN], "inf": [INF], "empty": [], "complex": [1j],
        "1e39": [1e39], "dates": np.array(["2020-01-01"], "M8[s]"), "truths": [True], "objects": [object()],
        "negative": [-1.0], "three axes": np.zeros((8, 1, 1)),
    },
    "event number": without(NO_NUMBER, "nan", "inf") | {"fraction": 1.5, "beyond": 99, "before": -99},
    "unknown answer": without(CHOICE, "none"),
    "served model": {"none": None, "a number": 3, "a word": "x", "of torch": torch.nn.Linear(1, 1)},
    # Files.
    "file": FILE,
    "folder": {"none": None, "a number": 3, "missing": Path("nowhere"), "a file": Path("other"),
               "of something else": Path("folder")},
    "data folder": {"a number": 3, "missing": Path("nowhere"), "a file": Path("other")},
    "new file": NEW | {"a folder": Path("folder")},
    "new folder": NEW | {"a file": Path("other")},
    "optional new folder": without(NEW, "none") | {"a file": Path("other")},
    # Models, heads, estimators, tasks.
    "sequences": SEQUENCES,
    "config": {"a number": 3, "a word": "x", "a dictionary": {"epochs": 1}},
    "labels of classes": {
        "a number": 3, "a row less": [0], "a row more": [0, 1, 2], "falling": [1, 0], "twice": [1, 1], "nan": [0, NAN],
        "words": ["a", "b"], "fractions": [0.5, 1.0], "none inside": [None, 1],
    },
    "levels": {
        "none": None, "a number": 0.5, "empty": (), "zero": (0.0, 0.5), "one": (0.5, 1.0), "falling": (0.9, 0.1),
        "nan": (NAN,), "words": ("a",), "twice": (0.5, 0.5),
    },
    "outputs": without(tensors(ROWS, 1), "torch.float64", "torch.float16", "meta") | {"a row less": floats(1, 1)},
    "X": {
        "none": None, "a number": 3, "a word": "x", "empty": [], "an axis": np.zeros(3), "objects": np.full((8, 2),
        object()),
        "four axes": np.zeros((1, 1, 1, 1)), "complex": np.zeros((8, 2)) + 1j, "words": np.full((8, 2), "a"),
        "inf": np.full((8, 2), INF), "1e39": np.full((8, 2), 1e39), "ragged": [[1.0], [1.0, 2.0]],
        "a dictionary": {"a": 1}, "without columns": pd.DataFrame(), "one column": pd.DataFrame({"who": [1, 2]}),
        "no times": np.zeros((8, 0)), "other lengths": [(np.arange(2), np.arange(3))] * 8,
        "a generator": (i for i in "ab"),
    },
    "y of classes": Y | {
        "one class": [1] * 8, "nan": [NAN, 1.0] * 4, "fractions": [0.5, 1.5] * 4, "two axes": np.zeros((8, 2)),
    },
    "y of numbers": Y,
    "sample weights": {
        "a number": 3, "a word": "x", "a row less": [1.0] * 7, "negative": [-1.0] * 8, "nan": [NAN] * 8,
        "inf": [INF] * 8, "all zero": [0.0] * 8, "complex": [1j] * 8, "words": ["a"] * 8, "1e39": [1e39] * 8,
        "none inside": [None] * 8,
    },
    "groups": {
        "a number": 3, "a word": "x", "a row less": [1] * 7, "a row more": [1] * 9, "only one": [1] * 8,
        "none inside": [None, 1] * 4, "two axes": np.zeros((8, 2)),
    },
    "settings": {"a number": 3, "a word": "x", "unknown": {"nothing": 1}, "wrong": {"hidden_size": 0}},
    "class weight": {
        "a number": 3, "a word": "x", "a word per class": {0: "x", 1: "y"}, "negative": {0: -1.0},
        "unknown class": {9: 1.0}, "truth": True,
    },
    "size": without(COUNT, "none"),
    "bits": {
        "a number": 3, "falling": (9, 2), "zero": (0, 0), "words": ("a", "b"), "fractions": (1.5, 3.5),
        "three": (1, 2, 3), "truths": (True, True),
    },
}
# fmt: on
