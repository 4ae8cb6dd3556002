"""Gradient-boosted trees on summaries of sequences, kept as plain arrays.

scikit-learn grows the trees. A grown tree is five numbers per node, so that a stored model holds arrays alone: reading
it runs no code of the file and does not depend on the version of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lapse.extras import extra
from lapse.heads import Head, Targets
from lapse.sequences.ragged import Array

# Small trees: on a few thousand sequences they do better than the defaults of scikit-learn.
SETTINGS: dict[str, Any] = {
    "max_leaf_nodes": 8,
    "learning_rate": 0.05,
    "max_iter": 150,
    "l2_regularization": 1.0,
    "early_stopping": False,
}
# A tree waits for all threads after each of its nodes. On small tables several threads gain little, and on a busy
# machine they lose much: a table of 800 rows and 60 columns took 30 times the processor time with two of them.
SMALL = 1_000_000  # values of a table up to which one thread grows its trees


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of trees per raw output of a head; node 0 of each tree is its root.

    Args:
        baseline: (width,), what the sum starts from.
        column: (trees,), the raw output to which each tree adds.
        offsets: (trees + 1,), where the nodes of each tree begin and end.
        feature: (nodes,), the column of the table that a node compares; -1 in a leaf.
        threshold: (nodes,), up to which a value goes to the left; in a leaf, what the leaf adds.
        left: (nodes,), the node to the left, counted within the tree.
        right: (nodes,), the node to the right.
        missing_left: (nodes,) bool, whether a missing value goes to the left.
    """

    baseline: Array
    column: Array
    offsets: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array

    def outputs(self, table: Array) -> Array:
        """(S, width) raw outputs.

        Args:
            table: (S, columns) float64, NaN where a value is missing.
        """
        total = np.repeat(self.baseline[None], len(table), axis=0)
        rows = np.arange(len(table))
        for tree, column in enumerate(self.column):
            first = self.offsets[tree]
            node = np.full(len(table), first)
            while (inner := np.flatnonzero(self.feature[node] >= 0)).size:
                at = node[inner]
                value = table[rows[inner], self.feature[at]]
                to_left = np.where(np.isnan(value), self.missing_left[at], value <= self.threshold[at])
                node[inner] = first + np.where(to_left, self.left[at], self.right[at])
            total[:, column] += self.threshold[node]
        return total

    def arrays(self) -> dict[str, Array]:
        """Everything, by name, as a file keeps it."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Forests:
    """Forests as scikit-learn has grown them.

    Args:
        forests: boosted classifiers or regressors.
        baseline: (width,), the raw outputs to which no forest adds.
        columns: for each forest, the raw outputs of the head that it gives.
    """

    forests: list[Any]
    baseline: Array
    columns: list[list[int]]

    def outputs(self, table: Array) -> Array:
        """(S, width) raw outputs, as those of `trees` but several times faster.

        Args:
            table: (S, columns) float64, NaN where a value is missing.
        """
        total = np.repeat(self.baseline[None], len(table), axis=0)
        with suitable_threads(table):
            for forest, outputs in zip(self.forests, self.columns, strict=True):
                total[:, outputs] = forest._raw_predict(table)
        return total

    def trees(self) -> Trees:
        """The same as plain arrays, which can be stored."""
        return _gathered(self.forests, self.baseline.copy(), self.columns)


@contextmanager
def suitable_threads(table: Array) -> Iterator[None]:
    """One thread for scikit-learn's trees on a small table, and as many as usual on a large one.

    Args:
        table: what trees are grown on, or asked about.
    """
    with extra("estimators"):
        from threadpoolctl import threadpool_limits

    with threadpool_limits(1 if table.size <= SMALL else None, user_api="openmp"):
        yield


def grow_classes(table: Array, targets: Targets, head: Head, seed: int) -> Trees:
    """Trees for one of several classes; with two classes they add to the logit of the second alone."""
    return fit_classes(table, targets, head, seed).trees()


def grow_labels(table: Array, targets: Targets, head: Head, seed: int) -> Trees:
    """Trees for several labels, each given or not."""
    return fit_labels(table, targets, head, seed).trees()


def grow_numbers(table: Array, targets: Targets, head: Head, seed: int) -> Trees:
    """Trees for numbers, in the units in which the head learns them."""
    return fit_numbers(table, targets, head, seed).trees()


def fit_classes(table: Array, targets: Targets, head: Head, seed: int) -> Forests:
    """One forest for one of several classes; with two classes it gives the logit of the second alone."""
    with extra("estimators"):
        from sklearn.ensemble import HistGradientBoostingClassifier

    known = targets.known.numpy()
    labels = targets.values.numpy()[known]
    forest = HistGradientBoostingClassifier(random_state=seed, **SETTINGS)
    with suitable_threads(table):
        forest.fit(_growable(table[known]), labels, sample_weight=targets.weights.numpy()[known])
    present = [int(label) for label in forest.classes_]
    # A class without a single case gets a logit far below the others.
    baseline = np.full(head.width, -10.0)
    if len(present) == 2:
        baseline[present[0]] = 0.0
        present = present[1:]
    return Forests([forest], baseline, [present])


def fit_labels(table: Array, targets: Targets, head: Head, seed: int) -> Forests:
    """A forest for each of several labels, given or not."""
    with extra("estimators"):
        from sklearn.ensemble import HistGradientBoostingClassifier

    return _per_column(HistGradientBoostingClassifier, table, targets.values.numpy(), targets, seed)


def fit_numbers(table: Array, targets: Targets, head: Head, seed: int) -> Forests:
    """A forest for each of several numbers, in the units in which the head learns them."""
    with extra("estimators"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    scaled = head.certain(targets.values).numpy()
    return _per_column(HistGradientBoostingRegressor, table, scaled, targets, seed)


Grow = Callable[[Array, Targets, Head, int], Trees]

# By the kind of head, as `lapse.heads.HEADS` names it.
FIT: dict[str, Callable[[Array, Targets, Head, int], Forests]] = {
    "classes": fit_classes,
    "labels": fit_labels,
    "numbers": fit_numbers,
}


def _growable(table: Array) -> Array:
    """The table with 0 throughout a column without any value, which scikit-learn refuses; no tree uses a constant."""
    return np.where(np.isnan(table).all(axis=0), 0.0, table)


def _per_column(kind: Any, table: Array, values: Array, targets: Targets, seed: int) -> Forests:
    forests = []
    for k in range(values.shape[1]):
        known = targets.known.numpy()[:, k]
        forest, weights = kind(random_state=seed, **SETTINGS), targets.weights.numpy()[known]
        with suitable_threads(table):
            forests.append(forest.fit(_growable(table[known]), values[known, k], sample_weight=weights))
    return Forests(forests, np.zeros(values.shape[1]), [[k] for k in range(values.shape[1])])


def _gathered(forests: list[Any], baseline: Array, columns: list[list[int]]) -> Trees:
    """The trees of scikit-learn's forests; output j of forest i goes to the raw output `columns[i][j]`."""
    trees, places = [], []
    for forest, outputs in zip(forests, columns, strict=True):
        baseline[outputs] = np.ravel(forest._baseline_prediction)
        for step in forest._predictors:
            trees += [predictor.nodes for predictor in step]
            places += outputs
    nodes = np.concatenate(trees)
    leaf = nodes["is_leaf"].astype(bool)
    return Trees(
        baseline=baseline.astype(np.float64),
        column=np.array(places, np.int64),
        offsets=np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]).astype(np.int64),
        feature=np.where(leaf, -1, nodes["feature_idx"]).astype(np.int64),
        threshold=np.where(leaf, nodes["value"], nodes["num_threshold"]).astype(np.float64),
        left=nodes["left"].astype(np.int64),
        right=nodes["right"].astype(np.int64),
        missing_left=nodes["missing_go_to_left"].astype(bool),
    )


def from_arrays(arrays: Mapping[str, Array]) -> Trees:
    """The trees whose `arrays` method returned these.

    Args:
        arrays: every field by its name.
    """
    trees = Trees(**arrays)
    inner = trees.feature >= 0
    sizes = np.repeat(np.diff(trees.offsets), np.diff(trees.offsets))
    place = np.arange(len(trees.feature)) - np.repeat(trees.offsets[:-1], np.diff(trees.offsets))
    for branch in (trees.left, trees.right):
        # A branch that leads backward or out of its tree would never end.
        if ((branch <= place) | (branch >= sizes))[inner].any():
            raise ValueError("the stored trees are damaged: a branch does not lead further down its tree")
    return trees
