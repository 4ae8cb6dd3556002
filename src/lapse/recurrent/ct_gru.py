"""CT-GRU: a GRU with traces at several time scales."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from lapse.kernels.builder import BEFORE, MOST_SCALES, Builder, NotCovered
from lapse.palette import DASHED, Look
from lapse.recurrent.cell import Cell, Gates, State
from lapse.recurrent.rnn import RNN, LayerOptions


class CTGRUCell(Cell):
    """CT-GRU: every unit keeps traces at M time scales; gates choose the scale to read and the one to write.

        ĥ_m ← ĥ_m e^{−Δ_i / τ_m},   h = Σ_m ĥ_m,   τ_m = 10^{m/2},  m = 0 … M−1        decay
        r = softmax_m(−(ln τ^R − ln τ_m)²),   ln τ^R = W_R x_i + U_R h + b_R           retrieval
        q = tanh(W_q x_i + U_q Σ_m r_m ĥ_m + b_q)                                      event detection
        s = softmax_m(−(ln τ^S − ln τ_m)²),   ln τ^S = W_S x_i + U_S h + b_S           storage
        ĥ_m ← (1 − s_m) ĥ_m + s_m q,          y_i = h_i = Σ_m ĥ_m

    Source: Mozer et al. (2017), section 2.2, M = 8; the decay comes before the update because the gap does.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        timescales: The number M of time scales.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "traces")
    memory: ClassVar[str | None] = "traces"
    free_states: ClassVar[tuple[str, ...]] = ("traces",)
    splits_gaps: ClassVar[bool] = True

    def __init__(self, input_size: int, hidden_size: int, *, timescales: int = 8) -> None:
        super().__init__(input_size, hidden_size)
        if timescales < 1:
            raise ValueError(f"timescales must be at least 1, got {timescales}")
        self.gates = Gates(input_size, hidden_size, count=2)
        self.candidate = Gates(input_size, hidden_size)
        self.timescales = timescales

    @property
    def log_timescales(self) -> Tensor:
        """ln τ_m (M,). Not a buffer: one made in float32 stays rounded to it when the cell goes to float64."""
        bias = self.candidate.bias
        return torch.arange(self.timescales, device=bias.device, dtype=bias.dtype) * (math.log(10.0) / 2)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size * self.timescales)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, (_, flat) = self.flow(state, timespan)
        traces = flat.unflatten(-1, (self.hidden_size, -1))  # (B, H, M)
        retrieval, storage = self.gates(input, h).chunk(2, -1)
        read = (self._choose(retrieval) * traces).sum(-1)
        q = torch.tanh(self.candidate(input, read))
        traces = torch.lerp(traces, q.unsqueeze(-1), self._choose(storage))
        h = traces.sum(-1)
        return h, (h, traces.flatten(-2))

    def _choose(self, log_timescale: Tensor) -> Tensor:
        """Weights over the M scales (B, H, M) for the scales that the gates ask for (B, H)."""
        return torch.softmax(-(log_timescale.unsqueeze(-1) - self.log_timescales).square(), -1)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        decay = torch.exp(-timespan.unsqueeze(-1) * torch.exp(-self.log_timescales))  # (B, M)
        traces = state[1].unflatten(-1, (self.hidden_size, -1)) * decay.unsqueeze(-2)  # (B, H, M)
        h = traces.sum(-1)
        return h, (h, traces.flatten(-2))

    def program(self, p: Builder) -> None:
        n, count, x = self.hidden_size, self.timescales, p.input(self.input_size)
        if count > MOST_SCALES:
            raise NotCovered(f"no operations for {count} time scales")
        scales, number = [p.vector("log_timescales", count)], [count]
        h, traces = p.state(n), p.interleaved_state(n, count)
        traces1 = p.register(n, count)
        h1, read, q = (p.register(n) for _ in range(3))
        g = p.register(n, 2)
        p.emit(
            "TraceDecay",
            traces | BEFORE,
            traces1,
            h1,
            parameters=scales,
            numbers=number,
            groups={0: count, 1: count},
        )
        self.gates.program(p, "gates", g, [x], h1)
        p.emit("TraceRead", g, traces1, read, parameters=scales, numbers=number, groups={1: count})
        u = p.register(n)
        self.candidate.program(p, "candidate", u, [x], read)
        p.emit("Tanh", q, u)
        p.emit(
            "TraceStore",
            g + 1,
            q,
            traces1,
            traces,
            h,
            parameters=scales,
            numbers=number,
            groups={2: count, 3: count},
        )


class CTGRU(RNN):
    """CT-GRU: a GRU with traces at several time scales (`lapse.recurrent.CTGRUCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        timescales: The number of time scales.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "CT-GRU"
    look: ClassVar[Look] = Look("#117733", "#4fb974", DASHED)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        timescales: int = 8,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(CTGRUCell, timescales=timescales)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
