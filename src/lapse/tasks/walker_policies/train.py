"""Train the Walker2d policies with PPO: `python -m lapse.tasks.walker_policies.train`.

The paper's rollouts come from one PPO training, its policy taken at iterations 562, 822, 923 and 1104. So do
ours, from a training of our own, at 100, 200, 400 and 600. README.md beside this file tells what came out.

Writes `policy_<iteration>.safetensors` every 50 iterations and a row of `learning_curve.csv` every 10. One
thread: the networks are too small to gain from more.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from safetensors.numpy import save_file
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from lapse.tasks.walker_simulator import OBSERVATION_CLIP, STAGES, environment

ENVIRONMENTS = 8  # share one forward pass of the policy; past these the simulation is what costs
STEPS = 512  # an environment: 4,096 an iteration, near the 4,000 of RLlib, with which the paper trained
SNAPSHOT_EVERY, CURVE_EVERY = 50, 10  # iterations
DECAY = 1104  # iterations over which the learning rate would fall to zero: the paper's training


def learner(seed: int) -> PPO:
    """PPO with the settings of its article for MuJoCo, the iteration and the batch doubled.

    Those that RL Zoo tuned for a million steps (learning rate 5e-5, batches of 32, 20 epochs) take eight
    times as many gradient steps, which is too slow here.
    """
    environments = make_vec_env(environment, n_envs=ENVIRONMENTS, seed=seed)
    normalised = VecNormalize(environments, clip_obs=OBSERVATION_CLIP, gamma=0.99)
    return PPO(
        "MlpPolicy",
        normalised,
        n_steps=STEPS,
        batch_size=128,
        n_epochs=10,
        learning_rate=lambda remaining: 3e-4 * remaining,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.0,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.Tanh},
        seed=seed,
        device="cpu",
    )


def export(model: PPO, file: Path) -> None:
    """Save the policy without exploration: three affine maps, and the scaling of the observations."""
    scaling = model.get_vec_normalize_env()
    tensors = {
        "observation_mean": scaling.obs_rms.mean,
        "observation_std": np.sqrt(scaling.obs_rms.var + scaling.epsilon),
    }
    hidden = model.policy.mlp_extractor.policy_net
    for layer, linear in enumerate((hidden[0], hidden[2], model.policy.action_net)):
        tensors[f"weight_{layer}"] = linear.weight.detach().numpy()
        tensors[f"bias_{layer}"] = linear.bias.detach().numpy()
    save_file({name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}, file)


class Recorder:
    """Called after each step of the environments: writes snapshots and learning curve; ends the training."""

    def __init__(self, folder: Path, iterations: int) -> None:
        self.folder, self.curve, self.iterations = folder, folder / "learning_curve.csv", iterations
        self.write("iteration", "steps", "episode_return", "episode_length", mode="w")

    def write(self, *row: Any, mode: str = "a") -> None:
        with self.curve.open(mode, newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)

    def __call__(self, local: dict[str, Any], _: dict[str, Any]) -> bool:
        model = local["self"]
        iteration, rest = divmod(model.num_timesteps, ENVIRONMENTS * STEPS)
        if rest == 0:
            self.record(model, iteration)
        return bool(iteration < self.iterations)

    def record(self, model: PPO, iteration: int) -> None:
        if iteration % SNAPSHOT_EVERY == 0:
            export(model, self.folder / f"policy_{iteration:04d}.safetensors")
        if iteration % CURVE_EVERY == 0:
            episodes = model.ep_info_buffer  # the last hundred, with exploration noise
            returns, lengths = ([episode[key] for episode in episodes] for key in ("r", "l"))
            self.write(iteration, model.num_timesteps, f"{np.mean(returns):.1f}", f"{np.mean(lengths):.1f}")


def main(folder: Path = Path("walker-policies"), seed: int = 0, iterations: int = STAGES[-1]) -> None:
    """Train the Walker2d policies: twenty to thirty minutes on one core."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    learner(seed).learn(DECAY * ENVIRONMENTS * STEPS, callback=Recorder(folder, iterations))


if __name__ == "__main__":
    typer.run(main)
