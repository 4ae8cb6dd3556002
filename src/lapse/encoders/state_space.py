"""A diagonal linear state-space model with a gap of its own before every event, computed by a scan."""

from __future__ import annotations

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.encoders.encoder import Encoder, Features, Named, Observations, with_flags
from lapse.kernels.scan import scan
from lapse.palette import DASHED, Look
from lapse.rows import Rows


class StateSpaceLayer(nn.Module):
    """A linear system whose states are complex numbers that turn and fade between events, with a gated output.

        x(t⁻) = exp(λ Δ) x,   x = x(t⁻) + g ⊙ B norm(u),     λ = −exp(ν) + iω,  g = √(1 − exp(−2 exp(ν)))
        y = u + (W₁ v) ⊙ σ(W₂ v),    v = gelu(Re(C x) + d ⊙ norm(u))

    Events are impulses: what happened matters at once, then fades and turns at rates that are learned. Since the system
    is linear in its state, all steps are computed together (`lapse.kernels.scan`). States are written as real numbers,
    all real parts before all imaginary parts.

    Sources: the diagonal form of Gu et al. (2022) and Smith et al. (2023), the rates and the factor g of Orvieto et al.
    (2023); the gap before each event takes the place of their fixed step.

    Args:
        size: The width of inputs and outputs.
        state_size: The number of complex states.
    """

    # Of the slowest and the fastest state at the start, per unit of time; a unit is a median gap by default.
    RATES: ClassVar[tuple[float, float]] = (1e-3, 1.0)

    def __init__(self, size: int, state_size: int) -> None:
        super().__init__()
        slow, fast = map(math.log, self.RATES)
        self.log_rate = nn.Parameter(torch.empty(state_size).uniform_(slow, fast))
        self.frequency = nn.Parameter(math.pi * torch.empty(state_size).uniform_(slow, fast).exp())
        self.norm = nn.LayerNorm(size)
        self.enter = nn.Linear(size, 2 * state_size, bias=False)
        self.leave = nn.Linear(2 * state_size, size, bias=False)
        self.direct = nn.Parameter(torch.ones(size))
        self.gate = nn.Linear(size, 2 * size)

    def forward(self, input: Tensor, timespans: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Outputs (N, size) and states (N, 2 · state_size).

        Args:
            input: (N, size), one row per event.
            timespans: (N,), the gap before each event.
            rows: where the events of each sequence lie; they lie end to end.
        """
        u = self.norm(input)
        # In full precision, also under autocast.
        x = scan(self.decay(timespans), self.impulse(u).to(timespans.dtype), rows)
        return self.read(input, u, x), x

    def step(self, input: Tensor, timespan: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same for one more event of each sequence: inputs (B, size), gaps (B,), states (B, 2 · state_size)."""
        u = self.norm(input)
        x = _product(self.decay(timespan), state) + self.impulse(u)
        return self.read(input, u, x), x

    def decay(self, timespans: Tensor) -> Tensor:
        """(..., 2 · state_size): what becomes of a state of 1 over each gap."""
        gaps = timespans.unsqueeze(-1)
        size, angle = torch.exp(-gaps * self.log_rate.exp()), gaps * self.frequency
        return torch.cat([size * torch.cos(angle), size * torch.sin(angle)], -1)

    def impulse(self, u: Tensor) -> Tensor:
        # A state that fades slowly sums over many events; scaled so, all states are of one size.
        scale = torch.sqrt(-torch.expm1(-2 * self.log_rate.exp()))
        entered: Tensor = self.enter(u) * torch.cat([scale, scale])
        return entered

    def read(self, input: Tensor, u: Tensor, x: Tensor) -> Tensor:
        seen = self.leave(x) + self.direct * u
        output: Tensor = input + F.glu(self.gate(F.gelu(seen)), -1)
        return output


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Of complex numbers, real parts before imaginary parts."""
    (ar, ai), (br, bi) = a.chunk(2, -1), b.chunk(2, -1)
    return torch.cat([ar * br - ai * bi, ar * bi + ai * br], -1)


class StateSpace(Encoder):
    """A stack of diagonal linear state-space layers: causal, streaming, and linear in the length.

        u_i = W x_i,    then in each layer, with complex states s:
        s_i = exp(λ Δ_i) s_{i−1} + g ⊙ B norm(u_i),          λ = −exp(ν) + iω,  g = √(1 − exp(−2 exp(ν)))
        u_i ← u_i + (W₁ v) ⊙ σ(W₂ v),                        v = gelu(Re(C s_i) + d ⊙ norm(u_i));      y_i = u_i

    States are linear in each other, so the rest of a layer is done for all events at once, and the recurrence itself is
    a single compiled pass (`lapse.kernels.scan`). Missing features come as flags beside the values; static features are
    added to every event. Between events the states of the last layer turn and fade.

    Sources: Gu et al. (2022), Smith et al. (2023) and Orvieto et al. (2023), see `StateSpaceLayer`.

    Args:
        input_size: The number of features of an event.
        hidden_size: The width of the layers.
        num_layers: How many layers are stacked.
        missing: Whether features may be missing.
        static_size: The width of the static features; 0 for none.
        state_size: The number of complex states per layer; as many as `hidden_size` if None.
        dropout: The share of each layer's input that is dropped in training.
    """

    label: ClassVar[str] = "State space"
    look: ClassVar[Look] = Look("#8c6d31", "#d1b06b", DASHED)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        missing: bool = False,
        static_size: int = 0,
        state_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(2 * input_size if missing else input_size, hidden_size)
        self.static = nn.Linear(static_size, hidden_size) if static_size else None
        self.layers = nn.ModuleList(
            StateSpaceLayer(hidden_size, state_size or hidden_size) for _ in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)
        self.streams, self.flows = True, True
        self.output_size = hidden_size

    def forward(self, observations: Observations) -> Features:
        output, _, _ = self._run(observations)
        return Features(output, output.index_select(0, observations.rows.last.to(output.device)))

    def after(self, observations: Observations, timespans: Tensor, row: Tensor) -> Tensor:
        """The state of the last layer flows; those below it speak only when an event comes."""
        _, input, x = self._run(observations)
        last = observations.rows.last.to(x.device).index_select(0, row)
        input, x = input.index_select(0, last), x.index_select(0, last)
        top = self._layers()[-1]
        features: Tensor = top.read(input, top.norm(input), _product(top.decay(timespans), x))
        return features

    def start(self, values: Tensor, static: Tensor | None) -> Named:
        named = {
            f"layer{i}": values.new_zeros(values.shape[0], layer.enter.out_features)
            for i, layer in enumerate(self._layers())
        }
        return named if self.static is None else named | {"drive": self.static(static)}

    def step(
        self, values: Tensor, observed: Tensor | None, timespan: Tensor, state: Named
    ) -> tuple[Tensor, Named]:
        output = self.enter(with_flags(values, observed))
        output = output + state["drive"] if self.static is not None else output
        after = dict(state)
        for i, layer in enumerate(self._layers()):
            output, after[f"layer{i}"] = layer.step(output, timespan, state[f"layer{i}"])
        return output, after

    def _layers(self) -> list[StateSpaceLayer]:
        return cast("list[StateSpaceLayer]", list(self.layers))

    def _run(self, observations: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, inputs and states of the last layer."""
        rows, output = observations.rows, self.enter(observations.inputs)
        if self.static is not None:
            output = output + self.static(observations.static).index_select(0, rows.row.to(output.device))
        for layer in self._layers():
            input = self.dropout(output)
            output, x = layer(input, observations.timespans, rows)
        return output, input, x
