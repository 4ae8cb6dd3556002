"""The contract of a cell, and the affine maps that all cells are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapse.arguments import check_number
from lapse.kernels.builder import NONE, Builder
from lapse.kernels.contract import State as State
from lapse.kernels.contract import zero_state


class Cell(nn.Module, ABC):
    """One observation of a recurrent network that knows how much time has passed.

    A cell defines `step` (an observation arrives after a gap) and `flow` (a gap passes without an observation).
    Neither checks its arguments, because they are the inner loop; `lapse.RNN` checks them once. The state is a
    tuple of tensors (B, size), named by `state_names` and sized by `state_sizes`. The first one is `h`, which
    is also the output of a step.

    What a cell can do is declared by class attributes:

    - `state_names`: the names of the state's tensors, in order.
    - `memory`: the name of the state that holds the past beside the output, if there is one.
    - `takes_missing`: whether `step` is told which features were observed. Such a cell overrides `step_input`.
    - `splits_gaps`: whether a gap may be passed in pieces, with `flow` before the step that ends it. This is so
      where the state first lives through the gap and then absorbs the observation. A cell that is driven by the
      observation during the gap before it cannot know between two observations what the next one will be.

    - `free_states`: the names of the states that may be set before the first observation, for example from what is
      known of a patient. The other states follow from these, or count time.

    - `flow_starts_at_output`: whether `flow` over no time gives the output of the last step, as nearly all cells do.
    - `tolerates_bfloat16`: whether outputs in bfloat16 follow those in float64; not so for a cell whose gates open at
      exact times.

    A cell may also define `program(self, p)`, which writes its step as operations of the fused loop (see
    `lapse.kernels.builder.Builder`). The fused loop serves a cell only if its very class defines `program`: a
    subclass that inherits it may compute something else.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units, which is also the width of the output.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h",)
    memory: ClassVar[str | None] = None
    takes_missing: ClassVar[bool] = False
    splits_gaps: ClassVar[bool] = False
    flow_starts_at_output: ClassVar[bool] = True
    tolerates_bfloat16: ClassVar[bool] = True
    free_states: ClassVar[tuple[str, ...]] = ("h",)

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each state, in the order of `state_names`."""
        return (self.hidden_size,) * len(self.state_names)

    initial_state = zero_state

    def step_input(self, values: Tensor, observed: Tensor | None) -> Tensor:
        """What `step` takes as its input.

        Args:
            values: The features (..., input_size).
            observed: Which of them were observed, of the same shape; None if all were. It is always None for a
                cell that does not take missing features.
        """
        return values

    def set_input_mean(self, mean: Tensor) -> None:
        """Learn the mean of each feature over the training data, (input_size,): for a cell that fills missing ones in.

        Args:
            mean: The means, in the scale of the cell's input.
        """

    @abstractmethod
    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        """Take an observation: the output (B, hidden_size) and the new state.

        Args:
            input: The observation as `step_input` gives it, one row per sequence.
            state: The state after the previous observation.
            timespan: The time since the previous observation, (B,).
        """

    @abstractmethod
    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        """Let time pass without an observation: the output (B, hidden_size) at its end and the new state.

        Args:
            state: The state at the start.
            timespan: How much time passes, (B,).
        """

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class Gates(nn.Module):
    """`count` affine maps W x + R h + b side by side, each onto `hidden_size` units.

    Every use of the weights is a call of the module, also of a part of the maps, so that what torch attaches to calls
    works here: hooks, and weights that are pruned or normalised.

    The weights start as in the sources (Keras' defaults): W is Glorot-uniform and R orthogonal over the whole
    stack, b is zero.

    Args:
        input_size: The width of x.
        hidden_size: The width of h and of each map's result.
        count: How many maps there are.
    """

    def __init__(self, input_size: int, hidden_size: int, count: int = 1) -> None:
        super().__init__()
        self.count = count
        self.weight_ih = nn.Parameter(torch.empty(count * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(count * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(count * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias)

    def drive(self, input: Tensor) -> Tensor:
        """The input's share W x + b, which stays the same while the state moves."""
        share: Tensor = self(input, None)
        return share

    def rest(self, state: Tensor) -> Tensor:
        """`drive` without any input, one row per row of `state`: what acts between observations."""
        return self.drive(state.new_zeros(state.shape[0], self.weight_ih.shape[1]))

    def recur(self, state: Tensor) -> Tensor:
        """The state's share R h."""
        share: Tensor = self(None, state)
        return share

    def forward(self, input: Tensor | None, state: Tensor | None) -> Tensor:
        if input is None:
            assert state is not None, "gates are called without an input and without a state"
            return F.linear(state, self.weight_hh)
        drive = F.linear(input, self.weight_ih, self.bias)
        return drive if state is None else drive + F.linear(state, self.weight_hh)

    def program(self, p: Builder, name: str, y: int, sources: Sequence[int], h: int = NONE) -> None:
        """Write the maps as one operation.

        Args:
            p: The program of the cell.
            name: The name of these gates in the cell.
            y: The first of `count` registers for the results.
            sources: The registers that x is made of, side by side.
            h: The register of the state; without one, the operation is `drive`.
        """
        size = p.size(y)
        terms = p.terms(f"{name}.weight_ih", size, sources, self.count)
        if h != NONE:
            terms.append((h, p.matrix(f"{name}.weight_hh", size, size, segments=self.count)))
        p.linear(y, *terms, bias=p.vector(f"{name}.bias", size, self.count))

    def extra_repr(self) -> str:
        rows, hidden_size = self.weight_hh.shape
        return f"{self.weight_ih.shape[1]}, {hidden_size}, count={rows // hidden_size}"


class LSTMGates(Gates):
    """The four maps of an LSTM (Eqs. 2–5 of the paper), in torch's order: input i, forget f, update z, output o.

    The paper adds a constant to the forget gate beside its bias. Here that constant is where the bias starts,
    which gives the same function.

    Args:
        input_size: The width of the input.
        hidden_size: The number of units.
        forget_bias: Where the bias of the forget gate starts.
        count: How many maps there are, if a cell has more than these four.
    """

    def __init__(self, input_size: int, hidden_size: int, forget_bias: float, count: int = 4) -> None:
        super().__init__(input_size, hidden_size, count)
        check_number("forget_bias", forget_bias, "a finite number")
        with torch.no_grad():
            self.bias[hidden_size : 2 * hidden_size].fill_(forget_bias)

    def memorise(self, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Eqs. 2–7: the new memory c, and the output h' that an LSTM would give."""
        i, f, z, o = self(input, h).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
        return c, torch.sigmoid(o) * torch.tanh(c)

    def memorise_program(
        self, p: Builder, name: str, sources: Sequence[int], before: tuple[int, int], c: int, h: int
    ) -> None:
        """Write `memorise` as operations, from the registers (h, c) `before` into `c` and `h`."""
        size = p.size(c)
        g = p.register(size, 4)
        self.program(p, name, g, sources, before[0])
        p.emit("LSTM", g, g + 1, g + 2, g + 3, before[1], c, h, p.register(size))


def softplus_inverse(value: float) -> float:
    """The raw parameter whose softplus is `value`; this is how a positive weight is given its start."""
    return float(torch.tensor(value, dtype=torch.float64).expm1().log())
