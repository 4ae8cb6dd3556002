"""The right-hand sides: what the hidden state does while time passes, and the cell that only follows one.

A field is called as ``field(y, drive)`` with the state (B, H) and the held input's share (B, ...), which its
``drive`` method computes once a solve. A damped field also gives its two parts to the exponential integrator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.cells.base import Cell, Gates, State, softplus_inverse
from lapse.solvers import Solver


class TanhField(nn.Module):
    """dh/dt = s ⊙ tanh(W x + R h + b): Eq. 1 of the paper without its damping."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gates = Gates(input_size, hidden_size)
        self.scale = nn.Parameter(torch.ones(hidden_size))

    def drive(self, input: Tensor) -> Tensor:
        return self.gates.drive(input)

    def rest(self, state: Tensor) -> Tensor:
        return self.gates.rest(state)

    def source(self, state: Tensor, drive: Tensor) -> Tensor:
        return self.scale * torch.tanh(drive + self.gates.recur(state))

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        return self.source(state, drive)


class DampedTanhField(TanhField):
    """dh/dt = s ⊙ tanh(W x + R h + b) − τ ⊙ h: Eq. 1, the damping τ = softplus(decay) > 0 one a unit.

    The authors' code has one constant τ = 1; the supplement's proofs write τ per unit. Here it is learned per
    unit and starts at 1.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.decay = nn.Parameter(torch.full((hidden_size,), softplus_inverse(1.0)))

    def semilinear(self, state: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        return self.source(state, drive), F.softplus(self.decay)

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        source, rate = self.semilinear(state, drive)
        return source - rate * state


class MLPField(nn.Module):
    """dh/dt = V tanh(U h + a) + b: autonomous, one hidden layer as wide as the state.

    Starts as ``nn.Linear`` does, as in the authors' PyTorch code. With biases of 0 the origin would be an unstable
    equilibrium, where an empty state stays for ever and its gradient explodes with the length of the gap.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, hidden_size)
        self.outer = nn.Linear(hidden_size, hidden_size)

    def forward(self, state: Tensor) -> Tensor:
        slope: Tensor = self.outer(torch.tanh(self.inner(state)))
        return slope

    @property
    def feedback(self) -> Tensor:
        """U V: how tanh(U h + a) moves U h + a itself, together with ``feedback_bias`` U b."""
        return self.inner.weight @ self.outer.weight

    @property
    def feedback_bias(self) -> Tensor:
        return self.inner.weight @ self.outer.bias


class GRUField(nn.Module):
    """dh/dt = (1 − z) ⊙ (g − h), with r, z = σ(W x + R h + b) and g = tanh(W_g x + R_g (r ⊙ h) + b_g).

    De Brouwer et al. (2019), Eq. 3: the GRU's difference equation taken to continuous time.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gates = Gates(input_size, hidden_size, count=2)
        self.candidate = Gates(input_size, hidden_size)

    def drive(self, input: Tensor) -> Tensor:
        return torch.cat([self.gates.drive(input), self.candidate.drive(input)], -1)  # (B, 3H)

    def rest(self, state: Tensor) -> Tensor:
        return torch.cat([self.gates.rest(state), self.candidate.rest(state)], -1)

    def semilinear(self, state: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        hidden_size = state.shape[-1]
        gates_drive, candidate_drive = drive.split([2 * hidden_size, hidden_size], -1)
        reset, update = (gates_drive + self.gates.recur(state)).chunk(2, -1)
        g = torch.tanh(candidate_drive + self.candidate.recur(torch.sigmoid(reset) * state))
        rate = torch.sigmoid(-update)  # 1 − σ(u), without the cancellation
        return rate * g, rate

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        source, rate = self.semilinear(state, drive)
        return source - rate * state


class DrivenCell(Cell):
    """A cell whose state follows a field, driven by the observation held over the gap before it.

    Between observations no input is held (Table 1 of the paper has none there): the field moves with x = 0.
    """

    def __init__(
        self, input_size: int, hidden_size: int, field: TanhField | GRUField, solver: Solver
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.field = field
        self.solver = solver

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        h = self.solver(self.field, h, timespan, self.field.drive(input))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        (h,) = state
        h = self.solver(self.field, h, timespan, self.field.rest(h))
        return h, (h,)
