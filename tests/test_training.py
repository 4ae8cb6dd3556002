"""Training: the same for the same seed, on one process or two, and it stops where numbers end."""

import os
import socket
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lapse import LengthBatches, Sequences
from lapse.models import ModelConfig, SequenceModel
from lapse.training import NonFiniteLoss, Objective, TrainConfig, evaluate, fit
from lapse.training.callbacks import Record, Scalars
from lapse.training.learner import Learner

OBJECTIVE = Objective("mse", ("mse",), "every")


def sequences(count: int, seed: int = 0) -> Sequences:
    """Something to learn: the running mean of one noisy feature, at uneven times."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 12, count)
    values = [random.standard_normal((n, 1)) for n in lengths]
    targets = [np.cumsum(v, 0) / np.arange(1, len(v) + 1)[:, None] for v in values]
    times = [random.exponential(1, n).cumsum() for n in lengths]
    return Sequences.from_arrays(values, times, targets=targets, per_step=True)


def model(seed: int = 0, **options: Any) -> SequenceModel:
    torch.manual_seed(seed)
    return SequenceModel(ModelConfig(1, 1, model="lstm", hidden_size=8, readout="every", options=options))


def trained(config: TrainConfig, **where: Any) -> SequenceModel:
    learner = model()
    fit(learner, OBJECTIVE, sequences(41), sequences(20, seed=1), config, **where)
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
    fitted = fit(
        model(), OBJECTIVE, data, data, TrainConfig(epochs=50, patience=2, learning_rate=5.0, clip=None)
    )
    assert len(fitted.history) == fitted.best_epoch + 1 + 2 < 50


# Two processes


def train_one_of_two(rank: int, port: int, folder: Path) -> None:
    """What each of two processes does; Lightning finds its place in these variables."""
    torch.set_num_threads(1)
    places = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()} | {"MASTER_ADDR": "127.0.0.1"})
    config = TrainConfig(epochs=3, batch_size=4)
    trained(config, folder=folder, devices=2).save(folder / f"{rank}.safetensors")


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
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    for name, expected in alone.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], expected, rtol=1e-4, atol=1e-6)
    two, one = (history(folder) for folder in (tmp_path, alone_in))
    for name in ("train_loss", "validation_mse"):
        np.testing.assert_allclose([row[name] for row in two], [row[name] for row in one], rtol=1e-4)


def history(folder: Path) -> list[dict[str, float]]:
    record = Record(folder, None, False, "mse")
    assert record.restore()
    return record.history


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
    torch.manual_seed(0)
    model = Linear(ModelConfig(1, 1, model="lstm", hidden_size=4, readout="every"))
    cause = r"loss is (inf|nan) in epoch 0, batch \d+ \(step .*the prediction overflowed: standardise inputs"
    with pytest.raises(NonFiniteLoss, match=cause):
        fit(model, OBJECTIVE, spoiled(1e30), sequences(5))


def test_an_input_that_is_no_number_is_named() -> None:
    model = SequenceModel(ModelConfig(1, 1, model="lstm", hidden_size=4, readout="every"))
    with pytest.raises(ValueError, match=r"input must be finite.*got inf at row \d+, step \d+, feature 0"):
        fit(model, OBJECTIVE, spoiled(np.inf), sequences(5))
    batch = spoiled(np.inf).batch(range(20))
    learner = Learner(model, OBJECTIVE, TrainConfig())
    learner.trainer = L.Trainer(logger=False, enable_checkpointing=False)
    with pytest.raises(
        NonFiniteLoss, match="the batch holds values that are not finite: mark them as missing"
    ):
        learner.training_step(batch, 0)


class Poison(L.Callback):
    """Spoils a weight in the third epoch, as a step that is too large does."""

    def on_train_batch_start(self, trainer: L.Trainer, learner: Any, *rest: Any) -> None:
        if trainer.current_epoch == 2:
            with torch.no_grad():
                learner.model.readout.weight.fill_(torch.nan)


def test_the_last_good_checkpoint_is_kept(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"epoch 2, batch 0 \(step 2; .*lower the learning rate"):
        trained(TrainConfig(epochs=5), folder=tmp_path, callbacks=[Poison()])
    assert len(history(tmp_path)) == 2
    after, unspoiled = (
        trained(TrainConfig(epochs=5), folder=folder) for folder in (tmp_path, tmp_path / "other")
    )
    assert all(torch.equal(weights(unspoiled)[name], value) for name, value in weights(after).items())


# What is told on the way


def test_every_figure_goes_to_tensorboard() -> None:
    class Writer:
        def __init__(self) -> None:
            self.rows: list[tuple[str, float, int]] = []
            self.closed = False

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.rows.append((name, value, step))

        def close(self) -> None:
            self.closed = True

    writer = Writer()
    trained(TrainConfig(epochs=2), callbacks=[Scalars(writer)])
    assert {step for name, _, step in writer.rows if name == "validation_mse"} == {0, 1}
    assert writer.closed


def test_evaluation_leaves_the_model_training() -> None:
    learner = model().train()
    assert evaluate(learner, OBJECTIVE, sequences(5)).keys() == {"loss", "mse"}
    assert learner.training
