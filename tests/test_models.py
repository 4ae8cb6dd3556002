"""A whole model: preprocessing, encoder, pooling, readout, and what can be chosen of them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lapse
from example_models import model_for, sequences
from lapse.heads import Classes, Gaussian, Numbers, Quantiles
from lapse.models import MODELS, ModelConfig, Schema, SequenceModel
from lapse.models.registry import layers


@pytest.mark.parametrize("model", ["gru-d", "ode-lstm"])
@pytest.mark.parametrize("scaling", ["standard", "robust", "none"])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    "more", [{}, {"pooling": "last+mean+max+attention", "summaries": True, "readout": "mlp"}]
)
def test_what_a_missing_value_holds_does_not_matter(model, scaling, bidirectional, more):
    train = sequences(missing=True, static=True)
    trained = model_for(train, model=model, scaling=scaling, options={"bidirectional": bidirectional}, **more)
    batch = train.batch(np.arange(len(train)))
    expected = trained(batch)
    batch.values[~batch.observed] = 1e6
    torch.testing.assert_close(trained(batch), expected)


def test_both_directions_of_gru_d_know_the_mean():
    model = model_for(sequences(missing=True), model="gru-d", scaling="none", options={"bidirectional": True})
    means = [cell.input_mean for cell in model.encoder.layer.cells]
    assert float(means[0][0]) > 50
    assert torch.equal(means[0], means[1])


def test_a_model_that_never_met_missing_values_takes_them_for_the_mean():
    full, holes = sequences(), sequences(missing=True)
    model = model_for(full)
    rows = np.arange(len(full))
    batch, filled = holes.batch(rows), full.batch(rows)
    filled.values[~batch.observed] = model.preprocessing.fill.expand_as(filled.values)[~batch.observed]
    torch.testing.assert_close(model(batch), model(filled))


def test_a_seed_gives_the_weights_it_always_gave():
    """The encoder draws first, then the readout, and nothing else draws."""
    model = model_for(sequences(missing=True, static=True), seed=3, model="ode-lstm")
    torch.manual_seed(3)
    layer = lapse.ODELSTM(4, 4)
    readout = nn.Linear(4 + 2, 2)
    for ours, expected in zip(model.parameters(), [*layer.parameters(), *readout.parameters()], strict=True):
        assert torch.equal(ours, expected)


SHAPES: dict[str, dict[str, Any]] = {
    "pooling": {"pooling": "last+mean+max+attention"},
    "summaries": {"summaries": True},
    "mlp": {"readout": "mlp", "readout_size": 7},
    "deep": {"readout": "deep", "readout_size": 7},
    "residual": {"readout": "residual", "readout_size": 7},
    "static in the state": {"static": "state"},
    "static in state and head": {"static": "state+head", "num_layers": 2},
    "robust": {"scaling": "robust", "clip": 4.0, "time_unit": 3.0},
    "everything": {"pooling": "mean+attention", "summaries": True, "readout": "mlp", "static": "state+head"},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_part_learns_and_no_company_matters(name, shape):
    check_learning(name, **SHAPES[shape])


@pytest.mark.parametrize("name", layers())
def test_both_directions_learn_and_no_company_matters(name):
    check_learning(name, static="state+head", options={"bidirectional": True}, num_layers=2)


def check_learning(name, **settings):
    data = sequences(missing=True, static=True)
    model = model_for(data, model=name, **settings)
    model(data.batch(np.arange(len(data)))).square().sum().backward()
    idle = [
        n for n, p in model.named_parameters() if p.grad is None or not bool(torch.isfinite(p.grad).all())
    ]
    assert idle == []
    together = model(data.batch(np.arange(len(data))))
    for i in range(len(data)):
        torch.testing.assert_close(model(data.batch([i]))[0], together[i], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_static_features_set_the_first_state(name):
    data = sequences(static=True)
    model = model_for(data, model=name, static="state")
    batch = data.batch([0, 2])
    before = model(batch)
    batch.static[0] += 5
    after = model(batch)
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0], after[0])


@pytest.mark.parametrize("head", [Numbers, Gaussian, Quantiles])
@pytest.mark.parametrize("scale", [True, False])
def test_a_readout_of_zeros_predicts_no_change(head, scale):
    """With the difference from the input as its answer, a readout that says nothing repeats the input."""
    data = sequences(per_step=True, numbers=True)
    asked = head.for_data(data, scale=scale)
    model = model_for(data, head=asked, readout="mlp", readout_input=True, difference=True)
    nn.init.zeros_(model.readout.map[-1].weight)
    nn.init.zeros_(model.readout.map[-1].bias)
    predictions = model.predict(data)
    for k in range(2):
        name = next(n for n in predictions.columns if f"target {k}" in n)
        np.testing.assert_allclose(predictions[name], data.values[:, k], rtol=1e-4)


def test_differences_count_from_the_latest_observed_value():
    data = lapse.Sequences.from_arrays(
        [[[np.nan, 1], [5, 2], [np.nan, 3], [7, 4]], [[9, 5]]],
        [[0, 1, 2, 3], [0]],
        targets=[[1.0, 2.0, 3.0, 4.0], [5.0]],
        per_step=True,
        features=("a", "b"),
    )
    model = model_for(data, head=Numbers(per_step=True, scale=False), difference=["a"], scaling="none")
    nn.init.zeros_(model.readout.map.weight)
    nn.init.zeros_(model.readout.map.bias)
    assert model.predict(data)["prediction"].tolist() == [7, 5, 5, 7, 9]  # 7 is the mean of what was observed


def test_the_readout_may_see_the_event_again():
    data = sequences(per_step=True, missing=True)
    model = model_for(data, readout_input=True)
    assert model.readout.map.in_features == 4 + 2 * 2


@pytest.mark.parametrize(
    ("settings", "per_step", "message"),
    [
        (
            {"pooling": "mean"},
            True,
            "pooling is for one answer per sequence, and this model answers at every event",
        ),
        ({"summaries": True}, True, "summaries is for one answer per sequence"),
        ({"readout_input": True}, False, "readout_input is for one answer per event"),
        ({"difference": True}, False, "difference is for one answer per event"),
        ({"difference": True}, True, "Classes does not answer with numbers"),
    ],
)
def test_parts_that_do_not_fit_the_question_are_refused(settings, per_step, message):
    with pytest.raises(ValueError, match=message):
        model_for(sequences(per_step=per_step), **settings)


def test_differences_from_features_that_do_not_fit_the_target():
    data = sequences(per_step=True, numbers=True)
    with pytest.raises(ValueError, match=r"difference names 'x', which is not one of the features"):
        model_for(data, difference=["x"])
    with pytest.raises(ValueError, match=r"got 1 numbers for the 2 columns"):
        model_for(data, difference=["feature 0"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "lstmm"}, r"model must be one of ode-rnn.*got 'lstmm'"),
        ({"pooling": "last+sum"}, "pooling must be one of 'last', 'mean', 'max', 'attention', got 'sum'"),
        ({"readout": "every"}, "readout must be one of 'linear', 'mlp', 'deep', 'residual', got 'every'"),
        ({"static": "body"}, "static must be one of 'state', 'head', 'table', got 'body'"),
        ({"scaling": "minmax"}, "scaling must be one of 'none', 'standard', 'robust', got 'minmax'"),
        ({"clip": 0.0}, "clip is a positive number of scales"),
        ({"clip": 3.0, "scaling": "none"}, "clip is a positive number of scales, so it needs a scaling"),
        ({"time_unit": "hour"}, "time_unit must be one of 'median', got 'hour'"),
        ({"time_unit": 0.0}, "time_unit must be positive"),
        ({"input_dropout": 1.0}, "input_dropout must be at least 0 and below 1"),
        ({"state_dropout": -0.1}, "state_dropout must be at least 0"),
        ({"readout_size": 0}, "readout_size must be at least 1"),
        ({"summaries": "False"}, "summaries must be true or false, got 'False'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**settings)


def test_options_must_be_storable():
    with pytest.raises(TypeError, match=r"options must be plain values.*a solver goes by its word here"):
        ModelConfig(options={"solver": lapse.Exponential(4)})


def test_dropout_acts_in_training_only():
    data = sequences()
    model = model_for(data, input_dropout=0.5, state_dropout=0.5)
    batch = data.batch([0, 1, 2])
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


# An encoder that is no stack of cells


OUTSIDE = "toy_encoder:MeanOfInputs"


@pytest.mark.parametrize("missing", [True, False])
def test_any_encoder_can_take_the_place_of_a_layer(missing):
    data = sequences(missing=missing)
    model = model_for(data, model=OUTSIDE, options={"rate": 0.3})
    assert len(model.predict(data)) == len(data)
    assert model.encoder.rate == 0.3


def test_an_encoder_without_features_per_event_cannot_answer_there():
    data = sequences(per_step=True)
    with pytest.raises(ValueError, match="gives no features per event"):
        model_for(data, model=OUTSIDE).predict(data)


def test_a_head_and_a_schema_can_be_given():
    data = sequences()
    model = SequenceModel(Schema.of(data), Classes(names=("no", "yes")))
    assert model.config == ModelConfig()
    assert list(model.predict(data).columns) == ["prediction", "p_no", "p_yes"]
