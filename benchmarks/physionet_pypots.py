"""GRU-D of PyPOTS on the five folds of `physionet_folds.py`: hourly means, stopped early by a fifth of the stays.

PyPOTS is no dependency of lapse; install it in an environment of its own, beside lapse.

    LAPSE_DATA=... python benchmarks/physionet_pypots.py
"""

from __future__ import annotations

import numpy as np
import torch
from physionet_folds import stays, summarize
from pypots.classification import GRUD
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split

from lapse.sequences import Sequences

HOURS = 48


def hourly(data: Sequences) -> np.ndarray:
    """(S, 48, F): the mean of each variable in each hour, NaN where there is none, and what is known of the patient."""
    hours = np.clip(data.times.astype(int), 0, HOURS - 1) + HOURS * np.repeat(
        np.arange(len(data)), data.lengths
    )
    observed = np.isfinite(data.values) if data.observed is None else data.observed.astype(bool)
    total, count = (np.zeros((len(data) * HOURS, data.num_features)) for _ in range(2))
    np.add.at(total, hours, np.where(observed, data.values, 0.0))
    np.add.at(count, hours, observed)
    means = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    means = means.reshape(len(data), HOURS, -1)
    return np.concatenate([means, np.repeat(data.static[:, None], HOURS, 1)], -1).astype(np.float32)


def main() -> None:
    data = stays()
    values, labels, rows = hourly(data), data.targets, []
    splits = StratifiedKFold(5, shuffle=True, random_state=0).split(summarize(data).values, labels)
    for fold, (train, test) in enumerate(splits):
        fitted, held = train_test_split(train, test_size=0.2, stratify=labels[train], random_state=0)
        mean, scale = np.nanmean(values[fitted], (0, 1)), np.nanstd(values[fitted], (0, 1))
        scaled = np.clip((values - mean) / np.where(scale > 0, scale, 1), -10, 10)
        np.random.seed(fold)  # noqa: NPY002
        torch.manual_seed(fold)
        sizes = {"n_steps": HOURS, "n_features": scaled.shape[-1], "n_classes": 2, "rnn_hidden_size": 64}
        model = GRUD(**sizes, batch_size=64, epochs=30, patience=5, device="cpu", verbose=False)
        parts = ({"X": scaled[part], "y": labels[part]} for part in (fitted, held))
        model.fit(*parts)
        found = model.predict({"X": scaled[test]})
        scores = np.asarray(next(found[key] for key in found if "proba" in key))[:, 1]
        rows.append((roc_auc_score(labels[test], scores), average_precision_score(labels[test], scores)))
        print(f"fold {fold}: {rows[-1][0]:.4f} {rows[-1][1]:.4f}", flush=True)
    print("GRU-D of PyPOTS: AUROC {:.4f}, AUPRC {:.4f}".format(*np.mean(rows, axis=0)))


if __name__ == "__main__":
    main()
