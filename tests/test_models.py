"""Preprocessing, readout and storage of a whole model."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

import lapse
from lapse.heads import Classes
from lapse.models import ModelConfig, SequenceModel


def sequences(missing: bool, static: bool = False) -> lapse.Sequences:
    random = np.random.default_rng(0)
    values = [random.normal(80, 10, (length, 2)) for length in (5, 3, 7, 4)]
    if missing:
        for value in values:
            value[1, 0] = np.nan
    times = [np.cumsum(random.exponential(2.0, len(value))) for value in values]
    extra = {"static": np.array([[1.0], [np.nan], [3.0], [4.0]])} if static else {}
    return lapse.Sequences.from_arrays(values, times, targets=[0, 1, 0, 1], **extra)


@pytest.mark.parametrize("model", ["gru-d", "ode-lstm"])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_what_a_missing_value_holds_does_not_matter(model, standardize, bidirectional):
    torch.manual_seed(0)
    train = sequences(missing=True, static=True)
    config = ModelConfig.for_data(
        train, Classes("ab"), model=model, hidden_size=4, options={"bidirectional": bidirectional}
    )
    trained = SequenceModel(config)
    trained.measure(train, standardize=standardize, median_gap=True)
    batch = train.batch([0, 1, 2, 3])
    expected = trained(batch)
    batch.values[~batch.observed] = 1e6
    torch.testing.assert_close(trained(batch), expected)


def test_both_directions_of_gru_d_know_the_mean():
    train = sequences(missing=True)
    config = ModelConfig.for_data(
        train, Classes("ab"), model="gru-d", hidden_size=4, options={"bidirectional": True}
    )
    model = SequenceModel(config)
    model.measure(train, standardize=False, median_gap=False)
    means = [cell.input_mean for cell in model.layer.cells]
    assert float(means[0][0]) > 50
    assert torch.equal(means[0], means[1])


def test_a_model_that_never_met_missing_values_takes_them_for_the_mean():
    torch.manual_seed(0)
    full, holes = sequences(missing=False), sequences(missing=True)
    model = SequenceModel(ModelConfig.for_data(full, Classes("ab"), hidden_size=4))
    model.measure(full, standardize=True, median_gap=True)
    batch = holes.batch([0, 1, 2, 3])
    filled = full.batch([0, 1, 2, 3])
    filled.values[~batch.observed] = model.input_mean.expand_as(filled.values)[~batch.observed]
    torch.testing.assert_close(model(batch), model(filled))


@pytest.mark.parametrize("per_step", [False, True])
def test_a_saved_model_answers_the_same(tmp_path, per_step):
    torch.manual_seed(0)
    data = sequences(missing=True, static=True)
    head = Classes("abc", per_step=per_step)
    config = ModelConfig.for_data(data, head, hidden_size=4, options={"solver": "rk4"})
    model = SequenceModel(config, head)
    model.measure(data, standardize=True, median_gap=True)
    model.save(tmp_path / "model.safetensors")
    batch = data.batch([0, 1, 2, 3])
    loaded = SequenceModel.load(tmp_path / "model.safetensors")
    assert loaded.config == config
    assert torch.equal(loaded(batch), model(batch))
    assert loaded.head.config() == head.config()
    assert model(batch).shape == ((4, 7, 3) if per_step else (4, 3))


def test_settings_are_checked():
    with pytest.raises(ValueError, match=r"model must be one of ode-rnn.*got 'lstmm'"):
        ModelConfig(1, 1, model="lstmm")
    with pytest.raises(ValueError, match="readout must be 'last' or 'every', got 'first'"):
        ModelConfig(1, 1, readout="first")
    with pytest.raises(TypeError, match=r"options must be plain values.*a solver goes by its word here"):
        ModelConfig(1, 1, options={"solver": lapse.Exponential(4)})


def test_another_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no lapse model"):
        SequenceModel.load(tmp_path / "other.safetensors")


def test_a_model_stored_without_a_form_was_a_driven_one(tmp_path):
    from safetensors.torch import load_file, save_file

    train = sequences(missing=False)
    driven = SequenceModel(
        ModelConfig.for_data(train, Classes("ab"), hidden_size=4, options={"form": "driven"})
    )
    driven.save(tmp_path / "driven.safetensors")
    config = dataclasses.asdict(driven.config) | {"options": {}}
    old = tmp_path / "old.safetensors"
    save_file(load_file(tmp_path / "driven.safetensors"), old, {"lapse": json.dumps(config)})
    batch = train.batch([0, 1])
    assert torch.equal(SequenceModel.load(old)(batch), driven(batch))


def test_a_model_made_without_a_form_is_read_back_as_it_is(tmp_path):
    train = sequences(missing=False)
    model = SequenceModel(ModelConfig.for_data(train, Classes("ab"), hidden_size=4))
    assert model.config.options == {"form": "autonomous"}
    model.save(tmp_path / "model.safetensors")
    batch = train.batch([0, 1])
    assert torch.equal(SequenceModel.load(tmp_path / "model.safetensors")(batch), model(batch))
