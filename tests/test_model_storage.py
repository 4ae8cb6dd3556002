"""A model is a folder: what was saved comes back, nothing in it runs, and no damage stays unnoticed."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from example_models import model_for, sequences
from lapse.heads import Classes, NonFiniteError
from lapse.models import MODELS, SequenceModel


class Votes(Classes):
    """A head that is not part of lapse."""


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_answers_the_same(tmp_path, name):
    data = sequences(missing=True, static=True)
    model = model_for(data, model=name, pooling="last+attention", summaries=True, static="state+head")
    model.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "card.md", "config.json", "model.safetensors",
    ]  # fmt: skip
    loaded = SequenceModel.load(tmp_path / "model").eval()
    assert (loaded.config, loaded.schema) == (model.config, model.schema)
    assert torch.equal(loaded(data.batch([0, 1, 2])), model(data.batch([0, 1, 2])))


def test_numbers_per_event_and_every_choice_come_back(tmp_path):
    data = sequences(per_step=True, numbers=True)
    model = model_for(
        data,
        model="phased-lstm",
        options={"periods": [1.0, 20.0]},
        readout="mlp",
        readout_input=True,
        difference=["feature 0", "feature 1"],
        scaling="robust",
        clip=4.0,
        time_unit=2.0,
    )
    model.save(tmp_path)
    loaded = SequenceModel.load(tmp_path)
    assert loaded.config == model.config
    for name, column in model.predict(data).columns.items():
        np.testing.assert_array_equal(loaded.predict(data)[name], column)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_keeps_its_precision(tmp_path, dtype):
    model = model_for(sequences()).to(dtype)
    model.save(tmp_path)
    assert {p.dtype for p in SequenceModel.load(tmp_path).parameters()} == {dtype}


def test_weights_that_are_no_numbers_are_not_stored(tmp_path):
    model = model_for(sequences(), model="gru-d")
    model.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with torch.no_grad():
        next(model.encoder.parameters())[0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"encoder\..* is NaN or infinite, so the model is not stored"):
        model.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_double_model_answers_in_double(tmp_path):
    data = sequences(missing=True)
    model = model_for(data).double()
    model.save(tmp_path)
    output = SequenceModel.load(tmp_path).eval()(data.batch([0, 1]))
    assert output.dtype == torch.float64
    assert torch.equal(output, model(data.batch([0, 1])))


def test_loading_leaves_the_random_numbers_of_others_alone(tmp_path):
    model_for(sequences()).save(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    SequenceModel.load(tmp_path)
    assert torch.equal(torch.rand(1), expected)


def test_the_card_says_what_the_model_takes(tmp_path):
    model_for(sequences(missing=True, static=True)).save(tmp_path)
    card = (tmp_path / "card.md").read_text()
    for words in (
        "one of 2 classes per sequence",
        "feature 0",
        "| static 0 |",
        "Unit of time: h",
        "parameters",
    ):
        assert words in card
    model_for(sequences()).save(tmp_path, card="mine")
    assert (tmp_path / "card.md").read_text() == "mine"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_every_flipped_bit_is_found(tmp_path, file):
    model_for(sequences()).save(tmp_path)
    path = tmp_path / file
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for place in random.integers(0, len(whole), 100):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        if file == "config.json" and json_equal(bytes(damaged), whole):
            continue  # white space
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=file):
            SequenceModel.load(tmp_path)
    path.write_bytes(whole)
    SequenceModel.load(tmp_path)


def json_equal(a: bytes, b: bytes) -> bool:
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def rewrite(folder: Path, **changes: object) -> None:
    from lapse.models.storage import _digest

    contents = json.loads((folder / "config.json").read_text()) | changes
    contents.pop("digest")
    (folder / "config.json").write_text(json.dumps(contents | {"digest": _digest(contents)}))


def test_an_unknown_version_is_refused_with_the_reason(tmp_path):
    model_for(sequences()).save(tmp_path)
    rewrite(tmp_path, format="lapse.SequenceModel/99")
    with pytest.raises(ValueError, match=r"says format 'lapse.SequenceModel/99', and this version .* reads"):
        SequenceModel.load(tmp_path)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no lapse model"):
        SequenceModel.load(tmp_path)
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="damaged, or no config"):
        SequenceModel.load(tmp_path)


def test_a_model_without_its_weights_is_refused(tmp_path):
    model_for(sequences()).save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        SequenceModel.load(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path):
    model_for(sequences()).save(tmp_path / "a")
    model_for(sequences(), seed=1).save(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "model.safetensors", tmp_path / "b" / "model.safetensors")
    with pytest.raises(ValueError, match="belongs to another config"):
        SequenceModel.load(tmp_path / "b")


def test_a_folder_does_not_decide_which_code_is_imported(tmp_path, monkeypatch):
    data = sequences()
    head = Votes.for_data(data)
    model_for(data, head=head).save(tmp_path)
    assert isinstance(SequenceModel.load(tmp_path).head, Votes)
    monkeypatch.delitem(sys.modules, Votes.__module__)
    with pytest.raises(ValueError, match=rf"`import {Votes.__module__}` before loading"):
        SequenceModel.load(tmp_path)


def test_saving_again_replaces_the_model(tmp_path):
    data = sequences()
    (tmp_path / "notes.txt").write_text("mine")
    model_for(data).save(tmp_path)
    second = model_for(data, seed=1)
    second.save(tmp_path)
    assert torch.equal(SequenceModel.load(tmp_path).eval()(data.batch([0])), second(data.batch([0])))
    assert (tmp_path / "notes.txt").read_text() == "mine"
