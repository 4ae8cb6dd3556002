"""The fused loop against the reference: outputs, states, every gradient, and what is left to the reference."""

from __future__ import annotations

import copy
import ctypes
import gc
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import lapse
from lapse import kernels, recurrent, torch_private
from lapse.kernels import native, passes, recompute, unroll, workspace
from lapse.kernels.fused import Fused
from lapse.kernels.program import Program
from lapse.kernels.programs import program_of
from lapse.recurrent import Cell
from lapse.rows import Rows
from lapse.solvers import DOPRI5, EULER, HEUN, RK4, Adaptive, Exponential, FixedStep, SemiImplicit, Solver

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")

EXPLICIT: list[Solver | None] = [FixedStep(EULER, 4), FixedStep(HEUN, 1), FixedStep(RK4, 3)]
DAMPED: list[Solver | None] = [*EXPLICIT, Exponential(4), Exponential(1, order=2), Exponential(3, order=2)]
SOLVERS: dict[type[Cell], list[Solver | None]] = {
    recurrent.ODELSTMCell: [*DAMPED, FixedStep(DOPRI5, 1)],
    recurrent.AutonomousODELSTMCell: EXPLICIT,
    # Its fastest units need short explicit steps, or rounding grows with every one of them.
    recurrent.JumpODELSTMCell: [FixedStep(EULER, 16), FixedStep(RK4, 8), *DAMPED[3:]],
    recurrent.CTRNNCell: DAMPED,
    recurrent.ODERNNCell: EXPLICIT,
    recurrent.JumpODERNNCell: EXPLICIT,
    recurrent.CoupledLSTMODERNNCell: EXPLICIT,
    recurrent.GRUODECell: [*EXPLICIT, Exponential(4)],
    recurrent.GRUDCell: [None],
    recurrent.CTGRUCell: [None],
    recurrent.RNNDecayCell: [None],
    recurrent.CTLSTMCell: [None],
    recurrent.PhasedLSTMCell: [None],
    recurrent.AugmentedLSTMCell: [None],
    recurrent.LTCCell: [SemiImplicit(1), SemiImplicit(6)],
    recurrent.CfCCell: [None],
    recurrent.NoGateCfCCell: [None],
    recurrent.PureCfCCell: [None],
    recurrent.CfCMemoryCell: [None],
    recurrent.CarriedCfCMemoryCell: [None],
}
CASES = [pytest.param(c, s, id=f"{c.__name__}-{s}") for c, solvers in SOLVERS.items() for s in solvers]
DEFAULTS = [pytest.param(c, s[-1], id=c.__name__) for c, s in SOLVERS.items()]

# Lengths: one row, one step, ones beside long rows, more rows than a block with a part of one left over.
SHAPES = [
    (1, 1, [1]),
    (3, 5, [4, 4, 2, 1]),
    (2, 17, [6] * 33 + [3] * 10 + [1]),
    (9, 8, [2] * 3),
    (4, 64, [3] * 70),
]


def make(cell_type: type[Cell], solver: Solver | None, input_size: int, hidden_size: int) -> Cell:
    options = {} if solver is None else {"solver": solver}
    cell = cell_type(input_size, hidden_size, **options)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return cell


def arguments(cell: Cell, lengths: list[int], dtype: torch.dtype) -> tuple[list[Tensor], list[int]]:
    """Input, gaps (a zero among them) and initial states for sorted lengths, and the batch sizes."""
    sizes = [sum(n > t for n in lengths) for t in range(max(lengths))]
    x = torch.randn(sum(sizes), cell.input_size, dtype=dtype)
    if cell.takes_missing:
        x = cell.step_input(x, torch.rand(x.shape) < 0.6)
    spans = 1.5 * torch.rand(len(x), dtype=dtype)
    spans[0] = 0
    state = [0.5 * torch.rand(len(lengths), n, dtype=dtype) for n in cell.state_sizes]
    return [x, spans, *state], sizes


def in_steps(sizes: list[int]) -> Rows:
    """The rows of tensors that hold one step after the other, with so many rows each."""
    return Rows.packed(PackedSequence(torch.empty(sum(sizes)), torch.tensor(sizes)))


def everything(
    backend: str, cell: Cell, inputs: list[Tensor], sizes: list[int], weights: list[Tensor]
) -> dict[str, Tensor | None]:
    inputs = [t.clone().requires_grad_() for t in inputs]
    with lapse.backend(backend):  # type: ignore[arg-type]
        output, final = unroll(cell, inputs[0], tuple(inputs[2:]), inputs[1], in_steps(sizes))
    names = [n for n, _ in cell.named_parameters()]
    loss = sum((o * w).sum() for o, w in zip((output, *final), weights, strict=True))
    grads = torch.autograd.grad(loss, [*inputs, *cell.parameters()], allow_unused=True)
    keys = [
        "output",
        *cell.state_names,
        "d input",
        "d spans",
        *(f"d {n}" for n in (*cell.state_names, *names)),
    ]
    return dict(zip(keys, (output.detach(), *(f.detach() for f in final), *grads), strict=True))


def check_parity(cell: Cell, lengths: list[int], dtype: torch.dtype, threads: Sequence[int] = (1, 2)) -> None:
    cell = cell.to(dtype)
    inputs, sizes = arguments(cell, lengths, dtype)
    weights = [torch.randn(len(inputs[0]), cell.hidden_size, dtype=dtype)]
    weights += [torch.randn_like(s) for s in inputs[2:]]
    expected = everything("reference", cell, inputs, sizes, weights)
    tolerance = 1e-10 if dtype == torch.float64 else 3e-5
    for count in threads:
        with on_threads(count):
            actual = everything("fused", cell, inputs, sizes, weights)
        for name, a in actual.items():
            e = expected[name]
            assert a is not None
            e = torch.zeros_like(a) if e is None else e
            scale = float(e.abs().max()) + 1e-2
            torch.testing.assert_close(
                a / scale, e / scale, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def threads_for_any_call(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls of any size are split over threads if there are two; one is the rule, or the reference loop would wait."""
    monkeypatch.setattr("lapse.kernels.passes.SMALL_CALL", -1)
    with on_threads(1):
        yield


@pytest.mark.parametrize("lengths", [[1], [2], [17], [40], [20, 9], [23, 23, 5, 1]], ids=str)
@pytest.mark.parametrize(("cell_type", "solver"), DEFAULTS)
def test_few_rows_with_wide_inputs(cell_type: type[Cell], solver: Solver | None, lengths: list[int]) -> None:
    """Their products are done for several steps together, as many as there are rows for, and for what is left."""
    torch.manual_seed(0)
    check_parity(make(cell_type, solver, 40, 6), lengths, torch.float64, threads=(1,))


def test_the_products_of_several_steps_are_those_of_each() -> None:
    """One row and the same row beside others, whose products are not done together, have the same outputs."""
    torch.manual_seed(0)
    layer = lapse.AugmentedLSTM(40, 6)
    x, spans = torch.randn(8, 40, 40), torch.rand(8, 40)
    with lapse.backend("fused"):
        alone, together = layer(x[:1], timespans=spans[:1])[0], layer(x, timespans=spans)[0]
    assert torch.equal(alone[0], together[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize(("cell_type", "solver"), CASES)
def test_parity(cell_type: type[Cell], solver: Solver | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for input_size, hidden_size, lengths in SHAPES:
        check_parity(make(cell_type, solver, input_size, hidden_size), lengths, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("cell_type", "solver"), CASES)
def test_parity_of_random_shapes(cell_type: type[Cell], solver: Solver | None, seed: int) -> None:
    torch.manual_seed(seed)
    input_size, hidden_size, rows = (int(torch.randint(1, n, ())) for n in (20, 70, 100))
    lengths = sorted(torch.randint(1, 12, (rows,)).tolist(), reverse=True)
    check_parity(make(cell_type, solver, input_size, hidden_size), lengths, torch.float64)


@pytest.mark.parametrize(("cell_type", "solver"), DEFAULTS)
def test_rows_that_start_from_zeros(
    cell_type: type[Cell], solver: Solver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no state, with zeros, and with zeros whose gradient is asked for: what is left out makes no difference."""
    torch.manual_seed(0)
    cell = make(cell_type, solver, 2, 5).double()
    inputs, sizes = arguments(cell, [4, 4, 2, 1], torch.float64)
    x, spans, *_ = inputs
    zeros = cell.initial_state(4, dtype=torch.float64)
    dirty = passes.borrow
    monkeypatch.setattr(passes, "borrow", lambda size, dtype: dirty(size, dtype).fill_(torch.nan))
    starts = [None, zeros, tuple(z.clone().requires_grad_() for z in zeros)]
    for start in starts:
        results = []
        for backend in ("fused", "reference"):
            with lapse.backend(backend):
                output, final = unroll(cell, x, start, spans, in_steps(sizes))
            asked = [*cell.parameters(), *(t for t in start or () if t.requires_grad)]
            loss = output.square().sum() + sum(f.square().sum() for f in final)
            grads = torch.autograd.grad(loss, asked, allow_unused=True, materialize_grads=True)
            results.append([output, *final, *grads])
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("looked_at", ["output", "h", "c"])
@pytest.mark.parametrize("asked", ["input", "spans", "parameters"])
def test_gradients_of_a_part_and_for_a_part(looked_at: str, asked: str) -> None:
    torch.manual_seed(0)
    layer = lapse.ODELSTM(2, 5, form="driven", dtype=torch.float64)
    results = []
    x, spans = torch.randn(3, 6, 2).double(), torch.rand(3, 6).double()
    leaves = {"input": [x], "spans": [spans], "parameters": list(layer.parameters())}[asked]
    layer.requires_grad_(asked == "parameters")
    for leaf in leaves:
        leaf.requires_grad_()
    for backend in ("fused", "reference"):
        with lapse.backend(backend):
            output, (h, c) = layer(x, timespans=spans, lengths=[6, 2, 4])
        end = {"output": output, "h": h, "c": c}[looked_at]
        results.append(
            torch.autograd.grad(end.square().sum(), leaves, allow_unused=True, materialize_grads=True)
        )
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("cell_type", "solver"), CASES)
def test_gradcheck(cell_type: type[Cell], solver: Solver | None) -> None:
    torch.manual_seed(0)
    cell = make(cell_type, solver, 2, 3).double()
    inputs, sizes = arguments(cell, [3, 2, 1], torch.float64)
    inputs[1][0] = 0.3  # a difference quotient needs room on both sides
    if cell.takes_missing:
        inputs[0][:, 2:] = 0.1 + 0.8 * torch.rand(len(inputs[0]), 2)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        with lapse.backend("fused"):
            output, final = unroll(cell, tensors[0], tensors[2 : 2 + states], tensors[1], in_steps(sizes))
        return output, *final

    states = len(cell.state_names)
    tensors = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(run, (*tensors, *cell.parameters()), fast_mode=True)


@pytest.mark.parametrize(("cell_type", "solver"), DEFAULTS)
def test_recompute_gives_the_same_bits(cell_type: type[Cell], solver: Solver | None) -> None:
    torch.manual_seed(0)
    cell = make(cell_type, solver, 3, 9)
    inputs, sizes = arguments(cell, [11] * 30 + [7] * 10 + [1] * 5, torch.float32)
    weights = [torch.randn(len(inputs[0]), 9), *(torch.randn_like(s) for s in inputs[2:])]
    plain = everything("fused", cell, inputs, sizes, weights)
    for every in (1, 4, 11, 100):
        with recompute(every=every):
            again = everything("fused", cell, inputs, sizes, weights)
        for name, value in plain.items():
            assert torch.equal(again[name], value), f"{name}, every {every}"


def several_blocks() -> tuple[Cell, list[Tensor], list[int], list[Tensor]]:
    """A cell and a batch that two threads share."""
    torch.manual_seed(0)
    cell = make(recurrent.ODELSTMCell, None, 3, 32)
    inputs, sizes = arguments(cell, [9] * 200 + [4] * 50 + [1] * 20, torch.float32)
    weights = [torch.randn(len(inputs[0]), 32), *(torch.randn_like(s) for s in inputs[2:])]
    return cell, inputs, sizes, weights


def test_recompute_gives_the_same_bits_on_several_threads() -> None:
    case = several_blocks()
    with on_threads(2):
        plain = everything("fused", *case)
        with recompute(every=4):
            again = everything("fused", *case)
    for name, value in plain.items():
        assert torch.equal(again[name], value), name


@pytest.mark.parametrize("count", [1, 2])
def test_same_threads_same_bits(count: int) -> None:
    torch.manual_seed(0)
    cell = make(recurrent.ODELSTMCell, None, 3, 32)
    inputs, sizes = arguments(cell, [9] * 100 + [4] * 50 + [1] * 20, torch.float32)
    weights = [torch.randn(len(inputs[0]), 32), *(torch.randn_like(s) for s in inputs[2:])]
    with on_threads(count):
        first = everything("fused", cell, inputs, sizes, weights)
        for _ in range(5):
            for name, value in everything("fused", cell, inputs, sizes, weights).items():
                assert torch.equal(value, first[name]), name


def test_a_thread_that_does_it_all_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps go to whichever thread is free: here the second one comes too late for any."""
    work_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(None, work_type, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    def alone(work: Callable[[int], None], shared: int, threads: int, flags: int) -> None:
        asked.append(threads)
        work(shared)

    asked: list[int] = []
    case = several_blocks()
    with on_threads(2):
        shared = everything("fused", *case)
        monkeypatch.setattr(native, "parallel", lambda: ctypes.cast(alone, ctypes.c_void_p).value)
        for name, value in everything("fused", *case).items():
            assert torch.equal(value, shared[name]), name
    assert set(asked) == {2}


@pytest.mark.skipif(
    sys.platform != "linux" or "asan" in os.environ.get("LD_PRELOAD", ""), reason="limits the address space"
)
def test_no_memory_for_a_pass_is_an_error_not_a_crash() -> None:
    script = """
import resource, torch, lapse
layer, x = lapse.ODELSTM(1, 64, form="driven"), torch.randn(64, 2000, 1)
layer(x[:, :2])[0].sum().backward()
with lapse.kernels.recompute(every=1000):
    loss = layer(x)[0][:, -1].sum()
used = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
try:
    loss.backward(retain_graph=True)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
loss.backward()
print("and on")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["no memory for the backward pass", "and on"]


def test_rows_do_not_depend_on_their_neighbours() -> None:
    torch.manual_seed(0)
    cell = make(recurrent.ODELSTMCell, None, 3, 32)
    (x, spans, *state), sizes = arguments(cell, [4] * 70, torch.float32)
    with lapse.backend("fused"), torch.no_grad():
        output, _ = unroll(cell, x, tuple(state), spans, in_steps(sizes))
        alone, _ = unroll(cell, x[5::70], tuple(s[5:6] for s in state), spans[5::70], in_steps([1] * 4))
    assert torch.equal(output[5::70], alone)


def test_a_slow_rate_keeps_its_digits_over_a_long_gap() -> None:
    torch.manual_seed(0)
    layer, x = lapse.GRUODE(2, 8), torch.randn(4, 6, 2)
    with torch.no_grad():
        layer.cells[0].get_parameter("field.gates.bias")[8:] += 14.0  # of the update gates: rates near 1e-6
    exact = copy.deepcopy(layer).double()
    spans = torch.full((4, 6), 1e3)
    with lapse.backend("fused"):
        output = layer(x, timespans=spans)[0]
    torch.testing.assert_close(
        output.double(), exact(x.double(), timespans=spans.double())[0], rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_clock_far_beyond_the_periods_keeps_the_phase(backend: str) -> None:
    """Two years of seconds against periods of some units: outputs, the clock and gradients as in float64."""
    torch.manual_seed(0)
    layer, x, spans = lapse.PhasedLSTM(1, 32), torch.randn(2, 730, 1), torch.full((2, 730), 86_400.0)
    results = []
    for model, way in ((layer, backend), (copy.deepcopy(layer).double(), "reference")):
        weight = next(model.parameters())
        with lapse.backend(way):
            output, (_, _, clock) = model(x.to(weight), timespans=spans.to(weight))
        grads = torch.autograd.grad(output.square().sum(), list(model.parameters()))
        results.append([output.detach(), clock.double().sum(-1), *grads])
    for ours, expected in zip(*results, strict=True):
        scale = expected.abs().max()
        torch.testing.assert_close(ours.double() / scale, expected / scale, rtol=0, atol=1e-4)
    assert bool((results[0][1] == 730 * 86_400).all())


@pytest.mark.parametrize("gap", [1e16, 1e18, 1e25, 1e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_stay_gates_where_no_digit_of_the_phase_is_left(gap: float, dtype: torch.dtype) -> None:
    """An LSTM's outputs are within ±1, and a gate moves between two of them."""
    torch.manual_seed(0)
    layer = lapse.PhasedLSTM(3, 8, dtype=dtype)
    x, spans = torch.randn(4, 6, 3, dtype=dtype), gap * torch.rand(4, 6, dtype=dtype)
    with lapse.backend("fused"):
        output, _ = layer(x, timespans=spans)
    assert bool((output.abs() <= 1).all())


def test_a_stream_of_small_gaps_late_in_the_day_still_moves_the_clock() -> None:
    """A gap that the clock in float32 would round away entirely."""
    torch.manual_seed(0)
    cell = recurrent.PhasedLSTMCell(1, 8)
    state = (*cell.initial_state(1)[:2], torch.tensor([[1e8, 0.0]]))
    later = copy.deepcopy(state)
    with torch.no_grad():
        for _ in range(100):
            x, gap = torch.randn(1, 1), torch.full((1,), 0.01)
            _, state = kernels.step(cell, x, state, gap)
            _, later = cell.step(x, later, gap)
    assert float(state[2].double().sum()) == pytest.approx(1e8 + 1.0, abs=1e-5)
    for ours, expected in zip(state, later, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_period_that_is_not_a_number_shows() -> None:
    layer = lapse.PhasedLSTM(2, 8)
    with torch.no_grad():
        layer.cells[0].get_parameter("log_period")[3] = math.nan
    with lapse.backend("fused"):
        assert layer(torch.randn(3, 5, 2))[0].isnan().any()


@pytest.mark.parametrize("function", range(4), ids=["exp", "tanh", "sigmoid", "softplus"])
def test_stated_error_of_the_elementary_functions(function: int) -> None:
    """At most 2e-7, relative for exp and absolute for the others, which are bounded or follow their argument."""
    library = native.library()
    exact = [torch.exp, torch.tanh, torch.sigmoid, torch.nn.functional.softplus][function]
    low, high = (-80.0, 80.0) if function == 0 else (-15.0, 15.0)
    x = torch.linspace(low, high, 1 << 20)
    y = torch.empty_like(x)
    library.lapse_apply_f32(
        function, ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(len(x))
    )
    expected = exact(x.double())
    error = (y.double() - expected).abs()
    error = error / expected if function == 0 else error / expected.abs().clamp(min=1)
    assert float(error.max()) <= 2e-7


def test_not_a_number_stays_one() -> None:
    cell = make(recurrent.CTLSTMCell, None, 1, 4)
    (x, spans, *state), sizes = arguments(cell, [2, 2], torch.float32)
    x[0] = torch.nan
    with lapse.backend("fused"):
        output, _ = unroll(cell, x, tuple(state), spans, in_steps(sizes))
    assert bool(output[0::2].isnan().all())
    assert not bool(output[1::2].isnan().any())


@pytest.mark.parametrize("solver", [FixedStep(EULER, 1), Exponential(2)], ids=str)
def test_the_same_failure_as_the_reference(solver: Solver) -> None:
    torch.manual_seed(0)
    layer = lapse.CTRNN(1, 4, solver=solver)
    x, spans, start = torch.randn(90, 5, 1), torch.ones(90, 5), torch.zeros(1, 90, 4)
    if isinstance(solver, Exponential):
        start[0, [70, 80, 3]] = torch.nan
    else:
        spans[80, 2:], spans[3, 3:] = 1e30, 1e30
    messages = []
    for backend, count in (("reference", 1), ("fused", 1), ("fused", 2)):
        with lapse.backend(backend), on_threads(count), pytest.raises(lapse.SolverError) as caught:
            layer(x, start, timespans=spans, lengths=[5] * 89 + [2])
        messages.append(str(caught.value))
    assert messages[0] == messages[1] == messages[2]


def test_a_changed_setting_is_noticed() -> None:
    torch.manual_seed(0)
    layer, x = lapse.PhasedLSTM(2, 5, dtype=torch.float64), torch.randn(3, 4, 2).double()
    layer(x)
    layer.cells[0].ratio_on = 0.9
    with lapse.backend("reference"):
        expected, _ = layer(x)
    torch.testing.assert_close(layer(x)[0], expected)


def layer_and_data() -> tuple[lapse.ODELSTM, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        lapse.ODELSTM(2, 5, form="driven", dtype=torch.float64),
        torch.randn(3, 4, 2).double(),
        torch.rand(3, 4).double(),
    )


def test_double_backward() -> None:
    layer, x, spans = layer_and_data()

    def penalty(backend: str) -> list[Tensor]:
        with lapse.backend(backend):  # type: ignore[arg-type]
            leaf = x.clone().requires_grad_()
            output, _ = layer(leaf, timespans=spans)
            (grad,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
            return list(torch.autograd.grad(grad.square().sum(), layer.parameters()))

    for actual, expected in zip(penalty("fused"), penalty("reference"), strict=True):
        torch.testing.assert_close(actual, expected)


def test_gradgradcheck() -> None:
    layer, x, spans = layer_and_data()
    with lapse.backend("fused"):
        assert torch.autograd.gradgradcheck(
            lambda x, s: layer(x, timespans=s)[0],
            (x.requires_grad_(), spans.requires_grad_()),
            fast_mode=True,
        )


def test_double_backward_of_the_augmented_lstm() -> None:
    torch.manual_seed(0)
    layer, x = lapse.AugmentedLSTM(2, 5, dtype=torch.float64), torch.randn(3, 4, 2).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], (x,), fast_mode=True)


def test_backward_twice_through_a_retained_graph() -> None:
    layer, x, spans = layer_and_data()
    with lapse.backend("fused"):
        loss = layer(x, timespans=spans)[0].square().sum()
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(layer.parameters()))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_a_changed_parameter_is_noticed() -> None:
    layer, x, spans = layer_and_data()
    loss = layer(x, timespans=spans)[0].sum()
    with torch.no_grad():
        next(layer.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_of_a_functional_call() -> None:
    layer, x, spans = layer_and_data()
    other = {n: (p + 0.1).detach().requires_grad_() for n, p in layer.named_parameters()}
    results = []
    for backend in ("reference", "auto"):
        with lapse.backend(backend):
            output, _ = torch.func.functional_call(layer, other, (x,), {"timespans": spans})
        grads = torch.autograd.grad(output.sum(), list(other.values()), create_graph=True)
        results.append([output, *grads])
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected)


def test_batched_gradients() -> None:
    layer, x, spans = layer_and_data()
    jacobians = []
    for backend in ("reference", "auto"):
        with lapse.backend(backend):
            jacobians.append(
                torch.autograd.functional.jacobian(
                    lambda x: layer(x, timespans=spans)[0][:, -1], x, vectorize=True
                )
            )
    torch.testing.assert_close(jacobians[1], jacobians[0])


# Some transforms load torch's own TorchScript decompositions, which torch now warns about.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_function_transforms_take_the_reference() -> None:
    layer, x, spans = layer_and_data()

    def last(x: Tensor) -> Tensor:
        return layer(x, timespans=spans)[0][:, -1].sum(0)

    expected = torch.autograd.functional.jacobian(last, x)
    torch.testing.assert_close(torch.func.jacrev(last)(x), expected)
    torch.testing.assert_close(torch.func.jacfwd(last)(x), expected)
    tangent = torch.randn_like(x)
    _, pushed = torch.func.jvp(last, (x,), (tangent,))
    torch.testing.assert_close(pushed, torch.einsum("ijkl,jkl->i", expected, tangent))
    each = torch.func.vmap(lambda row, s: layer(row, timespans=s)[0])(x.unsqueeze(1), spans.unsqueeze(1))
    torch.testing.assert_close(each.squeeze(1), layer(x, timespans=spans)[0])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_forward_mode_takes_the_reference() -> None:
    layer, x, spans = layer_and_data()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(layer(dual, timespans=spans)[0]).tangent
    _, expected = torch.func.jvp(lambda x: layer(x, timespans=spans)[0], (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, expected)


def test_checkpointing_works_on_top() -> None:
    layer, x, spans = layer_and_data()
    x.requires_grad_()
    expected = torch.autograd.grad(layer(x, timespans=spans)[0].sum(), x)
    output = torch.utils.checkpoint.checkpoint(lambda x: layer(x, timespans=spans)[0], x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], expected[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.to(torch.bfloat16),
        lambda c: setattr(c, "solver", Adaptive()),
        lambda c: setattr(c, "solver", lapse.Adjoint(FixedStep(RK4, 3))),
        lambda c: c.field.register_forward_hook(lambda *a: None),
    ],
    ids=["bfloat16", "adaptive", "adjoint", "hook"],
)
def test_not_covered(change: object) -> None:
    cell = recurrent.CTRNNCell(2, 3)
    change(cell)  # type: ignore[operator]
    weight = cell.field.scale
    x, spans = torch.randn(4, 2).to(weight), torch.rand(4).to(weight)
    state = (torch.zeros(4, 3).to(weight),)
    assert Fused()(cell, x, state, spans, in_steps([4])) is None
    with lapse.backend("auto"):
        output, _ = unroll(cell, x, state, spans, in_steps([4]))
    assert output.shape == (4, 3)
    with lapse.backend("fused"), pytest.raises(RuntimeError, match="no fused kernel covers"):
        unroll(cell, x, state, spans, in_steps([4]))


def test_a_subclass_takes_the_reference() -> None:
    class Other(recurrent.CTRNNCell):
        pass

    cell = Other(2, 3)
    with lapse.backend("fused"), pytest.raises(RuntimeError, match="no fused kernel covers"):
        unroll(cell, torch.randn(4, 2), (torch.zeros(4, 3),), torch.rand(4), in_steps([4]))


def test_a_cell_with_a_program_can_be_copied_and_saved(tmp_path: Path) -> None:
    layer, x, spans = layer_and_data()
    output, _ = layer(x, timespans=spans)
    twin = copy.deepcopy(layer)
    torch.save(layer, tmp_path / "layer.pt")
    loaded = torch.load(tmp_path / "layer.pt", weights_only=False)
    for other in (twin, loaded):
        assert torch.equal(other(x, timespans=spans)[0], output)


def test_every_fused_cell_has_a_program() -> None:
    for cell_type in SOLVERS:
        assert program_of(cell_type(2, 3))[0].program is not None


def test_workspaces_come_back() -> None:
    layer, x, spans = layer_and_data()
    for _ in range(3):
        layer(x, timespans=spans)[0].sum().backward()
    gc.collect()
    idle = sum(size * len(idle) for size, idle in workspace._idle.items())
    for _ in range(3):
        layer(x, timespans=spans)[0].sum().backward()
    gc.collect()
    assert sum(size * len(idle) for size, idle in workspace._idle.items()) == idle


def test_recompute_wants_a_whole_number() -> None:
    with pytest.raises(ValueError, match="every must be a whole number"):
        recompute(every=0)


@pytest.mark.parametrize("layout", ["rows first", "steps first", "packed", "unbatched", "flat"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_layout_is_read_and_written_where_it_lies(layout: str, bidirectional: bool) -> None:
    """Against the reference, padding full of NaN, on workspaces that hold NaN from their last use."""
    torch.manual_seed(0)
    layer = lapse.ODELSTM(2, 5, form="driven", bidirectional=bidirectional, dtype=torch.float64)
    layer.batch_first = layout != "steps first"
    lengths = [7] if layout == "unbatched" else [3, 7, 1, 5, 7]
    x, spans = torch.randn(len(lengths), 9, 2).double(), torch.rand(len(lengths), 9).double()
    for row, n in enumerate(lengths):
        x[row, n:], spans[row, n:] = torch.nan, torch.nan
    if layout == "steps first":
        x, spans = x.transpose(0, 1).contiguous(), spans.transpose(0, 1).contiguous()
    if layout == "unbatched":
        x, spans = x[0], spans[0]
    results = []
    for backend in ("fused", "reference"):
        leaves = [x.clone().requires_grad_(), spans.clone().requires_grad_()]
        if layout == "packed":
            pack = [pack_padded_sequence(t, lengths, batch_first=True, enforce_sorted=False) for t in leaves]
            with lapse.backend(backend):
                output, final = layer(pack[0], timespans=pack[1])
            output = output.data
        elif layout == "flat":
            flat = [torch.cat([t[row, :n] for row, n in enumerate(lengths)]) for t in leaves]
            with lapse.backend(backend):
                output, final = layer(flat[0], timespans=flat[1], rows=Rows.flat(lengths))
        else:
            with lapse.backend(backend):
                output, final = layer(leaves[0], timespans=leaves[1], lengths=lengths)
        loss = (output * torch.arange(output.numel()).view_as(output)).sum() + sum(s.sum() for s in final)
        grads = torch.autograd.grad(loss, [*leaves, *layer.parameters()])
        results.append([output.detach(), *final, *grads])
        del output, final, loss
        for size in (1, 10, 100, 1_000, 10_000):
            workspace.borrow(size, torch.float64).fill_(torch.nan)
    for ours, expected in zip(*results, strict=True):
        assert bool(expected.isfinite().all())
        torch.testing.assert_close(ours, expected)


ODD = [
    lapse.Tableau("unused slope", 2, a=((), (0.5,), (1.0, 0.0)), b=(0.25, 0.5, 0.25)),
    lapse.Tableau("unused stage", 2, a=((), (0.5,), (1.0, 0.0)), b=(0.5, 0.0, 0.5)),
    lapse.Tableau("unused chain", 2, a=((), (0.5,), (0.0, 1.0), (1.0, 0.0, 0.0)), b=(0.5, 0.0, 0.0, 0.5)),
    lapse.Tableau(
        "chain in the last step", 1, a=((), (0.5,), (0.0, 0.5), (0.5, 0.0, 0.0)), b=(0.5, 0.25, 0.0, 0.25)
    ),
    lapse.Tableau("no weights", 1, a=((), (0.0,)), b=(0.5, 0.5)),
]


@pytest.mark.parametrize("tableau", ODD, ids=lambda t: t.name)
@pytest.mark.parametrize("cell_type", [recurrent.JumpODERNNCell, recurrent.CTRNNCell])
def test_tableaux_of_ones_own(
    tableau: lapse.Tableau, cell_type: type[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    cell = make(cell_type, FixedStep(tableau, 2), 2, 5)
    inputs, sizes = arguments(cell, [4, 4, 2], torch.float64)
    cell = cell.double()
    weights = [torch.randn(len(inputs[0]), 5).double(), *(torch.randn_like(s) for s in inputs[2:])]
    dirty = passes.borrow
    monkeypatch.setattr(passes, "borrow", lambda size, dtype: dirty(size, dtype).fill_(torch.nan))
    actual = everything("fused", cell, inputs, sizes, weights)
    if tableau.name == "no weights":  # the reference has no notion of it; it is Euler twice over
        cell.solver = FixedStep(EULER, 2)
    for name, expected in everything("reference", cell, inputs, sizes, weights).items():
        torch.testing.assert_close(actual[name], expected, msg=name)


def test_a_change_of_threads_between_forward_and_backward() -> None:
    torch.manual_seed(0)
    layer, x = lapse.ODELSTM(4, 32), torch.randn(100, 20, 4, requires_grad=True)
    grads = []
    for forward, backward in ((1, 1), (2, 1), (1, 2)):
        with on_threads(forward):
            output, _ = layer(x)
        with on_threads(backward):
            grads.append(torch.autograd.grad(output.square().sum(), x)[0])
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [lapse.PhasedLSTM(2, 3), lapse.GRUD(2, 3)], ids=["phased-lstm", "gru-d"])
def test_double_backward_without_gradients_of_the_gaps(layer: lapse.RNN) -> None:
    torch.manual_seed(0)
    x, results = torch.randn(3, 4, 2, requires_grad=True), []
    for backend in ("fused", "reference"):
        with lapse.backend(backend):
            loss = layer(x)[0].square().sum()
        first = torch.autograd.grad(loss, list(layer.parameters()), create_graph=True, allow_unused=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first if g is not None), x)
        results.append(second[0])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_rows_that_the_walk_does_not_have_are_the_references_to_refuse() -> None:
    cell = make(recurrent.CTRNNCell, None, 2, 3)
    (x, spans, h), sizes = arguments(cell, [3, 2], torch.float32)
    for given in ((x[:3], (h,), spans), (x, (h,), spans[:2]), (x, (h[:1],), spans)):
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            unroll(cell, *given, in_steps(sizes))


def test_more_registers_than_sixteen_bits_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sub-steps need them; here they are only counted, which takes no time."""
    made = Program.__init__

    def crowded(self: Program) -> None:
        made(self)
        self.register(1, 1 << 16)

    monkeypatch.setattr(Program, "__init__", crowded)
    torch.manual_seed(0)
    check_parity(make(recurrent.CTRNNCell, FixedStep(RK4, 3), 2, 5), [3, 2], torch.float64, threads=[1])


@pytest.mark.slow
def test_thousands_of_sub_steps() -> None:
    torch.manual_seed(0)
    cell = make(recurrent.CTRNNCell, FixedStep(RK4, 6000), 2, 3)
    check_parity(cell, [2, 1], torch.float64, threads=[1])


def test_recompute_with_more_steps_than_there_are() -> None:
    layer, x, spans = layer_and_data()
    with recompute(every=10**8):
        output, _ = layer(x, timespans=spans)
        output.sum().backward()
    assert output.shape == (3, 4, 5)


@pytest.mark.parametrize("hooks", ["checkpoint", "clone", "save on cpu"])
def test_what_was_saved_may_have_moved(hooks: str) -> None:
    """Hooks on saved tensors and checkpoints give other memory back than the forward pass wrote to."""
    torch.manual_seed(0)
    layer, other = lapse.ODELSTM(8, 8), lapse.ODELSTM(8, 8)
    x, spans = torch.randn(4, 5, 8), torch.rand(4, 5)
    around = {
        "checkpoint": nullcontext(),
        "clone": torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t),
        "save on cpu": torch.autograd.graph.save_on_cpu(),
    }[hooks]

    def run(x: Tensor) -> Tensor:
        output: Tensor = layer(x, timespans=spans)[0]
        return output

    expected = torch.autograd.grad(run(x).square().sum(), list(layer.parameters()))
    with around:
        output = checkpoint(run, x, use_reentrant=False) if hooks == "checkpoint" else run(x)
    alive = [other(x, timespans=spans)[0] for _ in range(3)]
    actual = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
    assert len(alive) == 3
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)


@pytest.mark.parametrize("which", [0, 1])
def test_the_gradient_of_one_state_alone(which: int) -> None:
    torch.manual_seed(0)
    layer = lapse.ODELSTM(2, 5, form="driven", dtype=torch.float64)
    x, start = torch.randn(3, 4, 2).double(), torch.randn(2, 1, 3, 5).double()
    results = []
    for backend in ("fused", "reference"):
        states = [s.clone().requires_grad_(i == which) for i, s in enumerate(start)]
        with lapse.backend(backend):
            output, _ = layer(x, tuple(states))
        results.append(torch.autograd.grad(output.square().sum(), states[which])[0])
    torch.testing.assert_close(*results)


def test_a_mean_that_is_learned_takes_the_reference() -> None:
    layer, x = lapse.GRUD(2, 3), torch.randn(2, 4, 2)
    layer.cells[0].input_mean.requires_grad_()
    with lapse.backend("fused"), pytest.raises(RuntimeError, match="no fused kernel"):
        layer(x)
    assert torch.autograd.grad(layer(x)[0].sum(), layer.cells[0].input_mean)[0].shape == (2,)


def test_weights_that_are_not_finite_show_at_the_first_step() -> None:
    """Products with a state of zeros are left out, but zero times NaN is NaN."""
    layer, x = lapse.ODELSTM(2, 3, form="driven"), torch.randn(2, 1, 2)
    with torch.no_grad():
        layer.cells[0].field.gates.weight_hh[1, 1] = torch.nan
    for backend in ("fused", "reference"):
        with lapse.backend(backend), pytest.raises(lapse.SolverError, match="not finite"):
            layer(x)


def test_inference_leaves_nothing_behind() -> None:
    x = torch.randn(3, 4, 2)
    layer = lapse.ODELSTM(2, 3, solver=Adaptive())
    with torch.inference_mode():
        layer(x)
    layer(x)[0].sum().backward()


@pytest.mark.parametrize("cell_type", list(SOLVERS), ids=lambda c: c.__name__)
def test_cells_can_be_collected(cell_type: type[Cell]) -> None:
    """Also one that its own hooks or parts refer to."""
    layer = lapse.RNN(2, 3, cell=cell_type)
    cell = layer.cells[0]
    layer(torch.randn(2, 2, 2))
    with torch.no_grad():
        x = cell.step_input(torch.randn(1, 2), None)
        kernels.step(cell, x, cell.initial_state(1), torch.ones(1))
    for part in cell.modules():
        part.owner = [cell]
    for parameter in cell.parameters():
        parameter.register_hook(lambda grad, cell=cell: grad)
    gone = weakref.ref(cell)
    del cell, layer, part, parameter
    gc.collect()
    assert gone() is None


def test_a_cell_of_another_width_is_the_references_to_refuse() -> None:
    layer = lapse.RNN(2, 3, cell=lambda inputs, hidden: recurrent.ODELSTMCell(inputs + 3, hidden))
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.randn(2, 4, 2))


def test_a_negated_view_is_read_as_its_values() -> None:
    layer = lapse.ODELSTM(2, 3)
    x = torch.randn(2, 4, 2, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(layer(x)[0], layer(x.resolve_neg())[0])


def test_nothing_is_taped_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = lapse.ODELSTM(2, 16), torch.randn(8, 500, 2)
    sizes: list[int] = []
    borrowed = passes.borrow
    monkeypatch.setattr(passes, "borrow", lambda size, dtype: sizes.append(size) or borrowed(size, dtype))
    with torch.no_grad():
        layer(x)
    without = max(sizes)
    layer(x)
    assert max(sizes) > 4 * without


def test_with_another_torch_every_call_takes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "KNOWN", False)
    layer, x = lapse.AugmentedLSTM(2, 3), torch.randn(2, 4, 2)
    with lapse.backend("fused"), pytest.raises(RuntimeError, match="no fused kernel"):
        layer(x)
    output, _ = layer(x)
    with lapse.backend("reference"):
        assert torch.equal(layer(x)[0], output)


def test_denormal_gradients_are_zeros_and_torch_keeps_its_own():
    """A gradient that vanishes passes through the denormal range, in which every product is many times slower."""
    layer = lapse.ODELSTM(2, 8, form="driven")
    x = torch.randn(3, 40, 2, requires_grad=True)
    with lapse.backend("fused"):
        (layer(x, timespans=torch.rand(3, 40))[0][:, -1].sum() * 1e-36).backward()
    gradient = x.grad
    assert gradient is not None
    smallest = gradient[gradient != 0].abs().min()
    assert smallest >= torch.finfo(torch.float32).tiny
    assert (gradient == 0).any()
    assert float(torch.tensor(1e-30) * 1e-10) > 0
