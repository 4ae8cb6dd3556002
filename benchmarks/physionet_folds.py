"""Does `lapse fit` beat boosting and logistic regression on PhysioNet 2012? Five stratified folds, the same for all.

Question: area under the ROC curve and average precision of in-hospital death, with only the roles of columns told.
Rivals: gradient boosting (small trees, and scikit-learn's defaults) and logistic regression on last, mean, least and
largest value and number of observations of each variable. Everything is chosen inside the folds.

    LAPSE_DATA=... python benchmarks/physionet_folds.py [--folds 5]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lapse.estimators import IrregularClassifier
from lapse.sequences import Sequences
from lapse.sequences.summaries import summarize
from lapse.tasks.files import read, read_archive
from lapse.tasks.physionet import OUTCOMES, RECORDS, read_stays

SMALL_TREES = {"max_leaf_nodes": 8, "learning_rate": 0.05, "max_iter": 150, "l2_regularization": 1.0}
RIVALS = {
    "boosting, small trees": lambda: HistGradientBoostingClassifier(random_state=0, **SMALL_TREES),
    "boosting, defaults": lambda: HistGradientBoostingClassifier(random_state=0),
    "logistic regression": lambda: make_pipeline(
        SimpleImputer(add_indicator=True), StandardScaler(), LogisticRegression(C=0.01, max_iter=2000)
    ),
}


def stays() -> Sequences:
    return read_stays(read_archive(RECORDS)[0], read(OUTCOMES)[0])


def of_lapse(train: Sequences, test: Sequences) -> dict[str, np.ndarray]:
    """The scores of `lapse fit`, and of its networks without the trees."""
    ensemble = IrregularClassifier().fit(train).ensemble_
    prepared = ensemble.preparation(test)
    parts = {"lapse fit": ensemble, "its networks alone": replace(ensemble, trees=None)}
    outputs = {name: part.outputs(prepared).numpy() for name, part in parts.items()}
    return {name: output[:, 1] - output[:, 0] for name, output in outputs.items()}


def fold(
    data: Sequences, table: np.ndarray, train: np.ndarray, test: np.ndarray
) -> dict[str, tuple[float, float]]:
    labels = data.targets
    scores = of_lapse(data[train], data[test])
    for name, make in RIVALS.items():
        scores[name] = make().fit(table[train], labels[train]).predict_proba(table[test])[:, 1]
    return {
        name: (roc_auc_score(labels[test], found), average_precision_score(labels[test], found))
        for name, found in scores.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=5, help="how many of the five folds to run")
    data = stays()
    table = summarize(data).values
    splits = list(StratifiedKFold(5, shuffle=True, random_state=0).split(table, data.targets))
    rows = []
    for number, (train, test) in enumerate(splits[: parser.parse_args().folds]):
        began = time.perf_counter()
        rows.append(fold(data, table, train, test))
        print(f"fold {number}: {time.perf_counter() - began:.0f} s", flush=True)
    print("| predictor | AUROC | AUPRC |\n|---|---|---|")
    for name in rows[0]:
        auroc, auprc = np.mean([row[name] for row in rows], axis=0)
        print(f"| {name} | {auroc:.4f} | {auprc:.4f} |")


if __name__ == "__main__":
    main()
