"""Does the classifier as it comes keep up on ragged series of which 40 % of the observations are dropped?

Question: accuracy on the test part of the data sets of unequal length that are inside the package aeon, after 40 % of
the observations (whole points in time) of both parts have been dropped at random. The others keep their times.
Rivals: MiniRocket of aeon on linear interpolation; logistic regression on last, mean, least and largest value and
number of observations of each channel; `nn.GRU` with the gap before each observation as a further input. Whatever a
rival has to choose is chosen inside the training part: by cross-validation, or on a fifth that is held out.

    .venv-peers/bin/python benchmarks/aeon_ragged.py [--seeds 3] [--dataset JapaneseVowels]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from aeon.classification.convolution_based import MiniRocketClassifier
from aeon.datasets import load_classification
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lapse import Sequences
from lapse.estimators import IrregularClassifier
from lapse.sequences.summaries import summarize

DATASETS = ("JapaneseVowels", "PickupGestureWiimoteZ")
DROPPED = 0.4
EPOCHS = 60  # of the GRU at most
FEWEST = 2  # observations that a series keeps
Series = list[tuple[np.ndarray, np.ndarray]]  # times (T,) and values (T, channels) per series


def load(name: str, part: str, random: np.random.Generator) -> tuple[Series, np.ndarray]:
    """One part of a data set, with some of its observations dropped."""
    # One array (channels, length) per series.
    series, labels = load_classification(name, split=part, load_equal_length=False)
    return [thinned(one.T, random) for one in series], labels


def thinned(values: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    kept = random.random(len(values)) >= DROPPED
    kept[random.choice(len(values), FEWEST, replace=False)] = True
    return np.flatnonzero(kept).astype(float), values[kept]


def of_lapse(train: Series, labels: np.ndarray, test: Series, seed: int) -> np.ndarray:
    return IrregularClassifier(random_state=seed).fit(train, labels).predict(test)


def of_minirocket(train: Series, labels: np.ndarray, test: Series, seed: int) -> np.ndarray:
    """Interpolated at common times, with the ends held, or each series stretched to one length: by validation."""
    longest = max(9, int(max(times[-1] for times, _ in train)) + 1)

    def held(series: Series) -> np.ndarray:
        return np.stack([interpolated(one, np.arange(longest)) for one in series])

    def stretched(series: Series) -> np.ndarray:
        return np.stack([interpolated(one, np.linspace(one[0][0], one[0][-1], longest)) for one in series])

    def model() -> MiniRocketClassifier:
        return MiniRocketClassifier(random_state=seed)

    form = max((held, stretched), key=lambda form: cross_val_score(model(), form(train), labels, cv=3).mean())
    return model().fit(form(train), labels).predict(form(test))


def interpolated(series: tuple[np.ndarray, np.ndarray], grid: np.ndarray) -> np.ndarray:
    times, values = series
    return np.stack([np.interp(grid, times, channel) for channel in values.T])


def of_logistic_regression(train: Series, labels: np.ndarray, test: Series, seed: int) -> np.ndarray:
    model = make_pipeline(
        SimpleImputer(),
        StandardScaler(),
        LogisticRegressionCV(
            Cs=10, cv=3, l1_ratios=(0.0,), scoring="accuracy", max_iter=5000, use_legacy_attributes=False
        ),
    )
    return model.fit(table(train), labels).predict(table(test))


def table(series: Series) -> np.ndarray:
    return summarize(Sequences.from_arrays([v for _, v in series], [t for t, _ in series])).values


class GapGRU(nn.Module):
    """`nn.GRU` over the scaled values and the gap before each observation; the last state is read out."""

    def __init__(self, channels: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(channels + 1, hidden)
        self.readout = nn.Linear(hidden, classes)

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return self.readout(self.gru(pack_sequence(inputs, enforce_sorted=False))[1][0])


def of_gru(train: Series, labels: np.ndarray, test: Series, seed: int) -> np.ndarray:
    """Size, learning rate and number of epochs are those of the best accuracy on a fifth; then trained on all."""
    classes, codes = np.unique(labels, return_inverse=True)
    targets = torch.from_numpy(codes)
    every = np.concatenate([values for _, values in train])
    known, asked = (gru_inputs(part, every.mean(0), every.std(0)) for part in (train, test))
    inside, outside = train_test_split(
        np.arange(len(train)), test_size=0.2, stratify=labels, random_state=seed
    )
    found = {}
    for hidden, rate in itertools.product((32, 64), (1e-3, 3e-3)):
        models = trained(known, targets, inside, len(classes), hidden, rate, EPOCHS, seed)
        losses = [mistakes(model, known, targets, outside) for model in models]
        epoch = int(np.argmin(losses))
        found[hidden, rate, epoch + 1] = losses[epoch]
    hidden, rate, epochs = min(found, key=found.get)
    *_, model = trained(known, targets, np.arange(len(train)), len(classes), hidden, rate, epochs, seed)
    with torch.no_grad():
        return classes[model(asked).argmax(1).numpy()]


def gru_inputs(series: Series, mean: np.ndarray, scale: np.ndarray) -> list[torch.Tensor]:
    return [
        torch.tensor(
            np.column_stack([(values - mean) / scale, np.diff(times, prepend=times[0])]), dtype=torch.float32
        )
        for times, values in series
    ]


def trained(inputs, targets, rows, classes, hidden, rate, epochs, seed):  # type: ignore[no-untyped-def]
    """The network after each epoch."""
    torch.manual_seed(seed)
    model = GapGRU(inputs[0].shape[1] - 1, classes, hidden)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for _ in range(epochs):
        for batch in torch.from_numpy(rows)[torch.randperm(len(rows))].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model([inputs[i] for i in batch]), targets[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        yield model


@torch.no_grad()
def mistakes(model: GapGRU, inputs: list[torch.Tensor], targets: torch.Tensor, rows: np.ndarray) -> float:
    """The share of mistakes, with the loss to decide between equals."""
    output = model([inputs[i] for i in rows])
    wrong = (output.argmax(1) != targets[rows]).float().mean()
    return float(wrong + 1e-3 * nn.functional.cross_entropy(output, targets[rows]))


PREDICTORS: dict[str, Callable[[Series, np.ndarray, Series, int], np.ndarray]] = {
    "`IrregularClassifier` as it comes": of_lapse,
    "MiniRocket on interpolation": of_minirocket,
    "logistic regression on summaries": of_logistic_regression,
    "`nn.GRU` with the gap as input": of_gru,
}


def accuracies(name: str, seed: int) -> dict[str, float]:
    random = np.random.default_rng(seed)
    train, labels = load(name, "train", random)
    test, truth = load(name, "test", random)
    found = {}
    for predictor, predict in PREDICTORS.items():
        began = time.perf_counter()
        found[predictor] = float((predict(train, labels, test, seed) == truth).mean())
        spent = time.perf_counter() - began
        print(f"{name}, seed {seed}, {predictor}: {found[predictor]:.4f} in {spent:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how often observations are dropped anew")
    parser.add_argument("--dataset", choices=DATASETS, action="append", help="only this one; may be repeated")
    args = parser.parse_args()
    names = args.dataset or DATASETS
    rows = {name: [accuracies(name, seed) for seed in range(args.seeds)] for name in names}
    print("| predictor | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for predictor in PREDICTORS:
        cells = []
        for name in names:
            values = np.array([row[predictor] for row in rows[name]])
            cells.append(f"{values.mean():.3f} ± {values.std(ddof=min(1, len(values) - 1)):.3f}")
        print(f"| {predictor} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
