"""Where the steps of ragged rows lie: the same rows in every layout, walked either way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import lapse
from lapse.kernels import unroll
from lapse.recurrent import CTRNNCell
from lapse.rows import Rows

LENGTHS = [3, 7, 1, 5, 7]


def numbered() -> Tensor:
    """(5, 9): step t of row i holds 100 i + t, and what lies beyond the lengths is NaN."""
    grid = 100.0 * torch.arange(5).unsqueeze(1) + torch.arange(9)
    return grid.masked_fill(torch.arange(9) >= torch.tensor(LENGTHS).unsqueeze(1), torch.nan)


def layouts() -> dict[str, tuple[Rows, Tensor]]:
    grid = numbered()
    packed = pack_padded_sequence(grid, LENGTHS, batch_first=True, enforce_sorted=False)
    return {
        "flat": (Rows.flat(LENGTHS), torch.cat([row[:n] for row, n in zip(grid, LENGTHS, strict=True)])),
        "rows first": (Rows.padded(5, 9, LENGTHS), grid.flatten()),
        "steps first": (Rows.padded(5, 9, LENGTHS, batch_first=False), grid.T.flatten()),
        "packed": (Rows.packed(packed), packed.data),
    }


NAMES = list(layouts())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backward", [False, True])
def test_every_step_is_walked_once_and_in_order(name: str, backward: bool) -> None:
    rows, values = layouts()[name]
    rows = rows.reversed() if backward else rows
    assert (len(rows), rows.count, rows.steps, rows.size) == (5, 23, 7, len(values))
    assert rows.batch_sizes == [5, 4, 4, 3, 3, 2, 2]
    walked = rows.gather(values).split(rows.batch_sizes)
    for i, (row, n) in enumerate([(1, 7), (4, 7), (3, 5), (0, 3), (2, 1)]):  # the longest first
        found = [float(step[i]) for step in walked[:n]]
        assert found == [100.0 * row + t for t in (reversed(range(n)) if backward else range(n))]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_walked_goes_back_to_its_place(name: str) -> None:
    rows, values = layouts()[name]
    for way in (rows, rows.reversed()):
        assert torch.equal(way.scatter(way.gather(values)), values.nan_to_num(nan=0.0))


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_values_move_between_layouts(source: str, target: str) -> None:
    (theirs, values), (rows, expected) = layouts()[source], layouts()[target]
    assert theirs.same_lengths(rows)
    assert theirs.same_places(rows) == (source == target)
    assert torch.equal(rows.take(values, theirs), expected.nan_to_num(nan=0.0))


@pytest.mark.parametrize("name", NAMES)
def test_the_gaps_on_the_way_back_lie_between_the_same_steps(name: str) -> None:
    rows, values = layouts()[name]
    before_on_the_way_back = rows.reversed().gather(rows.gaps_after(values)).split(rows.batch_sizes)
    assert before_on_the_way_back[0].tolist() == [0.0] * 5
    for i, (row, n) in enumerate([(1, 7), (4, 7), (3, 5), (0, 3), (2, 1)]):
        found = [float(step[i]) for step in before_on_the_way_back[1:n]]
        assert found == [100.0 * row + t for t in reversed(range(1, n))]


def test_rows_without_padding_have_no_order_to_work_out() -> None:
    for batch_first in (True, False):
        rows = Rows.padded(3, 4, batch_first=batch_first)
        assert rows.order is None
        grid = torch.arange(12.0).view(3, 4)
        flat = (grid if batch_first else grid.T).flatten()
        assert torch.equal(rows.gather(flat).view(4, 3), grid.T)
        assert torch.equal(rows.scatter(rows.gather(flat)), flat)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Rows.flat([2, 0]), ValueError, "lengths must be at least 1, got 0 in row 1; leave out rows"),
        (lambda: Rows.flat(torch.ones(1, 2).long()), ValueError, r"one per row, got \(1, 2\)"),
        (lambda: Rows.flat([1.5]), TypeError, "lengths must be whole numbers, got torch.float32"),
        (lambda: Rows.padded(2, 3, [1, 4]), ValueError, "lengths must be from 1 to 3, got 4 in row 1"),
        (lambda: Rows.padded(2, 3, [1]), ValueError, r"must have shape \(2,\), one per row, got \(1,\)"),
    ],
)
def test_lengths_that_cannot_be_are_refused(make, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "rows",
    [
        Rows(torch.tensor([3, 9]), torch.tensor([0, 3]), 1, 6),
        Rows(torch.tensor([3, 0]), torch.tensor([0, 3]), 1, 6),
        Rows(torch.tensor([3, 3]), torch.tensor([0, 4]), 1, 6),
        Rows(torch.tensor([3, 3]), torch.tensor([-1, 3]), 1, 6),
        Rows(torch.tensor([3, 1]), torch.tensor([0, 3]), 1, 6, room=2),
        Rows(torch.tensor([3, 3]), torch.tensor([0, 3]), -1, 6),
    ],
    ids=["long", "empty", "start", "before", "room", "stride"],
)
def test_the_library_refuses_rows_that_reach_beyond_the_tensors(rows: Rows) -> None:
    """Where lengths could not be looked at, they would make it read and write anywhere."""
    cell = CTRNNCell(2, 3)
    with lapse.backend("fused"), pytest.raises(ValueError, match="rows reach beyond the tensors"):
        unroll(cell, torch.randn(6, 2), None, torch.rand(6), rows)


def test_a_layer_takes_flat_rows() -> None:
    """Outputs, states and gradients are those of the same rows padded, to the last bit."""
    torch.manual_seed(0)
    layer = lapse.GRUD(2, 6, 2, bidirectional=True)
    x, gaps, observed = torch.randn(5, 9, 2), torch.rand(5, 9), torch.rand(5, 9, 2) < 0.7
    rows, padded = Rows.flat(LENGTHS), Rows.padded(5, 9, LENGTHS)
    expected, h_n = layer(x, timespans=gaps, observed=observed, lengths=LENGTHS)
    flat = [rows.take(t.flatten(0, 1), padded) for t in (x, gaps, observed)]
    output, states = layer(flat[0], timespans=flat[1], observed=flat[2], rows=rows)
    assert torch.equal(output, rows.take(expected.flatten(0, 1), padded))
    assert all(torch.equal(a, b) for a, b in zip(states, h_n, strict=True))
    grads = [torch.autograd.grad(o.square().sum(), list(layer.parameters())) for o in (output, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_layer_refuses_flat_input_that_does_not_fit_its_rows() -> None:
    layer, rows = lapse.CTRNN(2, 4), Rows.flat([3, 2])
    with pytest.raises(ValueError, match=r"input must be \(5, 2\), one place per step .* got \(4, 2\)"):
        layer(torch.randn(4, 2), rows=rows)
    with pytest.raises(ValueError, match="`rows` know their lengths"):
        layer(torch.randn(5, 2), rows=rows, lengths=[3, 2])
    with pytest.raises(ValueError, match=r"timespans must have shape \(5,\), one gap per observation"):
        layer(torch.randn(5, 2), rows=rows, timespans=torch.rand(2, 3))
    gaps = torch.rand(5)
    gaps[4] = -1
    with pytest.raises(ValueError, match=r"not negative, got -1.0 at row 1, step 1"):
        layer(torch.randn(5, 2), rows=rows, timespans=gaps)
