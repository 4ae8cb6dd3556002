"""Walker2d rollouts in the format of the authors' `walker.zip`, simulated for those who lack that file.

A rollout is what one of four policies sees while it walks: the 17 joint positions and velocities of
gymnasium's Walker2d, 125 frames a second, until it falls or 1000 frames are full. The policies are stages of
one PPO training, as in the paper ("Walker2d kinematic modeling"); `walker_policies/README.md` tells how they
were made and how well they walk.

Where this departs from the authors' data: the physics are today's MuJoCo, where `Walker2d-v2` ran on 2.0, and
the policies are our own. The gaits differ, so errors on these rollouts do not belong beside the paper's.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from lapse.extras import extra

if TYPE_CHECKING:
    import gymnasium

STAGES = (100, 200, 400, 600)  # PPO iterations
MAX_STEPS = 1000
RANDOM_ACTIONS = 0.01  # share of the actions that is overwritten, as in the paper
OBSERVATION_CLIP = 10.0  # scaled observations are cut here, in training and after

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Policy:
    """What a trained policy does, without exploration: 17 observations to 6 torques in [-1, 1].

    In NumPy: the simulation asks for one state at a time, where calls into torch cost more than the sums.
    """

    mean: Array  # of the observations in training
    std: Array
    layers: tuple[tuple[Array, Array], ...]  # weight and bias

    @classmethod
    def load(cls, file: Traversable) -> Policy:
        tensors = {name: value.astype(np.float64) for name, value in load(file.read_bytes()).items()}
        layers = tuple((tensors[f"weight_{layer}"], tensors[f"bias_{layer}"]) for layer in range(3))
        return cls(tensors["observation_mean"], tensors["observation_std"], layers)

    @classmethod
    def of_stage(cls, stage: int) -> Policy:
        return cls.load(resources.files("lapse.tasks.walker_policies") / f"policy_{stage:04d}.safetensors")

    def __call__(self, observation: Array) -> Array:
        hidden = ((observation - self.mean) / self.std).clip(-OBSERVATION_CLIP, OBSERVATION_CLIP)
        for weight, bias in self.layers[:-1]:
            hidden = np.tanh(weight @ hidden + bias)
        weight, bias = self.layers[-1]
        action: Array = (weight @ hidden + bias).clip(-1.0, 1.0)
        return action


def environment() -> gymnasium.Env[Any, Any]:
    """Walker2d with the observations of the paper's `v2`, and with its feet, which differ in friction."""
    with extra("walker"):
        import gymnasium
        import mujoco  # noqa: F401  gymnasium reports its absence with an error that is no ImportError

        return gymnasium.make("Walker2d-v5", xml_file="walker2d.xml", disable_env_checker=True)


def rollout(walker: gymnasium.Env[Any, Any], policy: Policy, random: np.random.Generator) -> Array:
    """One walk, (steps, 17): the states in which the policy acted, so not the one in which it lies."""
    observation, _ = walker.reset(seed=int(random.integers(2**31)))
    frames: list[Array] = []
    fallen = False
    while not fallen and len(frames) < MAX_STEPS:
        frames.append(observation)
        overwritten = random.random() < RANDOM_ACTIONS
        action = random.uniform(-1.0, 1.0, size=6) if overwritten else policy(observation)
        observation, _, fallen, _, _ = walker.step(action)
    return np.stack(frames)


def generate(folder: str | Path, seed: int = 0, rollouts: int = 400) -> None:
    """Write `rollout_000.npy`, `rollout_001.npy`, ... into a new `folder`: float64, (steps, 17) each.

    A rollout draws its policy, first state and random actions from `seed` and its own number alone. So the
    same call gives the same bytes on the same machine, and a call for fewer rollouts gives the first of them.
    The folder appears once it is complete.
    """
    folder = Path(folder)
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    if folder.exists():
        raise FileExistsError(f"{folder} exists; remove it first, or choose another folder")
    with environment() as walker:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".walker-", dir=folder.parent) as scratch:
            unfinished = Path(scratch) / folder.name
            unfinished.mkdir()
            _fill(unfinished, walker, seed, rollouts)
            unfinished.rename(folder)


def _fill(folder: Path, walker: gymnasium.Env[Any, Any], seed: int, rollouts: int) -> None:
    policies = [Policy.of_stage(stage) for stage in STAGES]
    for index in range(rollouts):
        random = np.random.default_rng([seed, index])
        policy = policies[random.integers(len(policies))]
        np.save(folder / f"rollout_{index:03d}.npy", rollout(walker, policy, random))
