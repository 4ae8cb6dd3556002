"""How an ensemble is fitted: an internal split for early stopping and calibration, then everything once more."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapse.estimators.ensemble import Ensemble
from lapse.estimators.preparation import Preparation, Prepared
from lapse.estimators.trees import Grow, Trees
from lapse.heads import Head, Targets
from lapse.models import ModelConfig, Schema, SchemaWarning, SequenceModel
from lapse.models.tabular import RIDGES, best_ridge
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.sequences.summaries import STATISTICS
from lapse.training import TrainConfig, fit

# What is tried on held-out sequences: how much the trees count, and the temperature of probabilities.
SHARES = np.linspace(0.0, 1.0, 9)
TEMPERATURES = np.exp(np.linspace(-0.5, 1.2, 35))
# What it costs, in units of the summed loss, to leave equal shares and temperature 1: a few cases prove little.
RELUCTANCE = 5.0
FOLDS = 5
FEW_SEQUENCES = 1000  # below this a single split decides too little, so that every sequence is held out once


@dataclass(frozen=True)
class Plan:
    """Everything that decides how an ensemble is fitted, beside the data.

    Args:
        head: what is asked, made for the data.
        grow: grows the trees; None for networks alone.
        settings: fields of `ModelConfig`.
        training: how each network is trained.
        members: how many networks, which differ in their seed.
        bin: the width of bins; None for none.
        summaries: whether networks see summaries of each feature.
        validation: the share of the sequences that the internal split holds out; of few sequences every one is held out
            once, in five splits.
        refit: whether everything is trained once more on all sequences, for as many epochs as were best; otherwise what
            was trained on the first split is kept.
        progress: whether to show progress.
    """

    head: Head
    grow: Grow | None
    settings: dict[str, Any] = field(default_factory=dict)
    training: TrainConfig = field(default_factory=TrainConfig)
    members: int = 3
    bin: float | None = None
    summaries: bool = True
    validation: float = 0.15
    refit: bool = True
    progress: bool = False


def fit_ensemble(plan: Plan, data: Sequences) -> Ensemble:
    """Fit an ensemble to sequences with targets.

    Args:
        plan: how.
        data: all sequences that may be learned from.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", SchemaWarning
        )  # of columns that one side of a split happens not to have
        plan, preparation, prepared = _prepared(plan, data)
        fitting = _Fitting(plan, prepared)
        splits = internal_splits(data, plan.validation, plan.training.seed)
        tried = splits if plan.refit else splits[:1]
        labels = [f"trial {k} of {len(tried)}" for k in range(1, len(tried) + 1)]
        held = [fitting.trial(*split, label) for split, label in zip(tried, labels, strict=True)]
        found = choose(plan.head, held)
        rows = np.arange(len(data)) if plan.refit else splits[0][0]
        networks = [fitting.network(rows, found.epochs, member) for member in range(plan.members)]
        return Ensemble(preparation, networks, fitting.trees(rows), found.tree_share, found.temperature)


def _prepared(plan: Plan, data: Sequences) -> tuple[Plan, Preparation, Prepared]:
    """The plan with a ridge, and the form of the data: both chosen by regression on summaries, where there are any.

    More statistics are of use where the shape of a series decides, and only make trees and networks guess where it does
    not. Regression that leaves out a third of the sequences tells which it is, and how strong a ridge has to be.
    """
    conformed, schema = plan.head.conform(data), Schema.of(data)
    plain = Preparation(schema, plan.head.per_step, plan.bin, plan.summaries)
    prepared = plain(conformed)
    if plan.settings.get("static") != "table":
        return plan, plain, prepared
    head = deepcopy(plan.head)
    head.measure(prepared.sequences)
    targets = head.targets_of(prepared.sequences)
    ridges = (plan.settings["ridge"],) if "ridge" in plan.settings else RIDGES
    found = best_ridge(prepared.table, head, targets, ridges)
    preparation = plain
    if not plan.head.per_step:
        shaped = replace(plain, statistics=STATISTICS)
        other = shaped(conformed)
        if (ridge := best_ridge(other.table, head, targets, ridges)).loss < found.loss:
            found, preparation, prepared = ridge, shaped, other
    return replace(plan, settings=plan.settings | {"ridge": found.strength}), preparation, prepared


class Held(NamedTuple):
    """What was answered for held-out sequences.

    Args:
        networks: (epochs + 1, M, width), the raw outputs of a network before training and after each epoch.
        trees: (M, width), those of trees; None without any.
        targets: what was to be answered.
    """

    networks: Tensor
    trees: Tensor | None
    targets: Targets


class Choice(NamedTuple):
    """What was best on held-out sequences.

    Args:
        epochs: for how long to train; 0 leaves a network with what it measured.
        tree_share: how much the trees count beside the networks, from 0 to 1.
        temperature: see `Ensemble`.
    """

    epochs: int
    tree_share: float
    temperature: float


def choose(head: Head, held: Sequence[Held]) -> Choice:
    """The number of epochs, the share of the trees and the temperature with the least loss on held-out sequences.

    Args:
        head: what is asked.
        held: the answers for the held-out sequences of each split.
    """
    targets = Targets(*(torch.cat(parts) for parts in zip(*(each.targets for each in held), strict=True)))
    networks = torch.cat([each.networks for each in held], 1)
    epochs = int(np.argmin([float(head.loss(output, targets).sum()) for output in networks]))
    parts = [each.trees for each in held if each.trees is not None]
    trees = torch.cat(parts).to(networks.dtype) if parts else None
    temperatures = TEMPERATURES if head.gives_probabilities else np.ones(1)
    tried = {}
    for share in SHARES if trees is not None else (0.0,):
        mixed = networks[epochs] if trees is None else torch.lerp(networks[epochs], trees, float(share))
        effort = 0.0 if trees is None else (2 * share - 1) ** 2
        for temperature in temperatures:
            loss = float(head.loss(mixed / temperature, targets).sum())
            tried[share, temperature] = loss + RELUCTANCE * (effort + np.log(temperature) ** 2)
    share, temperature = min(tried, key=lambda pair: tried[pair])
    return Choice(epochs, float(share), float(temperature))


@dataclass(frozen=True)
class _Fitting:
    """The parts of an ensemble, each fitted to some of the sequences."""

    plan: Plan
    prepared: Prepared

    def trial(self, inside: Array, outside: Array, label: str) -> Held:
        """A network and trees fitted to some sequences, and what they answer for others."""
        train, others = self.prepared.sequences[inside], _chosen(self.prepared, outside)
        model = self._model(train, 0)
        watch = _Watch(model, others.sequences)
        self._train(model, train, others.sequences, 0, self.plan.training, label, [watch.callback()])
        trees = self.trees(inside)
        head = deepcopy(self.plan.head)
        return Held(
            torch.stack(watch.outputs),
            None if trees is None else torch.from_numpy(trees.outputs(others.table)),
            head.targets_of(others.sequences),
        )

    def network(self, rows: Array, epochs: int, member: int) -> SequenceModel:
        """A network trained for a number of epochs that was found before."""
        train = self.prepared.sequences[rows]
        model = self._model(train, member)
        if epochs:
            known = replace(self.plan.training, epochs=epochs)
            label = f"network {member + 1} of {self.plan.members}"
            self._train(model, train, train[: max(2, len(rows) // 10)], member, known, label)
        return model.eval()

    def _model(self, data: Sequences, member: int) -> SequenceModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.plan.training.seed + member)
            model = SequenceModel(
                Schema.of(data), deepcopy(self.plan.head), ModelConfig(**self.plan.settings)
            )
        model.measure(data)
        return model

    def _train(
        self,
        model: SequenceModel,
        train: Sequences,
        others: Sequences,
        member: int,
        config: TrainConfig,
        label: str,
        callbacks: Sequence[Any] = (),
    ) -> None:
        fit(
            model,
            train,
            others,
            replace(config, seed=config.seed + member, patience=None, restore_best=False),
            progress=self.plan.progress,
            label=label,
            callbacks=callbacks,
        )

    def trees(self, rows: Array) -> Trees | None:
        """The trees for some sequences; None if there are to be none."""
        if self.plan.grow is None:
            return None
        chosen = _chosen(self.prepared, rows)
        head = deepcopy(self.plan.head)
        head.measure(chosen.sequences)
        targets = head.targets_of(chosen.sequences)
        return self.plan.grow(chosen.table, targets, head, self.plan.training.seed)


class _Watch:
    """What a network answers for held-out sequences before training and after every epoch."""

    def __init__(self, model: SequenceModel, held_out: Sequences) -> None:
        self.model, self.held_out = model, held_out
        self.outputs = [model.outputs(held_out)]

    def callback(self) -> Any:
        from lightning.pytorch.callbacks import LambdaCallback

        return LambdaCallback(
            on_train_epoch_end=lambda *_: self.outputs.append(self.model.outputs(self.held_out))
        )


def _chosen(prepared: Prepared, rows: Array) -> Prepared:
    """The prepared form of some of the sequences."""
    s = prepared.sequences
    if not s.per_step:
        return Prepared(s[rows], prepared.table[rows])
    events = np.zeros(len(s), bool)
    events[rows] = True
    return Prepared(s[rows], prepared.table[np.repeat(events, s.lengths)])


def check_divisible(data: Sequences) -> None:
    """Refuse what cannot be learned from in one part and held out in another.

    Args:
        data: all sequences that may be learned from.
    """
    if _apart(data) < 2:
        what = "sequence" if data.groups is None else "group"
        raise ValueError(
            f"a fit holds some sequences out, and got a single {what} (n_samples={len(data)}); expected at least two"
        )


def _apart(data: Sequences) -> int:
    """How many parts the sequences can be divided into."""
    return len(data) if data.groups is None else len(np.unique(data.groups))


def internal_splits(data: Sequences, share: float, seed: int) -> list[tuple[Array, Array]]:
    """Pairs of positions, to train on and to hold out; whole groups if there are any, else classes in equal shares.

    Args:
        data: sequences with targets.
        share: the share that is held out, if there are enough sequences for a single split.
        seed: decides who is held out.
    """
    if len(data) >= FEW_SEQUENCES:
        return [split(data, share, seed)]
    folds = min(FOLDS, _apart(data))
    parts = _dealt(data, [1 / folds] * folds, seed)
    return [(np.sort(np.concatenate(parts[:k] + parts[k + 1 :])), part) for k, part in enumerate(parts)]


def split(data: Sequences, share: float, seed: int) -> tuple[Array, Array]:
    """Positions to train on, and positions to hold out, both in increasing order.

    Args:
        data: sequences; whole groups are held out if there are any, else classes in equal shares.
        share: the share that is held out.
        seed: decides who is held out.
    """
    inside, outside = _dealt(data, [1 - share, share], seed)
    return inside, outside


def _dealt(data: Sequences, fractions: list[float], seed: int) -> list[Array]:
    numbered = replace(data, ids=np.arange(len(data)))
    if data.groups is not None:
        parts = numbered.split_by_group(fractions, seed=seed)
    else:
        targets = data.targets
        stratify = (
            not data.per_step and targets is not None and targets.dtype.kind == "i" and targets.ndim == 1
        )
        parts = numbered.split_by_sequence(fractions, seed=seed, stratify=stratify)
    return [np.asarray(part.ids) for part in parts]
