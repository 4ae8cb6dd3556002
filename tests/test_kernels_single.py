"""The fused single step: the reference's answer, weights that change under it, and what it leaves to the cell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import lapse
from lapse import kernels, recurrent
from lapse.kernels import native, single
from lapse.rows import Rows
from lapse.solvers import Adaptive

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")


def event(cell: recurrent.Cell, rows: int = 1) -> tuple[torch.Tensor, recurrent.State, torch.Tensor]:
    x = torch.randn(rows, cell.input_size, dtype=next(cell.parameters()).dtype)
    state = tuple(torch.rand(rows, n).to(x) for n in cell.state_sizes)
    return cell.step_input(x, None), state, torch.rand(rows).to(x)


def check_step(cell: recurrent.Cell, rows: int = 1) -> None:
    x, state, span = event(cell, rows)
    with torch.no_grad():
        output, final = kernels.step(cell, x, state, span)
        expected, expected_final = cell.step(x, state, span)
    for a, e in zip((output, *final), (expected, *expected_final), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)


CELLS = [c for n, c in vars(recurrent).items() if n.endswith("Cell") and "program" in vars(c)]


@pytest.mark.parametrize("cell_type", CELLS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("hidden_size", [1, 5, 64, 100])
def test_agrees_with_the_cell(cell_type: type[recurrent.Cell], hidden_size: int) -> None:
    torch.manual_seed(0)
    cell = cell_type(3, hidden_size)
    check_step(cell)
    assert cell in single._ready
    check_step(cell, 4)
    check_step(cell)


def test_a_part_may_hold_a_tensor_that_is_absent() -> None:
    torch.manual_seed(0)
    cell = recurrent.CTRNNCell(3, 5)
    cell.field.gates.register_parameter("second_bias", None)
    cell.field.gates.register_buffer("mask", None)
    check_step(cell)
    ready = single._ready[cell]
    check_step(cell)
    assert single._ready[cell] is ready
    with torch.no_grad():
        cell.field.gates.bias.add_(1)
    check_step(cell)
    cell.field.gates.second_bias = torch.nn.Parameter(torch.ones(5))
    check_step(cell)


def test_a_stream_gives_the_bits_of_the_sequence() -> None:
    torch.manual_seed(0)
    cell = recurrent.ODELSTMCell(3, 20)
    x, spans = torch.randn(9, 3), torch.rand(9)
    state = cell.initial_state(1)
    with torch.no_grad():
        whole, _ = kernels.unroll(cell, x, state, spans, Rows.flat([9]))
        for i in range(9):
            output, state = kernels.step(cell, x[i : i + 1], state, spans[i : i + 1])
            assert torch.equal(output, whole[i : i + 1])


def test_changed_weights_are_noticed() -> None:
    torch.manual_seed(0)
    cell = recurrent.CTRNNCell(3, 5)
    check_step(cell)
    with torch.no_grad():
        cell.field.scale.mul_(2)
    check_step(cell)
    cell.field.gates.bias = torch.nn.Parameter(torch.ones(5))
    check_step(cell)
    cell.field = recurrent.CTRNNCell(3, 5).field
    check_step(cell)
    cell.field.gates = recurrent.Gates(3, 5)
    check_step(cell)
    torch.nn.utils.parametrizations.weight_norm(cell.field.gates, "weight_hh")
    check_step(cell)
    with torch.no_grad():
        cell.field.gates.parametrizations.weight_hh.original0.mul_(2)
    check_step(cell)
    cell.solver = lapse.FixedStep(lapse.EULER, 1)
    check_step(cell)
    check_step(cell.double())


@pytest.mark.parametrize("change", [Adaptive(), None], ids=["solver", "layout"])
def test_what_it_does_not_cover(change: Adaptive | None) -> None:
    torch.manual_seed(0)
    cell = recurrent.CTRNNCell(3, 5)
    if change is not None:
        cell.solver = change
    x, state, span = event(cell, 4)
    x = x.t().contiguous().t() if change is None else x
    with torch.no_grad():
        torch.testing.assert_close(kernels.step(cell, x, state, span)[0], cell.step(x, state, span)[0])


def test_gradients_flow_when_they_are_wanted() -> None:
    cell = recurrent.CTRNNCell(3, 5)
    output, _ = kernels.step(cell, *event(cell))
    output.sum().backward()
    assert cell.field.scale.grad is not None


def test_a_failure_names_the_row() -> None:
    cell = recurrent.CTRNNCell(3, 5)
    x, state, span = event(cell, 3)
    x[1] = torch.nan
    with torch.no_grad(), pytest.raises(lapse.SolverError, match="row 1"):
        kernels.step(cell, x, state, span)


def test_wrong_shapes_are_left_to_the_cell() -> None:
    cell = recurrent.CTRNNCell(3, 5)
    x, state, span = event(cell, 4)
    with torch.no_grad():
        kernels.step(cell, x, state, span)
        for wrong in ((x[:, :2].clone(), state, span), (x, (state[0][:2].clone(),), span)):
            with pytest.raises((RuntimeError, ValueError)):
                kernels.step(cell, *wrong)


def test_hooks_and_data_that_come_later_are_noticed() -> None:
    cell, calls = recurrent.CTRNNCell(3, 5), []
    check_step(cell)
    torch.nn.utils.vector_to_parameters(
        2 * torch.nn.utils.parameters_to_vector(cell.parameters()), cell.parameters()
    )
    check_step(cell)
    cell.field.register_forward_hook(lambda *a: calls.append(a))
    x, state, span = event(cell, 1)
    with torch.no_grad():
        kernels.step(cell, x, state, span)
        seen = len(calls)
        cell.step(x, state, span)
    assert len(calls) == 2 * seen


def test_two_threads_step_one_cell() -> None:
    torch.manual_seed(0)
    cell = recurrent.CTRNNCell(3, 64)
    events = [event(cell, 64) for _ in range(2)]
    with torch.no_grad():
        expected = [cell.step(*e)[0] for e in events]

    def work(i: int) -> float:
        with torch.no_grad():
            return max(
                float((kernels.step(cell, *events[i])[0] - expected[i]).abs().max()) for _ in range(200)
            )

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(work, range(2))) < 1e-5


def test_a_change_that_counts_no_version_up_is_seen() -> None:
    """Fused optimizers change weights that way, and so does ``weight.data``."""
    torch.manual_seed(0)
    cell = recurrent.ODELSTMCell(3, 8)
    x, gap, state = torch.randn(1, 3), torch.rand(1), cell.initial_state(1)
    optimizer = torch.optim.Adam(cell.parameters(), lr=0.1, fused=True)

    def train() -> None:
        cell.step(x, state, gap)[0].sum().backward()
        optimizer.step()

    def change() -> None:
        cell.gates.bias.data.copy_(torch.randn(32))

    for change_weights in (lambda: None, train, change):
        change_weights()
        with torch.no_grad():
            torch.testing.assert_close(kernels.step(cell, x, state, gap)[0], cell.step(x, state, gap)[0])


def test_a_negated_view_is_read_as_its_values() -> None:
    torch.manual_seed(0)
    cell = recurrent.ODELSTMCell(3, 8)
    gap, state = torch.rand(1), cell.initial_state(1)
    with torch.no_grad():
        kernels.step(cell, torch.randn(1, 3), state, gap)
        x = torch._neg_view(torch.randn(1, 3))
        torch.testing.assert_close(kernels.step(cell, x, state, gap)[0], cell.step(x, state, gap)[0])


def test_a_cell_made_without_gradients_at_all() -> None:
    with torch.inference_mode():
        cell = recurrent.ODELSTMCell(3, 8)
        x, gap, state = torch.randn(1, 3), torch.rand(1), cell.initial_state(1)
        torch.testing.assert_close(kernels.step(cell, x, state, gap)[0], cell.step(x, state, gap)[0])
