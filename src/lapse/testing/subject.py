"""What checks are run on: a layer of small sizes, example data, and comparisons with readable failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lapse.recurrent import RNN, Cell, Hidden

Make = Callable[..., RNN]
"""The class of a layer, or anything else that makes one: `make(input_size, hidden_size, num_layers=1, **options)`."""

INPUT, HIDDEN, STEPS = 3, 4, 6
LENGTHS = [4, 6, 1, 5, 6]


def build(make: Make, *, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> RNN:
    """A small layer with weights away from symmetric starts such as zero biases, so that no term can hide."""
    torch.manual_seed(seed)
    layer = make(INPUT, HIDDEN, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return layer


def first_cell(layer: RNN) -> Any:
    """The first cell of a layer."""
    return layer.cells[0]


def example(
    rows: int = len(LENGTHS), steps: int = STEPS, *, seed: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Inputs (rows, steps, INPUT) and gaps (rows, steps); the first gap is 0."""
    generator = torch.Generator().manual_seed(seed)
    input = torch.randn(rows, steps, INPUT, generator=generator, dtype=torch.float64)
    timespans = torch.rand(rows, steps, generator=generator, dtype=torch.float64) * 2
    timespans[:, 0] = 0.0
    return input.to(dtype), timespans.to(dtype)


def states(h_n: Hidden) -> tuple[Tensor, ...]:
    """The states of a layer as a tuple, also if there is only one."""
    return h_n if isinstance(h_n, tuple) else (h_n,)


def as_given(stacks: Iterable[Tensor]) -> Hidden:
    """States as a layer returns them: a tuple only if there are several."""
    given = tuple(stacks)
    return given if len(given) > 1 else given[0]


def assert_same(got: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Fail if two tensors differ by more than rounding in float64, or than the tolerance that is given."""
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


@contextmanager
def raises(error: type[Exception], pattern: str) -> Iterator[None]:
    """Fail unless the block raises `error` with a message that has `pattern` in it."""
    message = None
    try:
        yield
    except error as raised:
        message = str(raised)
    assert message is not None, (
        f"expected {error.__name__} with {pattern!r} in its message, nothing was raised"
    )
    assert re.search(pattern, message), f"expected a message with {pattern!r}, got {message!r}"


class WithMissing:
    """A layer that takes small values for missing ones, so that every check also meets a mask with zeros in it.

    Args:
        make: Makes a layer that takes missing features.
    """

    def __init__(self, make: Make) -> None:
        self.unmasked = make

    def __call__(self, *sizes: int, **options: Any) -> RNN:
        layer = self.unmasked(*sizes, **options)
        layer.__class__ = _masked(type(layer))
        return layer


def without_mask(make: Make) -> Make:
    """The layer itself, if `make` gives it small values as missing ones."""
    return make.unmasked if isinstance(make, WithMissing) else make


def _masked(kind: type[RNN]) -> type[RNN]:
    def forward(self: RNN, input: Any, hx: Any = None, *, observed: Any = None, **given: Any) -> Any:
        if observed is None and isinstance(input, Tensor):
            observed = ~(input <= -0.5)
        elif observed is None and isinstance(input, PackedSequence):
            observed = input._replace(data=~(input.data <= -0.5))
        return kind.forward(self, input, hx, observed=observed, **given)

    return type(f"{kind.__name__}WithMissing", (kind,), {"forward": forward})


def layer_of(cell_type: Callable[..., Cell]) -> Make:
    """What makes layers of one type of cell."""

    def make(input_size: int, hidden_size: int, num_layers: int = 1, **options: Any) -> RNN:
        return RNN(input_size, hidden_size, num_layers, cell=cell_type, **options)

    return make
