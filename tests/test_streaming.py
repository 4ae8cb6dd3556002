"""A stream equals the batch model under any order of ids, forgets no more than it says, and goes on after a restart."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lapse
from lapse import Sequences, Stream
from lapse.encoders import RecurrentEncoder
from lapse.estimators import IrregularClassifier, IrregularLabeller
from lapse.kernels import native
from lapse.models import SequenceModel, registry
from lapse.streaming import Answer

COMPILED = native.library() is not None


def sequences(
    *,
    count: int = 9,
    features: int = 3,
    missing: float = 0.0,
    per_step: bool = False,
    seed: int = 0,
    **more: Any,
) -> Sequences:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, count)
    values = [random.normal(3.0, 2.0, (n, features)) for n in lengths]
    for array in values:
        array[random.random(array.shape) < missing] = np.nan
    values[0][0] = 1.0
    targets: Any = random.integers(0, 3, count)
    if per_step:
        targets = [random.normal(size=(n, features)) for n in lengths]
    times = [np.cumsum(random.exponential(size=n)) + random.normal() for n in lengths]
    return Sequences.from_arrays(
        values, times, targets=targets, per_step=per_step, ids=[f"id{i}" for i in range(count)], **more
    )


def model_for(data: Sequences, *, seed: int = 0, **config: Any) -> SequenceModel:
    torch.manual_seed(seed)
    model = SequenceModel.for_data(data, **{"hidden_size": 12, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def events_of(data: Sequences, seed: int = 0) -> Iterator[tuple[int, int]]:
    """All events as (sequence, number), sequences shuffled into each other, each in its own order."""
    deck = np.repeat(np.arange(len(data)), data.lengths)
    np.random.default_rng(seed).shuffle(deck)
    number = [0] * len(data)
    for i in deck.tolist():
        yield i, number[i]
        number[i] += 1


def prefixes(model: SequenceModel, data: Sequences) -> dict[tuple[int, int], np.ndarray]:
    """The raw outputs of the batch model for the first n events of every sequence."""
    data = replace(data, targets=None, per_step=False)
    found: dict[tuple[int, int], np.ndarray] = {}
    if model.head.per_step:
        outputs = iter(model.outputs(data).numpy())
        return {(i, k): next(outputs) for i in range(len(data)) for k in range(data.lengths[i])}
    for n in range(1, int(data.lengths.max()) + 1):
        longer = np.flatnonzero(data.lengths >= n).tolist()
        cut = Sequences.from_arrays(
            [_values(data, i)[:n] for i in longer],
            [_times(data, i)[:n] for i in longer],
            static=None if data.static is None else _static(data)[longer],
            starts=None if data.starts is None else data.starts[longer],
            features=data.features,
            static_features=data.static_features,
        )
        found |= {(i, n - 1): row for i, row in zip(longer, model.outputs(cut).numpy(), strict=True)}
    return found


def _static(data: Sequences) -> np.ndarray:
    assert data.static is not None
    return (
        data.static if data.static_observed is None else np.where(data.static_observed, data.static, np.nan)
    )


def _times(data: Sequences, i: int) -> np.ndarray:
    return data.times[data.offsets[i] : data.offsets[i + 1]]


def _values(data: Sequences, i: int) -> np.ndarray:
    part = slice(data.offsets[i], data.offsets[i + 1])
    return (
        data.values[part]
        if data.observed is None
        else np.where(data.observed[part], data.values[part], np.nan)
    )


def push(stream: Stream, id: Any, time: Any, values: Any) -> np.ndarray:
    """The raw outputs after an event that is taken."""
    answer = stream.push(id, time, values)
    assert answer is not None
    return answer.raw


def check_equal(model: SequenceModel, data: Sequences, stream: Stream, seed: int = 0) -> None:
    """Every answer of the stream is that of the batch model for the events so far."""
    expected = prefixes(model, data)
    for i in range(len(data)):
        static = None if data.static is None else _static(data)[i].tolist()
        start = None if data.starts is None else float(data.starts[i])
        if static is not None or start is not None:
            stream.open(i, start=start, static=static)
    for i, k in events_of(data, seed):
        raw = push(stream, i, float(_times(data, i)[k]), _values(data, i)[k])
        np.testing.assert_allclose(raw, expected[i, k], rtol=1e-6, atol=2e-6, err_msg=f"{i}, {k}")


def streams(model: SequenceModel, **options: Any) -> list[Stream]:
    with lapse.backend("reference"):
        found = [Stream(model, **options)]
    if COMPILED:
        found.append(Stream(model, **options))
        assert not found[0].native
    return found


LAYERS: dict[str, dict[str, Any]] = {
    f"{name} {form}".strip(): {"model": name, "options": {"form": form} if form else {}}
    for name, layer in registry.layers().items()
    for form in layer.forms or ("",)
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_model_answers_as_in_a_batch(name: str) -> None:
    data = sequences(missing=0.3)
    model = model_for(data, **LAYERS[name])
    for stream in streams(model):
        check_equal(model, data, stream)


def test_the_models_of_the_paper_are_served_natively() -> None:
    if not COMPILED:
        pytest.skip("no C++ compiler")
    data = sequences()
    served = [name for name in registry.layers() if Stream(model_for(data, model=name)).native]
    assert set(served) >= {
        "ode-lstm",
        "lstm",
        "gru-d",
        "ct-lstm",
        "ct-gru",
        "ode-rnn",
        "ct-rnn",
        "phased-lstm",
    }


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two layers": ({}, {"num_layers": 2}),
    "last, mean and max": ({}, {"pooling": "last+mean+max"}),
    "attention": ({}, {"pooling": "attention"}),
    "hidden readout": ({}, {"readout": "mlp", "readout_size": 20}),
    "deep readout": ({}, {"readout": "deep", "readout_size": 20}),
    "residual readout": ({}, {"readout": "residual", "readout_size": 20}),
    "summaries": ({"missing": 0.4}, {"summaries": True}),
    "summaries of all": ({}, {"summaries": True}),
    "clipped": ({}, {"clip": 0.5}),
    "robust, own unit": ({}, {"scaling": "robust", "time_unit": 0.3}),
    "one answer per event": ({"per_step": True}, {}),
    "the event again": ({"per_step": True, "missing": 0.3}, {"readout_input": True}),
    "differences": ({"per_step": True, "missing": 0.3}, {"difference": True}),
    "differences, gaussian": ({"per_step": True}, {"difference": True, "head": "gaussian"}),
    "gru-d, nothing missing": ({}, {"model": "gru-d"}),
    "starts": ({"starts": np.full(9, -20.0)}, {}),
    "static": ({"static": np.random.default_rng(1).normal(size=(9, 2))}, {"static": "state+head+table"}),
    "state space": ({"missing": 0.3}, {"model": "state-space", "num_layers": 2}),
    "state space, static": (
        {"static": np.random.default_rng(1).normal(size=(9, 2))},
        {"model": "state-space", "static": "state+head"},
    ),
    "static, not always known": (
        {"static": np.where(np.arange(18).reshape(9, 2) % 5 == 0, np.nan, np.arange(18).reshape(9, 2))},
        {"static": "state+head+table"},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_model_answers_as_in_a_batch(shape: str) -> None:
    given_data, config = SHAPES[shape]
    data = sequences(**given_data)
    if data.static is not None:
        config = {"model": "ode-lstm", **config}
    model = model_for(data, **config)
    for stream in streams(model):
        check_equal(model, data, stream)
    if COMPILED and shape not in ("attention", "residual readout", "state space", "state space, static"):
        assert stream.native


def test_double_precision() -> None:
    data = sequences(missing=0.2)
    model = model_for(data).double()
    for stream in streams(model):
        check_equal(model, data, stream)


@pytest.fixture(scope="module")
def jump() -> SequenceModel:
    return model_for(sequences(), options={"form": "jump"})


@settings(max_examples=25, deadline=None)
@given(
    order=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    size=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_any_order_and_any_grouping_gives_the_same_answers(
    jump: SequenceModel, order: list[int], size: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values, times = random.normal(3, 2, (len(order), 3)), np.cumsum(random.exponential(size=len(order)))
    alone = {id: Stream(jump) for id in set(order)}
    one, many = Stream(jump), Stream(jump)
    grouped = [
        raw
        for first in range(0, len(order), size)
        for raw in many.push_many(
            order[first : first + size], times[first : first + size], values[first : first + size]
        ).raw
    ]
    for k, id in enumerate(order):
        expected = push(alone[id], id, times[k], values[k])
        np.testing.assert_array_equal(push(one, id, times[k], values[k]), expected)
        np.testing.assert_array_equal(grouped[k], expected)


def test_a_thousand_ids_and_a_hundred_thousand_events_in_any_order() -> None:
    random = np.random.default_rng(0)
    values = random.normal(3, 2, (1000, 100, 3)).astype(np.float32)
    times = np.cumsum(random.exponential(size=(1000, 100)), 1)
    data = Sequences.from_arrays(list(values), list(times), targets=list(values), per_step=True)
    model = model_for(data)
    ids = random.permutation(np.repeat(np.arange(1000), 100))
    number = np.zeros(len(ids), int)
    number[np.argsort(ids, kind="stable")] = np.tile(np.arange(100), 1000)
    found = Stream(model).push_many(ids.tolist(), times[ids, number], values[ids, number])
    expected = model.outputs(data).numpy().reshape(1000, 100, -1)[ids, number]
    np.testing.assert_allclose(found.raw, expected, rtol=1e-6, atol=2e-6)


def test_an_answer_has_the_columns_of_predict(jump: SequenceModel) -> None:
    data = sequences()
    stream = Stream(jump)
    answers = [stream.push(i, float(_times(data, i)[k]), _values(data, i)[k]) for i, k in events_of(data)]
    last = {i: answer for (i, _), answer in zip(events_of(data), answers, strict=True)}
    expected = jump.predict(data).columns
    for i in range(len(data)):
        answer = last[i]
        assert isinstance(answer, Answer)
        assert list(answer) == list(expected)
        assert len(answer) == len(expected)
        assert answer["prediction"] == expected["prediction"][i]
        assert answer["p_0"] == pytest.approx(expected["p_0"][i], abs=1e-6)
    assert "prediction" in repr(answers[0])


def test_asking_changes_nothing_and_finds_what_the_next_event_will(jump: SequenceModel) -> None:
    for asked, silent in zip(streams(jump), streams(jump), strict=True):
        for stream in (asked, silent):
            stream.push("a", 1.0, [1.0, 2.0, 3.0])
        now = asked.ask("a", 1.0)
        later = [asked.ask("a", time).raw for time in (1.5, 2.0, 50.0)]
        assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(later))
        first, second = (push(s, "a", 3.0, [0.0, 1.0, 2.0]) for s in (asked, silent))
        np.testing.assert_array_equal(first, second)
        again = push(Stream(jump), "a", 1.0, [1.0, 2.0, 3.0])
        np.testing.assert_allclose(now.raw, again, rtol=1e-6, atol=1e-6)


def test_asking_many_is_asking_each(jump: SequenceModel) -> None:
    stream, x = Stream(jump), [1.0, 2.0, 3.0]
    stream.push_many(["a", "b", "c"], [1.0, 2.0, 3.0], [x] * 3)
    many = stream.ask_many(["c", "a", "a"], [5.0, 4.0, 9.0]).raw
    each = [stream.ask(id, time).raw for id, time in (("c", 5.0), ("a", 4.0), ("a", 9.0))]
    np.testing.assert_allclose(many, each, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stream.ask_many(["c", "a"], 5.0).raw[0], each[0], rtol=1e-6, atol=1e-6)
    assert len(stream.ask_many([], 5.0)) == 0
    with pytest.raises(ValueError, match="'c' is asked at 2"):
        stream.ask_many(["a", "c"], 2.0)


@pytest.mark.parametrize("config", [{"pooling": "last+mean+max+attention"}, {"summaries": True}], ids=str)
def test_asking_keeps_what_is_over_events(config: dict[str, Any]) -> None:
    model = model_for(sequences(), model="ct-lstm", **config)
    stream = Stream(model)
    raw = push(stream, "a", 1.0, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(stream.ask("a", 1.0).raw, raw, rtol=1e-5, atol=1e-6)


def test_asking_differences() -> None:
    data = sequences(per_step=True)
    stream = Stream(model_for(data, model="gru-d", difference=True))
    raw = push(stream, "a", 1.0, [1.0, 2.0, 3.0])
    assert stream.ask("a", 2.0).raw.shape == raw.shape


def test_asking_is_refused_where_it_has_no_meaning(jump: SequenceModel) -> None:
    stream = Stream(jump)
    with pytest.raises(KeyError, match="no event of 'a' yet"):
        stream.ask("a", 1.0)
    stream.open("a", start=0.0)
    with pytest.raises(KeyError, match="no event of 'a' yet"):
        stream.ask("a", 1.0)
    stream.push("a", 5.0, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="its last event was at 5"):
        stream.ask("a", 4.0)
    driven = Stream(model_for(sequences()))
    driven.push("a", 5.0, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"cannot be asked between events.*form=jump"):
        driven.ask("a", 6.0)
    scanning = Stream(model_for(sequences(), model="state-space"))
    scanning.push("a", 5.0, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="StateSpace cannot be asked between two events of a stream"):
        scanning.ask("a", 6.0)
    seeing = Stream(model_for(sequences(per_step=True), model="gru-d", readout_input=True))
    seeing.push("a", 5.0, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="sees the values of an event"):
        seeing.ask("a", 6.0)


@pytest.mark.parametrize("engine", range(1 + COMPILED))
def test_late_events(jump: SequenceModel, engine: int) -> None:
    x = [1.0, 2.0, 3.0]
    refusing, dropping, clamping = (streams(jump, late=late)[engine] for late in ("refuse", "drop", "clamp"))
    for stream in (refusing, dropping, clamping):
        stream.push("a", 5.0, x)
    with pytest.raises(ValueError, match="the event of 'a' at 4 is older than the one before it, at 5"):
        refusing.push("a", 4.0, x)
    assert dropping.push("a", 4.0, x) is None
    np.testing.assert_array_equal(push(clamping, "a", 4.0, x), push(refusing, "a", 5.0, x))
    with pytest.raises(ValueError, match=r"of 'a' at 4 \(number 1\)"):
        refusing.push_many(["b", "a", "a"], [1.0, 4.0, 9.0], [x, x, x])
    assert "b" not in refusing.ids  # none of the group was taken
    answers = dropping.push_many(["b", "a", "b"], [1.0, 4.0, 2.0], [x, x, x])
    assert answers.taken.tolist() == [True, False, True]
    assert [answer is None for answer in answers] == [False, True, False]
    assert len(answers.columns()["prediction"]) == 2
    assert len(answers) == 3


@pytest.mark.parametrize("engine", range(1 + COMPILED))
def test_bad_events_leave_no_trace(jump: SequenceModel, engine: int) -> None:
    stream = streams(jump)[engine]
    wrong: list[tuple[float, Any, str]] = [
        (np.nan, [1.0, 2.0, 3.0], "has no time"),
        (np.inf, [1.0, 2.0, 3.0], "has no time"),
        (1.0, [1.0, np.inf, 3.0], "has an infinite value"),
        (1.0, [1.0, 2.0], "expected one value per feature, 3"),
        (1.0, 2.0, "expected one value per feature, 3"),
        (1.0, ["x", 2.0, 3.0], "is 'x', expected a finite number"),
        (1.0, {"x0": 1.0, "f1": 1.0}, "there is no feature"),
    ]
    for time, values, message in wrong:
        with pytest.raises(ValueError, match=message):
            stream.push("a", time, values)
    assert len(stream) == 0
    with pytest.raises(ValueError, match="2 ids, 1 times and 1 values"):
        stream.push_many(["a", "b"], [1.0], [[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="expected one value per feature"):
        stream.push_many(["a"], [1.0], np.zeros((1, 2)))
    names = stream.step.schema.inputs
    by_name = push(stream, "a", 1.0, {names[2]: 3.0, names[0]: 1.0})
    np.testing.assert_array_equal(by_name, push(stream, "b", 1.0, [1.0, None, 3.0]))


@pytest.mark.parametrize("engine", range(1 + COMPILED))
def test_an_event_that_diverges_is_left_out(engine: int) -> None:
    model = model_for(sequences(), model="ode-rnn", scaling="none", options={"form": "jump"})
    with torch.no_grad():
        for parameter in model.readout.parameters():
            parameter.fill_(3e38)
    stream, x = streams(model)[engine], [1.0, 2.0, 3.0]
    with pytest.raises(lapse.heads.NonFiniteError, match="it was left out"):
        stream.push("a", 1.0, x)
    with pytest.raises(lapse.heads.NonFiniteError, match="it was left out"):
        stream.push_many(["a", "b"], [1.0, 1.0], [x, x])
    assert len(stream) == 0


@pytest.mark.parametrize("engine", range(1 + COMPILED))
def test_a_solve_that_fails_is_found_among_others(engine: int) -> None:
    model = model_for(sequences(), model="ode-rnn", time_unit=None, options={"form": "jump"})
    with torch.no_grad():
        for cell in model.encoder.stack:
            for parameter in cell.get_submodule("field").parameters():
                parameter.fill_(1e30)
    stream, x = streams(model)[engine], [1.0, 2.0, 3.0]
    stream.push_many(["a", "b", "c"], [0.0, 0.0, 0.0], [x] * 3)
    arena = stream._residents.arena
    rows, times = arena.rows[:3].copy(), arena.times[:3].copy()
    with pytest.raises(
        lapse.heads.NonFiniteError, match=r"of 'b' at 1e\+20 \(number 1\).*it was left out, and all"
    ):
        stream.push_many(["a", "b", "c", "d"], [0.0, 1e20, 1.0, 0.0], [x] * 4)
    # Those beside it are not taken either: otherwise they would be taken twice when they come again without it.
    np.testing.assert_array_equal(arena.rows[:3], rows)
    np.testing.assert_array_equal(arena.times[:3], times)
    assert stream.ids == ["a", "b", "c"]
    push(stream, "b", 0.0, x)
    with pytest.raises(lapse.heads.NonFiniteError):
        stream.push_many(["b", "a", "b"], [1e20, 0.0, 2e20], [x] * 3)
    push(stream, "b", 0.0, x)  # neither of its events was taken


def test_without_a_compiler_torch_serves(jump: SequenceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    stream = Stream(jump)
    assert not stream.native
    check_equal(jump, sequences(), stream)


def test_a_part_with_a_mind_of_its_own_is_left_to_torch() -> None:
    model = model_for(sequences(), readout="mlp", readout_size=8)
    model.readout.map = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    stream = Stream(model)
    assert not stream.native
    check_equal(model, sequences(), stream)

    class Doubled(RecurrentEncoder):
        def step(self, *given: Any) -> Any:
            features, state = super().step(*given)
            return 2 * features, state

    encoder = model_for(sequences())
    assert Stream(encoder).native == COMPILED
    encoder.encoder.__class__ = Doubled
    assert not Stream(encoder).native


def test_the_id_without_an_event_for_the_longest_time_is_forgotten(jump: SequenceModel) -> None:
    told: list[Any] = []
    stream, x = Stream(jump, max_ids=2, on_evict=told.append), [1.0, 2.0, 3.0]
    first = push(stream, "a", 1.0, x)
    stream.push("b", 1.0, x)
    stream.push("a", 2.0, x)
    stream.push("c", 1.0, x)
    assert (told, stream.ids, stream.evicted) == (["b"], ["a", "c"], 1)
    stream.push_many(["d", "e", "f", "d"], [1.0, 1.0, 1.0, 2.0], [x] * 4)
    assert (told, stream.ids, len(stream)) == (["b", "a", "c", "d", "e"], ["f", "d"], 2)
    np.testing.assert_array_equal(push(stream, "a", 0.0, x), first)  # it begins anew
    stream.forget("a")
    stream.forget("nobody")
    assert "a" not in stream.ids


@pytest.mark.parametrize("late", ["refuse", "drop"])
def test_a_refused_event_makes_nobody_forgotten(jump: SequenceModel, late: Any) -> None:
    told: list[Any] = []
    stream, x = Stream(jump, max_ids=2, late=late, on_evict=told.append), [1.0, 2.0, 3.0]
    alone = Stream(jump)
    for id in ("a", "b"):
        stream.push(id, 1.0, x)
        alone.push(id, 1.0, x)
    with pytest.raises(ValueError, match="infinite value"):
        stream.push("c", 2.0, [np.inf, 1.0, 1.0])
    with pytest.raises(ValueError, match="has no time"):
        stream.push_many(["c", "d"], [2.0, np.nan], [x, x])
    assert (stream.ids, stream.evicted, told) == (["a", "b"], 0, [])
    np.testing.assert_array_equal(push(stream, "a", 3.0, x), push(alone, "a", 3.0, x))


def test_memory_is_bounded_and_small(jump: SequenceModel) -> None:
    stream = Stream(jump, max_ids=1000)
    values = np.zeros((5000, 3))
    stream.push_many(list(range(5000)), np.zeros(5000), values)
    assert len(stream) == 1000
    assert stream.nbytes / 1000 < 10_000


def test_threads_do_not_disturb_each_other(jump: SequenceModel) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(8, 50, 3))
    shared, results = Stream(jump), {}

    def work(id: int) -> None:
        results[id] = [push(shared, id, float(k), values[id, k]) for k in range(50)]

    threads = [threading.Thread(target=work, args=(id,)) for id in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = Stream(jump)
    for id in range(8):
        for k in range(50):
            np.testing.assert_array_equal(results[id][k], push(alone, id, float(k), values[id, k]))


def test_a_stream_keeps_its_weights(jump: SequenceModel) -> None:
    model = model_for(sequences(), options={"form": "jump"})
    stream, before = Stream(model), Stream(jump)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    a, b = (push(one, 1, 0.0, [1.0, 2.0, 3.0]) for one in (stream, before))
    np.testing.assert_array_equal(a, b)


def test_snapshot_and_restore_in_the_middle_go_on_to_the_bit(jump: SequenceModel, tmp_path: Path) -> None:
    data = sequences(count=20)
    whole, first, events = Stream(jump), Stream(jump), list(events_of(data))
    middle = len(events) // 2
    expected = [push(whole, f"{i}", float(_times(data, i)[k]), _values(data, i)[k]) for i, k in events]
    for i, k in events[:middle]:
        first.push(f"{i}", float(_times(data, i)[k]), _values(data, i)[k])
    first.snapshot(tmp_path / "stream.safetensors")
    second = Stream(jump)
    second.restore(tmp_path / "stream.safetensors")
    assert second.ids == first.ids
    for (i, k), old in zip(events[middle:], expected[middle:], strict=True):
        raw = push(second, f"{i}", float(_times(data, i)[k]), _values(data, i)[k])
        np.testing.assert_array_equal(raw, old)
    small = Stream(jump, max_ids=3)
    small.restore(tmp_path / "stream.safetensors")
    assert small.ids == first.ids[-3:]


def test_ids_of_numpy_are_those_of_python(jump: SequenceModel, tmp_path: Path) -> None:
    path, stream, x = tmp_path / "stream.safetensors", Stream(jump), [1.0, 2.0, 3.0]
    for id in (np.int64(3), np.str_("a")):
        stream.push(id, 0.0, x)
    stream.snapshot(path)
    stream.restore(path)
    assert stream.ids == [3, "a"]
    assert [type(id) for id in stream.ids] == [int, str]


def test_snapshots_that_do_not_fit_are_refused(jump: SequenceModel, tmp_path: Path) -> None:
    path, stream = tmp_path / "stream.safetensors", Stream(jump)
    stream.push(1, 0.0, [1.0, 2.0, 3.0])
    stream.snapshot(path)
    with pytest.raises(ValueError, match="another model"):
        Stream(model_for(sequences(), seed=5)).restore(path)
    whole = path.read_bytes()
    for place in (len(whole) - 3, 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"damaged|says format"):
            stream.restore(path)
    stream.push((1, 2), 0.0, [1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match=r"text or whole numbers can be stored, got \(1, 2\)"):
        stream.snapshot(path)


def test_words_become_one_number_per_category() -> None:
    frame: dict[str, list[Any]] = {
        "id": ["a", "a", "b", "b"],
        "time": [0.0, 1.0, 0.0, 2.0],
        "pressure": [1.0, 2.0, 3.0, 4.0],
        "state": ["on", "off", "on", "off"],
        "target": [0, 0, 1, 1],
    }
    import pandas

    table = pandas.DataFrame(frame)
    data = Sequences.from_frame(table, id="id", time="time", values=["pressure", "state"], target="target")
    model = model_for(data)
    stream = Stream(model)
    raws = [
        push(stream, id, time, {"pressure": p, "state": s})
        for id, time, p, s in zip(frame["id"], frame["time"], frame["pressure"], frame["state"], strict=True)
    ]
    np.testing.assert_allclose([raws[1], raws[3]], model.outputs(data).numpy(), rtol=1e-5, atol=1e-6)
    many = Stream(model).push_many(["a", "a"], [0.0, 1.0], [[1.0, "on"], [2.0, "off"]])
    np.testing.assert_array_equal(many.raw[1], raws[1])
    stream.push("c", 0.0, [1.0, "never seen"])  # taken as not observed


def test_dates_are_counted_in_the_unit_of_training() -> None:
    model = model_for(sequences(unit="h"), options={"form": "jump"})
    x, numbers, dates = [1.0, 2.0, 3.0], Stream(model), Stream(model)
    push(numbers, "a", 10.0, x)
    push(dates, "a", "2026-03-01T10:00:00+01:00", x)
    push(numbers, "a", 12.5, x)
    push(dates, "a", datetime(2026, 3, 1, 11, 30), x)
    expected = push(numbers, "a", 14, x)
    np.testing.assert_array_equal(push(dates, "a", np.datetime64("2026-03-01T13:00"), x), expected)
    np.testing.assert_array_equal(dates.ask("a", "2026-03-01T14:00").raw, numbers.ask("a", 15).raw)
    many = [
        s.push_many(["a"], times, [x]).raw for s, times in ((numbers, [16]), (dates, ["2026-03-01T15:00"]))
    ]
    np.testing.assert_array_equal(many[0], many[1])
    later = dates.push_many(["a"], np.array(["2026-03-01T16:00"], "datetime64[m]"), [x]).raw
    np.testing.assert_array_equal(later, numbers.push_many(["a"], [17.0], [x]).raw)
    with pytest.raises(ValueError, match="time must be a number or a date, got None"):
        dates.push("a", None, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dates cannot be counted; give numbers"):
        Stream(model_for(sequences())).push("a", "2026-03-01", x)


@pytest.mark.parametrize("year", [1, 1600, 2300, 9999])
def test_dates_for_which_there_are_no_nanoseconds(year: int) -> None:
    model = model_for(sequences(unit="D"), options={"form": "jump"})
    x, numbers = [1.0, 2.0, 3.0], Stream(model)
    first, last = (f"{each:04}-06-01" for each in sorted((year, 2000)))
    push(numbers, "a", 0.0, x)
    expected = push(numbers, "a", (datetime.fromisoformat(last) - datetime.fromisoformat(first)).days, x)
    for kind in (str, np.datetime64, datetime.fromisoformat):
        dates = Stream(model)
        push(dates, "a", kind(first), x)
        np.testing.assert_array_equal(push(dates, "a", kind(last), x), expected)
    many = Stream(model).push_many(["a"] * 2, np.array([first[:7], last[:7]], "M8[M]"), [x] * 2)
    np.testing.assert_array_equal(many.raw[1], expected)


@pytest.mark.parametrize("per_step", [False, True])
def test_an_ensemble_answers_as_for_whole_sequences(per_step: bool, tmp_path: Path) -> None:
    data = sequences(count=30, missing=0.2, static=np.random.default_rng(1).normal(size=(30, 2)), unit="h")
    if per_step:
        labels = [np.random.default_rng(i).integers(0, 2, n) for i, n in enumerate(data.lengths)]
        data = replace(data, targets=np.concatenate(labels).astype(np.float32), per_step=True)
    kind = IrregularLabeller if per_step else IrregularClassifier
    ensemble = kind(members=2, hidden_size=4, epochs=1, refit=False, bin=None).fit(data).ensemble_
    stream, half = Stream(ensemble), Stream(ensemble)
    assert not stream.native
    last = {}
    events = list(events_of(data))
    for i in range(len(data)):
        for one in (stream, half):
            one.open(i, static=_static(data)[i].tolist())
    for i, k in events:
        last[i] = push(stream, i, float(_times(data, i)[k]), _values(data, i)[k])
    expected = ensemble.outputs(ensemble.preparation(replace(data, targets=None, per_step=False))).numpy()
    ends = data.offsets[1:] - 1 if per_step else np.arange(len(data))
    np.testing.assert_allclose([last[i] for i in range(len(data))], expected[ends], rtol=1e-5, atol=2e-6)
    for i, k in events[:50]:
        half.push(i, float(_times(data, i)[k]), _values(data, i)[k])
    half.snapshot(tmp_path / "half.safetensors")
    again = Stream(ensemble)
    again.restore(tmp_path / "half.safetensors")
    for i, k in events[50:]:
        last[i] = push(again, i, float(_times(data, i)[k]), _values(data, i)[k])
    np.testing.assert_allclose([last[i] for i in range(len(data))], expected[ends], rtol=1e-5, atol=2e-6)
    with pytest.raises(ValueError, match="cannot be asked between events"):
        stream.ask(0, 1e6)


def test_static_features_that_training_always_had_must_be_given() -> None:
    data = sequences(static=np.random.default_rng(1).normal(size=(9, 2)))
    stream = Stream(model_for(data))
    with pytest.raises(ValueError, match="open\\(id, static="):
        stream.push("a", 0.0, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="expected one value per static feature"):
        stream.open("a", static=[1.0])
    stream.open("a", static=[1.0, 2.0])
    stream.push("a", 0.0, [1.0, 2.0, 3.0])


def test_wrong_arguments(jump: SequenceModel) -> None:
    with pytest.raises(TypeError, match=r"must be a SequenceModel or an Ensemble, got Linear"):
        Stream(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_ids must be a whole number of at least 1"):
        Stream(jump, max_ids=0)
    with pytest.raises(ValueError, match="late must be one of 'refuse'"):
        Stream(jump, late="ignore")  # type: ignore[arg-type]
    backward = model_for(sequences(), options={"bidirectional": True})
    with pytest.raises(ValueError, match="needs a sequence as a whole"):
        Stream(backward)
    with lapse.backend("fused"), pytest.raises(RuntimeError, match="no compiled stream for this model"):
        Stream(model_for(sequences(), pooling="attention"))


@pytest.mark.slow
def test_a_hundred_thousand_ids_for_an_hour_take_no_more_memory() -> None:
    resource = pytest.importorskip("resource")
    stream = Stream(model_for(sequences(), hidden_size=64), max_ids=100_000)
    ids, values = list(range(100_000)), np.zeros((100_000, 3))
    stream.push_many(ids, np.zeros(100_000), values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for minute in range(1, 61):  # six million events; every minute a few ids are new and a few are forgotten
        stream.push_many([id + 7 * minute for id in ids], np.full(100_000, float(minute)), values)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1.05 * before
    assert stream.nbytes < 100_000 * 10_000
