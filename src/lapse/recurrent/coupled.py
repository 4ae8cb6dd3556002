"""The paper's "bi-directional RNN": an LSTM and an ODE-RNN that feed each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import SOLID, Look
from lapse.recurrent.cell import Cell, LSTMGates, State
from lapse.recurrent.fields import TanhField, solver_for
from lapse.recurrent.rnn import RNN, LayerOptions
from lapse.solvers import RK4, FixedStep, Solver


class CoupledLSTMODERNNCell(Cell):
    """The paper's "bi-directional RNN": an LSTM and an ODE-RNN, each fed the other's previous output.

        (c_i, l_i) = LSTM([x_i, g_{i−1}], (c_{i−1}, l_{i−1}))
        dg/dt = s ⊙ tanh(W [x_i, l_{i−1}] + R g + b)      over Δ_i, from g_{i−1};     y_i = l_i + g_i

    Source: Lechner & Hasani (2020), section 6. It is not time reversal (that is `bidirectional=True` of any
    layer), hence the name. Between observations the ODE-RNN still sees l, and x = 0.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of units of each of the two.
        forget_bias: Where the bias of the forget gate starts.
        solver: How the ODE is solved, a solver or its word; RK4 with 3 sub-steps if not given.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c", "lstm", "ode")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("c", "lstm", "ode")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        solver: Solver | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size + hidden_size, hidden_size, forget_bias)
        self.field = TanhField(input_size + hidden_size, hidden_size)
        self.solver = solver_for(self.field, solver, FixedStep(RK4, steps=3))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        _, c, lstm, ode = state
        drive = self.field.drive(torch.cat([input, lstm], -1))
        c, lstm = self.gates.memorise(torch.cat([input, ode], -1), lstm, c)
        ode = self.solver(self.field, ode, timespan, drive)
        return lstm + ode, (lstm + ode, c, lstm, ode)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        _, c, lstm, ode = state
        no_input = lstm.new_zeros(lstm.shape[0], self.input_size)
        ode = self.solver(self.field, ode, timespan, self.field.drive(torch.cat([no_input, lstm], -1)))
        return lstm + ode, (lstm + ode, c, lstm, ode)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, short, ode = (p.state(n) for _ in range(4))
        drive = p.register(n)
        self.field.gates.program(p, "field.gates", drive, [x, short | BEFORE])
        before = short | BEFORE, c | BEFORE
        self.gates.memorise_program(p, "gates", [x, ode | BEFORE], before, c, short)
        self.field.program(p, "field", self.solver, ode | BEFORE, ode, drive)
        p.emit("Add", h, short, ode)


class CoupledLSTMODERNN(RNN):
    """An LSTM and an ODE-RNN that feed each other, the paper's "bi-directional RNN".

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of units of each of the two.
        num_layers: The number of layers, one above the other.
        forget_bias: Where the bias of the forget gate starts.
        solver: A solver or its word; RK4 with 3 sub-steps if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "LSTM + ODE-RNN"
    look: ClassVar[Look] = Look("#882255", "#d671a3", SOLID)
    paper_options: ClassVar[Mapping[str, Any]] = {"solver": "rk4"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        forget_bias: float = 1.0,
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(CoupledLSTMODERNNCell, forget_bias=forget_bias, solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
