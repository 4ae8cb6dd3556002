"""CT-RNN: a damped ODE that is driven by the observations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

from lapse.kernels.builder import Builder
from lapse.palette import SOLID, Look
from lapse.recurrent.fields import DampedTanhField, DrivenCell, driven_program, solver_for
from lapse.recurrent.rnn import RNN, LayerOptions
from lapse.solvers import Exponential, Solver


class CTRNNCell(DrivenCell):
    """Continuous-time RNN: a damped ODE, driven by the observation that is held over the gap before it.

        dh/dt = s ⊙ tanh(W x_i + R h + b) − τ ⊙ h        over Δ_i, from h_{i−1};     y_i = h_i

    Source: Funahashi & Nakamura (1993), and Eq. 1 of Lechner & Hasani (2020), who solve it with 3 sub-steps of
    RK4. Here the exponential integrator is the default, because an explicit step explodes on a long gap.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        solver: How the ODE is solved, a solver or its word; the exponential integrator with 4 sub-steps if not given.
    """

    field: DampedTanhField

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | str | None = None) -> None:
        field = DampedTanhField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver_for(field, solver, Exponential(steps=4)))

    def program(self, p: Builder) -> None:
        driven_program(self, self.field, p)


class CTRNN(RNN):
    """Continuous-time RNN: a damped ODE driven by the observations (`lapse.recurrent.CTRNNCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        solver: A solver or its word; the exponential integrator with 4 sub-steps if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "CT-RNN"
    look: ClassVar[Look] = Look("#332288", "#9a90ee", SOLID)
    paper_options: ClassVar[Mapping[str, Any]] = {"solver": "rk4"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(CTRNNCell, solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
