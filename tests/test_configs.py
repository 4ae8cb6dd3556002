"""Configs hold values of their fields' types, in the range that means something, or are refused by field."""

import json
import math
from typing import Any

import pytest

from lapse.runs import RunConfig
from lapse.training import TrainConfig

TRAIN: dict[str, list[Any]] = {
    "seed": [-1, 1.5, True, None, "0", 2**63],
    "epochs": [0, -5, True, False, 3.0, None, "3", math.nan],
    "batch_size": [0, -1, 1.5, True, None],
    "optimizer": ["Adam", "sgd", "", None, 1, True],
    "learning_rate": [0, -1.0, True, "0.1", None, math.nan, math.inf, -math.inf],
    "clip": [0, -1, True, "1", math.nan, math.inf],
    "patience": [0, -5, 2.5, True, "20", math.nan],
    "restore_best": [0, 1, "False", "false", None],
    "median_gap": [0, "no", None, 1.0],
    "schedule": ["linear", None, True],
    "warmup": [-0.1, 1.0, True, "0", None, math.nan],
    "weight_decay": [-1e-9, True, None, math.inf],
}
RUN: dict[str, list[Any]] = {
    "task": [None, 3, True],
    "model": [None, 3],
    "preset": [None, 1],
    "hidden_size": [0, -1, 1.5, True, None, "64"],
    "num_layers": [0, -2, 1.0, False, None],
    "model_options": [None, 3, ["form"]],
    "task_options": [None, "x"],
    "train": [None, {}, {"epochs": 3}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in TRAIN for value in TRAIN[name]])
def test_a_training_refuses(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} must .* got .*"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in RUN for value in RUN[name]])
def test_a_run_refuses(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be .*, got .*"):
        RunConfig(**{"task": "walker", name: value})


def test_good_values_are_kept() -> None:
    config = TrainConfig(learning_rate=1, clip=None, patience=None, seed=2**63 - 1)
    assert json.loads(json.dumps(RunConfig("walker", train=config).as_dict()))["train"]["clip"] is None
