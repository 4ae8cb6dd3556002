"""Cells with a memory beside the output: ODE-LSTM in both forms, augmented, phased and continuous-time LSTM, and
the LSTM coupled to an ODE-RNN."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.cells.base import Cell, Gates, State
from lapse.cells.fields import DampedTanhField, MLPField, TanhField
from lapse.solvers import EULER, RK4, Exponential, FixedStep, Solver


class LSTMGates(Gates):
    """The four maps of Eqs. 2–5, stacked in torch's order: input i, forget f, update z, output o.

    The paper adds a constant to the forget gate beside its bias; here that constant is where the bias starts,
    which is the same function.
    """

    def __init__(self, input_size: int, hidden_size: int, forget_bias: float, count: int = 4) -> None:
        super().__init__(input_size, hidden_size, count)
        with torch.no_grad():
            self.bias[hidden_size : 2 * hidden_size].fill_(forget_bias)

    def memorise(self, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Eqs. 2–7: the new memory c and the output h' that an LSTM would give."""
        i, f, z, o = self(input, h).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
        return c, torch.sigmoid(o) * torch.tanh(c)


class ODELSTMCell(Cell):
    """ODE-LSTM: an LSTM's memory, left alone by time, beside an output that follows an ODE (Algorithm 1).

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1}))                                   Eqs. 2–7
        dh/dt = s ⊙ tanh(W h'_i + R h + b) − τ ⊙ h        over Δ_i, from h_{i−1};     y_i = h_i

    Source: Lechner & Hasani (2020), Algorithm 1; Table S1 solves it with 4 sub-steps of Euler, here the
    exponential integrator with 4, which costs the same and survives any gap. The forget bias is 1 as in Eq. 4,
    where the authors' code has 3. After a gap of 0 the output is still h_{i−1}: x_i is in the memory only.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")

    def __init__(
        self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0, solver: Solver | None = None
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        self.field = DampedTanhField(hidden_size, hidden_size)
        self.solver = solver or Exponential(steps=4)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, proposal = self.gates.memorise(input, h, c)
        h = self.solver(self.field, h, timespan, self.field.drive(proposal))
        return h, (h, c)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h = self.solver(self.field, h, timespan, self.field.rest(h))
        return h, (h, c)


class AutonomousODELSTMCell(Cell):
    """ODE-LSTM in its second form: the ODE starts from the LSTM's output and runs free.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1}))                                   Eqs. 2–7
        dh/dt = V tanh(U h + a) + b                       over Δ_i, from h'_i;        y_i = h_i

    Source: Table 1 of Lechner & Hasani (2020) and the authors' later PyTorch code. No damping, so the exponential
    integrator does not apply; the default is Table S1's Euler with 4 sub-steps.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")

    def __init__(
        self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0, solver: Solver | None = None
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        self.field = MLPField(hidden_size)
        self.solver = solver or FixedStep(EULER, steps=4)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, proposal = self.gates.memorise(input, h, c)
        return self.flow((proposal, c), timespan)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h = self.solver(self.field, h, timespan)
        return h, (h, c)


class AugmentedLSTMCell(Cell):
    """Augmented LSTM: a plain LSTM that is given the gap as one more input, [x_i, Δ_i].

    Source: the baseline of Lechner & Hasani (2020). Nothing happens between observations.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size + 1, hidden_size, forget_bias)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, h = self.gates.memorise(torch.cat([input, timespan.unsqueeze(-1)], -1), h, c)
        return h, (h, c)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return state[0], state


class CoupledLSTMODERNNCell(Cell):
    """The paper's "bi-directional RNN": an LSTM and an ODE-RNN, each fed the other's previous output.

        (c_i, l_i) = LSTM([x_i, g_{i−1}], (c_{i−1}, l_{i−1}))
        dg/dt = s ⊙ tanh(W [x_i, l_{i−1}] + R g + b)      over Δ_i, from g_{i−1};     y_i = l_i + g_i

    Source: Lechner & Hasani (2020), section 6. It is not time reversal (that is ``bidirectional=True`` of any
    layer), hence the name. Between observations the ODE-RNN still sees l, and x = 0.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c", "lstm", "ode")

    def __init__(
        self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0, solver: Solver | None = None
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size + hidden_size, hidden_size, forget_bias)
        self.field = TanhField(input_size + hidden_size, hidden_size)
        self.solver = solver or FixedStep(RK4, steps=3)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        _, c, lstm, ode = state
        drive = self.field.drive(torch.cat([input, lstm], -1))
        c, lstm = self.gates.memorise(torch.cat([input, ode], -1), lstm, c)
        ode = self.solver(self.field, ode, timespan, drive)
        return lstm + ode, (lstm + ode, c, lstm, ode)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        _, c, lstm, ode = state
        no_input = lstm.new_zeros(len(lstm), self.input_size)
        ode = self.solver(self.field, ode, timespan, self.field.drive(torch.cat([no_input, lstm], -1)))
        return lstm + ode, (lstm + ode, c, lstm, ode)


class PhasedLSTMCell(Cell):
    """Phased LSTM: each unit has a clock of its own and takes part only while its gate is open.

        φ = ((t_i − s) mod τ) / τ,       k = 2φ/r  |  2 − 2φ/r  |  α φ      for φ < r/2 | φ < r | the rest
        (c̃, h̃) = LSTM(x_i, (c_{i−1}, h_{i−1})),   c_i = k c̃ + (1 − k) c_{i−1},   h_i = k h̃ + (1 − k) h_{i−1}

    Source: Neil et al. (2016), Eqs. 6–10, without peepholes. t is the absolute time, which the state carries in its
    `clock` and which starts at 0. Periods τ start log-uniform over ``periods`` and shifts s uniform over a period;
    both are learned. The leak α stays on when the network is not training, so that one model gives one answer. The
    authors of the ODE-LSTM multiply by r and take gaps for absolute times.

    Time may pass the periods by many powers of ten (seconds counted over years) without losing the phase. The clock
    is therefore two numbers, the time as the model's dtype rounds it and what the rounding took away, so that
    ``clock.double().sum(-1)`` is the time, to 48 bits in float32. To start at another time than 0, put it into the
    first number and 0 into the second. The phase is computed in float64 whatever the dtype is (on MPS, which has no
    float64, in float32: there it is lost at about 1e5 periods). The derivative of the phase with respect to ln τ is
    the number of periods that have passed, so gradients of the periods grow with the clock: count time in a larger
    unit (``median_gap``) to train on long recordings.

    Args:
        input_size: the number of features of an observation.
        hidden_size: the number of units.
        forget_bias: where the bias of the forget gate starts.
        periods: the shortest and the longest period at the start, in the unit of the gaps.
        ratio_on: the share r of its period in which a unit is open, above 0 and at most 1.
        leak: how much of an observation a closed unit takes in, α, at least 0 and below 1.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c", "clock")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        periods: tuple[float, float] = (1.0, math.exp(3.0)),
        ratio_on: float = 0.05,
        leak: float = 0.001,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        low, high = periods
        if not (0 < low <= high and 0 < ratio_on <= 1 and 0 <= leak < 1):
            raise ValueError(
                "periods must be positive and in order, ratio_on from 0 to 1 and leak from 0 to below 1, got "
                f"{periods}, {ratio_on} and {leak}"
            )
        self.ratio_on = ratio_on
        self.leak = leak
        self.log_period = nn.Parameter(torch.empty(hidden_size).uniform_(math.log(low), math.log(high)))
        self.shift = nn.Parameter(torch.rand(hidden_size) * self.log_period.detach().exp())

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size, 2)

    def openness(self, time: Tensor) -> Tensor:
        """How far each unit's gate is open, k (B, H), at the absolute times (B, 1)."""
        period = torch.exp(_wide(self.log_period))
        phase = (torch.remainder(_wide(time) - _wide(self.shift), period) / period).to(self.shift.dtype)
        rising = 2 * phase / self.ratio_on
        opened = torch.where(rising < 1, rising, 2 - rising)
        return torch.where(phase < self.ratio_on, opened, self.leak * phase)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c, clock = state
        time = _read(clock) + _wide(timespan).unsqueeze(-1)
        k = self.openness(time)
        c_proposal, h_proposal = self.gates.memorise(input, h, c)
        h = torch.lerp(h, h_proposal, k)
        return h, (h, torch.lerp(c, c_proposal, k), _write(time, clock.dtype))

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c, clock = state
        return h, (h, c, _write(_read(clock) + _wide(timespan).unsqueeze(-1), clock.dtype))


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.device.type == "mps" else values.double()


def _read(clock: Tensor) -> Tensor:
    """The time (B, 1) on a clock (B, 2)."""
    return _wide(clock).sum(-1, keepdim=True)


def _write(time: Tensor, dtype: torch.dtype) -> Tensor:
    """The clock (B, 2) of ``dtype`` that shows the time (B, 1)."""
    rounded = time.to(dtype)
    return torch.cat([rounded, (time - rounded).to(dtype)], -1)


class CTLSTMCell(Cell):
    """Continuous-time LSTM of the neural Hawkes process: the memory decays toward a target of its own.

        c(t) = c̄_{i−1} + (c_{i−1} − c̄_{i−1}) e^{−δ_{i−1} Δ_i},        h(t) = o_{i−1} ⊙ tanh(c(t))
        i, f, o, ī, f̄ = σ(W x_i + R h(t) + b),   z = tanh(·),   δ_i = softplus(·)
        c_i = f ⊙ c(t) + i ⊙ z,        c̄_i = f̄ ⊙ c̄_{i−1} + ī ⊙ z,        y_i = h_i = o_i ⊙ tanh(c_i)

    Source: Mei & Eisner (2017), Eqs. 5–7. The update starts from the decayed c(t), which the ODE-LSTM authors'
    code leaves out. Both forget gates start with ``forget_bias``, as those of the other LSTMs here.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c", "target", "rate", "gate")

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        # In the order i, f, z, o as everywhere, then ī, f̄, δ.
        self.gates = LSTMGates(input_size, hidden_size, forget_bias, count=7)
        with torch.no_grad():
            self.gates.bias[5 * hidden_size : 6 * hidden_size].fill_(forget_bias)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, (_, c, target, _, _) = self.flow(state, timespan)
        i, f, z, o, i_target, f_target, rate = self.gates(input, h).chunk(7, -1)
        z = torch.tanh(z)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * z
        target = torch.sigmoid(f_target) * target + torch.sigmoid(i_target) * z
        gate = torch.sigmoid(o)
        h = gate * torch.tanh(c)
        return h, (h, c, target, F.softplus(rate), gate)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        _, c, target, rate, gate = state
        c = target + (c - target) * torch.exp(-rate * timespan.unsqueeze(-1))
        h = gate * torch.tanh(c)
        return h, (h, c, target, rate, gate)
