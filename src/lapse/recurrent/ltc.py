"""LTC: a damped ODE whose damping depends on the input, the liquid time-constant network."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.kernels.builder import BEFORE, Builder, NotCovered
from lapse.palette import SOLID, Look
from lapse.recurrent.fields import DrivenCell, solver_for
from lapse.recurrent.rnn import RNN, LayerOptions
from lapse.solvers import SemiImplicit, Solver


def _uniform(low: float, high: float, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(low, high))


def _positive(low: float, high: float, *shape: int) -> nn.Parameter:
    """A parameter whose softplus starts between the bounds."""
    return nn.Parameter(torch.empty(shape).uniform_(low, high).expm1().log())


class Synapses(nn.Module):
    """From every source v_s to every unit a synapse of conductance a = w σ(γ (v_s − μ)), which pulls the unit toward E.

    The weights start in the ranges of the authors' code; w = softplus(weight) stays positive.

    Args:
        sources: The number of sources.
        units: The number of units.
    """

    def __init__(self, sources: int, units: int) -> None:
        super().__init__()
        self.weight = _positive(0.001, 1.0, units, sources)
        self.slope = _uniform(3.0, 8.0, units, sources)
        self.threshold = _uniform(0.3, 0.8, units, sources)
        self.reversal = nn.Parameter(torch.randint(2, (units, sources)) * 2.0 - 1.0)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_s a E and Σ_s a for every unit, (B, units) each, from the sources (B, sources)."""
        a = self.conductance * torch.sigmoid(self.slope * (v.unsqueeze(-2) - self.threshold))
        return (a * self.reversal).sum(-1), a.sum(-1)

    @property
    def conductance(self) -> Tensor:
        """The largest conductance w of each synapse, (units, sources)."""
        return F.softplus(self.weight)

    def matrices(self, p: Builder, name: str) -> list[int]:
        """The weights as parameters of a program.

        Args:
            p: The program of the cell.
            name: The name of this module in the cell.
        """
        names = ("conductance", "slope", "threshold", "reversal")
        return [p.matrix(f"{name}.{kind}", *self.weight.shape) for kind in names]

    def program(self, p: Builder, matrices: list[int], v: int, pull: int) -> None:
        """Write both sums as one operation.

        Args:
            p: The program of the cell.
            matrices: The weights.
            v: The register of the sources.
            pull: The first of the two registers for the sums.
        """
        p.emit("Synapses", v, pull, pull + 1, parameters=matrices)
        p.multiplications += self.weight.numel()


class LTCField(nn.Module):
    """c dh/dt = g_l (h_l − h) + Σ a(x) (E − h) + Σ a(h) (E − h): a leak, and synapses from the inputs and the units.

    Args:
        input_size: The width of x.
        hidden_size: The width of the state h.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.sensory = Synapses(input_size, hidden_size)
        self.recurrent = Synapses(hidden_size, hidden_size)
        self.leak = _positive(0.001, 1.0, hidden_size)
        self.resting = _uniform(-0.2, 0.2, hidden_size)
        self.capacitance = _positive(0.4, 0.6, hidden_size)

    def drive(self, input: Tensor) -> Tensor:
        """The synapses of the held input: what they add to source and rate, side by side (B, 2H)."""
        return torch.cat(self.sensory(input), -1)

    def rest(self, state: Tensor) -> Tensor:
        """`drive` for an input of zeros, one row per row of `state`."""
        return self.drive(state.new_zeros(len(state), self.sensory.weight.shape[1]))

    def semilinear(self, state: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """The source and the rate of dh/dt = source − rate ⊙ h."""
        sensory_source, sensory_rate = drive.chunk(2, -1)
        source, rate = self.recurrent(state)
        leak, capacitance = F.softplus(self.leak), F.softplus(self.capacitance)
        return (
            (source + sensory_source + leak * self.resting) / capacitance,
            (rate + sensory_rate + leak) / capacitance,
        )

    def forward(self, state: Tensor, drive: Tensor) -> Tensor:
        source, rate = self.semilinear(state, drive)
        return source - rate * state


class _LTCSlopes:
    """The semi-implicit sub-step of an `LTCField` as operations; other solvers are not covered."""

    def __init__(self, p: Builder, field: LTCField, name: str, drive: int) -> None:
        self.synapses, self.drive, size = field.recurrent, drive, p.size(drive)
        self.matrices = self.synapses.matrices(p, f"{name}.recurrent")
        self.vectors = [
            p.vector(f"{name}.leak", size, transform="softplus"),
            p.vector(f"{name}.resting", size),
            p.vector(f"{name}.capacitance", size, transform="softplus"),
        ]

    def slope(self, p: Builder, y: int, steps: int) -> int:
        raise NotCovered("no operations for an explicit step of an LTC")

    def begin(self, p: Builder, steps: int, order: int) -> None:
        raise NotCovered("no operations for an exponential step of an LTC")

    def exponential(self, p: Builder, y: int, out: int, steps: int) -> None:
        raise NotCovered("no operations for an exponential step of an LTC")

    def semi_implicit(self, p: Builder, y: int, out: int, steps: int) -> None:
        """Write one sub-step from the register `y` to `out`."""
        pull = p.register(p.size(out), 2)
        self.synapses.program(p, self.matrices, y, pull)
        registers = pull, pull + 1, self.drive, self.drive + 1, y, out
        p.emit("LTCStep", *registers, parameters=self.vectors, numbers=[steps])


class LTCCell(DrivenCell):
    """LTC, the liquid time-constant network: a damped ODE whose damping depends on the input and the state.

        c dh/dt = g_l (h_l − h) + Σ_s a_s (E_s − h)       over Δ_i, from h_{i−1};     y_i = h_i
        a_s = w_s σ(γ_s (v_s − μ_s)),    one synapse from every feature v_s of x_i and from every unit v_s of h

    Source: Hasani et al. (2021), with the fully connected wiring. The time constant c / (g_l + Σ_s a_s) of a unit
    changes with what it sees. The default solver is theirs, semi-implicit Euler with 6 sub-steps, written without the
    division by the gap that makes NaN of a gap of 0. Softplus keeps w, c and g_l positive, where the authors clip them
    after each step of the optimiser. Their affine maps of inputs and outputs are left out, because γ, μ and the
    readout can do what they do.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        solver: How the ODE is solved, a solver or its word; semi-implicit Euler with 6 sub-steps if not given.
    """

    field: LTCField

    def __init__(self, input_size: int, hidden_size: int, *, solver: Solver | str | None = None) -> None:
        field = LTCField(input_size, hidden_size)
        super().__init__(input_size, hidden_size, field, solver_for(field, solver, SemiImplicit(steps=6)))

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, drive = p.state(n), p.register(n, 2)
        sensory = self.field.sensory
        sensory.program(p, sensory.matrices(p, "field.sensory"), x, drive)
        p.solve(self.solver, _LTCSlopes(p, self.field, "field", drive), h | BEFORE, h)


class LTC(RNN):
    """LTC, the liquid time-constant network: a damped ODE whose damping depends on what is seen (`LTCCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        solver: A solver or its word; semi-implicit Euler with 6 sub-steps if not given.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "LTC"
    look: ClassVar[Look] = Look("#8C564B", "#c9988d", SOLID)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        solver: Solver | str | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(LTCCell, solver=solver)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
