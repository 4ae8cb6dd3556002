"""Learning is real: small versions of the paper's comparison, trained here and now."""

from typing import Any

import pytest
import torch

from lapse import TASKS
from lapse.models import ModelConfig, Schema, SequenceModel
from lapse.tasks import Splits
from lapse.training import TrainConfig, evaluate, fit


def accuracy(
    task: str, model: str, splits: Splits, config: TrainConfig, *, hidden_size: int = 64, **options: Any
) -> float:
    """Percent of the test split that a model gets right after training; time in the task's own unit."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = TASKS[task].head()
    shape = ModelConfig(model, hidden_size, options=options)
    trained = SequenceModel(Schema.of(splits.train), head, shape)
    fit(trained, splits.train, splits.validation, config)
    return evaluate(trained, splits.test)["accuracy"]


def test_ode_lstm_reads_handwritten_digits() -> None:
    splits = TASKS["mini-digits"].load()
    config = TrainConfig(epochs=20, batch_size=32)
    assert accuracy("mini-digits", "ode-lstm", splits, config, hidden_size=128, form="autonomous") >= 85


@pytest.fixture(scope="module")
def bits() -> Splits:
    """Streams of 2 to 8 bits in event coding, a few thousand of them."""
    whole = TASKS["xor-event"].load(lengths=(2, 9))
    return Splits(whole.train[:5000], whole.validation[:1000], whole.test[:2000])


BITS = TrainConfig(epochs=12, batch_size=64)


def test_ode_lstm_counts_bits_it_has_only_durations_of(bits: Splits) -> None:
    assert accuracy("xor-event", "ode-lstm", bits, BITS, form="autonomous") >= 95


def test_ode_rnn_does_not(bits: Splits) -> None:
    assert accuracy("xor-event", "ode-rnn", bits, BITS) < 75
