"""ODE-RNN in two forms: driven by the observation during the gap before it, or flowing and then jumping."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import SOLID, Look
from lapse.recurrent.cell import Cell, Gates, State
from lapse.recurrent.fields import DrivenCell, MLPField, TanhField, driven_program, solver_for
from lapse.recurrent.rnn import RNN, LayerOptions, choose_form
from lapse.solvers import RK4, FixedStep, Solver


class ODERNNCell(DrivenCell):
    """ODE-RNN of Eq. 1: the CT-RNN without damping.

        dh/dt = s ⊙ tanh(W x_i + R h + b)                over Δ_i, from h_{i−1};     y_i = h_i

    Source: Lechner & Hasani (2020), Eq. 1 and Table S1 (RK4 with 3 sub-steps, the default here too). Without
    damping there is no linear part for the exponential integrator, and the state can grow no faster than s · Δ.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        solver: How the ODE is solved, a solver or its word; RK4 with 3 sub-steps if not given.
    """

    field: TanhField

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | str | None = None) -> None:
        field = TanhField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver_for(field, solver, FixedStep(RK4, steps=3)))

    def program(self, p: Builder) -> None:
        driven_program(self, self.field, p)


class JumpODERNNCell(Cell):
    """ODE-RNN of Rubanova et al.: the state flows through the gap, then the observation makes it jump.

        h⁻ = ODESolve(f_θ, h_{i−1}, Δ_i),   f_θ(h) = V tanh(U h + a) + b
        h_i = tanh(W x_i + R h⁻ + b);       y_i = h_i

    Source: Rubanova et al. (2019), Algorithm 1, with a plain RNN as the jump.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        solver: How the ODE is solved, a solver or its word; RK4 with 3 sub-steps if not given.
    """

    splits_gaps: ClassVar[bool] = True

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | str | None = None) -> None:
        super().__init__(input_size, hidden_size)
        self.field = MLPField(hidden_size)
        self.jump = Gates(input_size, hidden_size)
        self.solver = solver_for(self.field, solver, FixedStep(RK4, steps=3))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, _ = self.flow(state, timespan)
        h = torch.tanh(self.jump(input, h))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h = self.solver(self.field, state[0], timespan)
        return h, (h,)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, flowed, jump = p.state(n), p.register(n), p.register(n)
        self.field.program(p, "field", self.solver, h | BEFORE, flowed)
        self.jump.program(p, "jump", jump, [x], flowed)
        p.emit("Tanh", h, jump)


class ODERNN(RNN):
    """ODE-RNN: the state follows an ODE without damping.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        form: "driven" (Eq. 1 of the paper, `ODERNNCell`) or "jump" (Rubanova et al., 2019, `JumpODERNNCell`).
        solver: A solver or its word; the cell's own if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "ODE-RNN"
    look: ClassVar[Look] = Look("#CC6677", "#e58a99", SOLID)
    forms: ClassVar[Mapping[str, type[Cell]]] = {"driven": ODERNNCell, "jump": JumpODERNNCell}
    paper_options: ClassVar[Mapping[str, Any]] = {"solver": "rk4"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        form: Literal["driven", "jump"] = "driven",
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(choose_form(self.forms, form), solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
