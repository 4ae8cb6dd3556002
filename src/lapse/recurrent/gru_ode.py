"""GRU-ODE: the GRU as a differential equation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from lapse.kernels.builder import BEFORE, Builder, NotCovered
from lapse.palette import SOLID, Look
from lapse.recurrent.cell import Gates
from lapse.recurrent.fields import DrivenCell, solver_for
from lapse.recurrent.rnn import RNN, LayerOptions
from lapse.solvers import Exponential, Solver


class GRUField(nn.Module):
    """dh/dt = (1 − z) ⊙ (g − h), with r, z = σ(W x + R h + b) and g = tanh(W_g x + R_g (r ⊙ h) + b_g).

    De Brouwer et al. (2019), Eq. 3: the GRU's difference equation taken to continuous time.

    Args:
        input_size: The width of x.
        hidden_size: The width of the state h.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gates = Gates(input_size, hidden_size, count=2)
        self.candidate = Gates(input_size, hidden_size)

    def drive(self, input: Tensor) -> Tensor:
        """The share of the held input in r, z and g, side by side."""
        return torch.cat([self.gates.drive(input), self.candidate.drive(input)], -1)  # (B, 3H)

    def rest(self, state: Tensor) -> Tensor:
        """`drive` without any input, one row per row of `state`."""
        return torch.cat([self.gates.rest(state), self.candidate.rest(state)], -1)

    def semilinear(self, state: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """The source (1 − z) ⊙ g and the rate 1 − z of dh/dt = source − rate ⊙ h."""
        hidden_size = state.shape[-1]
        gates_drive, candidate_drive = drive.split([2 * hidden_size, hidden_size], -1)
        reset, update = (gates_drive + self.gates.recur(state)).chunk(2, -1)
        g = torch.tanh(candidate_drive + self.candidate.recur(torch.sigmoid(reset) * state))
        rate = torch.sigmoid(-update)  # 1 − σ(u), without the cancellation
        return rate * g, rate

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        source, rate = self.semilinear(state, drive)
        return source - rate * state


class _GRUSlopes:
    """(1 − z) ⊙ (g − h) as operations, driven by reset, update and candidate."""

    def __init__(self, p: Builder, size: int, name: str, drive: int) -> None:
        self.size, self.drive = size, drive
        self.gates = p.matrix(f"{name}.gates.weight_hh", size, size, segments=2)
        self.candidate = p.matrix(f"{name}.candidate.weight_hh", size, size)

    def begin(self, p: Builder, steps: int, order: int) -> None:
        if order != 1:
            raise NotCovered(f"no operations for an exponential step of order {order}")

    def _inner(self, p: Builder, y: int) -> tuple[int, int]:
        gates, reset, candidate = p.register(self.size, 2), p.register(self.size), p.register(self.size)
        p.linear(gates, (y, self.gates), base=self.drive)
        p.emit("Reset", gates, y, reset)
        p.linear(candidate, (reset, self.candidate), base=self.drive + 2)
        return gates + 1, candidate

    def slope(self, p: Builder, y: int, steps: int) -> int:
        update, candidate = self._inner(p, y)
        k = p.register(self.size)
        p.emit("GRUSlope", update, candidate, y, k, numbers=[steps])
        return k

    def exponential(self, p: Builder, y: int, out: int, steps: int) -> None:
        update, candidate = self._inner(p, y)
        p.emit("GRUExponential", update, candidate, y, out, numbers=[steps])


class GRUODECell(DrivenCell):
    """GRU-ODE: the GRU as a differential equation, driven by the observation that is held over the gap before it.

        dh/dt = (1 − z) ⊙ (g − h)                         over Δ_i, from h_{i−1};     y_i = h_i
        r, z = σ(W x_i + R h + b),   g = tanh(W_g x_i + R_g (r ⊙ h) + b_g)

    Source: De Brouwer et al. (2019), Eq. 3. Table S1 of the paper solves it with 4 sub-steps of Euler, here the
    exponential integrator with 4 does, which keeps |h| at most 1 for any gap, as the exact solution does.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        solver: How the ODE is solved, a solver or its word; the exponential integrator with 4 sub-steps if not given.
    """

    field: GRUField

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | str | None = None) -> None:
        field = GRUField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver_for(field, solver, Exponential(steps=4)))

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, drive = p.state(n), p.register(n, 3)
        self.field.gates.program(p, "field.gates", drive, [x])
        self.field.candidate.program(p, "field.candidate", drive + 2, [x])
        p.solve(self.solver, _GRUSlopes(p, n, "field", drive), h | BEFORE, h)


class GRUODE(RNN):
    """GRU-ODE: the GRU as a differential equation (`lapse.recurrent.GRUODECell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        solver: A solver or its word; the exponential integrator with 4 sub-steps if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "GRU-ODE"
    look: ClassVar[Look] = Look("#44AA99", "#5cc7b5", SOLID)
    paper_options: ClassVar[Mapping[str, Any]] = {"solver": "euler"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(GRUODECell, solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
