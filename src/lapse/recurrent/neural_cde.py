"""Neural CDE: the state follows a differential equation that the path of the observations drives."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from lapse.palette import DASHED, Look
from lapse.recurrent.cell import Cell, State
from lapse.recurrent.fields import solver_for
from lapse.recurrent.rnn import RNN, LayerOptions
from lapse.solvers import RK4, FixedStep, Solver


class ControlledField(nn.Module):
    """dh/ds = F(h) dX/ds with F(h) = tanh(V tanh(U h + a) + b), a matrix of one column per channel of the path X.

    Args:
        channels: The number of channels of X.
        hidden_size: The width of the state h.
        width: The width of the layer in between.
    """

    def __init__(self, channels: int, hidden_size: int, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, width)
        self.outer = nn.Linear(width, hidden_size * channels)

    def forward(self, state: Tensor, speed: Tensor | None = None) -> Tensor:
        """dh/ds from the state (B, H) and the speed of the path dX/ds, (B, channels).

        Without a speed, time alone moves: F's first column, without the work for all the others.
        """
        inner, size = torch.tanh(self.inner(state)), state.shape[-1]
        if speed is None:
            weight, bias = (
                self.outer.weight.unflatten(0, (size, -1)),
                self.outer.bias.unflatten(0, (size, -1)),
            )
            return torch.tanh(nn.functional.linear(inner, weight[:, 0], bias[:, 0]))
        matrix = torch.tanh(self.outer(inner))
        return (matrix.view(*state.shape, -1) @ speed.unsqueeze(-1)).squeeze(-1)


class NeuralCDECell(Cell):
    """Neural CDE on the rectilinear path of the observations: time moves first, then the values jump.

        h⁻ = h_{i−1} + ∫ F(h) (1, 0) dt                    over Δ_i: the channel of time moves, values are held
        h_i = h⁻ + ∫ F(h) (0, x_i − x_last) ds             over s from 0 to 1: the values move, time stands still
        y_i = h_i

    A feature that is missing does not move; before the first observation all of them are 0. No value is used before its
    time, so the state at a time depends on nothing that comes later, where an interpolated path would look ahead.

    Sources: Kidger et al. (2020), Eq. 4; the rectilinear path of Morrill et al. (2021), Section 3.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        width: The width of the field's inner layer; that of the state if None.
        solver: How both integrals are computed, a solver or its word; RK4 with 1 sub-step each if not given.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "last")
    takes_missing: ClassVar[bool] = True
    splits_gaps: ClassVar[bool] = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        width: int | None = None,
        solver: Solver | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.field = ControlledField(1 + input_size, hidden_size, width or hidden_size)
        self.solver = solver_for(self.field, solver, FixedStep(RK4, steps=1))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.input_size)

    def step_input(self, values: Tensor, observed: Tensor | None) -> Tensor:
        mask = torch.ones_like(values) if observed is None else observed.to(values.dtype)
        # Filled, not multiplied: a missing value may be NaN, and 0 · NaN is NaN, also in the gradient.
        return torch.cat([values.masked_fill(mask == 0, 0.0), mask], -1)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, (_, last) = self.flow(state, timespan)
        x, m = input.chunk(2, -1)
        x = torch.lerp(last, x, m)
        speed = torch.cat([torch.zeros_like(x[:, :1]), x - last], -1)
        h = self.solver(self.field, h, torch.ones_like(timespan), speed)
        return h, (h, x)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, last = state
        h = self.solver(self.field, h, timespan)
        return h, (h, last)


class NeuralCDE(RNN):
    """Neural CDE with rectilinear, hence causal, control (`lapse.recurrent.NeuralCDECell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        width: The width of the field's inner layer; that of the state if None.
        solver: A solver or its word; the cell's own if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "Neural CDE"
    look: ClassVar[Look] = Look("#7a5195", "#b994d6", DASHED)
    takes_missing = NeuralCDECell.takes_missing

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        width: int | None = None,
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(NeuralCDECell, width=width, solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
