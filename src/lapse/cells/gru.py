"""Gated cells without a separate memory: GRU-ODE, GRU-D, CT-GRU."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.cells.base import Cell, Gates, State
from lapse.cells.fields import DrivenCell, GRUField
from lapse.solvers import Exponential, Solver


class GRUODECell(DrivenCell):
    """GRU-ODE: the GRU as a differential equation, driven by the observation held over the gap before it.

        dh/dt = (1 − z) ⊙ (g − h)                         over Δ_i, from h_{i−1};     y_i = h_i
        r, z = σ(W x_i + R h + b),   g = tanh(W_g x_i + R_g (r ⊙ h) + b_g)

    Source: De Brouwer et al. (2019), Eq. 3; Table S1 of the paper solves it with 4 sub-steps of Euler, here the
    exponential integrator with 4, which keeps |h| at most 1 for any gap, as the exact solution does.
    """

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | None = None) -> None:
        field = GRUField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver or Exponential(steps=4))


class GRUDCell(Cell):
    """GRU-D: a GRU whose state fades with time, and whose missing inputs fade from their last value to their mean.

        δ = time since each feature was last observed,     m = 1 where it is observed now
        γ_x = exp(−max(0, w_x ⊙ δ + b_x)),                 γ_h = exp(−max(0, W_γ δ + b_γ))
        x̂ = m ⊙ x + (1 − m) ⊙ (γ_x ⊙ x_last + (1 − γ_x) ⊙ x_mean),      h⁻ = γ_h ⊙ h_{i−1}
        z, r = σ(W [x̂, m] + R h⁻ + b),   g = tanh(W_g [x̂, m] + R_g (r ⊙ h⁻) + b_g)
        h_i = (1 − z) ⊙ h⁻ + z ⊙ g;        y_i = h_i

    Source: Che et al. (2018), Eqs. 10–17, in full, where the ODE-LSTM authors' code has the decay of h alone.
    ``step`` takes values and mask side by side, (B, 2I). The buffer ``input_mean`` is the training mean of each
    feature: 0 for standardised data. A feature that was never observed counts as its mean, observed at the start.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "last", "since")
    input_mean: Tensor

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = Gates(2 * input_size, hidden_size, count=2)
        self.candidate = Gates(2 * input_size, hidden_size)
        self.hidden_decay = nn.Linear(input_size, hidden_size)
        nn.init.xavier_uniform_(self.hidden_decay.weight)
        nn.init.zeros_(self.hidden_decay.bias)
        # A positive start: at 0 the gradient of max(0, ·) is 0 and a rate would never be learned.
        self.input_decay_weight = nn.Parameter(torch.ones(input_size))
        self.input_decay_bias = nn.Parameter(torch.zeros(input_size))
        self.register_buffer("input_mean", torch.zeros(input_size))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.input_size, self.input_size)

    def initial_state(
        self, batch_size: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        h, _, since = super().initial_state(batch_size, device=device, dtype=dtype)
        return h, self.input_mean.to(since).expand(batch_size, -1), since

    def prepare(self, input: Tensor, observed: Tensor | None) -> Tensor:
        mask = torch.ones_like(input) if observed is None else observed.to(input.dtype)
        # Zeroed, not multiplied: a missing value may be NaN, and 0 · NaN is NaN, also in the gradient.
        return torch.cat([input.masked_fill(mask == 0, 0.0), mask], -1)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, (_, last, since) = self.flow(state, timespan)
        x, m = input.chunk(2, -1)
        fading = torch.exp(-F.relu(self.input_decay_weight * since + self.input_decay_bias))
        x_hat = m * x + (1 - m) * torch.lerp(self.input_mean.to(x), last, fading)
        x_and_m = torch.cat([x_hat, m], -1)
        z, r = torch.sigmoid(self.gates(x_and_m, h)).chunk(2, -1)
        g = torch.tanh(self.candidate(x_and_m, r * h))
        h = torch.lerp(h, g, z)
        return h, (h, torch.lerp(last, x, m), (1 - m) * since)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        # The state keeps h as the last update left it, and only `since` moves on: the decay is a function of the
        # whole time passed, not of the pieces it was passed in.
        h, last, since = state
        since = since + timespan.unsqueeze(-1)
        return h * torch.exp(-F.relu(self.hidden_decay(since))), (h, last, since)


class CTGRUCell(Cell):
    """CT-GRU: every unit keeps traces at M time scales; gates choose the scale to read and the one to write.

        ĥ_m ← ĥ_m e^{−Δ_i / τ_m},   h = Σ_m ĥ_m,   τ_m = 10^{m/2},  m = 0 … M−1        decay
        r = softmax_m(−(ln τ^R − ln τ_m)²),   ln τ^R = W_R x_i + U_R h + b_R           retrieval
        q = tanh(W_q x_i + U_q Σ_m r_m ĥ_m + b_q)                                      event detection
        s = softmax_m(−(ln τ^S − ln τ_m)²),   ln τ^S = W_S x_i + U_S h + b_S           storage
        ĥ_m ← (1 − s_m) ĥ_m + s_m q,          y_i = h_i = Σ_m ĥ_m

    Source: Mozer et al. (2017), section 2.2, M = 8; the decay comes before the update because the gap does.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "traces")

    def __init__(self, input_size: int, hidden_size: int, *, timescales: int = 8) -> None:
        super().__init__(input_size, hidden_size)
        if timescales < 1:
            raise ValueError(f"timescales must be at least 1, got {timescales}")
        self.gates = Gates(input_size, hidden_size, count=2)
        self.candidate = Gates(input_size, hidden_size)
        self.timescales = timescales

    @property
    def log_timescales(self) -> Tensor:
        """ln τ_m (M,). Not a buffer: one made in float32 stays rounded to it when the cell goes to float64."""
        bias = self.candidate.bias
        return torch.arange(self.timescales, device=bias.device, dtype=bias.dtype) * (math.log(10.0) / 2)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size * self.timescales)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, (_, flat) = self.flow(state, timespan)
        traces = flat.unflatten(-1, (self.hidden_size, -1))  # (B, H, M)
        retrieval, storage = self.gates(input, h).chunk(2, -1)
        read = (self._choose(retrieval) * traces).sum(-1)
        q = torch.tanh(self.candidate(input, read))
        traces = torch.lerp(traces, q.unsqueeze(-1), self._choose(storage))
        h = traces.sum(-1)
        return h, (h, traces.flatten(-2))

    def _choose(self, log_timescale: Tensor) -> Tensor:
        """Weights over the M scales (B, H, M) for the scales that the gates ask for (B, H)."""
        return torch.softmax(-(log_timescale.unsqueeze(-1) - self.log_timescales).square(), -1)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        decay = torch.exp(-timespan.unsqueeze(-1) * torch.exp(-self.log_timescales))  # (B, M)
        traces = state[1].unflatten(-1, (self.hidden_size, -1)) * decay.unsqueeze(-2)  # (B, H, M)
        h = traces.sum(-1)
        return h, (h, traces.flatten(-2))
