"""Forecasts of published biological systems, observed seldom and with noise: the second half from the first.

Source: generated here, from a seed and the equations in `lapse.tasks.biology`, in the manner of Physiome-ODE
(Klötergens et al., Physiome-ODE: A Benchmark for Irregularly Sampled Multivariate Time Series Forecasting Based on
Biological ODEs, ICLR 2025). One task per system: `physiome-fitzhugh-nagumo`, `physiome-hodgkin-huxley`,
`physiome-morris-lecar`, `physiome-lotka-volterra`, `physiome-goodwin`, `physiome-repressilator`, `physiome-circadian`,
`physiome-mitosis`, `physiome-cell-cycle`, `physiome-calcium`, `physiome-glycolysis`, `physiome-hes1`, `physiome-mapk`,
`physiome-epidemic`.

As in that benchmark and its code: 2,000 instances, each with constants and initial states of its own, drawn evenly
from (1 ± spread) times the published value; 100 times at equal distances; instances with a value more than ten standard
deviations from the mean are left out; values are standardised per channel; noise with a standard deviation of 0.05 is
added to all of them; four values in five are dropped, each by itself, and with them the times at which nothing is left;
time is counted in the whole duration; the first half is known, the second is asked for, and the error is the mean
square over what was observed there; 70, 20 and 10 % of the instances are for training, validation and test.

Where we differ. The systems are our choice, so results are not comparable with its tables. Durations and spreads are
fixed beside each system instead of searched for the largest joint gradient deviation, so that a system shows a few of
its periods; `lapse data` tells that figure. All channels are asked for, where the benchmark asks for the ten with the
largest figure, since no system here has more. Means and standard deviations are those of the training instances, where
its code takes those of all instances, the test split included. Another `seed` draws everything anew, where its five
folds are five divisions of the same trajectories. Trajectories come from the adaptive solver of `lapse.solvers`, to a
relative tolerance of 1e-6 as there, where it uses LSODA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lapse.arguments import check_count
from lapse.heads import Numbers
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array, offsets_of
from lapse.solvers import Adaptive
from lapse.tasks.base import Splits, Task
from lapse.tasks.biology import SYSTEMS, System
from lapse.tasks.prepared import prepared
from lapse.tasks.questions import Ahead

SIZE = 2_000
POINTS = 100
SHARES = (0.7, 0.2, 0.1)
NOISE = 0.05  # standard deviations of the channel
DROPPED = 0.8  # of the values
FARTHEST = 10.0  # standard deviations from the mean, beyond which an instance is left out
KNOWN = 0.5  # of the time
# States differ by orders of magnitude, so that the relative tolerance has to do the work.
SOLVER = Adaptive(rtol=1e-6, atol=1e-9, max_steps=100_000)


def _loader(name: str) -> Callable[..., Splits]:
    def load(data_dir: str | Path | None = None, *, size: int | None = None, seed: int = 0) -> Splits:
        count = SIZE if size is None else size
        check_count("size", count, 10)  # so that every part has an instance
        check_count("seed", seed, 0)
        options = {"size": count, "seed": seed}
        return prepared(f"physiome-{name}", (), options, lambda: _generate(SYSTEMS[name], count, seed))

    return load


def _generate(system: System, size: int, seed: int) -> Splits:
    random = np.random.default_rng(seed)
    clean = trajectories(system, size, random)
    near = (np.abs(_standardized(clean, clean)) <= FARTHEST).all(axis=(1, 2))
    clean = clean[near]
    parts = np.split(clean, np.cumsum([int(share * len(clean)) for share in SHARES[:2]]))
    scaled = [_standardized(part, parts[0]) for part in parts]
    deviation = joint_gradient_deviation(np.concatenate(scaled))
    notes = [f"joint gradient deviation {deviation.mean():.3g}, the mean over {deviation.size} channels"]
    if not near.all():
        notes.append(f"{np.count_nonzero(~near):,} instances with a value that is far out were left out")
    unit = f"{system.duration:g} {system.unit}"
    observed = (observations(part, tuple(system.states), unit, random) for part in scaled)
    return Splits(*observed, notes=tuple(notes))


def trajectories(system: System, size: int, random: np.random.Generator) -> Array:
    """(size, POINTS, states) the states of instances of a system, without noise, at equal distances of time.

    Args:
        system: the system.
        size: how many instances.
        random: draws their constants and initial states.
    """
    state = torch.from_numpy(_moved(list(system.states.values()), system.states_spread, size, random))
    constants = torch.from_numpy(
        _moved(list(system.constants.values()), system.constants_spread, size, random)
    )
    spans = torch.full((size,), system.duration / (POINTS - 1), dtype=torch.float64)
    states = [state]
    for _ in range(POINTS - 1):
        states.append(SOLVER(system.derivative, states[-1], spans, constants))
    return torch.stack(states, 1).numpy()


def _moved(values: list[float], spread: float, size: int, random: np.random.Generator) -> Array:
    factors = random.uniform(1 - spread, 1 + spread, (size, len(values)))
    moved: Array = np.array(values) * factors
    return moved


def _standardized(values: Array, by: Array) -> Array:
    """Values (S, T, H) in standard deviations of each channel of others."""
    scaled: Array = (values - by.mean((0, 1))) / by.std((0, 1))
    return scaled


def joint_gradient_deviation(values: Array) -> Array:
    """(H,) how hard standardised trajectories (S, T, H) are to forecast: a measure of Physiome-ODE.

    The standard deviation of the steps of a trajectory, averaged over instances, times the standard deviation of a step
    over the instances, averaged over time: near 0 for lines, and for instances that all do the same.

    Args:
        values: trajectories without noise, at equal distances of time.
    """
    steps = np.diff(values, axis=1)
    deviation: Array = steps.std(1).mean(0) * steps.std(0).mean(0)
    return deviation


def observations(values: Array, names: tuple[str, ...], unit: str, random: np.random.Generator) -> Sequences:
    """Standardised trajectories (S, T, H) with noise, thinned: events at the times at which anything is left.

    Args:
        values: the trajectories.
        names: what the channels are called.
        unit: what a time of 1 means, the whole duration.
        random: draws the noise and what is dropped.
    """
    noisy = values + NOISE * random.standard_normal(values.shape)
    kept = random.random(values.shape) >= DROPPED
    there = np.any(kept, axis=2)
    times = np.broadcast_to(np.linspace(0.0, 1.0, values.shape[1]), there.shape)
    some = np.any(there, axis=1)  # as good as always
    return Sequences(
        values=np.where(kept, noisy, 0.0)[there].astype(np.float32),
        times=times[there],
        offsets=offsets_of(there.sum(axis=1)[some]),
        observed=kept[there],
        starts=np.zeros(int(some.sum())),
        features=names,
        unit=unit,
    )


def _task(name: str, system: System) -> Task:
    return Task(
        name=f"physiome-{name}",
        summary=f"{system.summary}; its second half from the first",
        loader=_loader(name),
        head=partial(Numbers, tuple(system.states), per_step=True, metrics=("mse", "mae")),
        input_size=len(system.states),
        time_unit=f"{system.duration:g} {system.unit}",
        source=f"generated; {system.source}",
        licence="none needed: published equations, random numbers",
        differences="the paper has no such task; Physiome-ODE has other systems and durations, asks for ten channels "
        "at most, and takes scales from all splits",
        question=Ahead(KNOWN),
    )


TASKS = {f"physiome-{name}": _task(name, system) for name, system in SYSTEMS.items()}
