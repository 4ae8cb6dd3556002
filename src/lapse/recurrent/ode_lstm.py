"""ODE-LSTM in three forms: an LSTM's memory beside an output that follows an ODE."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Unpack

from torch import Tensor

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import SOLID, Look
from lapse.recurrent.cell import Cell, LSTMGates, State
from lapse.recurrent.fields import DampedTanhField, MLPField, RelaxingField, solver_for
from lapse.recurrent.rnn import RNN, LayerOptions, choose_form
from lapse.solvers import EULER, Exponential, FixedStep, Solver


class ODELSTMCell(Cell):
    """ODE-LSTM: an LSTM's memory, left alone by time, beside an output that follows an ODE (Algorithm 1).

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1}))                                   Eqs. 2–7
        dh/dt = s ⊙ tanh(W h'_i + R h + b) − τ ⊙ h        over Δ_i, from h_{i−1};     y_i = h_i

    Source: Lechner & Hasani (2020), Algorithm 1. Table S1 solves it with 4 sub-steps of Euler, here the
    exponential integrator with 4 does, which costs the same and survives any gap. The forget bias is 1 as in
    Eq. 4, where the authors' code has 3. After a gap of 0 the output is still h_{i−1}: x_i is in the memory
    only.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the bias of the forget gate starts.
        solver: How the ODE is solved, a solver or its word; the exponential integrator with 4 sub-steps if not given.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        solver: Solver | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        self.field = DampedTanhField(hidden_size, hidden_size)
        self.solver = solver_for(self.field, solver, Exponential(steps=4))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, proposal = self.gates.memorise(input, h, c)
        h = self.solver(self.field, h, timespan, self.field.drive(proposal))
        return h, (h, c)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h = self.solver(self.field, h, timespan, self.field.rest(h))
        return h, (h, c)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, proposal, drive = p.state(n), p.state(n), p.register(n), p.register(n)
        self.gates.memorise_program(p, "gates", [x], (h | BEFORE, c | BEFORE), c, proposal)
        self.field.gates.program(p, "field.gates", drive, [proposal])
        self.field.program(p, "field", self.solver, h | BEFORE, h, drive)


class AutonomousODELSTMCell(Cell):
    """ODE-LSTM in its second form: the ODE starts from the LSTM's output and runs free.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1}))                                   Eqs. 2–7
        dh/dt = V tanh(U h + a) + b                       over Δ_i, from h'_i;        y_i = h_i

    Source: Table 1 of Lechner & Hasani (2020) and the authors' later PyTorch code. There is no damping, so the
    exponential integrator does not apply; the default is Table S1's Euler with 4 sub-steps.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the bias of the forget gate starts.
        solver: How the ODE is solved, a solver or its word; Euler with 4 sub-steps if not given.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        solver: Solver | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        self.field = MLPField(hidden_size)
        self.solver = solver_for(self.field, solver, FixedStep(EULER, steps=4))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, proposal = self.gates.memorise(input, h, c)
        return self.flow((proposal, c), timespan)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h = self.solver(self.field, h, timespan)
        return h, (h, c)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, proposal = p.state(n), p.state(n), p.register(n)
        self.gates.memorise_program(p, "gates", [x], (h | BEFORE, c | BEFORE), c, proposal)
        self.field.program(p, "field", self.solver, proposal, h)


class JumpODELSTMCell(Cell):
    """ODE-LSTM whose gap comes first: the output flows through it, then the LSTM absorbs the observation.

        dh/dt = s ⊙ tanh(W c_{i−1} + R h + b) − τ ⊙ h     over Δ_i, from h_{i−1} to h⁻
        (c_i, h_i) = LSTM(x_i, (c_{i−1}, h⁻)),            Eqs. 2–7;                   y_i = h_i

    Source: the other two forms, Lechner & Hasani (2020), with the order of Rubanova et al. (2019). The memory is left
    alone by time and says where the output drifts to. A gap may be passed in pieces, so that the output at any time
    between two observations is what the next observation will find. Rates and biases start spread out, see
    `RelaxingField`.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the bias of the forget gate starts.
        solver: How the ODE is solved, a solver or its word; the exponential integrator with 4 sub-steps if not given.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("h", "c")
    splits_gaps: ClassVar[bool] = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        solver: Solver | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        self.field = RelaxingField(hidden_size, hidden_size)
        self.solver = solver_for(self.field, solver, Exponential(steps=4))

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        flowed, (_, c) = self.flow(state, timespan)
        c, h = self.gates.memorise(input, flowed, c)
        return h, (h, c)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h = self.solver(self.field, h, timespan, self.field.drive(c))
        return h, (h, c)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, flowed, drive = p.state(n), p.state(n), p.register(n), p.register(n)
        self.field.gates.program(p, "field.gates", drive, [c | BEFORE])
        self.field.program(p, "field", self.solver, h | BEFORE, flowed, drive)
        self.gates.memorise_program(p, "gates", [x], (flowed, c | BEFORE), c, h)


class ODELSTM(RNN):
    """ODE-LSTM: an LSTM's memory beside an output that follows an ODE (Lechner & Hasani, 2020).

    ```python
    layer = lapse.ODELSTM(input_size=4, hidden_size=64)
    output, (h_n, c_n) = layer(x, timespans=gaps, lengths=lengths)
    ```

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        form: "autonomous" (Table 1 of the paper and the authors' later code, `AutonomousODELSTMCell`), "driven"
            (Algorithm 1 of the paper, `ODELSTMCell`) or "jump" (the gap comes before the update, `JumpODELSTMCell`).
            The default is the form that learns best: on event-coded data, where the gaps say most, the driven one
            hardly moves (docs/reproduce.md); where the values say most, as on `walker`, it is better than the
            autonomous one. Only the jump form can be asked between two observations and then go on as if nobody had
            asked.
        forget_bias: Where the bias of the forget gate starts.
        solver: A solver or its word; the cell's own if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "ODE-LSTM"
    look: ClassVar[Look] = Look("#000000", "#f5f3ee", SOLID)
    forms: ClassVar[Mapping[str, type[Cell]]] = {
        "driven": ODELSTMCell,
        "autonomous": AutonomousODELSTMCell,
        "jump": JumpODELSTMCell,
    }
    paper_options: ClassVar[Mapping[str, Any]] = {"form": "driven", "solver": "euler"}
    past_options: ClassVar[Mapping[str, Any]] = {"form": "driven"}  # the default of the first runs recorded

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        form: Literal["driven", "autonomous", "jump"] = "autonomous",
        forget_bias: float = 1.0,
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(choose_form(self.forms, form), forget_bias=forget_bias, solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
