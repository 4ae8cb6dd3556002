"""Every public entry with every kind of bad input: a clear error, or the documented result.

An `Entry` is a call with one argument left open, and the kind of thing that belongs there: a count, a path, an array of
times. `bad_inputs.BAD` has a table of what does not belong there for each kind, and the test is the product of the two.
An error is clear if it was raised on purpose, in words that name the argument; an accident further down, in our own
code or in a library, is not. What is bad elsewhere and good here has its documented result in `GOOD`.
"""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lapse
from bad_inputs import BAD, FEATURES, ROWS, STEPS, TABLE, TIMES, UNITS, VALUES, floats
from example_estimators import QUICK
from example_models import model_for, sequences
from lapse import (
    Cuts,
    Forecaster,
    Sequences,
    Stream,
    explain,
    export,
    heads,
    kernels,
    solvers,
    tables,
    tasks,
    training,
)
from lapse.estimators import Ensemble, IrregularClassifier, IrregularRegressor
from lapse.kernels.scan import scan
from lapse.models import ModelConfig, SequenceModel, registry
from lapse.models.registry import layers
from lapse.training import TrainConfig

SOURCE = str(Path(lapse.__file__).parent)


@dataclass(frozen=True)
class Entry:
    """A call of something public with one argument left open."""

    name: str
    kind: str
    call: Callable[[Any], Any]
    says: str = ""  # what an error must say, as a regular expression; the last word of the name if empty


def called(function: Callable[..., Any], argument: str, bad: Any, **given: Any) -> Any:
    return function(**(given | {argument: bad}))


def each(name: str, function: Callable[..., Any], arguments: dict[str, str], **given: Any) -> list[Entry]:
    """One entry for each of the arguments, which are given with their kinds; the others are as `given`."""
    return [
        Entry(f"{name}({argument})", kind, partial(called, function, argument, **given), argument)
        for argument, kind in arguments.items()
    ]


@cache
def layer(name: str) -> Any:
    return layers()[name](FEATURES, UNITS)


def forward(name: str, argument: str, bad: Any) -> Any:
    given = {"input": floats(ROWS, STEPS, FEATURES), "timespans": floats(ROWS, STEPS)} | {argument: bad}
    return layer(name)(given.pop("input"), **given)


def solve(solver: Any, argument: str, bad: Any) -> Any:
    given = {"y0": floats(ROWS, UNITS), "timespans": floats(ROWS)} | {argument: bad}
    return solver(lambda y: -y, *given.values())


arrays = partial(called, Sequences.from_arrays, values=VALUES, times=TIMES)
wide = partial(called, Sequences.from_frame, frame=pd.DataFrame(TABLE), id="who", time="at", values=["x"])
long = partial(
    called, Sequences.from_long, frame=pd.DataFrame(TABLE), id="who", time="at", variable="y", value="x"
)


@cache
def data() -> Sequences:
    return replace(sequences(static=True, count=8), groups=np.arange(8))


@cache
def model() -> SequenceModel:
    return model_for(data(), model="lstm")


@cache
def forecaster() -> Forecaster:
    return Forecaster.for_data(Cuts.random(data()), model="lstm", hidden_size=4).eval()


@cache
def stream() -> Stream:
    """One id has had an event; an event that is refused changes nothing."""
    served = Stream(model_for(sequences(count=8), options={"form": "jump"}))
    served.push("a", 1.0, [1.0, 2.0])
    return served


def many(argument: str, bad: Any) -> Any:
    return called(stream().push_many, argument, bad, ids=["a"], times=[2.0], values=np.ones((1, 2)))


def explained(argument: str, bad: Any) -> Any:
    whole = model_for(sequences(count=8, per_step=True, numbers=True), model="lstm")
    given = {"model": whole, "sequences": sequences(count=8)} | {argument: bad}
    return explain.integrated_gradients(**given)


@cache
def classifier() -> Any:
    return IrregularClassifier("lstm", boosting=False, **{**QUICK, "epochs": 1}).fit(data())


def fit(argument: str, bad: Any) -> Any:
    return called(training.fit, argument, bad, model=model(), train=data(), validation=data(), progress=False)


def estimator(argument: str, bad: Any) -> Any:
    return called(IrregularClassifier, argument, bad, model="lstm", **QUICK).fit(data())


def score(bad: Any) -> Any:
    return heads.Numbers(["a"]).score(bad, arrays("targets", [1.0, 2.0]))


# fmt: off
LAYERS = [
    Entry(f"{name} {argument}", kind, partial(forward, name, argument), says)
    for name in layers()
    for argument, kind, says in [
        ("input", "input", "input|timespans"), ("timespans", "gaps", "timespans"), ("lengths", "lengths", "length"),
        ("hx", "state", "hx"), ("observed", "mask", "observed"),
    ]
]
OPTIONS = {
    "input_size": "count", "hidden_size": "count", "num_layers": "count", "dropout": "share", "batch_first": "flag",
    "bidirectional": "flag",
}
for kind in layers().values():
    LAYERS += each(kind.__name__, kind, OPTIONS, input_size=FEATURES, hidden_size=UNITS)

REFERENCE = "|nowhere|nothing|Rows"  # what is wrong with a name of something outside lapse
SOLVERS = [
    Entry("ODELSTM(forget_bias)", "number", lambda bad: lapse.ODELSTM(2, 4, forget_bias=bad)),
    Entry("ODELSTM(form)", "choice", lambda bad: lapse.ODELSTM(2, 4, form=bad)),
    Entry("ODELSTM(solver)", "name", lambda bad: lapse.ODELSTM(2, 4, solver=bad), "solver" + REFERENCE),
    Entry("solvers.find(word)", "name", solvers.find, "solver" + REFERENCE),
    Entry("solvers.as_solver(given)", "name", solvers.as_solver, "solver" + REFERENCE),
    *each("FixedStep", lapse.FixedStep, {"tableau": "choice", "steps": "count"}),
    *each("Exponential", lapse.Exponential, {"steps": "count", "order": "count"}),
    *each("Adaptive", lapse.Adaptive, {"rtol": "positive", "max_steps": "count"}, atol=0.0),
    *[
        Entry(f"{type(solver).__name__}.{argument}", kind, partial(solve, solver, argument))
        for solver in (lapse.FixedStep(lapse.RK4), lapse.Adaptive())
        for argument, kind in [("y0", "y0"), ("timespans", "spans")]
    ],
    Entry("backend(name)", "choice", lapse.backend, "backend"),
    Entry("recompute(every)", "count", kernels.recompute),
]

LOAD = "path|nowhere|folder|empty|other"
DATA = [
    Entry("Sequences.from_arrays(values)", "values", partial(arrays, "values"), "values|feature|sequence"),
    Entry("Sequences.from_arrays(times)", "times", partial(arrays, "times")),
    Entry("Sequences.from_arrays(targets)", "targets", partial(arrays, "targets"), "target"),
    Entry("Sequences.from_arrays(step targets)", "step targets", partial(arrays, "targets", per_step=True), "target"),
    Entry("Sequences.from_arrays(per_step)", "flag", partial(arrays, "per_step")),
    Entry("Sequences.from_arrays(static)", "static", partial(arrays, "static")),
    Entry("Sequences.from_arrays(starts)", "starts", partial(arrays, "starts"), "start|span"),
    Entry("Sequences.from_arrays(ids)", "labels of sequences", partial(arrays, "ids"), r"\bids?\b"),
    Entry("Sequences.from_arrays(groups)", "labels of sequences", partial(arrays, "groups")),
    Entry("Sequences.from_arrays(weights)", "weights", partial(arrays, "weights"), "weight"),
    Entry("Sequences.from_arrays(features)", "names", partial(arrays, "features")),
    Entry(
        "Sequences.from_arrays(static_features)", "names", partial(arrays, "static_features", static=np.zeros((2, 2))),
    ),
    Entry("Sequences.from_arrays(unit)", "unit", partial(arrays, "unit")),
    *[
        Entry(f"Sequences.from_frame({argument})", kind, partial(wide, argument), rf"column|table|{argument}")
        for argument, kind in [
            ("frame", "table"), ("id", "column"), ("time", "column"), ("values", "columns"), ("static", "columns"),
            ("target", "optional column"), ("group", "optional column"), ("weight", "optional column"),
            ("per_id", "table"), ("unit", "unit"), ("per_step", "flag"),
        ]
    ],
    Entry(
        "Sequences.from_frame(target per step)", "optional column", partial(wide, "target", per_step=True),
        "target|column",
    ),
    *[
        Entry(f"Sequences.from_long({argument})", kind, partial(long, argument), rf"column|table|{argument}")
        for argument, kind in [
            ("frame", "table"), ("id", "column"), ("time", "column"), ("variable", "column"), ("value", "column"),
            ("target", "optional column"), ("unit", "unit"),
        ]
    ],
    Entry("Sequences.from_long(variables)", "names", partial(long, "variables"), "variable"),
    Entry("Sequences.bin(width)", "width", lambda bad: data().bin(bad)),
    Entry("Sequences.bin(counts)", "flag", lambda bad: data().bin("2h", counts=bad)),
    Entry("Sequences.cut_at(at)", "moment", lambda bad: data().cut_at(bad), "boundary|cut"),
    Entry("Sequences.split_by_time(at)", "moment", lambda bad: data().split_by_time(bad), "boundary|boundaries"),
    *[
        entry
        for split in ("split_by_sequence", "split_by_group")
        for entry in [
            Entry(f"Sequences.{split}(fractions)", "fractions", lambda bad, split=split: getattr(data(), split)(bad)),
            Entry(
                f"Sequences.{split}(seed)", "seed",
                lambda bad, split=split: getattr(data(), split)((0.5, 0.5), seed=bad),
            ),
        ]
    ],
    Entry("Sequences.batches(batch_size)", "count", lambda bad: next(iter(data().batches(bad)))),
    Entry("Sequences.batches(seed)", "seed", lambda bad: next(iter(data().batches(2, seed=bad)))),
    Entry("Sequences.batches(shuffle)", "flag", lambda bad: next(iter(data().batches(2, shuffle=bad)))),
    Entry("Sequences.batch(index)", "positions", lambda bad: data().batch(bad), "positions"),
    Entry("Sequences.take(index)", "positions", lambda bad: data().take(bad), "positions"),
    Entry("Sequences.load(path)", "file", Sequences.load, LOAD),
    Entry("Sequences.save(path)", "new file", lambda bad: data().save(bad)),
    *each("Sequences", partial(replace, data()), {"values": "table", "times": "table", "offsets": "table"}),
    Entry("Rows.flat(lengths)", "flat lengths", lapse.Rows.flat),
    Entry("encode_events(series)", "series", lapse.encode_events),
    Entry("encode_events(offsets)", "offsets", lambda bad: lapse.encode_events([1, 1, 0], offsets=bad)),
    Entry("tables.read_table(path)", "file", tables.read_table, LOAD),
    Entry("tables.guess(table)", "table", tables.guess, "table|which column"),
    Entry("tables.Roles.load(path)", "file", tables.Roles.load, LOAD),
]

MODELLING = [
    Entry("models.find(name)", "name", registry.find, "model" + REFERENCE),
    Entry("heads.find(kind)", "name", heads.find, "head" + REFERENCE),
    Entry("tasks.find(name)", "name", tasks.find, "task" + REFERENCE),
    *each("Classes", heads.Classes, {
        "names": "names", "labels": "labels of classes", "per_step": "flag", "metrics": "choice",
    }, names=["a", "b"]),
    *each("Numbers", heads.Numbers, {"names": "names", "loss": "choice", "scale": "flag", "per_step": "flag"}),
    *each("Quantiles", heads.Quantiles, {"levels": "levels"}),
    Entry("Numbers.score(output)", "outputs", score, "output|predictions"),
    Entry("heads.for_data(train)", "sequences", heads.for_data, "Sequences"),
    Entry("SequenceModel.for_data(train)", "sequences", SequenceModel.for_data, "Sequences"),
    Entry("SequenceModel.for_data(head)", "choice", lambda bad: SequenceModel.for_data(data(), bad)),
    Entry("SequenceModel.predict(sequences)", "sequences", lambda bad: model().predict(bad), "Sequences"),
    Entry("SequenceModel.predict(batch_size)", "count", lambda bad: model().predict(data(), batch_size=bad)),
    Entry("SequenceModel.load(folder)", "folder", SequenceModel.load, LOAD),
    Entry("SequenceModel.save(folder)", "new folder", lambda bad: model().save(bad)),
    *each("ModelConfig", ModelConfig, {
        "model": "choice", "hidden_size": "count", "num_layers": "count", "scaling": "choice", "time_unit": "time unit",
        "pooling": "choice", "summaries": "flag", "static": "choice", "readout": "choice", "readout_size": "count",
        "input_dropout": "share", "state_dropout": "share", "readout_input": "flag", "ridge": "number",
    }),
    *each("TrainConfig", TrainConfig, {
        "seed": "seed", "epochs": "count", "batch_size": "count", "optimizer": "choice", "learning_rate": "positive",
        "restore_best": "flag", "median_gap": "flag", "schedule": "choice", "warmup": "share", "hide": "share",
        "weight_decay": "number", "accumulate": "count",
    }),
    Entry("fit(model)", "sequences", partial(fit, "model"), "Model"),
    Entry("fit(train)", "sequences", partial(fit, "train"), "Sequences"),
    Entry("fit(validation)", "sequences", partial(fit, "validation"), "Sequences"),
    Entry("fit(config)", "config", partial(fit, "config"), "TrainConfig"),
    Entry("fit(folder)", "optional new folder", partial(fit, "folder")),
    Entry("fit(devices)", "count", partial(fit, "devices")),
    Entry("fit(nodes)", "count", partial(fit, "nodes")),
    Entry("evaluate(model)", "sequences", lambda bad: training.evaluate(bad, data()), "Model"),
    Entry("evaluate(sequences)", "sequences", lambda bad: training.evaluate(model(), bad), "Sequences"),
    Entry("evaluate(batch_size)", "count", lambda bad: training.evaluate(model(), data(), bad)),
]

ABOUT_X, ABOUT_Y = r"\bX\b|values|table|times|columns?|feature", r"\by\b|target|class|label"
ESTIMATORS = [
    *[
        Entry(f"IrregularClassifier({argument})", kind, partial(estimator, argument), argument + (says and f"|{says}"))
        for argument, kind, says in [
            ("model", "name", REFERENCE[1:]), ("hidden_size", "count", ""), ("num_layers", "count", ""),
            ("members", "count", ""), ("boosting", "flag", ""), ("summaries", "flag", ""), ("bin", "bin", ""),
            ("epochs", "count", ""), ("batch_size", "count", ""), ("learning_rate", "positive", ""),
            ("weight_decay", "number", ""), ("dropout", "share", ""), ("hide", "share", ""),
            ("settings", "settings", "hidden_size"), ("validation", "share above 0", ""), ("refit", "flag", ""),
            ("class_weight", "class weight", ""), ("random_state", "seed", ""),
        ]
    ],
    Entry("IrregularClassifier.fit(X)", "X", lambda bad: IrregularClassifier("lstm").fit(bad, [0, 1] * 4), ABOUT_X),
    Entry(
        "IrregularClassifier.fit(y)", "y of classes", lambda bad: IrregularClassifier("lstm").fit(data(), bad), ABOUT_Y,
    ),
    Entry(
        "IrregularRegressor.fit(y)", "y of numbers", lambda bad: IrregularRegressor("lstm").fit(data(), bad), ABOUT_Y,
    ),
    Entry(
        "IrregularClassifier.fit(sample_weight)", "sample weights",
        lambda bad: IrregularClassifier("lstm").fit(data(), sample_weight=bad),
    ),
    Entry(
        "IrregularClassifier.fit(groups)", "groups",
        lambda bad: IrregularClassifier("lstm").fit(data(), groups=bad), "group",
    ),
    Entry("IrregularClassifier.predict(X)", "X", lambda bad: classifier().predict(bad), ABOUT_X),
    Entry("IrregularClassifier.predict_proba(X)", "X", lambda bad: classifier().predict_proba(bad), ABOUT_X),
    Entry("IrregularClassifier.score(X)", "X", lambda bad: classifier().score(bad, [0, 1] * 4), ABOUT_X),
    Entry("IrregularClassifier.score(y)", "y of classes", lambda bad: classifier().score(data(), bad), ABOUT_Y),
    Entry("IrregularClassifier.save(folder)", "new folder", lambda bad: classifier().save(bad)),
    Entry("Ensemble.load(folder)", "folder", Ensemble.load, LOAD),
    Entry("Ensemble.predict(sequences)", "sequences", lambda bad: classifier().ensemble_.predict(bad), "Sequences"),
    Entry("Ensemble.predict(batch_size)", "count", lambda bad: classifier().ensemble_.predict(data(), batch_size=bad)),
    Entry("Task.load(size)", "size", lambda bad: tasks.find("xor-event").load(size=bad)),
    Entry("Task.load(lengths)", "bits", lambda bad: tasks.find("xor-event").load(size=10, lengths=bad)),
    Entry("Task.load(data_dir)", "data folder", lambda bad: tasks.find("person").load(bad), "nowhere|other"),
]
SERVING = [
    Entry("kernels.scan(a)", "scanned", lambda bad: scan(bad, floats(5, 4), lapse.Rows.flat([3, 2]))),
    Entry("kernels.scan(b)", "scanned", lambda bad: scan(floats(5, 4), bad, lapse.Rows.flat([3, 2]))),
    Entry("kernels.scan(rows)", "rows", lambda bad: scan(floats(5, 4), floats(5, 4), bad)),
    Entry("Stream(model)", "served model", Stream),
    Entry("Stream(max_ids)", "count", lambda bad: Stream(model(), max_ids=bad)),
    Entry("Stream(late)", "choice", lambda bad: Stream(model(), late=bad)),
    Entry("Stream(on_evict)", "config", lambda bad: Stream(model(), on_evict=bad)),
    Entry("Stream.push(time)", "event time", lambda bad: stream().push("a", bad, [1.0, 2.0])),
    Entry("Stream.push(values)", "event values", lambda bad: stream().push("a", 2.0, bad), "values?|feature"),
    Entry("Stream.push_many(ids)", "event ids", partial(many, "ids"), r"\bids?\b|itself"),
    Entry("Stream.push_many(times)", "event times", partial(many, "times"), "times?"),
    Entry("Stream.push_many(values)", "values of events", partial(many, "values"), "values?|feature"),
    Entry("Stream.ask(time)", "event time", lambda bad: stream().ask("a", bad)),
    Entry("Stream.ask_many(times)", "event times", lambda bad: stream().ask_many(["a"], bad), "times?"),
    Entry("Stream.open(start)", "start", lambda bad: stream().open("b", start=bad), "time"),
    Entry("Stream.restore(path)", "file", lambda bad: stream().restore(bad), LOAD),
    Entry("Stream.snapshot(path)", "new file", lambda bad: stream().snapshot(bad)),
    *[
        Entry(f"Cuts.{name}(sequences)", "sequences", partial(call, **given), "Sequences")
        for name, call, given in [
            ("random", Cuts.random, {}), ("at", Cuts.at, {"times": [1.0]}), ("ahead", Cuts.ahead, {"spans": [1.0]}),
        ]
    ],
    *each("Cuts.random", partial(Cuts.random, data()), {"count": "count", "seed": "seed"}),
    Entry("Cuts.random(targets)", "names", lambda bad: Cuts.random(data(), bad), "targets?|forecast"),
    Entry("Cuts.random(queries)", "size", lambda bad: Cuts.random(data(), queries=bad)),
    Entry("Cuts.random(horizon)", "asked", lambda bad: Cuts.random(data(), horizon=bad)),
    Entry("Cuts.at(times)", "asked", lambda bad: Cuts.at(data(), bad), "times?"),
    Entry("Cuts.ahead(spans)", "asked", lambda bad: Cuts.ahead(data(), bad), "ahead|times"),
    Entry("Cuts.batch(index)", "positions", lambda bad: Cuts.random(data()).batch(bad), "positions"),
    Entry("Forecaster.for_data(train)", "sequences", Forecaster.for_data, "Cuts"),
    Entry("Forecaster.for_data(head)", "choice", lambda bad: Forecaster.for_data(Cuts.random(data()), bad)),
    Entry("Forecaster.predict(sequences)", "sequences", lambda bad: forecaster().predict(bad, ahead=1.0), "Sequences"),
    Entry("Forecaster.predict(times)", "asked", lambda bad: forecaster().predict(data(), bad), "times?"),
    Entry("Forecaster.predict(ahead)", "asked", lambda bad: forecaster().predict(data(), ahead=bad), "ahead|times"),
    Entry("Forecaster.calibrate(validation)", "sequences", lambda bad: forecaster().calibrate(bad), "Cuts"),
    Entry("Forecaster.load(folder)", "folder", Forecaster.load, LOAD),
    Entry("export.save(model)", "served model", lambda bad: export.save(bad, "x.pt2")),
    Entry("export.save(format)", "choice", lambda bad: export.save(model(), "x.pt2", format=bad)),
    Entry("export.save(form)", "choice", lambda bad: export.save(model(), "x.pt2", form=bad)),
    Entry("export.load(folder)", "folder", export.load, LOAD),
    *[
        Entry(f"explain.integrated_gradients({argument})", kind, partial(explained, argument), says)
        for argument, kind, says in [
            ("model", "served model", "model"), ("sequences", "sequences", "Sequences"), ("steps", "count", "steps"),
            ("at", "event number", r"\bat\b"), ("answer", "unknown answer", "answer"),
        ]
    ],
    Entry(
        "explain.permutation_importance(data)", "sequences",
        lambda bad: explain.permutation_importance(model().outputs, model().head, bad), "Sequences",
    ),
    *each(
        "explain.permutation_importance", explain.permutation_importance,
        {"seed": "seed", "repeats": "count", "metric": "unknown answer"},
        outputs=model().outputs, head=model().head, data=data(),
    ),
]
# fmt: on

ENTRIES = {entry.name: entry for entry in (*LAYERS, *SOLVERS, *DATA, *MODELLING, *ESTIMATORS, *SERVING)}
GOOD: dict[str, Callable[[Any], bool]] = {
    **{
        f"{name} observed: {kind}": lambda found: bool(found[0].isfinite().all())
        for name in ("gru-d", "neural-cde")
        for kind in ("torch.int64", "torch.bool")
    },
    "ODELSTM(solver): none": lambda layer: layer.cells[0].solver == lapse.FixedStep(lapse.EULER, 4),
    "Sequences.from_frame(static): empty": lambda s: s.static is None,
    "Sequences.from_frame(per_id): none": lambda s: len(s) == 2,
    "Classes(names): numbers": lambda head: head.names == (1, 2),
    "Forecaster.for_data(head): none": lambda model: type(model.head) is heads.Numbers,
    "SequenceModel.for_data(head): none": lambda model: type(model.head) is heads.Classes,
    "IrregularClassifier.score(y): one class": lambda share: 0 <= share <= 1,
}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in with what `bad_inputs` calls `folder`, `empty` and `other`."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("empty").touch()
    Path("other").write_text("hello\n")


def unclear(error: Exception, says: str) -> str:
    """What is wrong with an error: it was not raised on purpose, by lapse or by scikit-learn, or says too little."""
    if (isinstance(error, OSError) and error.filename) or "os.PathLike" in str(error):
        return ""  # the system names the file, or Python says that this is no path
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    ours = file.startswith(SOURCE) or f"{os.sep}sklearn{os.sep}" in file
    if not ours or not linecache.getline(file, line).lstrip().startswith("raise "):
        return f"an accident in {file}:{line}: {error!r}"
    return "" if re.search(says, str(error)) else f"{error!r} does not say {says!r}"


def fault(entry: Entry, name: str) -> str:
    """What is wrong with the answer to one bad input; empty if nothing is."""
    good = GOOD.get(f"{entry.name}: {name}")
    try:
        found = entry.call(BAD[entry.kind][name])
    except Exception as error:
        return unclear(error, entry.says or re.findall(r"\w+", entry.name)[-1])
    if good is None:
        return f"nothing was said: {found!r}"
    return "" if good(found) else f"not what is documented: {found!r}"


@pytest.mark.parametrize("name", ENTRIES)
def test_a_clear_error_or_the_documented_result(name: str, places: None) -> None:
    found = {bad: fault(ENTRIES[name], bad) for bad in BAD[ENTRIES[name].kind]}
    assert {bad: wrong for bad, wrong in found.items() if wrong} == {}


def test_there_are_enough_of_them() -> None:
    cells = {f"{entry.name}: {bad}" for entry in ENTRIES.values() for bad in BAD[entry.kind]}
    assert len(cells) >= 3700
    assert set(GOOD) <= cells


def test_an_accident_would_be_seen() -> None:
    entry = Entry("Rows.pad(values)", "number", lapse.Rows.flat([1]).pad)
    assert "an accident in" in fault(entry, "none")
    assert "nothing was said" in fault(Entry("str(object)", "number", str), "none")


# What is unusual and good: the same tensors in other forms.
