"""Predictions in the caller's order, whatever the order of columns, the batches and the company."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from example_models import model_for, sequences
from lapse import Sequences
from lapse.heads import NonFiniteError, Numbers
from lapse.models import MODELS, Predictions, SchemaWarning, SequenceModel
from lapse.training import TrainConfig, evaluate, fit


def patients(count: int, seed: int) -> pd.DataFrame:
    """The sick have a higher pulse; the pressure is noise on another scale."""
    random = np.random.default_rng(seed)
    patient = np.repeat(np.arange(count), random.integers(3, 12, count))
    sick, events = random.random(count) < 0.5, len(patient)
    return pd.DataFrame(
        {
            "patient": patient,
            "hour": random.uniform(0, 48, events),
            "pulse": np.where(
                random.random(events) < 0.2, np.nan, random.normal(70 + 20 * sick[patient], 10)
            ),
            "pressure": np.where(random.random(events) < 0.2, np.nan, random.normal(1000, 300, events)),
            "sex": np.where(random.random(count) < 0.5, "f", "m")[patient],
            "state": np.where(sick, "sick", "fine")[patient],
        }
    )


def read(frame: pd.DataFrame, **changes: Any) -> Sequences:
    options: dict[str, Any] = {
        "values": ["pulse", "pressure"],
        "static": "sex",
        "target": "state",
        "unit": "h",
    }
    return Sequences.from_frame(frame, id="patient", time="hour", **(options | changes))


@pytest.fixture(scope="module")
def model() -> SequenceModel:
    train = read(patients(200, 0))
    trained = model_for(train, model="gru-d", hidden_size=8)
    fit(trained, train, train, TrainConfig(epochs=10, batch_size=32), progress=False)
    return trained


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return patients(150, 1)


def accuracy(model: SequenceModel, sequences: Sequences) -> float:
    return evaluate(model, sequences)["accuracy"]


def test_predictions_have_the_order_and_ids_of_the_sequences(model, table):
    s = read(table)
    found = model.predict(s)
    assert found.ids.tolist() == s.ids.tolist()
    truth = table.drop_duplicates("patient").set_index("patient")["state"]
    assert 100 * np.mean(found["prediction"] == truth[found.ids]) == pytest.approx(accuracy(model, s))
    assert accuracy(model, s) > 80
    np.testing.assert_allclose(found["p_fine"] + found["p_sick"], 1, rtol=1e-6)


def test_predictions_as_a_table(model, table):
    frame = model.predict(read(table)).frame(id="patient")
    assert list(frame.columns) == ["patient", "prediction", "p_fine", "p_sick"]
    assert len(frame) == 150
    assert repr(model.predict(read(table))) == "Predictions(150 sequences: prediction, p_fine, p_sick)"
    with pytest.raises(KeyError, match="no column 'p_dead'; there are prediction, p_fine, p_sick"):
        model.predict(read(table))["p_dead"]


# The faults of a model that forgets its table; each was silent, or refused what is right


def test_another_order_of_columns_changes_nothing(model, table):
    other = read(table, values=["pressure", "pulse"])
    np.testing.assert_array_equal(model.predict(other)["p_sick"], model.predict(read(table))["p_sick"])
    assert evaluate(model, other) == evaluate(model, read(table))


def test_minutes_are_converted_to_hours(model, table):
    minutes = read(table.assign(hour=60 * table["hour"]), unit="min")
    np.testing.assert_allclose(
        model.predict(minutes)["p_sick"], model.predict(read(table))["p_sick"], atol=1e-5
    )
    assert accuracy(model, minutes) == accuracy(model, read(table))


def test_one_feature_is_not_broadcast_to_two(model, table):
    with pytest.raises(
        ValueError, match=r"has 1 features and 0 static ones, the model was built for 2 and 2"
    ):
        model(read(table, values="pulse", static=()).batch([0]))


def test_a_table_of_the_sick_alone_is_scored_as_before(model, table):
    sick = table[table["state"] == "sick"]
    whole = model.predict(read(table))
    expected = np.isin(whole.ids, sick["patient"])
    assert accuracy(model, read(sick)) == pytest.approx(
        100 * np.mean(whole["prediction"][expected] == "sick")
    )


def test_one_new_record_that_lacks_a_feature(model, table):
    record = table[table["patient"] == 3].drop(columns="state")
    with pytest.warns(SchemaWarning, match="feature 'pressure' is missing"):
        lacking = model.predict(read(record, values=["pulse"], target=None))
    empty = model.predict(read(record.assign(pressure=np.nan), target=None))
    np.testing.assert_array_equal(lacking["p_sick"], empty["p_sick"])
    assert empty.ids.tolist() == [3]


def test_an_unseen_category_is_named_and_taken_as_unknown(model, table):
    one = table["patient"] == 0
    with pytest.warns(SchemaWarning, match="static feature 'sex' has 'x', which training never had"):
        strange = model.predict(read(table.assign(sex=table["sex"].where(~one, "x"))))
    np.testing.assert_allclose(strange["p_sick"][1:], model.predict(read(table))["p_sick"][1:], atol=1e-6)


def test_training_conforms_its_parts(table):
    train = read(patients(40, 0))
    fitted = model_for(train)
    fit(fitted, train, read(table, values=["pressure", "pulse"]), TrainConfig(epochs=1), progress=False)


# Predictions do not depend on order, batch size or company

EVERY = {
    "classes": (
        sequences(missing=True, static=True, count=9),
        {"pooling": "last+mean+attention", "summaries": True},
    ),
    "numbers per event": (
        sequences(per_step=True, numbers=True, missing=True, count=9),
        {
            "head": Numbers(["a", "b"], per_step=True),
            "readout_input": True,
            "difference": True,
            "readout": "mlp",
        },
    ),
}


@cache
def every_model(name: str, kind: str) -> tuple[SequenceModel, Predictions]:
    """A model of this kind, and what it says of all sequences at once."""
    data, chosen = EVERY[kind]
    model = model_for(data, model=name, **chosen)
    return model, model.predict(data)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=5)
@given(st.permutations(range(9)), st.integers(1, 10), st.integers(1, 9))
def test_predictions_do_not_depend_on_order_batch_size_or_company(name, kind, order, batch_size, count):
    model, whole = every_model(name, kind)
    some = model.predict(EVERY[kind][0][order[:count]], batch_size=batch_size)
    rows = np.concatenate([np.flatnonzero(whole.ids == i) for i in order[:count]])
    np.testing.assert_array_equal(some.ids, whole.ids[rows])
    if whole.times is not None:
        np.testing.assert_array_equal(some.times, whole.times[rows])
    for column, values in whole.columns.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(some[column], values[rows], rtol=1e-4, atol=1e-5)


def test_one_row_per_event_has_the_time_of_the_callers_table():
    data = sequences(per_step=True)
    found = model_for(data).predict(data)
    np.testing.assert_array_equal(found.times, data.times)
    assert found.ids.tolist() == np.repeat(data.ids, data.lengths).tolist()
    assert list(found.frame().columns)[:2] == ["id", "time"]
    assert repr(found).startswith(f"Predictions({data.num_events} events of 6 sequences: ")


def test_prediction_leaves_the_mode_and_the_gradients_alone():
    data = sequences()
    model = model_for(data, state_dropout=0.5).train()
    np.testing.assert_array_equal(model.predict(data)["p_0"], model.predict(data)["p_0"])
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_no_sequences_have_no_predictions():
    data = sequences()
    assert len(model_for(data).predict(data[[]])) == 0


def test_predictions_that_are_not_finite_are_refused():
    data = sequences()
    model = model_for(data)
    with torch.no_grad():
        model.readout.map.bias.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"6 of 6 predictions are NaN or infinite, the first for id 0"):
        model.predict(data)
