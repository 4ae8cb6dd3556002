"""CfC in three forms: the state at the end of a gap in closed form, without a solver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.kernels.builder import BEFORE, Builder, NotCovered
from lapse.palette import SOLID, Look
from lapse.recurrent.cell import Cell, State, softplus_inverse
from lapse.recurrent.rnn import RNN, LayerOptions, choose_form


def lecun_tanh(x: Tensor) -> Tensor:
    """1.7159 tanh(0.666 x): a tanh that keeps the variance of its input near 1 (LeCun et al., 1998)."""
    return 1.7159 * torch.tanh(0.666 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "lecun": lecun_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}
OPERATIONS = {"lecun": "LeCunTanh", "silu": "SiLU", "tanh": "Tanh"}  # those that the fused loop has


class BackboneOptions(TypedDict, total=False):
    """What the cells of this family say about their backbone; see `Backbone`."""

    backbone_units: int
    backbone_layers: int
    backbone_activation: str
    backbone_dropout: float


class Backbone(nn.Module):
    """The layers on [x, h] that all heads of a CfC share.

    The weights start Glorot-uniform and the biases at zero, as in the sources (Keras' defaults). They are parameters of
    this one module, named as those of `nn.LSTM` are, so that a cell has the same parts whatever the depth.

    Args:
        input_size: The width of [x, h].
        backbone_units: The units of each layer.
        backbone_layers: The number of layers. With 0 the heads see [x, h] itself.
        backbone_activation: "lecun", "silu", "tanh", "relu" or "gelu".
        backbone_dropout: The probability of zeroing a unit after each layer, in training.
    """

    def __init__(
        self,
        input_size: int,
        *,
        backbone_units: int = 128,
        backbone_layers: int = 1,
        backbone_activation: str = "lecun",
        backbone_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if backbone_units < 1 or backbone_layers < 0:
            raise ValueError(
                "backbone_units must be at least 1 and backbone_layers at least 0, got "
                f"{backbone_units} and {backbone_layers}"
            )
        if backbone_activation not in ACTIVATIONS:
            raise ValueError(
                f"backbone_activation must be one of {', '.join(ACTIVATIONS)}, got {backbone_activation!r}"
            )
        if not 0 <= backbone_dropout < 1:
            raise ValueError(f"backbone_dropout must be at least 0 and below 1, got {backbone_dropout!r}")
        self.activation, self.dropout = backbone_activation, backbone_dropout
        self.widths = (input_size, *[backbone_units] * backbone_layers)
        for i, (before, after) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            weight = nn.init.xavier_uniform_(torch.empty(after, before))
            self.register_parameter(f"weight_l{i}", nn.Parameter(weight))
            self.register_parameter(f"bias_l{i}", nn.Parameter(torch.zeros(after)))

    def forward(self, x: Tensor) -> Tensor:
        activate = ACTIVATIONS[self.activation]
        for i in range(len(self.widths) - 1):
            x = activate(F.linear(x, getattr(self, f"weight_l{i}"), getattr(self, f"bias_l{i}")))
            x = F.dropout(x, self.dropout, self.training)
        return x

    def program(self, p: Builder, name: str, sources: Sequence[int]) -> Sequence[int]:
        """Write the layers as operations.

        Args:
            p: The program of the cell.
            name: The name of this module in the cell.
            sources: The registers that [x, h] is made of.

        Returns:
            The registers that the result is made of.
        """
        if self.dropout or self.activation not in OPERATIONS:
            raise NotCovered(f"no operations for {self.activation} with a dropout of {self.dropout}")
        for i, width in enumerate(self.widths[1:]):
            u, v = p.register(width), p.register(width)
            terms = p.terms(f"{name}.weight_l{i}", width, sources)
            p.linear(u, *terms, bias=p.vector(f"{name}.bias_l{i}", width))
            p.emit(OPERATIONS[self.activation], v, u)
            sources = [v]
        return sources

    def extra_repr(self) -> str:
        return f"{' → '.join(map(str, self.widths))}, activation={self.activation!r}, dropout={self.dropout}"


class ClosedFormCell(Cell):
    """What the forms of the CfC share: a backbone on [x_i, h_{i−1}], heads on the backbone, and a formula for h_i.

    Between observations x = 0, as for every cell here that is driven by its observations. The closed form is no exact
    solution of an ODE, so that even over no time it moves the state.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        options: Those of `Backbone`.
    """

    heads_per_unit: ClassVar[int]
    flow_starts_at_output: ClassVar[bool] = False

    def __init__(self, input_size: int, hidden_size: int, **options: Unpack[BackboneOptions]) -> None:
        super().__init__(input_size, hidden_size)
        self.backbone = Backbone(input_size + hidden_size, **options)
        self.heads = nn.Linear(self.backbone.widths[-1], self.heads_per_unit * hidden_size)
        for weight in self.heads.weight.detach().chunk(self.heads_per_unit):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.heads.bias)

    @abstractmethod
    def solution(self, heads: Tensor, timespan: Tensor) -> Tensor:
        """The state at the end of the gap (B, hidden_size).

        Args:
            heads: The heads side by side, (B, heads_per_unit · hidden_size).
            timespan: The gap, (B, 1).
        """

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        features = self.backbone(torch.cat([input, state[0]], -1))
        h = self.solution(self.heads(features), timespan.unsqueeze(-1))
        return h, (h,)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        return self.step(state[0].new_zeros(len(timespan), self.input_size), state, timespan)

    @abstractmethod
    def solution_program(self, p: Builder, prefix: str, heads: int, out: int) -> None:
        """Write `solution` as operations.

        Args:
            p: The program.
            prefix: What the names of this cell's weights begin with: nothing, or the name of the cell in another one.
            heads: The first of the registers of the heads.
            out: The register for the result.
        """

    def step_program(self, p: Builder, prefix: str, x: int, h: int, out: int) -> None:
        """Write a step from the registers `x` and `h` to `out`; the other arguments are those of `solution_program`."""
        sources = self.backbone.program(p, f"{prefix}backbone", [x, h])
        count, size = self.heads_per_unit, self.hidden_size
        heads = p.register(size, count)
        terms = p.terms(f"{prefix}heads.weight", size, sources, count)
        p.linear(heads, *terms, bias=p.vector(f"{prefix}heads.bias", size, count))
        self.solution_program(p, prefix, heads, out)

    def whole_program(self, p: Builder) -> None:
        """Write a step from the input and the state, for the `program` of a form."""
        x, h = p.input(self.input_size), p.state(self.hidden_size)
        self.step_program(p, "", x, h | BEFORE, h)


class CfCCell(ClosedFormCell):
    """CfC: a gate of the gap leads from one function of input and state to another.

        v = backbone([x_i, h_{i−1}]),    g = tanh(W_g v + b_g),    k = tanh(W_k v + b_k)
        s = σ((W_a v + b_a) Δ_i + W_b v + b_b),    h_i = (1 − s) ⊙ g + s ⊙ k;    y_i = h_i

    Source: Hasani et al. (2022), Eq. 10. The formula approximates the solution of the LTC's equation. Here, as in the
    authors' library `ncps`, g and k have tanh where their first code has 1.7159 tanh(0.666 ·). Units are dropped after
    every layer of the backbone as in their first code, where `ncps` leaves the first layer out.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        options: The backbone: `backbone_units` (128), `backbone_layers` (1), `backbone_activation` ("lecun") and
            `backbone_dropout` (0); see `lapse.recurrent.cfc.Backbone`.
    """

    heads_per_unit: ClassVar[int] = 4

    def solution(self, heads: Tensor, timespan: Tensor) -> Tensor:
        g, k, a, b = heads.chunk(4, -1)
        return torch.lerp(torch.tanh(g), torch.tanh(k), torch.sigmoid(a * timespan + b))

    def solution_program(self, p: Builder, prefix: str, heads: int, out: int) -> None:
        p.emit("ClosedForm", *range(heads, heads + 4), out, numbers=[1])

    def program(self, p: Builder) -> None:
        self.whole_program(p)


class NoGateCfCCell(ClosedFormCell):
    """CfC without the gate on its first part.

        v, g, k and s as in the CfC,    h_i = g + s ⊙ k;    y_i = h_i

    Source: Hasani et al. (2022), CfC-noGate.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        options: The backbone, as for `CfCCell`.
    """

    heads_per_unit: ClassVar[int] = 4

    def solution(self, heads: Tensor, timespan: Tensor) -> Tensor:
        g, k, a, b = heads.chunk(4, -1)
        return torch.tanh(g) + torch.sigmoid(a * timespan + b) * torch.tanh(k)

    def solution_program(self, p: Builder, prefix: str, heads: int, out: int) -> None:
        p.emit("ClosedForm", *range(heads, heads + 4), out, numbers=[0])

    def program(self, p: Builder) -> None:
        self.whole_program(p)


class PureCfCCell(ClosedFormCell):
    """The closed-form solution itself, without neural gates.

        f = W v + b,    h_i = A ⊙ (1 − f ⊙ e^{−(τ + |f|) Δ_i});    y_i = h_i;    τ = softplus(decay)

    Source: Hasani et al. (2022), Eq. 7, Cf-S in its tables; "pure" in `ncps`, "minimal" in the authors' first code.
    They write |w_τ| for τ and start it at 0, where the derivative of the absolute value is 0 and nothing is ever
    learned. Here τ starts at 1, as the damping of the other cells does.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        options: The backbone, as for `CfCCell`.
    """

    heads_per_unit: ClassVar[int] = 1

    def __init__(self, input_size: int, hidden_size: int, **options: Unpack[BackboneOptions]) -> None:
        super().__init__(input_size, hidden_size, **options)
        self.decay = nn.Parameter(torch.full((hidden_size,), softplus_inverse(1.0)))
        self.level = nn.Parameter(torch.ones(hidden_size))

    def solution(self, heads: Tensor, timespan: Tensor) -> Tensor:
        rate = F.softplus(self.decay) + heads.abs()
        return self.level * (1 - heads * torch.exp(-rate * timespan))

    def solution_program(self, p: Builder, prefix: str, heads: int, out: int) -> None:
        rate = p.vector(f"{prefix}decay", self.hidden_size, transform="softplus")
        level = p.vector(f"{prefix}level", self.hidden_size)
        p.emit("PureSolution", heads, out, parameters=[rate, level])

    def program(self, p: Builder) -> None:
        self.whole_program(p)


class CfC(RNN):
    """CfC: the state at the end of a gap in closed form, without a solver (`lapse.recurrent.CfCCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        form: "gated" (`CfCCell`), "no-gate" (`NoGateCfCCell`) or "pure" (`PureCfCCell`).
        backbone_units: The units of each layer of the backbone.
        backbone_layers: The number of layers of the backbone.
        backbone_activation: The activation of the backbone: "lecun", "silu", "tanh", "relu" or "gelu".
        backbone_dropout: The probability of zeroing a unit of the backbone, in training.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "CfC"
    look: ClassVar[Look] = Look("#D95F02", "#f2a35e", SOLID)
    forms: ClassVar[Mapping[str, type[Cell]]] = {
        "gated": CfCCell,
        "no-gate": NoGateCfCCell,
        "pure": PureCfCCell,
    }

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        form: Literal["gated", "no-gate", "pure"] = "gated",
        backbone_units: int = 128,
        backbone_layers: int = 1,
        backbone_activation: str = "lecun",
        backbone_dropout: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(
            choose_form(self.forms, form),
            backbone_units=backbone_units,
            backbone_layers=backbone_layers,
            backbone_activation=backbone_activation,
            backbone_dropout=backbone_dropout,
        )
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
