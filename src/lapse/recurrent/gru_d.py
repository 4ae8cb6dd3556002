"""GRU-D: a GRU that knows which features are missing, and for how long."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.kernels.builder import BEFORE, Builder
from lapse.kernels.contract import zero_state
from lapse.palette import DASHED, Look
from lapse.recurrent.cell import Cell, Gates, State
from lapse.recurrent.rnn import RNN, LayerOptions


class GRUDCell(Cell):
    """GRU-D: a GRU whose state fades with time, and whose missing inputs fade from their last value to their mean.

        δ = time since each feature was last observed,     m = 1 where it is observed now
        γ_x = exp(−max(0, w_x ⊙ δ + b_x)),                 γ_h = exp(−max(0, W_γ δ + b_γ))
        x̂ = m ⊙ x + (1 − m) ⊙ (γ_x ⊙ x_last + (1 − γ_x) ⊙ x_mean),      h⁻ = γ_h ⊙ h_{i−1}
        z, r = σ(W [x̂, m] + R h⁻ + b),   g = tanh(W_g [x̂, m] + R_g (r ⊙ h⁻) + b_g)
        h_i = (1 − z) ⊙ h⁻ + z ⊙ g;        y_i = h_i

    Source: Che et al. (2018), Eqs. 10–17, in full, where the ODE-LSTM authors' code has the decay of h alone.
    `step` takes values and mask side by side, (B, 2I). The buffer `input_mean` is the training mean of each
    feature: 0 for standardised data. A feature that was never observed counts as its mean, observed at the
    start.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "last", "since")
    takes_missing: ClassVar[bool] = True
    splits_gaps: ClassVar[bool] = True
    flow_starts_at_output: ClassVar[bool] = (
        False  # a positive b_γ decays even over no time (Che et al., Eq. 11)
    )
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
        h, _, since = zero_state(self, batch_size, device=device, dtype=dtype)
        return h, self.input_mean.to(since).expand(batch_size, -1), since

    def set_input_mean(self, mean: Tensor) -> None:
        self.input_mean.copy_(mean)

    def step_input(self, values: Tensor, observed: Tensor | None) -> Tensor:
        mask = torch.ones_like(values) if observed is None else observed.to(values.dtype)
        # Filled, not multiplied: a missing value may be NaN, and 0 · NaN is NaN, also in the gradient.
        return torch.cat([values.masked_fill(mask == 0, 0.0), mask], -1)

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

    def program(self, p: Builder) -> None:
        n, i = self.hidden_size, self.input_size
        x = p.input(i, segments=2)
        m = x + 1
        h, last, since = p.state(n), p.state(i), p.state(i)
        since1, x_hat, fading, h1, candidate = (p.register(size) for size in (i, i, n, n, n))
        reset, g = p.register(n), p.register(n, 2)
        p.emit("Tick", since1, since | BEFORE)
        weight = p.matrix("hidden_decay.weight", n, i)
        p.linear(fading, (since1, weight), bias=p.vector("hidden_decay.bias", n))
        p.emit("Fade", fading, h | BEFORE, h1)
        vectors = [p.vector(name, i) for name in ("input_decay_weight", "input_decay_bias", "input_mean")]
        p.emit("Impute", x, m, since1, last | BEFORE, x_hat, last, since, parameters=vectors)
        self.gates.program(p, "gates", g, [x_hat, m], h1)
        p.emit("Reset", g + 1, h1, reset)
        self.candidate.program(p, "candidate", candidate, [x_hat, m], reset)
        p.emit("Blend", g, candidate, h1, h)


class GRUD(RNN):
    """GRU-D: takes missing features, which it is told of by `observed` (`lapse.recurrent.GRUDCell`).

    Layers above the first see no missing features.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        input_mean: What a missing feature fades to, (input_size,): its mean over the training data. Zeros,
            which suit standardised data, if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "GRU-D"
    look: ClassVar[Look] = Look("#88CCEE", "#88ccee", DASHED)
    takes_missing = GRUDCell.takes_missing

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        input_mean: Tensor | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, cell=GRUDCell, **options)
        if input_mean is not None:
            self.set_input_mean(input_mean)
