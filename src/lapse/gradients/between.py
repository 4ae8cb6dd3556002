"""Table 1 of the paper, drawn: what the state of each model does between two observations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapse.gradients.theorems import irregular_batch, make_layer
from lapse.recurrent import Cell, State


@dataclass(frozen=True)
class Interval:
    """A model's output and memory at every time since its last observation, some units of them."""

    model: str
    times: Tensor  # (K,), in units of time
    output: Tensor  # (K, units)
    memory: Tensor | None  # (K, units), of c or the traces; None for a model with one state

    @property
    def kept(self) -> float:
        """|output| at the end over |output| at the start."""
        return float(self.output[-1].norm() / self.output[0].norm())

    @property
    def memory_kept(self) -> float | None:
        """The same of the memory: exactly 1 where time leaves it alone."""
        return None if self.memory is None else float(self.memory[-1].norm() / self.memory[0].norm())


@torch.no_grad()
def between_observations(
    model: str,
    *,
    hidden_size: int = 32,
    units: int = 4,
    duration: float = 4.0,
    points: int = 81,
    observations: int = 10,
    seed: int = 0,
) -> Interval:
    """Some observations, then nothing but time, asked of the cell's own ``flow``."""
    cell = make_layer(model, 4, hidden_size, seed=seed).cells[0]
    assert isinstance(cell, Cell)
    times = torch.linspace(0.0, duration, points, dtype=torch.float64)
    state = _after(cell, observations, seed)
    repeated = tuple(part.expand(points, -1).contiguous() for part in state)
    output, later = cell.flow(repeated, times)
    memory = None if cell.memory is None else later[cell.state_names.index(cell.memory)][:, :units]
    return Interval(model, times, output[:, :units], memory)


def _after(cell: Cell, observations: int, seed: int) -> State:
    batch = irregular_batch(1, observations, cell.input_size, seed=seed)
    state = cell.initial_state(1, dtype=torch.float64)
    for x, gap in zip(batch["input"].unbind(1), batch["timespans"].unbind(1), strict=True):
        _, state = cell.step(cell.step_input(x, None), state, gap)
    return state
