"""The contract of a cell, and the affine map that all of them are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = tuple[Tensor, ...]


class Cell(nn.Module, ABC):
    """One observation of a recurrent network that knows how much time has passed.

    A cell defines ``step`` (an observation arrives after a gap) and ``flow`` (a gap passes without one), both
    without any check of their arguments: they are the inner loop, and :class:`lapse.RNN` checks at its edge. State
    is a tuple of tensors (B, size), named by ``state_names`` and sized by ``state_sizes``. The first is ``h``, which
    after a step is the output.
    """

    state_names: ClassVar[tuple[str, ...]] = ("h",)

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each state, in the order of ``state_names``."""
        return (self.hidden_size,) * len(self.state_names)

    def initial_state(
        self, batch_size: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first observation: zeros unless the cell says otherwise."""
        return tuple(torch.zeros(batch_size, size, device=device, dtype=dtype) for size in self.state_sizes)

    def prepare(self, input: Tensor, observed: Tensor | None) -> Tensor:
        """What ``step`` takes as input: the values (N, I), and for a cell that knows of missing ones their mask."""
        if observed is not None:
            raise ValueError(
                f"{type(self).__name__} has no notion of missing features, so it takes no `observed`; "
                "use GRUD, or fill the missing values and pass the mask as additional input features"
            )
        return input

    @abstractmethod
    def step(self, input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        """Take the observation ``input`` (B, I), which arrives ``timespan`` (B,) after the previous one."""

    @abstractmethod
    def flow(self, state: State, timespan: Tensor) -> tuple[Tensor, State]:
        """Let ``timespan`` (B,) pass without an observation: the output (B, H) then, and the state."""

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class Gates(nn.Module):
    """``count`` affine maps W x + R h + b side by side, each onto ``hidden_size`` units.

    As in the sources (Keras' defaults): W Glorot-uniform and R orthogonal over the whole stack, b zero.
    """

    def __init__(self, input_size: int, hidden_size: int, count: int = 1) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(count * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(count * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(count * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias)

    def drive(self, input: Tensor) -> Tensor:
        """The input's share W x + b, which stays the same while the state moves."""
        return F.linear(input, self.weight_ih, self.bias)

    def rest(self, state: Tensor) -> Tensor:
        """``drive`` of no input at all, a row for each row of ``state``: what acts between observations."""
        return self.bias.expand(len(state), -1)

    def recur(self, state: Tensor) -> Tensor:
        """The state's share R h."""
        return F.linear(state, self.weight_hh)

    def forward(self, input: Tensor, state: Tensor) -> Tensor:
        return self.drive(input) + self.recur(state)

    def extra_repr(self) -> str:
        rows, hidden_size = self.weight_hh.shape
        return f"{self.weight_ih.shape[1]}, {hidden_size}, count={rows // hidden_size}"


def softplus_inverse(value: float) -> float:
    """The raw parameter whose softplus is ``value``: how a positive weight is given its start."""
    return float(torch.tensor(value, dtype=torch.float64).expm1().log())
