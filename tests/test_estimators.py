"""scikit-learn's way of calling, on ragged input."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import polars
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from example_estimators import QUICK, means
from lapse import Sequences
from lapse.estimators import (
    Ensemble,
    IrregularClassifier,
    IrregularLabeller,
    IrregularMultiLabelClassifier,
    IrregularRegressor,
)
from lapse.estimators.recipe import batch_size, bin_width, epochs, rounded
from lapse.models import SchemaWarning
from lapse.sequences.summaries import LEVELS, STATISTICS
from lapse.stored_config import digest_of


def words(centre):
    return np.where(centre > 0, "high", "low")


def test_a_classifier_learns_words_and_gives_probabilities():
    X, centre = means(120)
    fitted = IrregularClassifier(**QUICK).fit(X[:80], words(centre[:80]))
    assert fitted.classes_.tolist() == ["high", "low"]
    found = fitted.predict_proba(X[80:])
    assert found.shape == (40, 2)
    np.testing.assert_allclose(found.sum(1), 1)
    assert fitted.score(X[80:], words(centre[80:])) > 0.85
    assert set(fitted.predict(X)) == {"high", "low"}


def test_a_regressor_reaches_a_high_r2():
    X, centre = means(300)
    fitted = IrregularRegressor(**QUICK).fit(X[:200], 50 + 10 * centre[:200])
    assert fitted.score(X[200:], 50 + 10 * centre[200:]) > 0.9
    several = IrregularRegressor(**QUICK).fit(X[:200], np.column_stack([centre, -centre])[:200])
    assert several.predict(X[200:]).shape == (100, 2)


def test_several_labels_some_unknown():
    X, centre = means(120)
    labels = np.column_stack([centre > 0, centre > 0.5]).astype(float)
    labels[::7, 1] = np.nan
    fitted = IrregularMultiLabelClassifier(**QUICK).fit(X, labels)
    assert fitted.predict_proba(X).shape == fitted.predict(X).shape == (120, 2)
    known = ~np.isnan(labels)
    assert (fitted.predict(X)[known] == labels[known]).mean() > 0.85
    assert fitted.score(X, np.nan_to_num(labels)) > 0.5


def test_a_labeller_answers_at_every_event():
    X, _ = means(60, missing=0.0)
    labels = [(X.values[a:b, 0] > 0).astype(int) for a, b in zip(X.offsets, X.offsets[1:], strict=False)]
    fitted = IrregularLabeller(**QUICK | {"epochs": 5}).fit(X, labels)
    assert [len(one) for one in fitted.predict(X)] == X.lengths.tolist()
    assert [len(one) for one in fitted.predict_proba(X)] == X.lengths.tolist()
    assert fitted.score(X, labels) > 0.9
    held = IrregularLabeller(**QUICK).fit(fitted._with_targets(X, labels))
    assert held.score(fitted._with_targets(X, labels), sample_weight=np.ones(60)) > 0.8


def test_every_form_of_x_gives_the_same_answers():
    X, centre = means(40)
    fitted = IrregularRegressor(**QUICK).fit(X, centre)
    expected = fitted.predict(X)
    values = np.where(X.observed, X.values, np.nan)
    parts = [slice(a, b) for a, b in zip(X.offsets, X.offsets[1:], strict=False)]
    pairs = [(X.times[part], values[part]) for part in parts]
    np.testing.assert_allclose(fitted.predict(pairs), expected, rtol=1e-5)
    # Zeros before the number let names and numbers sort alike, since a table's ids are sorted.
    table = pd.DataFrame({"who": np.repeat([f"{i:03}" for i in range(40)], X.lengths), "when": X.times})
    table[["feature 0", "feature 1"]] = values
    for frame in (
        table,
        polars.from_pandas(table),
        polars.from_pandas(table).to_arrow(),
        table.set_index(["who", "when"]),
    ):
        np.testing.assert_allclose(fitted.predict(frame), expected, rtol=1e-5)


def test_regular_arrays_end_where_they_are_nan():
    random = np.random.default_rng(0)
    X = random.normal(size=(30, 2, 8))
    X[0, :, 5:] = np.nan
    fitted = IrregularClassifier(**QUICK).fit(X, X[:, 0, 0] > 0)
    assert fitted.sequences(X).lengths.tolist() == [5] + [8] * 29
    assert fitted.predict(X).dtype == bool
    for wrong in (np.zeros((2, 2, 2, 2)), [["a"]], 3.0):
        with pytest.raises((TypeError, ValueError), match=r"X must be a lapse\.Sequences"):
            fitted.predict(wrong)


def test_targets_may_come_with_a_table():
    X, centre = means(40)
    table = pd.DataFrame({"id": np.repeat(np.arange(40), X.lengths), "time": X.times, "x": X.values[:, 0]})
    table["y"] = np.repeat(words(centre), X.lengths)
    table["site"] = np.repeat(np.arange(40) % 7, X.lengths)
    fitted = IrregularClassifier(target="y", group="site", **QUICK).fit(table)
    assert fitted.score(table) > 0.8
    assert len(fitted.predict(table.drop(columns="y"))) == 40


def test_what_is_wrong_is_said():
    X, centre = means(40)
    with pytest.raises(NotFittedError):
        IrregularRegressor().predict(X)
    with pytest.raises(ValueError, match="requires y to be passed"):
        IrregularRegressor(**QUICK).fit(X)
    with pytest.raises(ValueError, match="39 targets for 40 sequences"):
        IrregularRegressor(**QUICK).fit(X, centre[1:])
    with pytest.raises(ValueError, match="class weights need classes"):
        IrregularRegressor(class_weight="balanced", **QUICK).fit(X, centre)
    for weights in (np.zeros(40), np.ones(39), -np.ones(40)):
        with pytest.raises(ValueError, match="sample_weight"):
            IrregularRegressor(**QUICK).fit(X, centre, sample_weight=weights)
    with pytest.raises(ValueError, match="class_weight must be"):
        IrregularClassifier(class_weight="heavy", **QUICK).fit(X, words(centre))
    with pytest.raises(ValueError, match="class_weight must be"):
        IrregularMultiLabelClassifier(class_weight={0: 2.0}, **QUICK).fit(X, centre[:, None] > 0)


def test_cloned_pickled_and_stored_it_answers_the_same(tmp_path):
    X, centre = means(60)
    fitted = IrregularClassifier(**QUICK | {"members": 2}).fit(X, words(centre))
    again = clone(fitted).fit(X, words(centre))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X)
    )
    fitted.save(tmp_path / "model")
    stored = Ensemble.load(tmp_path / "model").predict(X)
    np.testing.assert_array_equal(stored["p_high"], fitted.predict_proba(X)[:, 0])
    assert stored.ids.tolist() == X.ids.tolist()
    assert "2 networks" in (tmp_path / "model" / "card.md").read_text()


def test_an_ensemble_that_does_not_say_its_statistics_has_those_of_its_time(tmp_path):
    X, centre = means(60)
    fitted = IrregularClassifier(**QUICK).fit(X, words(centre))
    fitted.save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"

    def store(**statistics):
        contents = json.loads(path.read_text())
        del contents["digest"]
        contents["preparation"].pop("statistics", None)
        contents["preparation"] |= statistics
        path.write_text(json.dumps(contents | {"digest": digest_of(contents)}))

    assert fitted.ensemble_.preparation.statistics == LEVELS
    store()
    stored = Ensemble.load(tmp_path / "model")
    np.testing.assert_array_equal(stored.predict(X)["p_high"], fitted.predict_proba(X)[:, 0])
    store(statistics=["last", "median"])
    with pytest.raises(
        ValueError, match=r"statistics that this version of lapse does not know: \['median'\]"
    ):
        Ensemble.load(tmp_path / "model")


def test_shape_is_looked_at_where_it_decides(tmp_path):
    random = np.random.default_rng(0)
    steps = np.repeat([0.3, 3.0], 40)  # by how much the series changes, whatever its level
    X = [(np.arange(20.0), np.cumsum(random.normal(0, 1, (20, 1)) * step, 0)) for step in steps]
    fitted = IrregularClassifier(**QUICK).fit(X, steps > 1)
    assert fitted.ensemble_.preparation.statistics == STATISTICS
    fitted.save(tmp_path)
    stored = Ensemble.load(tmp_path)
    assert stored.preparation == fitted.ensemble_.preparation
    told = IrregularClassifier(**QUICK, settings={"ridge": 6.0}).fit(X, steps > 1).ensemble_
    assert told.preparation.statistics == STATISTICS
    assert told.networks[0].config.ridge == 6.0
    explanation = fitted.explain(fitted.sequences(X[:5]))
    assert np.abs(explanation.error).max() <= 0.01 * max(1.0, np.abs(explanation.change).max())
    assert np.abs(explanation.change).max() > 0.1


def test_a_damaged_or_unknown_folder_is_refused(tmp_path):
    X, centre = means(30)
    IrregularClassifier(**QUICK).fit(X, words(centre)).save(tmp_path / "model")
    trees, config = tmp_path / "model" / "trees.safetensors", tmp_path / "model" / "config.json"
    trees.write_bytes(trees.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"trees\.safetensors is damaged"):
        Ensemble.load(tmp_path / "model")
    config.write_text(config.read_text().replace("lapse.Ensemble/1", "lapse.Ensemble/9"))
    with pytest.raises(ValueError, match=r"says format 'lapse\.Ensemble/9'"):
        Ensemble.load(tmp_path / "model")
    config.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        Ensemble.load(tmp_path / "model")
    with pytest.raises(ValueError, match="holds no model"):
        Ensemble.load(tmp_path)


def test_a_network_of_another_ensemble_is_refused(tmp_path):
    """As a fit into the same folder leaves one behind if it is cut off while it writes."""
    X, centre = means(30)
    for seed in (0, 1):
        IrregularClassifier(**QUICK, boosting=False, random_state=seed).fit(X, words(centre)).save(
            tmp_path / f"{seed}"
        )
    shutil.rmtree(tmp_path / "0" / "network-0")
    with pytest.raises(ValueError, match="network-0 holds no lapse model"):
        Ensemble.load(tmp_path / "0")
    shutil.copytree(tmp_path / "1" / "network-0", tmp_path / "0" / "network-0")
    with pytest.raises(ValueError, match="network-0 belongs to another config"):
        Ensemble.load(tmp_path / "0")


def test_cross_validation_groups_and_pipelines_take_sequences():
    X, centre = means(60)
    estimator = make_pipeline(FunctionTransformer(lambda s: s.bin(0.5)), IrregularRegressor(**QUICK))
    scores = cross_val_score(estimator, X, centre, groups=np.arange(60) % 6, cv=GroupKFold(3))
    assert (scores > 0.5).all()


def test_grid_search_finds_the_better_model_and_size():
    X, _ = means(100, missing=0.0)
    X = replace(X, values=np.random.default_rng(1).normal(size=X.values.shape).astype(np.float32))
    y = X.values[X.offsets[1:] - 1]  # what was observed last, two numbers
    # A mean hardly knows what came last; a single unit cannot hold two numbers; summaries and trees would know both.
    alone = {"summaries": False, "boosting": False, "refit": False, "settings": {"pooling": "last"}}
    eager = {
        "epochs": 12,
        "batch_size": 16,
        "learning_rate": 0.03,
        "weight_decay": 0.0,
        "dropout": 0.0,
        "hide": 0.0,
    }
    models_and_sizes = {"model": ["toy_encoder:MeanOfInputs", "gru-d"], "hidden_size": [1, 8]}
    search = GridSearchCV(
        IrregularRegressor(members=1, **alone, **eager), models_and_sizes, cv=2, refit=False
    )
    search.fit(X, y)
    assert search.best_params_ == {"model": "gru-d", "hidden_size": 8}
    assert search.best_score_ > 0.6 > 0.3 > sorted(search.cv_results_["mean_test_score"])[-2]


def test_weights_decide_what_counts():
    X, _ = means(80)
    random = np.random.default_rng(0).normal(size=80)
    y = np.where(np.arange(80) < 40, 5.0, -5.0) + 0.1 * random
    weights = np.where(np.arange(80) < 40, 1.0, 1e-6)
    found = IrregularRegressor(**QUICK).fit(X, y, sample_weight=weights)
    plain = IrregularRegressor(**QUICK).fit(X, y)
    assert found.predict(X).mean() > plain.predict(X).mean() + 1.0


def test_balanced_classes_raise_the_rare_one():
    X, centre = means(200)
    y = (centre + np.random.default_rng(1).normal(size=200) > 1.8).astype(int)
    plain = IrregularClassifier(**QUICK).fit(X, y).predict_proba(X)[:, 1]
    balanced = IrregularClassifier(class_weight="balanced", **QUICK).fit(X, y).predict_proba(X)[:, 1]
    assert balanced.mean() > 1.2 * plain.mean()


def test_a_dictionary_says_how_much_each_class_counts():
    X, centre = means(120)
    y = words(centre + np.random.default_rng(1).normal(size=120))
    plain = IrregularClassifier(**QUICK).fit(X, y).predict_proba(X)[:, 0]
    heavy = IrregularClassifier(class_weight={"high": 5.0}, **QUICK)
    favoured = heavy.fit(X, y).predict_proba(X)[:, 0]
    assert favoured.mean() > plain.mean() + 0.1
    by_weights = IrregularClassifier(**QUICK).fit(X, y, sample_weight=np.where(y == "high", 5.0, 1.0))
    np.testing.assert_array_equal(by_weights.predict_proba(X)[:, 0], favoured)
    both = clone(heavy).fit(X, y, sample_weight=np.where(y == "high", 0.2, 1.0)).predict_proba(X)[:, 0]
    np.testing.assert_allclose(both, plain, atol=1e-5)


def test_whole_numbers_are_numbers_to_a_regressor():
    X, centre = means(60)
    whole = np.round(10 * centre).astype(int)
    as_whole, as_real = (
        IrregularRegressor(**QUICK).fit(X, y).predict(X) for y in (whole, whole.astype(float))
    )
    np.testing.assert_array_equal(as_whole, as_real)


def test_an_array_has_as_many_columns_as_the_first_one():
    X = np.random.default_rng(0).normal(size=(30, 8))
    fitted = IrregularRegressor(**QUICK).fit(X, X[:, 0])
    assert fitted.n_features_in_ == 8
    with pytest.raises(ValueError, match=r"X has 7 features, but IrregularRegressor is expecting 8"):
        fitted.predict(X[:, :7])
    shorter = [(np.arange(7.0), series[:7, None]) for series in X]
    padded = np.where(np.arange(8) < 7, X, np.nan)
    np.testing.assert_allclose(fitted.predict(shorter), fitted.predict(padded), rtol=1e-5)
    assert not hasattr(fitted.fit(shorter, X[:, 0]), "n_features_in_")


def test_one_sequence_or_one_group_is_too_little():
    X, centre = means(5)
    with pytest.raises(ValueError, match="got a single sequence"):
        IrregularRegressor(**QUICK).fit(X[:1], centre[:1])
    with pytest.raises(ValueError, match="got a single group"):
        IrregularRegressor(**QUICK).fit(X, centre, groups=np.zeros(5))


def test_columns_without_names_are_refused():
    with pytest.raises(ValueError, match="one is called 0"):
        IrregularRegressor(**QUICK).fit(pd.DataFrame(np.zeros((4, 3))), np.zeros(4))


def test_a_part_of_the_data_may_lack_a_class_or_a_column():
    X, centre = means(60)
    y = np.where(centre > 0, "a", "b").astype(object)
    y[:2] = "rare"
    assert IrregularClassifier(**QUICK).fit(X, y).classes_.tolist() == ["a", "b", "rare"]


def test_another_table_is_compared_by_name():
    X, centre = means(40)
    table = pd.DataFrame(
        {"id": np.repeat(np.arange(40), X.lengths), "time": X.times, "x": X.values[:, 0], "z": 1.0}
    )
    table.loc[::3, "z"] = np.nan
    fitted = IrregularRegressor(**QUICK).fit(table, centre)
    with pytest.warns(SchemaWarning, match="'z' is missing"):
        fitted.predict(table.drop(columns="z"))
    with pytest.raises(ValueError, match=r"'x' is missing \(is it 'xx'\?\)"):
        fitted.predict(table.rename(columns={"x": "xx"}))


def test_without_refit_the_first_split_is_kept():
    X, centre = means(60)
    fitted = IrregularRegressor(refit=False, boosting=False, **QUICK).fit(X, centre)
    assert fitted.ensemble_.trees is None
    assert "a network" in fitted.ensemble_.parts
    assert fitted.score(X, centre) > 0.5


def test_defaults_follow_the_data():
    assert [rounded(x) for x in (0.013, 0.9, 3.4, 40)] == [0.01, 1.0, 5.0, 50.0]
    assert batch_size(100) < batch_size(10_000)
    assert epochs(100, 32) > epochs(10_000, 64) == 10
    dense, _ = means(10)
    assert bin_width(dense) is None
    random = np.random.default_rng(0)
    sparse = np.where(random.random((100, 4)) < 0.8, np.nan, 1.0)
    sparse[0] = 1.0
    assert bin_width(Sequences.from_arrays([sparse] * 3, [np.linspace(0, 50, 100)] * 3)) == 1.0
