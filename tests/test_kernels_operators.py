"""The registered operators: in compiled and exported graphs they give the values and gradients of eager calls."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lapse
from fuzz_kernels import CELLS
from lapse import Batch, Rows, Sequences, recurrent
from lapse.kernels import native, operators, passes, programs, recompute, text
from lapse.kernels.programs import program_of
from lapse.models import SequenceModel
from lapse.training import TrainConfig, fit

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")

ROWS = {
    "flat": Rows.flat([3, 1, 4]),
    "padded": Rows.padded(3, 5, [3, 1, 4]),
    "backward": Rows.flat([3, 1, 4]).reversed(),
}


def arguments(cell: recurrent.Cell, rows: Rows, *, keep: bool = True, start: bool = False) -> tuple[Any, ...]:
    """What `lapse::unroll` takes, for a cell and rows."""
    written, parts = program_of(cell)
    weights = written.tensors(parts)
    assert written.program is not None
    assert weights is not None
    x = cell.step_input(torch.randn(rows.size, cell.input_size), None)
    state = [torch.rand(rows.batch_size, n) for n in cell.state_sizes] if start else []
    learned = [w.detach().requires_grad_(keep and w.requires_grad) for w in weights]
    inputs = [t.requires_grad_(keep) for t in (x, torch.rand(rows.size), *state)] + learned
    layout = rows.lengths, rows.starts, rows.stride, rows.room, rows.backward
    program = text.write(written.program)
    sizes = operators.plan_sizes(program, x.dtype)
    kept = operators.kept_size(sizes, rows.batch_size, rows.size, 0) if keep else 0
    return program, inputs, len(state), *layout, kept, 0


def check_operator(given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    # Tapes have room that nothing is written to; here it is cleared, because the checks compare all of it.
    borrowed = passes.borrow
    monkeypatch.setattr(passes, "borrow", lambda size, dtype: borrowed(size, dtype).zero_())
    done = torch.library.opcheck(torch.ops.lapse.unroll.default, given)
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CELLS)
def test_the_operator_of_every_cell_is_what_torch_expects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    check_operator(arguments(CELLS[name](3, 5), ROWS["flat"]), monkeypatch)


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize(("keep", "start"), [(True, True), (False, False)])
def test_the_operator_in_every_layout(
    layout: str, keep: bool, start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    check_operator(arguments(recurrent.GRUDCell(3, 5), ROWS[layout], keep=keep, start=start), monkeypatch)


def test_a_program_comes_back_from_its_text() -> None:
    for kind in CELLS.values():
        program = program_of(kind(3, 5))[0].program
        assert program is not None
        assert text.write(text.read(text.write(program))) == text.write(program)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a[1].pop(), ValueError, "expected 10 tensors for this program, got 9"),
        (lambda a: a[1].__setitem__(0, torch.randn(8, 4)), ValueError, r"of shape \(8, 3\), got \(8, 4\)"),
        (lambda a: a[1].__setitem__(1, torch.rand(7)), ValueError, r"of shape \(8,\), got \(7,\)"),
        (lambda a: a[1].__setitem__(1, torch.rand(8).double()), TypeError, "all alike"),
        (lambda a: a[3].add_(9), ValueError, "rows reach beyond the tensors"),
    ],
)
def test_tensors_that_do_not_fit_the_program_are_refused(
    change: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    """The library would read and write beside them."""
    given = arguments(recurrent.ODELSTMCell(3, 5), Rows.flat([3, 1, 4]), keep=False)
    change(given)
    with pytest.raises(error, match=message):
        torch.ops.lapse.unroll(*given)


class Counted:
    """A backend of torch.compile that runs graphs through autograd's capture, and remembers them."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        self.graphs.append(graph)
        return aot_eager(graph, inputs)

    def operators(self) -> set[str]:
        return {str(node.target) for graph in self.graphs for node in graph.graph.nodes}


def compiled(module: nn.Module) -> tuple[Any, Counted]:
    torch.compiler.reset()
    counted = Counted()
    return torch.compile(module, backend=counted, fullgraph=True), counted


def check_same(module: nn.Module, ours: Any, call: Callable[[Any], Tensor]) -> None:
    """Values and gradients of a compiled module are those of the module itself."""
    learned = list(module.parameters())
    results = []
    for each in (ours, module):
        output = call(each)
        results.append([output, *torch.autograd.grad(output.square().sum(), learned, allow_unused=True)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected)


def padded(rows: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.arange(1, rows + 1).clamp(max=steps)
    return torch.randn(rows, steps, 3), torch.rand(rows, steps), lengths


LAYERS: dict[str, Callable[[], lapse.RNN]] = {
    "ode-lstm": lambda: lapse.ODELSTM(3, 6),
    "gru-d": lambda: lapse.GRUD(3, 6),
    "ct-lstm": lambda: lapse.CTLSTM(3, 6, 2, bidirectional=True),
}


def test_what_is_kept_must_have_room_for_the_backward_pass() -> None:
    """A graph that torch has stored may have been made with a library whose records were smaller."""
    *given, kept, every = arguments(recurrent.ODELSTMCell(3, 5), Rows.flat([3, 1, 4]))
    with pytest.raises(ValueError, match=f"cannot keep what the backward pass needs in {kept - 1} elements"):
        torch.ops.lapse.unroll(*given, kept - 1, every)
    assert len(torch.ops.lapse.unroll(*given, kept, every)[-1]) == kept


@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_layer_with_ragged_lengths_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    ours, counted = compiled(layer)
    for rows, steps in ((4, 5), (3, 7), (6, 2), (2, 9)):
        x, gaps, lengths = padded(rows, steps)
        check_same(layer, ours, lambda f: f(x, timespans=gaps, lengths=lengths)[0])  # noqa: B023
    assert len(counted.graphs) <= 2  # one for the first shape, one for all others
    assert "lapse.unroll" in counted.operators()
    assert "tanh" not in " ".join(counted.operators())  # no step of a loop was traced


def test_compiled_layers_take_every_form_of_input() -> None:
    torch.manual_seed(0)
    layer = lapse.CTRNN(3, 6, batch_first=False)
    ours, _ = compiled(layer)
    check_same(layer, ours, lambda f: f(torch.ones(5, 4, 3))[0])
    check_same(layer, ours, lambda f: f(torch.ones(5, 3))[0])
    check_same(layer, ours, lambda f: f(torch.ones(8, 3), rows=Rows.flat([5, 1, 2]))[0])
    state = torch.rand(1, 4, 6)
    check_same(layer, ours, lambda f: f(torch.ones(5, 4, 3), state)[1])


def sequences(missing: float = 0.0, *, per_step: bool = False) -> Sequences:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, 30)
    values = [random.standard_normal((n, 3)) for n in lengths]
    values = [np.where(random.random(v.shape) < missing, np.nan, v) for v in values]
    times = [random.exponential(1, n).cumsum() for n in lengths]
    targets = (
        [random.standard_normal(n) for n in lengths] if per_step else random.integers(0, 2, len(lengths))
    )
    return Sequences.from_arrays(values, times, targets=targets, per_step=per_step)


MODELS: dict[str, tuple[Sequences, dict[str, Any]]] = {
    "ode-lstm": (sequences(), {}),
    "gru-d": (sequences(0.3), {"pooling": "last+mean+max+attention", "summaries": True}),
    "ct-lstm": (sequences(per_step=True), {"readout": "mlp", "readout_input": True}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_is_one_graph(name: str) -> None:
    torch.manual_seed(0)
    data, settings = MODELS[name]
    model = SequenceModel.for_data(data, model=name, hidden_size=6, **settings)
    ours, counted = compiled(model)
    for index in ([0, 1, 2, 3], [4, 5], list(range(20)), [6, 7, 8]):
        check_same(model, ours, lambda f: f(data.batch(index)))  # noqa: B023
    assert len(counted.graphs) <= 2
    assert "lapse.unroll" in counted.operators()


def test_a_changed_setting_makes_a_new_graph() -> None:
    layer = lapse.CTRNN(3, 6, solver="rk4")
    ours, counted = compiled(layer)
    x = torch.randn(2, 4, 3)
    check_same(layer, ours, lambda f: f(x)[0])
    layer.cells[0].solver = lapse.FixedStep(lapse.EULER, 1)
    check_same(layer, ours, lambda f: f(x)[0])
    assert len(counted.graphs) == 2


def test_what_the_operator_does_not_cover_is_traced_as_a_loop() -> None:
    class Other(recurrent.RNNDecayCell):
        pass

    x = torch.randn(2, 2, 3)
    for layer in (lapse.RNN(3, 6, cell=Other), lapse.RNNDecay(3, 6).bfloat16()):
        ours, counted = compiled(layer)
        check_same(layer, ours, lambda f: f(x.to(next(layer.parameters())))[0])  # noqa: B023
        assert "lapse.unroll" not in counted.operators()
    layer = lapse.RNNDecay(3, 6)
    ours, counted = compiled(layer)
    with lapse.backend("reference"):
        check_same(layer, ours, lambda f: f(x)[0])
    assert "lapse.unroll" not in counted.operators()


def test_compiled_calls_without_gradients_keep_nothing() -> None:
    layer, x = lapse.CTRNN(3, 6), torch.randn(2, 4, 3)
    ours, counted = compiled(layer)
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], layer(x)[0])
    (call,) = [node for node in counted.graphs[0].graph.nodes if str(node.target) == "lapse.unroll"]
    assert call.args[-2:] == (False, 0)


def test_recomputation_holds_in_a_compiled_graph() -> None:
    torch.manual_seed(0)
    layer, x, lengths = lapse.ODELSTM(3, 6), torch.randn(4, 9, 3), torch.tensor([9, 2, 5, 4])
    ours, counted = compiled(layer)
    with recompute(every=4):
        check_same(layer, ours, lambda f: f(x, lengths=lengths)[0])
    (call,) = [node for node in counted.graphs[0].graph.nodes if str(node.target) == "lapse.unroll"]
    assert call.args[-1] == 4


def test_a_change_of_threads_between_the_passes_of_a_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "SMALL_CALL", -1)
    torch.manual_seed(0)
    layer, x = lapse.ODELSTM(3, 6), torch.randn(100, 4, 3)
    ours, _ = compiled(layer)
    before, grads = torch.get_num_threads(), []
    try:
        for forward, backward in ((1, 1), (2, 1), (1, 2)):
            torch.set_num_threads(forward)
            loss = ours(x)[0].square().sum()
            torch.set_num_threads(backward)
            grads.append(torch.autograd.grad(loss, layer.cells[0].gates.weight_hh)[0])
    finally:
        torch.set_num_threads(before)
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0], rtol=1e-4, atol=1e-5)


def test_a_failed_solve_in_a_compiled_graph_names_its_row() -> None:
    layer = lapse.CTRNN(1, 4, solver=lapse.FixedStep(lapse.EULER, 400))
    gaps = torch.ones(3, 4)
    gaps[2, 1] = 1e6
    ours, _ = compiled(layer)
    with pytest.raises(lapse.SolverError, match="row 2, step 1: the state is not finite"):
        ours(torch.randn(3, 4, 1), timespans=gaps, lengths=torch.tensor([2, 4, 3]))


def test_lengths_that_cannot_be_end_in_an_error_in_a_compiled_graph() -> None:
    """There they cannot be looked at before."""
    layer = lapse.CTRNN(3, 6)
    ours, _ = compiled(layer)
    with pytest.raises(ValueError, match="rows reach beyond the tensors"):
        ours(torch.randn(2, 4, 3), lengths=torch.tensor([4, 100_000]))


def test_weights_can_be_given_with_the_call() -> None:
    torch.manual_seed(0)
    layer, x = lapse.ODELSTM(3, 6), torch.randn(2, 4, 3)
    other = {name: 0.5 * p.detach() for name, p in layer.named_parameters()}

    def call(x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, other, (x,))[0]
        return output

    with lapse.backend("fused"):
        output = call(x)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(x), output)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(other[name])
    torch.testing.assert_close(layer(x)[0], output)


class Outputs(nn.Module):
    """A layer as a function of tensors, to be exported."""

    def __init__(self, layer: lapse.RNN) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, timespans: Tensor, lengths: Tensor) -> Tensor:
        output: Tensor = self.layer(x, timespans=timespans, lengths=lengths)[0]
        return output


def export_layer(layer: lapse.RNN) -> Any:
    rows, steps = torch.export.Dim("rows"), torch.export.Dim("steps")
    shapes = {0: rows, 1: steps}, {0: rows, 1: steps}, {0: rows}
    return torch.export.export(Outputs(layer), padded(3, 4), dynamic_shapes=shapes)


@pytest.mark.parametrize("used", [False, True])
def test_an_exported_layer_takes_any_number_of_rows_and_steps(used: bool) -> None:
    """Whether or not the layer was called before; and it is as fast as it was afterwards."""
    torch.manual_seed(0)
    layer = lapse.CTLSTM(3, 6, bidirectional=True).eval()
    if used:
        layer(torch.ones(2, 3, 3))
    program = export_layer(layer)
    for given in (padded(2, 9), padded(7, 3), padded(1, 5), padded(4, 1), padded(1, 1)):
        with lapse.backend("fused"):
            expected = Outputs(layer)(*given)
        torch.testing.assert_close(program.module()(*given), expected)


def test_a_layer_that_the_operator_does_not_cover_is_exported_for_one_length_only() -> None:
    class Other(recurrent.RNNDecayCell):
        pass

    with pytest.raises(RuntimeError, match=r"no fused kernel covers this call of Other.*without lengths"):
        export_layer(lapse.RNN(3, 6, cell=Other))


class Answers(nn.Module):
    """A model as a function of tensors, to be exported."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Tensor, timespans: Tensor, lengths: Tensor) -> Tensor:
        rows = Rows.flat(lengths, values.shape[0])
        output: Tensor = self.model(
            Batch(values, timespans, timespans, rows, None, None, None, None, lengths)
        )
        return output


def exported(model: SequenceModel, data: Sequences) -> Any:
    events, rows = torch.export.Dim("events"), torch.export.Dim("rows")
    batch = data.batch([0, 1, 2])
    shapes = {"values": {0: events}, "timespans": {0: events}, "lengths": {0: rows}}
    given = batch.values, batch.timespans, batch.lengths
    return torch.export.export(Answers(model.eval()), given, dynamic_shapes=shapes)


@pytest.mark.parametrize(
    "options", [{"pooling": "last"}, {"pooling": "last+mean+max+attention"}, {"summaries": True}]
)
def test_an_exported_model_takes_any_number_of_rows_and_events(
    options: dict[str, Any], tmp_path: Path
) -> None:
    data = sequences()
    torch.manual_seed(0)
    model = SequenceModel.for_data(data, model="ode-lstm", hidden_size=6, **options)
    programs._kinds.cache_clear()  # as in a process that has not called such a cell yet
    torch.export.save(exported(model, data), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    operations = {str(node.target) for node in program.graph.nodes}
    assert "lapse.unroll.default" in operations
    assert "aten.uniform_.default" not in operations, "the graph makes a cell of its own"
    for index in ([5], [3, 4], range(20)):
        batch = data.batch(index)
        answers = program.module()(batch.values, batch.timespans, batch.lengths)
        torch.testing.assert_close(answers, model(batch))
    with pytest.raises(RuntimeError, match="this graph was made for inference"):
        answers.sum().backward()


FRESH = """
import sys, torch, lapse
values, timespans, lengths, expected = torch.load(sys.argv[1] + "/data.pt")
path = sys.argv[1] + "/model.pt2"
run = {load}
torch.testing.assert_close(run(values, timespans, lengths), expected)
"""


def check_in_a_fresh_process(model: SequenceModel, batch: Batch, folder: Path, load: str) -> None:
    answers = model(batch).detach()
    torch.save((batch.values, batch.timespans, batch.lengths, answers), folder / "data.pt")
    subprocess.run([sys.executable, "-c", FRESH.format(load=load), str(folder)], check=True)


def test_an_exported_model_runs_in_a_fresh_process(tmp_path: Path) -> None:
    data = sequences()
    torch.manual_seed(0)
    model = SequenceModel.for_data(data, model="ode-lstm", hidden_size=6)
    torch.export.save(exported(model, data), tmp_path / "model.pt2")
    check_in_a_fresh_process(model, data.batch(range(20)), tmp_path, "torch.export.load(path).module()")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_package_of_a_trained_model_runs_in_a_fresh_process(tmp_path: Path) -> None:
    """With more rows, and longer ones, than the graph was made with."""
    data = sequences()
    torch.manual_seed(0)
    model = SequenceModel.for_data(data, model="ode-lstm", hidden_size=6)
    untrained = model(data.batch(range(20))).detach()
    fit(model, data, data, TrainConfig(epochs=3, batch_size=8), progress=False)
    assert not torch.allclose(model(data.batch(range(20))), untrained, atol=1e-3)
    assert data.lengths[3:20].max() > data.lengths[:3].max()
    package = str(tmp_path / "model.pt2")
    torch._inductor.aoti_compile_and_package(exported(model, data), package_path=package)
    check_in_a_fresh_process(
        model, data.batch(range(20)), tmp_path, "torch._inductor.aoti_load_package(path)"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_the_compilers_own_backend_gives_the_values_and_gradients_of_eager_calls(name: str) -> None:
    """In less than 20 seconds of processor time, whatever the length."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    torch.compiler.reset()
    begin = time.process_time()
    ours = torch.compile(layer, fullgraph=True)
    for rows, steps in ((4, 400), (6, 7)):
        x, gaps, lengths = padded(rows, steps)
        check_same(layer, ours, lambda f: f(x, timespans=gaps, lengths=lengths)[0])  # noqa: B023
    assert time.process_time() - begin < 2 * 20  # two graphs: for the first shape, and for any other
