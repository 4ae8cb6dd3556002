"""Cells with one hidden state: CT-RNN, ODE-RNN in both forms, RNN-Decay."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.cells.base import Cell, Gates, State, softplus_inverse
from lapse.cells.fields import DampedTanhField, DrivenCell, MLPField, TanhField
from lapse.solvers import RK4, Exponential, FixedStep, Solver


class CTRNNCell(DrivenCell):
    """Continuous-time RNN: a damped ODE, driven by the observation held over the gap before it.

        dh/dt = s ⊙ tanh(W x_i + R h + b) − τ ⊙ h        over Δ_i, from h_{i−1};     y_i = h_i

    Source: Funahashi & Nakamura (1993), and Eq. 1 of Lechner & Hasani (2020), who solve it with 3 sub-steps of
    RK4. Here the exponential integrator is the default, because an explicit step explodes on a long gap.
    """

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | None = None) -> None:
        field = DampedTanhField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver or Exponential(steps=4))


class ODERNNCell(DrivenCell):
    """ODE-RNN of Eq. 1: the CT-RNN without damping.

        dh/dt = s ⊙ tanh(W x_i + R h + b)                over Δ_i, from h_{i−1};     y_i = h_i

    Source: Lechner & Hasani (2020), Eq. 1 and Table S1 (RK4, 3 sub-steps: the default here too). Without damping
    there is no linear part for the exponential integrator, and the state can grow no faster than s · Δ.
    """

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | None = None) -> None:
        field = TanhField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver or FixedStep(RK4, steps=3))


class JumpODERNNCell(Cell):
    """ODE-RNN of Rubanova et al.: the state flows through the gap, then the observation makes it jump.

        h⁻ = ODESolve(f_θ, h_{i−1}, Δ_i),   f_θ(h) = V tanh(U h + a) + b
        h_i = tanh(W x_i + R h⁻ + b);       y_i = h_i

    Source: Rubanova et al. (2019), Algorithm 1, with a plain RNN as the jump.
    """

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | None = None) -> None:
        super().__init__(input_size, hidden_size)
        self.field = MLPField(hidden_size)
        self.jump = Gates(input_size, hidden_size)
        self.solver = solver or FixedStep(RK4, steps=3)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, _ = self.flow(state, timespan)
        h = torch.tanh(self.jump(input, h))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = self.solver(self.field, state[0], timespan)
        return h, (h,)


class RNNDecayCell(Cell):
    """RNN-Decay: the state fades exponentially through the gap, each unit at its own learned rate.

        h⁻ = h_{i−1} ⊙ e^{−τ Δ_i},   h_i = tanh(W x_i + R h⁻ + b);     y_i = h_i;     τ = softplus(decay)

    Source: the baseline of Rubanova et al. (2019). The authors of the ODE-LSTM subtract τΔ from the state instead,
    which is not a decay. Rates start at 1, as the damping of CT-RNN does.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = Gates(input_size, hidden_size)
        self.decay = nn.Parameter(torch.full((hidden_size,), softplus_inverse(1.0)))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, _ = self.flow(state, timespan)
        h = torch.tanh(self.gates(input, h))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = state[0] * torch.exp(-F.softplus(self.decay) * timespan.unsqueeze(-1))
        return h, (h,)
