"""Phased LSTM: units that open and close on clocks of their own."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import DOTTED, Look
from lapse.recurrent.cell import Cell, LSTMGates, State
from lapse.recurrent.rnn import RNN, LayerOptions


class PhasedLSTMCell(Cell):
    """Phased LSTM: each unit has a clock of its own and takes part only while its gate is open.

        φ = ((t_i − s) mod τ) / τ,       k = 2φ/r  |  2 − 2φ/r  |  α φ      for φ < r/2 | φ < r | the rest
        (c̃, h̃) = LSTM(x_i, (c_{i−1}, h_{i−1})),   c_i = k c̃ + (1 − k) c_{i−1},   h_i = k h̃ + (1 − k) h_{i−1}

    Source: Neil et al. (2016), Eqs. 6–10, without peepholes. t is the absolute time, which the state carries in its
    `clock` and which starts at 0. Periods τ start log-uniform over `periods` and shifts s uniform over a period;
    both are learned. The leak α stays on when the network is not training, so that one model gives one answer. The
    authors of the ODE-LSTM multiply by r and take gaps for absolute times.

    Time may pass the periods by many powers of ten (seconds counted over years) without losing the phase. The clock
    is therefore two numbers, the time as the model's dtype rounds it and what the rounding took away, so that
    `clock.double().sum(-1)` is the time, to 48 bits in float32. To start at another time than 0, put it into the
    first number and 0 into the second. The phase is computed in float64 whatever the dtype is (on MPS, which has no
    float64, in float32: there it is lost at about 1e5 periods). The derivative of the phase with respect to ln τ is
    the number of periods that have passed, so gradients of the periods grow with the clock: count time in a larger
    unit (`median_gap`) to train on long recordings.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of units.
        forget_bias: Where the bias of the forget gate starts.
        periods: The shortest and the longest period at the start, in the unit of the gaps.
        ratio_on: The share r of its period in which a unit is open, above 0 and at most 1.
        leak: How much of an observation a closed unit takes in, α, at least 0 and below 1.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c", "clock")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("h", "c")
    splits_gaps: ClassVar[bool] = True
    tolerates_bfloat16: ClassVar[bool] = False  # gaps and periods in 8 bits open the gates at other times

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
        """How far the gate of each unit is open, k (B, H), at the absolute times (B, 1)."""
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

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, clock = p.state(n), p.state(n), p.state(2)
        phase, c1, h1 = p.register(n), p.register(n), p.register(n)
        p.emit("Clock", clock, clock | BEFORE)
        vectors = [p.vector("log_period", n, transform="exp"), p.vector("shift", n)]
        p.emit("Phase", phase, clock, parameters=vectors)
        self.gates.memorise_program(p, "gates", [x], (h | BEFORE, c | BEFORE), c1, h1)
        registers = phase, c | BEFORE, h | BEFORE, c1, h1, c, h
        p.emit("PhasedBlend", *registers, numbers=[self.ratio_on, self.leak])


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.device.type == "mps" else values.double()


def _read(clock: Tensor) -> Tensor:
    """The time (B, 1) on a clock (B, 2)."""
    return _wide(clock).sum(-1, keepdim=True)


def _write(time: Tensor, dtype: torch.dtype) -> Tensor:
    """The clock (B, 2) of the number type `dtype` that shows the time (B, 1)."""
    rounded = time.to(dtype)
    return torch.cat([rounded, (time - rounded).to(dtype)], -1)


class PhasedLSTM(RNN):
    """Phased LSTM: units that open and close on clocks of their own (`lapse.recurrent.PhasedLSTMCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        forget_bias: Where the bias of the forget gate starts.
        periods: The shortest and the longest period that a unit may start with.
        ratio_on: The share of a period during which a gate is open.
        leak: How far a closed gate still opens.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "Phased LSTM"
    look: ClassVar[Look] = Look("#AA4499", "#d484c7", DOTTED)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        forget_bias: float = 1.0,
        periods: tuple[float, float] = (1.0, math.exp(3.0)),
        ratio_on: float = 0.05,
        leak: float = 0.001,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(PhasedLSTMCell, forget_bias=forget_bias, periods=periods, ratio_on=ratio_on, leak=leak)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
