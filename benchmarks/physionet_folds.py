"""Does `lapse fit` beat boosting and logistic regression on PhysioNet 2012? Five stratified folds, the same for all.

Question: area under the ROC curve and average precision of in-hospital death, with only the roles of columns told.
Rivals: gradient boosting (small trees, and scikit-learn's defaults) and logistic regression on last, mean, least and
largest value and number of observations of each variable. Everything is chosen inside the folds.

    LAPSE_DATA=... python benchmarks/physionet_folds.py [--folds 5]

With `--encoders` the question is another: what does each encoder bring? One network per fold, in the model and with the
recipe of `lapse fit`: alone, and beside its regression on summaries; no trees, no ensemble. `--encoders gru-d mtan`
asks for some of them.
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
from lapse.models import MODELS
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


def encoder(name: str, data: Sequences, splits: list[tuple[np.ndarray, np.ndarray]]) -> str:
    """The row of an encoder: parameters; figures and seconds of the processor per fold, alone and beside summaries."""
    cells = []
    for summaries in (False, True):
        began, figures = time.process_time(), []
        for train, test in splits:
            model = IrregularClassifier(name, members=1, boosting=False, refit=False, summaries=summaries)
            found = model.fit(data[train]).predict_proba(data[test])[:, 1]
            figures.append(
                (roc_auc_score(data.targets[test], found), average_precision_score(data.targets[test], found))
            )
        means, spread = (
            np.mean(figures, axis=0),
            np.std(figures, axis=0, ddof=1) if len(figures) > 1 else (0.0, 0.0),
        )
        cells += [f"{mean:.3f} ± {far:.3f}" for mean, far in zip(means, spread, strict=True)]
        cells.append(f"{(time.process_time() - began) / len(splits):.0f}")
    network = model.ensemble_.networks[0].encoder
    return f"| `{name}` | {sum(p.numel() for p in network.parameters()):,} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=5, help="how many of the five folds to run")
    parser.add_argument("--encoders", nargs="*", help="compare encoders instead: these, or all")
    asked = parser.parse_args()
    data = stays()
    table = summarize(data).values
    splits = list(StratifiedKFold(5, shuffle=True, random_state=0).split(table, data.targets))[: asked.folds]
    if asked.encoders is not None:
        print("| encoder | its parameters | AUROC alone | AUPRC | s | AUROC beside summaries | AUPRC | s |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for name in asked.encoders or MODELS:
            print(encoder(name, data, splits), flush=True)
        return
    rows = []
    for number, (train, test) in enumerate(splits):
        began = time.perf_counter()
        rows.append(fold(data, table, train, test))
        print(f"fold {number}: {time.perf_counter() - began:.0f} s", flush=True)
    print("| predictor | AUROC | AUPRC |\n|---|---|---|")
    for name in rows[0]:
        auroc, auprc = np.mean([row[name] for row in rows], axis=0)
        print(f"| {name} | {auroc:.4f} | {auprc:.4f} |")


if __name__ == "__main__":
    main()
