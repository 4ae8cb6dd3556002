"""The causality gate: every model passes on every per-step task, and a cheat is turned away by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lapse import MODELS, RNN, TASKS, AugmentedLSTM, Rows, Sequences
from lapse.models import ModelConfig, Schema, SequenceModel
from lapse.models.registry import layers
from lapse.recurrent import Hidden
from lapse.training import TrainConfig, fit
from lapse.training.causality import SeesTheFuture, check_causality

# A forecast is not among them: what comes after the cut is not in its batch.
PER_STEP = [
    name for name, task in TASKS.items() if task.question.model is SequenceModel and task.head().per_step
]


def sequences(task: str, *, missing: bool = False, seed: int = 0) -> Sequences:
    """Random data in the shape of a task's: features, targets, uneven lengths and gaps."""
    random = np.random.default_rng(seed)
    size, outputs = TASKS[task].input_size, TASKS[task].head().width
    lengths = random.integers(1, 70, 10)
    values = [random.standard_normal((n, size)) for n in lengths]
    if missing:
        values = [np.where(random.random(v.shape) < 0.4, np.nan, v) for v in values]
    targets = {
        "person": [random.integers(0, outputs, n) for n in lengths],
        "walker": [random.standard_normal((n, outputs)) for n in lengths],
    }[task]
    times = [random.exponential(1, n).cumsum() for n in lengths]
    return Sequences.from_arrays(values, times, targets=targets, per_step=True)


def model_of(name: str, data: Sequences, task: str, **options: object) -> SequenceModel:
    torch.manual_seed(0)
    head = TASKS[task].head()
    return SequenceModel(Schema.of(data), head, ModelConfig(name, 8, options=options))


def test_there_are_per_step_tasks() -> None:
    assert {"walker", "person"} <= set(PER_STEP)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("task", PER_STEP)
@pytest.mark.parametrize("name", MODELS)
def test_no_registered_model_sees_the_future(name: str, task: str, missing: bool) -> None:
    data = sequences(task, missing=missing)
    check_causality(model_of(name, data, task), data)


@pytest.mark.parametrize("name", layers())
def test_every_layer_is_caught_reading_backward(name: str) -> None:
    data = sequences("walker")
    with pytest.raises(SeesTheFuture, match=f"model '{name}' sees the future: its answers up to step 0"):
        check_causality(model_of(name, data, "walker", bidirectional=True), data)


class Normalised(AugmentedLSTM):
    """A subtle cheat: outputs are scaled by their size over the whole sequence."""

    def forward(self, *args: Any, rows: Rows, **kwargs: Any) -> tuple[Tensor, Hidden]:  # type: ignore[override]
        output, state = super().forward(*args, rows=rows, **kwargs)
        assert isinstance(output, Tensor)
        return output / rows.max(output.abs())[rows.row], state


class OneStepAhead(AugmentedLSTM):
    """The cheat that pays on Walker2d: the next input is in reach."""

    def forward(self, input: Tensor, *args: Any, rows: Rows, **kwargs: Any) -> Any:  # type: ignore[override]
        padded = rows.pad(input)
        ahead = rows.unpad(torch.cat([padded[:, 1:], padded[:, -1:]], 1))
        return super().forward(ahead, *args, rows=rows, **kwargs)


@pytest.mark.parametrize("cheat", [Normalised, OneStepAhead])
def test_a_cheat_is_turned_away_before_it_trains(
    cheat: type[RNN], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MODELS, "clairvoyant", cheat)
    data = sequences("walker")
    model = model_of("clairvoyant", data, "walker")
    with pytest.raises(SeesTheFuture, match=r"model 'clairvoyant' sees the future.*Use a model that reads"):
        fit(model, data, data, TrainConfig(epochs=1), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_that_answers_once_may_read_backward() -> None:
    random = np.random.default_rng(0)
    values = [random.standard_normal((5, 2)) for _ in range(8)]
    data = Sequences.from_arrays(values, [np.arange(5)] * 8, targets=np.arange(8) % 2)
    model = SequenceModel.for_data(data, model="lstm", hidden_size=4, options={"bidirectional": True})
    fitted = fit(model, data, data, TrainConfig(epochs=1))
    assert len(fitted.history) == 1


def test_the_gate_leaves_the_model_as_it_was() -> None:
    data = sequences("walker")
    model = model_of("lstm", data, "walker", dropout=0.5)
    state = torch.get_rng_state()
    check_causality(model.train(), data)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_sequences_of_one_event_have_no_future() -> None:
    data = Sequences.from_arrays(
        [[[1.0]], [[2.0]]], [[0.0], [0.0]], targets=[[[0.0]], [[1.0]]], per_step=True
    )
    check_causality(SequenceModel.for_data(data, model="lstm", options={"bidirectional": True}), data)
