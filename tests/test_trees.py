"""Boosted trees as plain arrays answer as scikit-learn's own do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_info

from lapse.estimators.trees import (
    FIT,
    SETTINGS,
    SMALL,
    from_arrays,
    grow_classes,
    grow_labels,
    grow_numbers,
    suitable_threads,
)
from lapse.heads import Classes, Labels, Numbers, Targets


def a_table(rows=300, columns=4, seed=0):
    random = np.random.default_rng(seed)
    table = random.normal(size=(rows, columns))
    score = table[:, 0] + table[:, 1] * table[:, 2]
    table[random.random(table.shape) < 0.2] = np.nan
    return table, score


def known(values):
    values = torch.as_tensor(values)
    return Targets(values, torch.ones_like(values, dtype=torch.bool), torch.ones(len(values)))


@pytest.mark.parametrize("count", [2, 3])
def test_classes_as_scikit_learn_has_them(count):
    table, score = a_table()
    labels = np.digitize(score, np.quantile(score, np.arange(1, count) / count))
    head = Classes(range(count))
    trees = grow_classes(table, known(labels), head, 0)
    forest = HistGradientBoostingClassifier(random_state=0, **SETTINGS).fit(table, labels)
    fresh, _ = a_table(seed=1)
    found = head.answer(torch.from_numpy(trees.outputs(fresh))).numpy()
    np.testing.assert_allclose(found, forest.predict_proba(fresh), rtol=1e-6)


def threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "openmp"]


def test_one_thread_for_a_small_table():
    usual = threads()
    with suitable_threads(np.zeros((SMALL, 1))):
        assert set(threads()) == {1}
    with suitable_threads(np.zeros((SMALL + 1, 1))):
        assert threads() == usual
    assert threads() == usual


def test_numbers_in_the_units_of_the_head():
    table, score = a_table()
    head = Numbers()
    head.target_mean.fill_(3.0)
    head.target_scale.fill_(2.0)
    values = torch.as_tensor(score, dtype=torch.float32)[:, None]
    trees = grow_numbers(table, known(values), head, 0)
    forest = HistGradientBoostingRegressor(random_state=0, **SETTINGS).fit(table, (values[:, 0] - 3) / 2)
    np.testing.assert_allclose(trees.outputs(table)[:, 0], forest.predict(table), rtol=1e-5, atol=1e-6)


def test_each_label_has_trees_of_its_own():
    table, score = a_table()
    values = torch.as_tensor(np.column_stack([score > 0, score > 1]), dtype=torch.float32)
    outputs = grow_labels(table, known(values), Labels(["a", "b"]), 0).outputs(table)
    assert ((outputs[:, 0] > 0) == (score > 0)).mean() > 0.9
    assert ((outputs[:, 1] > 0) == (score > 1)).mean() > 0.9


def test_a_class_without_a_case_is_improbable():
    table, score = a_table()
    trees = grow_classes(table, known((score > 0).astype(int) * 2), Classes("abc"), 0)
    assert (Classes("abc").answer(torch.from_numpy(trees.outputs(table)))[:, 1] < 1e-2).all()


@pytest.mark.parametrize(
    ("head", "values"),
    [
        (Classes("abc"), lambda score: np.digitize(score, [-0.5, 0.5])),
        (Classes("abc"), lambda score: (score > 0).astype(int) * 2),
        (Labels(["a", "b"]), lambda score: np.column_stack([score > 0, score > 1]).astype(np.float32)),
        (Numbers(["a", "b"]), lambda score: np.column_stack([score, -score]).astype(np.float32)),
    ],
)
def test_forests_answer_as_their_arrays_do(head, values):
    table, score = a_table()
    forests = FIT[head.config()["kind"]](table, known(values(score)), head, 0)
    fresh, _ = a_table(seed=1)
    np.testing.assert_allclose(forests.outputs(fresh), forests.trees().outputs(fresh), rtol=1e-6, atol=1e-9)


def test_damaged_arrays_are_refused():
    table, score = a_table()
    trees = grow_classes(table, known((score > 0).astype(int)), Classes("ab"), 0)
    np.testing.assert_array_equal(from_arrays(trees.arrays()).outputs(table), trees.outputs(table))
    circular = trees.arrays() | {"left": np.zeros_like(trees.left)}
    with pytest.raises(ValueError, match="does not lead further down"):
        from_arrays(circular)


def test_a_column_without_any_value_is_left_alone():
    table = np.column_stack([np.full(40, np.nan), np.arange(40.0)])
    head = Classes("ab")
    targets = Targets(torch.arange(40) // 20, torch.ones(40, dtype=torch.bool), torch.ones(40))
    trees = grow_classes(table, targets, head, 0)
    assert set(trees.feature[trees.feature >= 0]) == {1}
