"""Training: the same for the same seed, on one process or two, and it stops where numbers end."""

import contextlib
import os
import socket
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lapse import LengthBatches, Sequences, heads
from lapse.heads import Classes, Head, Numbers
from lapse.models import Column, ModelConfig, Schema, SequenceModel
from lapse.training import (
    DamagedCheckpoint,
    NonFiniteError,
    OtherTraining,
    TrainConfig,
    evaluate,
    fit,
)
from lapse.training.checkpoints import Checkpoints, DamagedCheckpointWarning
from lapse.training.learner import Learner
from lapse.training.progress import Scalars


def sequences(count: int, seed: int = 0) -> Sequences:
    """Something to learn: the running mean of one noisy feature, at uneven times."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 12, count)
    values = [random.standard_normal((n, 1)) for n in lengths]
    targets = [np.cumsum(v, 0) / np.arange(1, len(v) + 1)[:, None] for v in values]
    times = [random.exponential(1, n).cumsum() for n in lengths]
    return Sequences.from_arrays(values, times, targets=targets, per_step=True)


def model(seed: int = 0, cls: type[SequenceModel] = SequenceModel, **options: Any) -> SequenceModel:
    torch.manual_seed(seed)
    head = Numbers(scale=False, per_step=True)
    return cls(Schema((Column("feature 0"),)), head, ModelConfig("lstm", 8, options=options))


def trained(config: TrainConfig, **where: Any) -> SequenceModel:
    learner = model()
    fit(learner, sequences(41), sequences(20, seed=1), config, progress=False, **where)
    return learner


def weights(of: SequenceModel) -> dict[str, torch.Tensor]:
    return dict(of.state_dict())


def test_the_same_seed_gives_the_same_weights() -> None:
    one, same, other = (weights(trained(TrainConfig(epochs=2, seed=seed))) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_training_in_two_pieces_is_training_in_one(tmp_path: Path) -> None:
    class Interrupt(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *rest: Any) -> None:
            if trainer.current_epoch == 2:
                raise RuntimeError("interrupted")

    config = TrainConfig(epochs=4, batch_size=8)
    with pytest.raises(RuntimeError, match="interrupted"):
        trained(config, folder=tmp_path / "pieces", callbacks=[Interrupt()])
    pieces, whole = trained(config, folder=tmp_path / "pieces"), trained(config, folder=tmp_path / "whole")
    assert all(torch.equal(weights(whole)[name], value) for name, value in weights(pieces).items())


def test_without_restoring_the_best_a_finished_training_gives_its_last_weights(tmp_path: Path) -> None:
    config = TrainConfig(epochs=3, restore_best=False)
    first, again = trained(config, folder=tmp_path), trained(config, folder=tmp_path)
    assert all(torch.equal(weights(first)[name], value) for name, value in weights(again).items())


def test_patience_ends_a_training_that_gets_no_better() -> None:
    data = sequences(10)
    fitted = fit(model(), data, data, TrainConfig(epochs=50, patience=2, learning_rate=5.0, clip=None))
    assert len(fitted.history) == fitted.best_epoch + 1 + 2 < 50


def signs(seed: int = 0) -> tuple[SequenceModel, Sequences]:
    """A model and something that it learns perfectly: whether the values of a sequence are positive."""
    values = [np.full((3, 1), sign) for sign in (-1.0, 1.0) * 8]
    data = Sequences.from_arrays(values, [np.arange(3.0)] * 16, targets=[0, 1] * 8)
    torch.manual_seed(seed)
    return SequenceModel.for_data(data, heads.for_data(data), model="lstm", hidden_size=4), data


def test_a_perfect_metric_ends_a_training_whose_result_is_then_known() -> None:
    config = TrainConfig(epochs=20, patience=20, learning_rate=2e-2)
    (short, data), (whole, _), (last, _) = signs(), signs(), signs()
    ended = fit(short, data, data, config, progress=False)
    assert len(ended.history) == ended.best_epoch + 1 < 20
    fit(whole, data, data, replace(config, patience=None), progress=False)
    assert all(torch.equal(weights(short)[name], value) for name, value in weights(whole).items())
    # Where the last weights are asked for, no epoch before the last can tell them.
    assert len(fit(last, data, data, replace(config, restore_best=False), progress=False).history) == 20


# Two processes


def train_one_of_two(rank: int, port: int, folder: Path) -> None:
    """What each of two processes does; Lightning finds its place in these variables."""
    torch.set_num_threads(1)
    places = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()} | {"MASTER_ADDR": "127.0.0.1"})
    config = TrainConfig(epochs=3, batch_size=4)
    trained(config, folder=folder, devices=2).save(folder / f"{rank}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_processes_train_as_one_with_the_doubled_batch(processes: Any, tmp_path: Path) -> None:
    # 41 sequences in batches of 8: the last one has a single row, and the second process gets nothing of it.
    port = free_port()
    pair = [processes.Process(target=train_one_of_two, args=(rank, port, tmp_path)) for rank in (0, 1)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(120)
    assert [process.exitcode for process in pair] == [0, 0]
    alone_in = tmp_path / "alone"
    alone = weights(trained(TrainConfig(epochs=3, batch_size=8), folder=alone_in))
    first, second = (load_file(tmp_path / f"{rank}" / "model.safetensors") for rank in (0, 1))
    for name, expected in alone.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], expected, rtol=1e-4, atol=1e-6)
    two, one = (history(folder) for folder in (tmp_path, alone_in))
    for name in ("train_loss", "validation_mse"):
        np.testing.assert_allclose([row[name] for row in two], [row[name] for row in one], rtol=1e-4)


def history(folder: Path) -> list[dict[str, float]]:
    checkpoint = Checkpoints(folder).newest()
    assert checkpoint is not None
    found: list[dict[str, float]] = checkpoint.state["callbacks"]["Record"]["history"]
    return found


def test_a_batch_is_dealt_out_row_by_row() -> None:
    lengths = np.arange(1, 42)
    whole = list(LengthBatches(lengths, 8, seed=3, replicas=1))
    dealt = [list(LengthBatches(lengths, 4, seed=3, replicas=2, rank=rank)) for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*dealt, strict=True)] == [sorted(batch) for batch in whole]
    assert sorted(len(b) for b in dealt[1])[0] == 0


# Where numbers end


def spoiled(value: float) -> Sequences:
    data = sequences(20)
    data.values[-1] = value
    return data


class Linear(SequenceModel):
    """Passes its inputs on, so that what overflows is the loss."""

    def forward(self, batch: Any) -> torch.Tensor:
        output: torch.Tensor = super().forward(batch) + batch.values
        return output


def test_a_loss_that_is_no_number_stops_and_says_why() -> None:
    cause = r"loss is (inf|nan) in epoch 0, batch \d+ \(step .*the prediction overflowed: standardise inputs"
    with pytest.raises(NonFiniteError, match=cause):
        fit(model(cls=Linear), spoiled(1e30), sequences(5))


def test_an_input_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"input must be finite.*got inf at row \d+, step \d+, feature 0"):
        fit(model(), spoiled(np.inf), sequences(5))
    batch = spoiled(np.inf).batch(range(20))
    learner = Learner(model(), TrainConfig())
    learner.trainer = L.Trainer(logger=False, enable_checkpointing=False)
    with pytest.raises(
        NonFiniteError, match="the batch holds values that are not finite: mark them as missing"
    ):
        learner.training_step(batch, 0)


class Poison(L.Callback):
    """Spoils a weight in the third epoch, as a step that is too large does."""

    def on_train_batch_start(self, trainer: L.Trainer, learner: Any, *rest: Any) -> None:
        if trainer.current_epoch == 2:
            with torch.no_grad():
                learner.model.readout.map.weight.fill_(torch.nan)


def test_the_last_good_checkpoint_is_kept(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"epoch 2, batch 0 \(step 2; .*lower the learning rate"):
        trained(TrainConfig(epochs=5), folder=tmp_path, callbacks=[Poison()])
    assert len(history(tmp_path)) == 2
    after, unspoiled = (
        trained(TrainConfig(epochs=5), folder=folder) for folder in (tmp_path, tmp_path / "other")
    )
    assert all(torch.equal(weights(unspoiled)[name], value) for name, value in weights(after).items())


def test_a_wild_learning_rate_ends_by_name_and_keeps_finite_weights(tmp_path: Path) -> None:
    # One batch per epoch: the weights are infinite before any loss is.
    learner, data = model(), sequences(8)
    config = TrainConfig(epochs=3, learning_rate=1e308, clip=None, schedule="constant", warmup=0.0)
    with pytest.raises(
        NonFiniteError, match=r"(predictions|weights).*NaN or infinite.*it had before training"
    ):
        fit(learner, data, data, config, folder=tmp_path)
    assert all(torch.equal(value, weights(model())[name]) for name, value in weights(learner).items())
    assert not list(tmp_path.glob("*.ckpt"))
    assert not learner.training


def test_after_a_breakdown_the_model_has_the_weights_of_its_best_epoch() -> None:
    config = TrainConfig(epochs=5)
    learner, good = model(), model()
    data, other = sequences(41), sequences(20, seed=1)
    with pytest.raises(NonFiniteError, match=r"The model has the weights of epoch 1$"):
        fit(learner, data, other, config, callbacks=[Poison()])

    class Stop(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, *rest: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 1

    fit(good, data, other, config, callbacks=[Stop()])
    assert all(torch.equal(weights(good)[name], value) for name, value in weights(learner).items())


class Silent(SequenceModel):
    """Its predictions are NaN when it is not trained."""

    def forward(self, batch: Any) -> torch.Tensor:
        output: torch.Tensor = super().forward(batch)
        return output if self.training else output * torch.nan


def test_predictions_that_are_nan_are_never_scored() -> None:
    data = sequences(8)
    with pytest.raises(NonFiniteError, match=r"\d+ of \d+ predictions are NaN or infinite"):
        evaluate(model(cls=Silent).eval(), data)
    with pytest.raises(NonFiniteError, match="predictions are NaN or infinite"):
        fit(model(cls=Silent), data, data)


def test_a_validation_split_on_which_the_metric_is_not_defined_is_refused() -> None:
    data = classes([0, 1] * 8)
    head = heads.for_data(data, metrics=("auroc",))
    with pytest.raises(ValueError, match="auroc is not defined on the validation split"):
        fit(asked(head, data), data, data[np.arange(0, 16, 2)])


# Targets of every kind


def classes(targets: Any, seed: int = 0) -> Sequences:
    """One feature that tells the target apart."""
    random = np.random.default_rng(seed)
    numbers = np.nan_to_num(np.asarray(targets, float)).reshape(len(targets), -1)[:, 0]
    values = [random.normal(number, 0.1, (6, 1)) for number in numbers]
    return Sequences.from_arrays(values, [np.arange(6.0)] * len(values), targets=np.asarray(targets))


def asked(head: Head, data: Sequences, hidden_size: int = 8) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel.for_data(data, head, model="lstm", hidden_size=hidden_size)


KINDS: dict[str, Any] = {
    "classes 1 and 2": np.tile([1, 2], 20),
    "float classes": np.tile([0.0, 1.0], 20),
    "classes, some not known": np.tile([0.0, 1.0, np.nan], 20),
    "four classes": np.tile([0, 1, 2, 3], 10),
    "several labels": np.tile([[0.0, 1.0], [1.0, 0.0], [1.0, np.nan]], (14, 1)),
    "one number": np.tile([100.5, 300.5, 200.0], 14),
    "several numbers": np.tile([[1e3, -2.0], [2e3, np.nan], [3e3, 5.0]], (14, 1)),
}


# The loss is judged, so that the last epoch counts and not the first one with the best metric.
LAST = TrainConfig(epochs=15, batch_size=8, learning_rate=2e-2, restore_best=False, patience=None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_target_is_learned(kind: str) -> None:
    data = classes(KINDS[kind])
    head = heads.for_data(data)
    learner = asked(head, data)
    fit(learner, data, data, LAST, progress=False)
    figures, trivial = evaluate(learner, data), head.baseline(data, data)
    assert figures["loss"] < 0.5 * trivial["loss"]
    metric = head.metrics[0]
    assert (
        figures[metric.name] > trivial[metric.name]
        if metric.maximize
        else figures[metric.name] < trivial[metric.name]
    )


@pytest.mark.parametrize("kind", ["numbers", "gaussian", "quantiles"])
def test_every_head_of_numbers_is_learned(kind: str) -> None:
    data = classes(KINDS["one number"])
    learner = asked(heads.for_data(data, kind), data)
    fit(learner, data, data, LAST, progress=False)
    assert evaluate(learner, data)["loss"] < 0.7 * learner.head.baseline(data, data)["loss"]


def test_targets_far_from_0_are_learned_as_fast_as_others() -> None:
    """Without scaling, 100 such epochs would not reach the mean of the targets."""
    config = TrainConfig(epochs=5, batch_size=8, learning_rate=2e-2)
    figures = []
    for offset in (0.0, 1e4):
        data = classes(KINDS["one number"] * 0.01)
        data.targets[:] += offset  # type: ignore[index]
        learner = asked(heads.for_data(data), data)
        fit(learner, data, data, config, progress=False)
        figures.append(evaluate(learner, data)["loss"])
    assert figures[1] == pytest.approx(figures[0], rel=0.05)


def test_a_target_that_is_not_known_changes_nothing() -> None:
    """Sequences without a known target may be there or not: loss and metrics are the same."""
    targets = np.tile([0.0, 1.0, np.nan], 10)
    data = classes(targets)
    known = data[~np.isnan(targets)]
    learner = asked(heads.for_data(known), known)
    assert evaluate(learner, data) == pytest.approx(evaluate(learner, known))


# Options of training


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averaged_weights_are_evaluated_and_kept(kind: Any, tmp_path: Path) -> None:
    """The average is worked out again from the weights after every step."""

    class Steps(L.Callback):
        def __init__(self) -> None:
            self.weights: list[dict[str, torch.Tensor]] = []

        def on_train_batch_end(self, trainer: L.Trainer, learner: Any, *rest: Any) -> None:
            named = learner.model.named_parameters()
            self.weights.append({name: value.detach().clone() for name, value in named})

    config = TrainConfig(epochs=4, batch_size=8, average=kind, restore_best=False, patience=None)
    data, steps = sequences(41), Steps()
    learner = model()
    fitted = fit(learner, data, data, config, callbacks=[steps], progress=False)
    count = len(steps.weights)
    mean = weights(model())
    for number, present in enumerate(steps.weights, 1):
        tail = number - count * 3 // 4
        share = {"ema": max(1e-3, 10 / (10 + number)), "swa": 1.0 if tail <= 0 else 1 / (tail + 1)}[kind]
        mean = {name: mean[name] + share * (value - mean[name]) for name, value in present.items()}
    for name, value in mean.items():
        torch.testing.assert_close(weights(learner)[name], value)
    last = evaluate(learner, data)
    assert fitted.history[-1]["validation_mse"] == pytest.approx(last["mse"], rel=1e-6)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averaging_is_resumed(kind: Any, tmp_path: Path) -> None:
    class Interrupt(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *rest: Any) -> None:
            if trainer.current_epoch == 3:
                raise RuntimeError("interrupted")

    config = TrainConfig(epochs=4, batch_size=8, average=kind, hide=0.3, restore_best=False)
    with pytest.raises(RuntimeError, match="interrupted"):
        trained(config, folder=tmp_path, callbacks=[Interrupt()])
    pieces, finished = trained(config, folder=tmp_path), trained(config, folder=tmp_path)
    whole = weights(trained(config))
    for learner in (pieces, finished):
        assert all(torch.equal(whole[name], value) for name, value in weights(learner).items())


def test_hidden_values_are_seen_by_no_step() -> None:
    """What is hidden is drawn anew for every batch, is a share of what was observed, and costs no other draw."""
    from lapse.training.learner import hidden

    batch = sequences(41).batch(range(41))
    torch.manual_seed(0)
    seen = hidden(batch, 0.25)
    assert seen.observed is not None
    assert not seen.values[~seen.observed].any()
    assert torch.equal(seen.values[seen.observed], batch.values[seen.observed])
    assert 0.15 < 1 - float(seen.observed.float().mean()) < 0.35
    again = hidden(seen, 0.25)
    assert again.observed is not None
    assert not (again.observed & ~seen.observed).any()
    plain, hiding = (weights(trained(TrainConfig(epochs=1, hide=hide))) for hide in (0.0, 0.5))
    assert not all(torch.equal(plain[name], value) for name, value in hiding.items())


def test_two_small_batches_accumulated_make_the_step_of_one_large_one() -> None:
    data = classes(np.tile([0, 1], 16))
    results = []
    for batch_size, accumulate in ((32, 1), (16, 2)):
        learner = asked(heads.for_data(data), data)
        config = TrainConfig(epochs=3, batch_size=batch_size, accumulate=accumulate)
        fit(learner, data, data, config, progress=False)
        results.append(weights(learner))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-4, atol=1e-6)


def test_balanced_classes_and_weighted_sequences_change_what_is_learned() -> None:
    """Of indistinguishable sequences a model learns the shares of the classes, as they are weighed."""
    targets = np.repeat([0, 1], [30, 10])
    arguments: dict[str, Any] = {"targets": targets, "static": np.zeros((40, 1))}
    values, times = [np.zeros((2, 1))] * 40, [np.arange(2.0)] * 40
    data = Sequences.from_arrays(values, times, **arguments)
    weighted = Sequences.from_arrays(values, times, **arguments, weights=np.where(targets == 1, 9.0, 1.0))
    shares = {}
    for name, train, balanced in (
        ("plain", data, None),
        ("balanced", data, "balanced"),
        ("weighted", weighted, None),
    ):
        learner = asked(heads.for_data(train), train)
        config: Any = TrainConfig(**OFTEN, class_weights=balanced)
        fit(learner, train, train, config, progress=False)
        with torch.no_grad():
            shares[name] = float(learner(data.batch([0])).softmax(-1)[0, 1])
    assert shares == pytest.approx({"plain": 0.25, "balanced": 0.5, "weighted": 90 / 120}, abs=0.02)


OFTEN: dict[str, Any] = {
    "epochs": 60,
    "batch_size": 40,
    "learning_rate": 0.05,
    "patience": None,
    "restore_best": False,
}


def test_class_weights_need_classes() -> None:
    data = sequences(8)
    with pytest.raises(ValueError, match="class weights need classes or labels"):
        fit(model(), data, data, TrainConfig(class_weights="balanced"))


@pytest.mark.parametrize("name", ["hide", "warmup"])
@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_are_at_least_0_and_below_1(name: str, share: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a share, at least 0 and below 1, got {share}"):
        TrainConfig(**{name: share})


# Expected ends


def test_constant_features_and_constant_targets_end_well() -> None:
    values, times = [np.full((3, 2), 7.0)] * 10, [np.arange(3.0)] * 10
    data = Sequences.from_arrays(values, times, targets=np.full(10, 5.5))
    learner = asked(heads.for_data(data), data)
    fit(learner, data, data, TrainConfig(epochs=20, learning_rate=0.05), progress=False)
    assert evaluate(learner, data)["mse"] < 0.01


def test_a_single_class_ends_before_training() -> None:
    data = classes([3] * 10)
    with pytest.raises(ValueError, match=r"hold 1 class \(3\), expected at least two"):
        heads.for_data(data)
    # Where the classes are known beforehand, training on one of them is possible.
    head = Classes(("no", "yes"), labels=(2, 3))
    learner = asked(head, data)
    fit(learner, data, data, TrainConfig(epochs=1), progress=False)
    assert evaluate(learner, data)["accuracy"] == 100


@pytest.mark.parametrize("name", ["ode-lstm", "ode-rnn", "ct-rnn", "gru-ode"])
def test_stiff_fields_and_weights_grown_a_hundredfold_end_by_name_or_well(name: str) -> None:
    """Whatever happens, no figure and no weight that is not finite is ever reported or kept."""
    data = classes(np.tile([0, 1], 10))
    for model_options in ({}, {"solver": "euler"}):
        torch.manual_seed(0)
        learner = SequenceModel.for_data(data, model=name, hidden_size=8, options=model_options)
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.mul_(100)
        with contextlib.suppress(NonFiniteError):
            fitted = fit(learner, data, data, TrainConfig(epochs=2, batch_size=8), progress=False)
            assert all(np.isfinite(list(row.values())).all() for row in fitted.history)
        assert all(bool(torch.isfinite(parameter).all()) for parameter in learner.parameters())


def test_a_poisoned_batch_ends_by_name() -> None:
    data = sequences(20)
    data.targets[3] = 1e38  # type: ignore[index]
    with pytest.raises(NonFiniteError, match=r"loss is inf in epoch 0, batch \d+"):
        fit(model(), data, sequences(5), progress=False)


# The folder knows what it belongs to


def test_more_epochs_go_on_where_fewer_ended(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch_size": 8, "schedule": "constant", "warmup": 0.0}
    short, long = TrainConfig(epochs=2, **settings), TrainConfig(epochs=4, **settings)
    trained(short, folder=tmp_path)
    onward = trained(long, folder=tmp_path)
    assert len(history(tmp_path)) == 4
    assert all(torch.equal(weights(trained(long))[name], value) for name, value in weights(onward).items())
    with pytest.raises(ValueError, match=r"holds 4 epochs, more than the 2 asked for"):
        trained(short, folder=tmp_path)


def partly_frozen() -> SequenceModel:
    made = model()
    next(made.parameters()).requires_grad_(False)
    return made


@pytest.mark.parametrize(
    ("what", "another"),
    [
        ("data", lambda: sequences(12, seed=5)),
        ("settings", lambda: TrainConfig(epochs=1, learning_rate=1e-3)),
        ("model", lambda: model(bidirectional=False, forget_bias=2.0)),
        ("model", partly_frozen),
    ],
    ids=["data", "settings", "model", "frozen"],
)
def test_another_training_does_not_go_on_from_this_one(
    what: str, another: Callable[[], Any], tmp_path: Path
) -> None:
    data, config = sequences(12), TrainConfig(epochs=1)
    fit(model(), data, data, config, folder=tmp_path)
    before = (tmp_path / "last.ckpt").read_bytes()
    other: dict[str, Any] = {"data": data, "settings": config, "model": model()}
    other[what] = another()
    with pytest.raises(
        OtherTraining, match=f"belongs to a training with other {what}; choose another folder"
    ):
        fit(other["model"], other["data"], other["data"], other["settings"], folder=tmp_path)
    assert (tmp_path / "last.ckpt").read_bytes() == before
    fit(other["model"], other["data"], other["data"], other["settings"], folder=tmp_path, restart=True)
    assert len(history(tmp_path)) == 1


def test_a_checkpoint_that_does_not_say_what_it_belongs_to_is_not_used(tmp_path: Path) -> None:
    trained(TrainConfig(epochs=1), folder=tmp_path)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del state["callbacks"]["Record"]["identity"]
    torch.save(state, tmp_path / "last.ckpt")
    with pytest.raises(OtherTraining, match="does not say what it belongs to"):
        trained(TrainConfig(epochs=2), folder=tmp_path)


def spoil(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "empty":
        content = bytearray()
    elif kind == "half":
        content = content[: len(content) // 2]
    else:
        # More than one bit, since those between the tensors are padding, where a change does no harm.
        middle = len(content) // 2
        content[middle : middle + 256] = bytes(byte ^ 4 for byte in content[middle : middle + 256])
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["empty", "half", "bits"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(kind: str, tmp_path: Path) -> None:
    config = TrainConfig(epochs=4, batch_size=8)

    class Interrupt(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, *rest: Any) -> None:
            if trainer.current_epoch == 3:
                raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        trained(config, folder=tmp_path, callbacks=[Interrupt()])
    spoil(tmp_path / "last.ckpt", kind)
    with pytest.warns(DamagedCheckpointWarning, match=r"last.ckpt is damaged .*goes on from before.ckpt"):
        onward = trained(config, folder=tmp_path)
    assert all(torch.equal(weights(trained(config))[name], value) for name, value in weights(onward).items())
    for name in ("last.ckpt", "before.ckpt"):
        spoil(tmp_path / name, kind)
    with pytest.raises(DamagedCheckpoint, match=r"no checkpoint can be read .*restart=True"):
        trained(config, folder=tmp_path)
    trained(config, folder=tmp_path, restart=True)
    assert len(history(tmp_path)) == 4


# What training leaves alone


def test_training_leaves_the_process_as_it_was() -> None:
    import logging
    import signal

    on_interrupt = signal.getsignal(signal.SIGINT)
    data, logger = sequences(8), logging.getLogger("lightning.pytorch")
    level, learner = logger.level, model()
    state = torch.get_rng_state()
    fit(learner, data, data, TrainConfig(epochs=2), progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert not learner.training

    class Break(L.Callback):
        def on_train_start(self, *rest: Any) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fit(learner, data, data, callbacks=[Break()], progress=False)
    assert logger.level == level
    assert not torch.are_deterministic_algorithms_enabled()
    assert signal.getsignal(signal.SIGINT) is on_interrupt
    assert not learner.training


def test_an_interrupt_reaches_the_caller() -> None:
    import signal

    class Interrupt(L.Callback):
        def on_train_start(self, *rest: Any) -> None:
            raise KeyboardInterrupt

    class Terminate(L.Callback):
        def on_train_batch_start(self, *rest: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

    data, on_interrupt = sequences(8), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(model(), data, data, callbacks=[Interrupt()], progress=False)
    assert signal.getsignal(signal.SIGINT) is on_interrupt
    with pytest.raises(SystemExit) as stopped:
        fit(model(), data, data, callbacks=[Terminate()], progress=False)
    assert stopped.value.code == 128 + signal.SIGTERM


def test_evaluation_needs_no_trainer() -> None:
    """Loading Lightning takes seconds and a hundred megabytes."""
    import subprocess
    import sys

    program = """
import sys
import numpy as np
from lapse import Sequences, heads
from lapse.models import SequenceModel
from lapse.training import evaluate
data = Sequences.from_arrays([np.ones((3, 1))] * 2, [np.arange(3.0)] * 2, targets=[0, 1])
head = heads.for_data(data, metrics=("accuracy", "auroc"))
evaluate(SequenceModel.for_data(data, head), data)
heavy = {"lightning", "torchmetrics", "sklearn", "matplotlib", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# What is told on the way


def test_progress_is_shown_unless_it_is_not_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    data = sequences(8)
    fit(model(), data, data, TrainConfig(epochs=20))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("training: epoch 20/20 loss ")
    assert "mse" in lines[-1]
    fit(model(), data, data, TrainConfig(epochs=2), progress=False)
    assert capfd.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    data = sequences(8)
    fit(model(), data, data, TrainConfig(epochs=2), label="digits")
    shown = capfd.readouterr().err
    assert "digits" in shown
    assert "epoch 2/2" in shown


def test_every_figure_goes_to_tensorboard(tmp_path: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.rows: list[tuple[str, float, int]] = []
            self.closed = False

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.rows.append((name, value, step))

        def close(self) -> None:
            self.closed = True

    from lapse.training.record import Record

    config, data, writer = TrainConfig(epochs=2), sequences(8), Writer()
    learner = model()
    record = Record(config, learner.head.metrics[0])
    trainer = L.Trainer(
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[record, Scalars(record, writer)],
        accelerator="cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Learner(learner, config), data.batches(8), data.batches(8, shuffle=False))
    assert {step for name, _, step in writer.rows if name == "validation_mse"} == {0, 1}
    assert writer.closed


def test_evaluation_leaves_the_model_training() -> None:
    learner = model().train()
    assert evaluate(learner, sequences(5)).keys() == {"loss", "mse"}
    assert learner.training
    with pytest.raises(ValueError, match="one per sequence"):
        evaluate(learner, classes([0.5, 1.5]))
    assert learner.training
