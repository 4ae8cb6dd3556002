"""Mixed memory: an LSTM's memory, left alone by time, beside any cell that flows. CfC-mmRNN is one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal, Unpack

from torch import Tensor

from lapse.kernels.builder import BEFORE, Builder
from lapse.palette import SOLID, Look
from lapse.recurrent.cell import Cell, LSTMGates, State
from lapse.recurrent.cfc import BackboneOptions, CfCCell
from lapse.recurrent.rnn import RNN, LayerOptions, choose_form

MakeCell = Callable[[int, int], Cell]


class MixedMemoryCell(Cell):
    """An LSTM's memory c beside a state h that belongs to another cell; its forms say how the two meet.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1}))                                   Eqs. 2–7

    Source: Lechner & Hasani (2020), whose ODE-LSTM has an ODE in the place of the other cell. Between observations the
    other cell flows and the memory stays.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units, of the memory and of the other cell.
        flowing: The other cell. Its only state is h.
        forget_bias: Where the bias of the forget gate starts.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h", "c")
    memory: ClassVar[str | None] = "c"
    free_states: ClassVar[tuple[str, ...]] = ("h", "c")
    flow_starts_at_output: ClassVar[bool] = False  # the other cell decides, and a CfC moves even over no time

    def __init__(self, input_size: int, hidden_size: int, *, flowing: Cell, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        if flowing.state_names != ("h",):
            raise ValueError(
                f"a mixed memory needs a cell whose only state is h, and {type(flowing).__name__} has "
                f"{', '.join(flowing.state_names)}; use one without a memory of its own"
            )
        self.gates = LSTMGates(input_size, hidden_size, forget_bias)
        self.flowing = flowing

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h, _ = self.flowing.flow((h,), timespan)
        return h, (h, c)


class DrivenMemoryCell(MixedMemoryCell):
    """A mixed memory whose output drives the other cell, which never sees the observation itself.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1})),    h_i = step(h'_i, h_{i−1}, Δ_i);    y_i = h_i

    With a CT-RNN as the other cell this is the ODE-LSTM of Algorithm 1, with a CfC the published CfC-mmRNN.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        flow: Makes the other cell, as `flow(input_size, hidden_size)`: its class, for example.
        forget_bias: Where the bias of the forget gate starts.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, flow: MakeCell, forget_bias: float = 1.0
    ) -> None:
        flowing = flow(hidden_size, hidden_size)
        super().__init__(input_size, hidden_size, flowing=flowing, forget_bias=forget_bias)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, proposal = self.gates.memorise(input, h, c)
        h, _ = self.flowing.step(proposal, (h,), timespan)
        return h, (h, c)


class CarriedMemoryCell(MixedMemoryCell):
    """A mixed memory whose output is where the other cell starts, which also sees the observation.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1})),    h_i = step(x_i, h'_i, Δ_i);    y_i = h_i

    With a cell that follows an ODE and ignores the observation this is the autonomous ODE-LSTM; with a CfC it is
    `mixed_memory=True` of `ncps`.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        flow: Makes the other cell, as `flow(input_size, hidden_size)`: its class, for example.
        forget_bias: Where the bias of the forget gate starts.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, flow: MakeCell, forget_bias: float = 1.0
    ) -> None:
        flowing = flow(input_size, hidden_size)
        super().__init__(input_size, hidden_size, flowing=flowing, forget_bias=forget_bias)

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        c, proposal = self.gates.memorise(input, h, c)
        h, _ = self.flowing.step(input, (proposal,), timespan)
        return h, (h, c)


class JumpMemoryCell(DrivenMemoryCell):
    """A mixed memory that drives the other cell through the gap, at the end of which the LSTM takes the observation.

        h⁻ = step(c_{i−1}, h_{i−1}, Δ_i),    (c_i, h_i) = LSTM(x_i, (c_{i−1}, h⁻));    y_i = h_i

    With a damped field as the other cell this is the ODE-LSTM in its jump form.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        flow: Makes the other cell, as `flow(input_size, hidden_size)`: its class, for example.
        forget_bias: Where the bias of the forget gate starts.
    """

    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        flowed, (_, c) = self.flow(state, timespan)
        c, h = self.gates.memorise(input, flowed, c)
        return h, (h, c)

    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        h, c = state
        h, _ = self.flowing.step(c, (h,), timespan)
        return h, (h, c)


class MixedMemory(RNN):
    """An LSTM's memory, left alone by time, beside any cell that flows.

    ```python
    layer = lapse.MixedMemory(4, 64, flow=lapse.recurrent.LTCCell)
    output, (h_n, c_n) = layer(x, timespans=gaps, lengths=lengths)
    ```

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units, of the memory and of the other cell.
        num_layers: The number of layers, one above the other.
        flow: Makes the other cell, as `flow(input_size, hidden_size)`: the class of one whose only state is h, such as
            CT-RNN, ODE-RNN, GRU-ODE, RNN-Decay, LTC or CfC.
        form: "driven" (`DrivenMemoryCell`: the memory's output is the other cell's input), "carried"
            (`CarriedMemoryCell`: it is where the other cell starts) or "jump" (`JumpMemoryCell`: the memory is the
            other cell's input over the gap, before the observation is taken).
        forget_bias: Where the bias of the forget gate starts.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "Mixed memory"
    forms: ClassVar[Mapping[str, type[Cell]]] = {
        "driven": DrivenMemoryCell,
        "carried": CarriedMemoryCell,
        "jump": JumpMemoryCell,
    }

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        flow: MakeCell,
        form: Literal["driven", "carried", "jump"] = "driven",
        forget_bias: float = 1.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(choose_form(self.forms, form), flow=flow, forget_bias=forget_bias)
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)


class CfCMemoryCell(DrivenMemoryCell):
    """CfC-mmRNN: an LSTM's memory whose output drives a CfC.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1})),    h_i = CfC(h'_i, h_{i−1}, Δ_i);    y_i = h_i

    Source: Hasani et al. (2022) and the code behind their tables. Their library `ncps` has the other form,
    `CarriedCfCMemoryCell`.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the bias of the forget gate starts.
        backbone: The backbone, as for `CfCCell`.
    """

    flowing: CfCCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        **backbone: Unpack[BackboneOptions],
    ) -> None:
        flow = partial(CfCCell, **backbone)
        super().__init__(input_size, hidden_size, flow=flow, forget_bias=forget_bias)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, proposal = p.state(n), p.state(n), p.register(n)
        self.gates.memorise_program(p, "gates", [x], (h | BEFORE, c | BEFORE), c, proposal)
        self.flowing.step_program(p, "flowing.", proposal, h | BEFORE, h)


class CarriedCfCMemoryCell(CarriedMemoryCell):
    """CfC-mmRNN in its second form: the CfC starts from the LSTM's output, and sees the observation too.

        (c_i, h'_i) = LSTM(x_i, (c_{i−1}, h_{i−1})),    h_i = CfC(x_i, h'_i, Δ_i);    y_i = h_i

    Source: `mixed_memory=True` of the authors' library `ncps`.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        forget_bias: Where the bias of the forget gate starts.
        backbone: The backbone, as for `CfCCell`.
    """

    flowing: CfCCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        forget_bias: float = 1.0,
        **backbone: Unpack[BackboneOptions],
    ) -> None:
        flow = partial(CfCCell, **backbone)
        super().__init__(input_size, hidden_size, flow=flow, forget_bias=forget_bias)

    def program(self, p: Builder) -> None:
        n, x = self.hidden_size, p.input(self.input_size)
        h, c, proposal = p.state(n), p.state(n), p.register(n)
        self.gates.memorise_program(p, "gates", [x], (h | BEFORE, c | BEFORE), c, proposal)
        self.flowing.step_program(p, "flowing.", x, proposal, h)


class CfCMixedMemory(RNN):
    """CfC-mmRNN: an LSTM's memory beside a CfC (`lapse.recurrent.CfCMemoryCell`).

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        form: "driven" (the published one, `CfCMemoryCell`) or "carried" (that of `ncps`, `CarriedCfCMemoryCell`).
        forget_bias: Where the bias of the forget gate starts.
        backbone_units: The units of each layer of the CfC's backbone.
        backbone_layers: The number of layers of the backbone.
        backbone_activation: The activation of the backbone: "lecun", "silu", "tanh", "relu" or "gelu".
        backbone_dropout: The probability of zeroing a unit of the backbone, in training.
        options: The options of every layer: see `lapse.RNN`.
    """

    label: ClassVar[str] = "CfC-mm"
    look: ClassVar[Look] = Look("#B2182B", "#ef7f76", SOLID)
    forms: ClassVar[Mapping[str, type[Cell]]] = {"driven": CfCMemoryCell, "carried": CarriedCfCMemoryCell}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        form: Literal["driven", "carried"] = "driven",
        forget_bias: float = 1.0,
        backbone_units: int = 128,
        backbone_layers: int = 1,
        backbone_activation: str = "lecun",
        backbone_dropout: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        cell = partial(
            choose_form(self.forms, form),
            forget_bias=forget_bias,
            backbone_units=backbone_units,
            backbone_layers=backbone_layers,
            backbone_activation=backbone_activation,
            backbone_dropout=backbone_dropout,
        )
        super().__init__(input_size, hidden_size, num_layers, cell=cell, **options)
