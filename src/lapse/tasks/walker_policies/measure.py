"""How the four stages walk: `python -m lapse.tasks.walker_policies.measure` prints the table in README.md."""

from __future__ import annotations

import numpy as np
import typer

from lapse.tasks.walker_simulator import MAX_STEPS, STAGES, Policy, environment, rollout

FORWARD_VELOCITY = 8  # column of an observation


def measure(stage: int, rollouts: int, seed: int = 0) -> str:
    """A row of the table: rollout lengths, share of those that never fall, and forward speed of one stage."""
    policy = Policy.of_stage(stage)
    with environment() as walker:
        walks = [rollout(walker, policy, np.random.default_rng([seed, stage, i])) for i in range(rollouts)]
    lengths = np.array([len(walk) for walk in walks])
    low, median, high = np.percentile(lengths, [25, 50, 75])
    whole = np.mean(lengths == MAX_STEPS)
    speed = np.concatenate(walks)[:, FORWARD_VELOCITY].mean()
    return (
        f"| {stage} | {median:.0f} | {low:.0f} to {high:.0f} | {lengths.min()} | {whole:.0%} | {speed:.2f} |"
    )


def main(rollouts: int = 100) -> None:
    """Print how the four stages walk, with the random actions on."""
    print("| iteration | median length | quartiles | shortest | never fall | speed, m/s |")
    print("|---|---|---|---|---|---|")
    for stage in STAGES:
        print(measure(stage, rollouts))


if __name__ == "__main__":
    typer.run(main)
