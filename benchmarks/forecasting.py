"""How well are values forecast at times that are asked for? Forecasters beside persistence, mean and linear regression.

Question: the error by the time ahead, and whether quantiles cover what they promise, on sequences that were not learned
from. Rivals: the last value; the mean of training; ridge regression on last values, means and the gap, fitted to the
same cuts. `walker`: the whole frame 1, 2, 5 and 10 frames ahead. `physionet2012`: the heart rate 1, 3, 6, 12 and 24
hours ahead; the truth is what was measured within half an hour of that, asked for at its own time.

    LAPSE_DATA=... python benchmarks/forecasting.py walker
    LAPSE_DATA=... python benchmarks/forecasting.py physionet2012 --head quantiles
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch

from lapse import TASKS, Cuts, Forecaster, Sequences
from lapse.heads import Head, Numbers, Quantiles, Targets
from lapse.heads import metrics as of
from lapse.models.simple_forecasts import simple_forecasts
from lapse.training import TrainConfig, fit

MODELS = {
    "GRU-D": {"model": "gru-d"},
    "CT-LSTM": {"model": "ct-lstm"},
    "ODE-RNN, jump": {"model": "ode-rnn", "options": {"form": "jump"}},
    "ODE-LSTM, autonomous": {"model": "ode-lstm", "options": {"form": "autonomous"}},
    "ODE-LSTM, jump": {"model": "ode-lstm", "options": {"form": "jump"}},
}
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True)
class Question:
    """What is forecast.

    Args:
        targets: the features; None for all.
        horizon: the longest time ahead.
        leads: the times ahead that the table shows, each with how far from it a query may be.
        unit: what to call one unit of time.
        cuts: how many cuts per training sequence are learned from.
    """

    targets: str | None
    horizon: float
    leads: tuple[float, ...]
    near: float
    unit: str
    cuts: int


QUESTIONS = {
    "walker": Question(None, 10.0, (1.0, 2.0, 5.0, 10.0), 0.0, "frames", 1),
    "physionet2012": Question("HR", 24.5, (1.0, 3.0, 6.0, 12.0, 24.0), 0.5, "h", 6),
}


def data(task: str, question: Question, seed: int) -> tuple[Cuts, Cuts, Cuts]:
    """Cuts of the three parts; targets of the task itself are not used."""
    found = TASKS[task].load()
    parts: list[Sequences] = [
        replace(part, targets=None, per_step=False, classes=None, target_names=())
        for part in (found.train, found.validation, found.test)
    ]
    numbers = {"horizon": question.horizon, "seed": seed}
    train = Cuts.random(parts[0], question.targets, count=question.cuts, queries=12, **numbers)
    held_out = [Cuts.random(part, question.targets, count=2, queries=None, **numbers) for part in parts[1:]]
    return train, held_out[0], held_out[1]


def figures(head: Head, output: torch.Tensor, cuts: Cuts, question: Question) -> dict[str, dict[str, float]]:
    """The figures of raw outputs by the time ahead, and over all queries."""
    targets: Targets = head.targets_of(cuts.queries)
    truth = targets.values.double().masked_fill(~targets.known, torch.nan).numpy()
    answer = head.answer(output.double()).numpy()
    spans = cuts.spans
    chosen = {f"{lead:g}": np.abs(spans - lead) <= question.near for lead in question.leads}
    return {name: _figures(head, answer[at], truth[at]) for name, at in {**chosen, "all": spans > 0}.items()}


def _figures(head: Head, answer: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    if not isinstance(head, Quantiles):
        return {"mse": of.mse(answer, truth), "mae": of.mae(answer, truth)}
    known = ~np.isnan(truth)
    below = {
        f"below {level:g}": 100 * float((truth <= answer[..., q])[known].mean())
        for q, level in enumerate(LEVELS)
    }
    return {
        "pinball": of.pinball(answer, truth, np.array(LEVELS)),
        "mae": of.mae(answer[..., LEVELS.index(0.5)], truth),
        "80 %": of.coverage(answer[..., 1], answer[..., -2], truth),
        "90 %": of.coverage(answer[..., 0], answer[..., -1], truth),
        **below,
    }


def head_for(kind: str, cuts: Cuts) -> Head:
    names = cuts.queries.target_names
    if kind == "quantiles":
        return Quantiles(names, levels=LEVELS, per_step=True)
    return Numbers(names, scale=False, per_step=True)  # learned in their own scale, as the paper does


def trained(
    settings: dict, kind: str, train: Cuts, validation: Cuts, args: argparse.Namespace, seed: int
) -> Forecaster:
    torch.manual_seed(seed)
    shape = {"hidden_size": args.units, "state_dropout": args.dropout, "clip": 5.0}
    model = Forecaster.for_data(train, head_for(kind, train), **shape, **settings)
    config = TrainConfig(
        seed=seed,
        epochs=args.epochs,
        batch_size=args.batch,
        learning_rate=args.rate,
        weight_decay=args.decay,
        patience=None,
    )
    fit(model, train, validation, config, progress=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=QUESTIONS)
    parser.add_argument("--head", choices=("numbers", "quantiles"), default="numbers")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    question, results = QUESTIONS[args.task], defaultdict(list)
    for seed in range(args.seeds):
        train, validation, test = data(args.task, question, seed)
        print(json.dumps({"seed": seed, "train": repr(train), "test": repr(test)}), flush=True)
        rivals = Forecaster.for_data(train, head_for(args.head, train))  # for its schema and head
        for name, output in simple_forecasts(
            rivals.head, rivals.conform(train), rivals.conform(test)
        ).items():
            results[name].append(figures(rivals.head, output, test, question))
        for name in args.models:
            began = time.perf_counter()
            model = trained(MODELS[name], args.head, train, validation, args, seed)
            if args.head == "quantiles":
                raw = figures(model.head, model.outputs(test), test, question)
                results[f"{name}, not calibrated"].append(raw)
                model.calibrate(validation)
            results[name].append(figures(model.head, model.outputs(test), test, question))
            print(
                json.dumps(
                    {"model": name, "seconds": round(time.perf_counter() - began), **results[name][-1]}
                ),
                flush=True,
            )
    print(table(results, question))


def table(results: dict[str, list], question: Question) -> str:
    """A row per forecast and figure: mean and standard deviation over seeds."""
    columns = [*(f"{lead:g}" for lead in question.leads), "all"]
    heading = [f"{lead:g} {question.unit}" for lead in question.leads] + ["all"]
    lines = ["| | figure | " + " | ".join(heading) + " |", "|---" * (len(heading) + 2) + "|"]
    for name, runs in results.items():
        for figure in runs[0]["all"]:
            cells = []
            for column in columns:
                values = [run[column][figure] for run in runs]
                spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.4g}{spread}")
            lines.append(f"| {name} | {figure} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
