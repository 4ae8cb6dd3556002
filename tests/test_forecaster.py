"""Asking at any time: cuts of sequences, the state that flows to the query, calibration, storage."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import lapse
from lapse import Cuts, Forecaster, Sequences
from lapse.heads import Classes, Numbers
from lapse.models import SequenceModel
from lapse.training import OtherTraining, TrainConfig, evaluate, fit

# One of each kind: a cell that flows, one that is driven during the gap, one that takes missing features, a stack, and
# one that reads both ways, for which the gap is a feature of the readout alone.
KINDS = {
    "ct-lstm": {"model": "ct-lstm"},
    "ode-rnn jump": {"model": "ode-rnn", "options": {"form": "jump"}},
    "ode-lstm driven": {"model": "ode-lstm", "options": {"form": "driven"}},
    "gru-d": {"model": "gru-d"},
    "lstm": {"model": "lstm"},
    "two layers": {"model": "rnn-decay", "num_layers": 2},
    "both ways": {"model": "gru-d", "options": {"bidirectional": True}},
}


def waves(count: int = 12, seed: int = 0, missing: float = 0.3) -> Sequences:
    """Noisy sines of one frequency each, at random times; the second feature is the cosine, sometimes missing."""
    random = np.random.default_rng(seed)
    values, times = [], []
    for _ in range(count):
        t = np.cumsum(random.exponential(0.5, random.integers(6, 14)))
        phase = random.uniform(0, 2 * np.pi)
        pair = np.column_stack([np.sin(t + phase), np.cos(t + phase)])
        pair[random.random(len(t)) < missing, 1] = np.nan
        values.append(pair)
        times.append(t)
    return Sequences.from_arrays(values, times, features=("sine", "cosine"), unit="h")


def unlike_persistence(cuts: Cuts, head: str = "numbers", **settings: object) -> Forecaster:
    """A forecaster whose readout is not zero, as it is before training."""
    torch.manual_seed(0)
    model = Forecaster.for_data(cuts, head, hidden_size=5, readout_size=7, **settings)
    with torch.no_grad():
        for parameter in model.readout.parameters():
            parameter.normal_(0, 0.2)
    return model


# Cuts


def test_random_cuts_ask_about_later_events_only() -> None:
    data = waves()
    cuts = Cuts.random(data, count=3, queries=4, seed=1)
    assert len(cuts) == 3 * len(data)
    assert (cuts.spans > 0).all()
    assert cuts.queries.lengths.max() == 4
    for k in range(len(cuts)):
        own = data[int(cuts.index[k])]
        assert np.array_equal(cuts.history[k].times, own.times[: cuts.lengths[k]])
        asked = cuts.queries[k]
        place = np.searchsorted(own.times, asked.times)
        assert (place >= cuts.lengths[k]).all()
        expected = np.where(own.observed[place], own.values[place], np.nan)
        np.testing.assert_array_equal(asked.targets, expected)


def test_cuts_are_a_function_of_the_seed() -> None:
    one, same, other = (Cuts.random(waves(), seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.lengths, same.lengths)
    assert np.array_equal(one.queries.times, same.queries.times)
    assert not np.array_equal(one.queries.times, other.queries.times)


def test_events_at_one_time_are_never_apart() -> None:
    data = Sequences.from_arrays([np.arange(5.0)], [[0.0, 1.0, 1.0, 1.0, 2.0]])
    cuts = Cuts.random(data, count=9, queries=None)
    assert sorted(cuts.lengths.tolist()) == [1, 4]
    assert (cuts.spans > 0).all()


def test_the_horizon_is_the_longest_time_that_is_asked_about() -> None:
    cuts = Cuts.random(waves(), horizon=1.0, count=20, queries=None)
    assert 0.9 < cuts.spans.max() <= 1.0


def test_only_events_with_a_target_are_asked_about() -> None:
    cuts = Cuts.random(waves(), "cosine", count=20, queries=None)
    assert cuts.queries.targets.shape[1] == 1
    assert not np.isnan(cuts.queries.targets).any()


def test_all_sequences_cut_at_one_time() -> None:
    times = [[0.0, 1.0, 2.0, 3.0], [2.5, 3.0], [0.0, 1.0], [1.0, 2.0, 2.5]]
    values = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0, np.nan]]
    data = Sequences.from_arrays([np.array(v) for v in values], times, features=("a",), unit="h")
    cuts = Cuts.until(data, 1.5)
    assert cuts.index.tolist() == [0, 3]  # the second has no past, the third no future
    assert cuts.lengths.tolist() == [2, 1]
    assert cuts.history.times.tolist() == [0.0, 1.0, 1.0]
    assert cuts.queries.times.tolist() == [2.0, 3.0, 2.0]  # what was not observed is not asked
    assert cuts.queries.targets is not None
    assert cuts.queries.targets.ravel().tolist() == [3.0, 4.0, 10.0]
    assert cuts.spans.tolist() == [1.0, 2.0, 1.0]
    with pytest.raises(
        ValueError, match="no sequence has an event up to time 9 and a known value of a after"
    ):
        Cuts.until(data, 9.0)
    with pytest.raises(ValueError, match="'b' cannot be forecast"):
        Cuts.until(data, 1.5, "b")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: Cuts.random(s, "tangent"), "'tangent' cannot be forecast"),
        (lambda s: Cuts.random(s[:1].take(np.array([0])), horizon=1e-9), "nothing to forecast"),
        (lambda s: Cuts.random(s, count=0), "count must be"),
        (lambda s: Cuts.random(s, queries=0), "queries must be"),
        (lambda s: Cuts.random(s, horizon=float("nan")), "horizon must be"),
        (lambda s: Cuts.at(s, [-1.0]), "before its first event"),
        (lambda s: Cuts.at(s, [[99.0]]), "1 lists for 12 sequences"),
        (lambda s: Cuts.at(s, [float("nan")]), "finite"),
        (lambda s: Cuts.ahead(s, [-0.5]), "not negative"),
    ],
)
def test_wrong_questions(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(waves())


# Asking


@pytest.mark.parametrize("kind", KINDS)
def test_no_event_after_the_time_reaches_an_answer(kind: str) -> None:
    data = waves()
    model = unlike_persistence(Cuts.random(data), **KINDS[kind])
    middle = [(own.times[3] + own.times[4]) / 2 for own in (data[i] for i in range(len(data)))]
    answers = model.predict(data, [[time] for time in middle])
    later = np.concatenate([np.arange(n) >= 4 for n in data.lengths])
    changed = dataclasses.replace(data, values=data.values + 100.0 * later[:, None])
    short = Sequences.from_arrays(
        [np.where(data[i].observed, data[i].values, np.nan)[:4] for i in range(len(data))],
        [data[i].times[:4] for i in range(len(data))],
        features=data.features,
        unit="h",
    )
    for other in (changed, short):
        again = model.predict(other, [[time] for time in middle])
        for name, column in answers.columns.items():
            np.testing.assert_allclose(again[name], column, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_the_batch_nor_other_queries_have_an_effect(kind: str) -> None:
    data = waves()
    model = unlike_persistence(Cuts.random(data), **KINDS[kind])
    together = model.predict(data, ahead=[0.3, 2.0, 5.0])
    for i in range(len(data)):
        for q, span in enumerate((0.3, 2.0, 5.0)):
            alone = model.predict(data[i], ahead=[span], batch_size=1)
            np.testing.assert_allclose(
                alone["prediction_sine"], together["prediction_sine"][3 * i + q : 3 * i + q + 1], atol=1e-5
            )


@pytest.mark.parametrize("name", lapse.MODELS)
def test_every_model_forecasts(name: str) -> None:
    data = waves(4)
    model = unlike_persistence(Cuts.random(data), model=name)
    together = model.predict(data, ahead=[0.5, 2.0])["prediction_sine"]
    alone = model.predict(data[1], ahead=[2.0])["prediction_sine"]
    np.testing.assert_allclose(alone, together[3:4], atol=1e-5)
    assert not np.allclose(together[::2], together[1::2])


def test_rows_come_in_the_order_that_was_asked_for() -> None:
    data = waves(3)
    model = unlike_persistence(Cuts.random(data), model="gru-d")
    times = [[5.0, 2.0, 2.1], [3.0], [9.0, 2.5]]
    found = model.predict(data, times)
    assert found.times.tolist() == [5.0, 2.0, 2.1, 3.0, 9.0, 2.5]
    assert found.ids.tolist() == [0, 0, 0, 1, 2, 2]
    one_by_one = [
        model.predict(data[i], [[time]])["prediction_sine"][0] for i in range(3) for time in times[i]
    ]
    np.testing.assert_allclose(found["prediction_sine"], one_by_one, atol=1e-5)


def test_an_event_at_the_time_that_is_asked_about_is_known() -> None:
    data = waves(2)
    model = Forecaster.for_data(Cuts.random(data), "numbers", hidden_size=4)  # untrained: the last value
    found = model.predict(data[0], [data[0].times])
    np.testing.assert_allclose(found["prediction_sine"], data[0].values[:, 0], atol=1e-6)


@pytest.mark.parametrize("kind", ["ct-lstm", "ode-rnn jump", "gru-d", "two layers"])
def test_the_state_flows_as_the_layer_does_before_its_next_step(kind: str) -> None:
    """A layer that splits gaps gives the same next step, whether the gap before it was passed in pieces or not."""
    data = waves(4)
    model = unlike_persistence(Cuts.random(data), **KINDS[kind])
    assert model.encoder.flows
    layer = model.encoder.layer
    x, gaps = torch.randn(3, 6, layer.input_size), torch.rand(3, 6)
    _, hx = layer(x, timespans=gaps)
    span = torch.tensor([0.0, 0.5, 2.0])
    flowed = layer.flow(hx, span)
    cell = layer.cells[-1]
    stacks = hx if isinstance(hx, tuple) else (hx,)
    expected, _ = cell.flow(
        tuple(stack[-1, :, :n] for stack, n in zip(stacks, cell.state_sizes, strict=True)), span
    )
    torch.testing.assert_close(flowed, expected)
    assert not torch.allclose(flowed[2], layer.flow(hx, span * 2)[2])


def test_a_layer_that_is_driven_cannot_flow() -> None:
    layer = lapse.ODELSTM(2, 4, form="driven")
    assert not layer.flows
    with pytest.raises(ValueError, match="cannot be asked between observations"):
        layer.flow(layer.initial_state(1), torch.ones(1))


def test_times_in_another_unit_are_converted() -> None:
    data = waves()
    model = unlike_persistence(Cuts.random(data), model="ct-lstm")
    minutes = dataclasses.replace(data, times=data.times * 60, unit="min")
    expected = model.predict(data, ahead=[0.5, 1.5])["prediction_sine"]
    found = model.predict(minutes, ahead=[30.0, 90.0])
    np.testing.assert_allclose(found["prediction_sine"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.times[0], minutes[0].times[-1] + 30.0)


def test_no_sequences_have_no_answers() -> None:
    data = waves(3)
    model = Forecaster.for_data(Cuts.random(data), hidden_size=4)
    assert len(model.predict(data[:0], ahead=[1.0])) == len(model.predict(data[:0], [1.0])) == 0


def test_times_may_be_a_series_or_a_matrix() -> None:
    data = waves(3)
    model = Forecaster.for_data(Cuts.random(data), hidden_size=4)
    expected = model.predict(data, [4.0, 5.0])["prediction_sine_q0.5"]
    for times in (pd.Series([4.0, 5.0], index=[7, 8]), np.tile([4.0, 5.0], (3, 1))):
        np.testing.assert_array_equal(model.predict(data, times)["prediction_sine_q0.5"], expected)


def test_a_time_beyond_what_was_learned_is_told() -> None:
    data = waves(3)
    model = Forecaster.for_data(Cuts.random(data, horizon=2.0), hidden_size=4)
    with pytest.warns(lapse.models.SchemaWarning, match="in training it was 1.* at most"):
        model.predict(data, ahead=[3.0])


def test_a_question_without_a_time_is_refused() -> None:
    data = waves(3)
    model = Forecaster.for_data(Cuts.random(data), hidden_size=4)
    with pytest.raises(ValueError, match="say when"):
        model.predict(data)


# Training


def trained(head: str, epochs: int, folder: Path | None = None) -> tuple[Forecaster, float]:
    """A forecaster of waves, and by how much its loss on other waves is smaller than that of persistence."""
    train, validation = Cuts.random(waves(60)), Cuts.random(waves(20, seed=1), seed=1)
    torch.manual_seed(0)
    model = Forecaster.for_data(train, head, hidden_size=8, model="gru-d")
    before = evaluate(model, validation)["loss"]
    config = TrainConfig(epochs=epochs, batch_size=48, learning_rate=0.01, warmup=0.0, patience=None)
    fit(model, train, validation, config, progress=False, folder=folder)
    return model, evaluate(model, validation)["loss"] / before


@pytest.mark.parametrize("head", ["numbers", "gaussian", "quantiles"])
def test_training_beats_persistence(head: str) -> None:
    _, ratio = trained(head, 3)
    assert ratio < 0.8


def test_a_training_is_a_function_of_its_seed_and_knows_its_data(tmp_path: Path) -> None:
    once = trained("numbers", 2)[0].state_dict()
    again = trained("numbers", 2, tmp_path)[0].state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in once.items())
    trained("numbers", 2, tmp_path)  # finished: nothing is done
    others = Cuts.random(waves(60), seed=5)
    model = Forecaster.for_data(others, "numbers")
    with pytest.raises(OtherTraining, match="other data"):
        fit(model, others, others, TrainConfig(), folder=tmp_path)


def test_missing_targets_and_weights_count_as_they_should() -> None:
    data = waves(6)
    heavy = dataclasses.replace(data, weights=np.array([0, 0, 2, 1, 1, 1], np.float32))
    cuts = Cuts.random(heavy, count=2)
    model = Forecaster.for_data(cuts, "numbers", hidden_size=4)
    batch = model.conform(cuts).batch(np.arange(len(cuts)))
    targets = model.targets(batch)
    assert targets.known.shape == (len(cuts.spans), 2)
    assert not targets.known[:, 1].all()
    expected = np.repeat(np.repeat(heavy.weights, 2), cuts.queries.lengths)
    np.testing.assert_array_equal(targets.weights, expected)


@pytest.mark.parametrize("head", ["gaussian", "quantiles"])
def test_calibrated_answers_cover_what_they_promise(head: str) -> None:
    cuts = Cuts.random(waves(80))
    model = unlike_persistence(cuts, head, model="rnn-decay")
    model.head.metrics = tuple(m for m in model.head.available if m.name == "coverage_error")
    assert evaluate(model, cuts)["coverage_error"] > 3
    model.calibrate(cuts)
    assert evaluate(model, cuts)["coverage_error"] < 2


def test_plain_numbers_are_not_calibrated() -> None:
    cuts = Cuts.random(waves(8))
    model = unlike_persistence(cuts)
    model.calibrate(cuts)
    assert not model.calibration.any()


# Storage and refusals


def test_a_stored_forecaster_answers_the_same(tmp_path: Path) -> None:
    data = waves()
    cuts = Cuts.random(data)
    model = unlike_persistence(cuts, "quantiles", model="ct-lstm")
    model.calibrate(cuts)
    model.save(tmp_path)
    loaded = Forecaster.load(tmp_path)
    expected, found = (m.predict(data, ahead=[1.0]) for m in (model, loaded))
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found[name], column)
    assert "lapse.Forecaster.load" in (tmp_path / "card.md").read_text()
    with pytest.raises(ValueError, match=r"lapse.Forecaster/1.*SequenceModel"):
        SequenceModel.load(tmp_path)


def test_static_features_reach_the_readout() -> None:
    data = waves()
    static = np.arange(len(data), dtype=np.float32)[:, None]
    known = dataclasses.replace(data, static=static, static_features=("age",))
    model = unlike_persistence(Cuts.random(known), static="head+state", model="ct-lstm")
    other = dataclasses.replace(known, static=static[::-1])
    one, two = (model.predict(s, ahead=[1.0])["prediction_sine"] for s in (known, other))
    assert not np.allclose(one, two)


@pytest.mark.parametrize(
    ("head", "settings", "message"),
    [
        (Numbers(["tangent"], per_step=True), {}, "'tangent'"),
        (Numbers(["sine"]), {}, "per_step=True"),
        (Classes(("a", "b"), per_step=True), {}, "answers with numbers"),
        ("numbers", {"pooling": "mean"}, "pooling is for a SequenceModel"),
        ("numbers", {"difference": True}, "difference is for a SequenceModel"),
    ],
)
def test_what_a_forecaster_is_not(head, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Forecaster.for_data(Cuts.random(waves(3)), head, **settings)
