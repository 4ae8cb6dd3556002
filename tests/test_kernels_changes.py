"""Which changes of a cell the fused path follows, and which ones it leaves to the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import lapse
from lapse import kernels, recurrent
from lapse.kernels import native
from lapse.recurrent import Cell, Gates
from lapse.recurrent.cell import LSTMGates
from lapse.recurrent.fields import DampedTanhField, DrivenCell, MLPField
from lapse.solvers import Exponential, FixedStep

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")

Change = Callable[[Cell], object]


def answers(cell: Cell) -> list[Tensor]:
    """What a layer with this cell says, with gradients, and what one step says, without."""
    torch.manual_seed(1)
    layer, x = lapse.RNN(2, 3, cell=lambda *sizes: cell), torch.randn(2, 4, 2, requires_grad=True)
    output, _ = layer(x)
    (grad,) = torch.autograd.grad(output.square().sum(), x)
    with torch.no_grad():
        step, _ = kernels.step(cell, x[:, 0].contiguous(), cell.initial_state(2), torch.ones(2))
    return [output.detach(), grad, step]


def covered(cell: Cell) -> bool:
    with lapse.backend("fused"):
        try:
            answers(cell)
        except RuntimeError:
            return False
    return True


def check(cell: Cell, change: Change, used: bool, fused: bool) -> None:
    """After the change the default path gives the answers of the reference, which take the change into account."""
    before = answers(cell) if used else None
    change(cell)
    with lapse.backend("reference"):
        expected = answers(cell)
    for ours, theirs in zip(answers(cell), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert covered(cell) == fused
    if before is not None:
        assert not torch.equal(before[0], expected[0])


def double(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return 2 * output


def move_on(
    self: Cell, input: Tensor, state: tuple[Tensor], timespan: Tensor
) -> tuple[Tensor, tuple[Tensor]]:
    return state[0] + input.sum(), (state[0] + input.sum(),)


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


class Mine(DampedTanhField):
    def source(self, state: Tensor, drive: Tensor) -> Tensor:
        return drive


def undamped(cell: Cell) -> None:
    other = recurrent.ODERNNCell(2, 3)
    cell.field, cell.solver = other.field, other.solver


FOLLOWED: dict[str, Change] = {
    "weights": lambda cell: [p.data.mul_(1.5) for p in cell.parameters()],
    "another parameter": lambda cell: setattr(cell.field, "scale", nn.Parameter(torch.full((3,), 2.0))),
    "loaded": lambda cell: cell.load_state_dict(recurrent.CTRNNCell(2, 3).state_dict()),
    "a part of the same class": lambda cell: setattr(cell, "field", recurrent.CTRNNCell(2, 3).field),
    "the solver": lambda cell: setattr(cell, "solver", FixedStep(steps=1)),
    "pruned for good": lambda cell: prune.remove(
        prune.random_unstructured(cell.field.gates, "weight_hh", 4), "weight_hh"
    ),
}
LEFT: dict[str, Change] = {
    "step": lambda cell: setattr(cell, "step", functools.partial(move_on, cell)),
    "a method of a part": lambda cell: setattr(cell.field.gates, "recur", lambda state: 2 * state),
    "hook": lambda cell: cell.field.gates.register_forward_hook(double),
    "pruned gates": lambda cell: prune.random_unstructured(cell.field.gates, "weight_hh", 4),
    "pruned field": lambda cell: prune.random_unstructured(cell.field, "scale", 2),
    "parametrized": lambda cell: nn.utils.parametrize.register_parametrization(
        cell.field.gates, "weight_ih", Half()
    ),
    "another class": undamped,
    "a class of one's own": lambda cell: setattr(cell.field, "__class__", Mine),
}


@pytest.mark.parametrize("used", [False, True], ids=["before use", "after use"])
@pytest.mark.parametrize("name", FOLLOWED)
def test_followed(name: str, used: bool) -> None:
    torch.manual_seed(0)
    check(recurrent.CTRNNCell(2, 3), FOLLOWED[name], used, fused=True)


@pytest.mark.parametrize("used", [False, True], ids=["before use", "after use"])
@pytest.mark.parametrize("name", LEFT)
def test_left_to_the_reference(name: str, used: bool) -> None:
    torch.manual_seed(0)
    check(recurrent.CTRNNCell(2, 3), LEFT[name], used, fused=False)


@pytest.mark.parametrize("used", [False, True], ids=["before use", "after use"])
@pytest.mark.parametrize(
    "setting",
    [torch.tensor(0.5), nn.Parameter(torch.tensor(0.5)), nn.Buffer(torch.tensor(0.5))],
    ids=["tensor", "parameter", "buffer"],
)
def test_a_setting_that_is_a_tensor_is_left_to_the_reference(setting: Tensor, used: bool) -> None:
    """It may be learned, and may change without anyone setting it."""

    def change(cell: Cell) -> None:
        if hasattr(cell, "ratio_on"):
            del cell.ratio_on
        cell.ratio_on = setting

    torch.manual_seed(0)
    check(recurrent.PhasedLSTMCell(2, 3), change, used, fused=False)


def test_attributes_of_equal_count() -> None:
    """One goes, another comes."""
    cell = recurrent.CTRNNCell(2, 3)
    cell.field.gates.spare = None

    def swap(cell: Cell) -> None:
        del cell.field.gates.spare
        cell.field.gates.recur = lambda state: 2 * state

    check(cell, swap, used=True, fused=False)


@pytest.mark.parametrize("used", [False, True], ids=["before use", "after use"])
def test_a_weight_that_is_no_parameter(used: bool) -> None:
    cell = recurrent.CTRNNCell(2, 3)
    if used:
        answers(cell)
    del cell.field.scale
    cell.field.scale = torch.full((3,), 2.0)
    with lapse.backend("reference"):
        expected = answers(cell)
    for ours, theirs in zip(answers(cell), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def wrapped(kind: type, name: str) -> Callable[..., object]:
    """A function that calls itself what the one it replaces is called, as decorators do."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def function(*arguments: Tensor) -> Tensor:
        result: Tensor = original(*arguments)
        return result * 2

    return function


PATCHES: list[tuple[type, str, Callable[..., object]]] = [
    (DrivenCell, "step", move_on),
    (recurrent.CTRNNCell, "step", move_on),
    (DampedTanhField, "semilinear", lambda self, state, drive: (drive, torch.ones_like(drive))),
    (DampedTanhField, "source", wrapped(DampedTanhField, "source")),
    (Gates, "recur", lambda self, state: 2 * state),
    (Gates, "forward", wrapped(Gates, "forward")),
    (Exponential, "_step", lambda self, f, y, h, drive: y + drive[0].sum()),
]


@pytest.mark.parametrize("used", [False, True], ids=["before use", "after use"])
@pytest.mark.parametrize(
    ("kind", "name", "function"), PATCHES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_function_replaced_in_a_whole_class(
    kind: type, name: str, function: Callable[..., object], used: bool
) -> None:
    torch.manual_seed(0)
    cell = recurrent.CTRNNCell(2, 3)
    before = answers(cell) if used else None
    with patch.object(kind, name, function):
        check(cell, lambda cell: None, used=False, fused=False)
        assert before is None or not torch.equal(answers(cell)[0], before[0])
    assert covered(recurrent.CTRNNCell(2, 3))
    if used:
        assert covered(cell)


def test_a_call_of_all_modules_that_was_replaced() -> None:
    cell, call = recurrent.CTRNNCell(2, 3), nn.Module.__call__
    with patch.object(
        nn.Module, "__call__", lambda self, *arguments, **named: call(self, *arguments, **named)
    ):
        assert not covered(cell)
    assert covered(recurrent.CTRNNCell(2, 3))


@pytest.mark.parametrize(
    "cell_type", [recurrent.CTRNNCell, recurrent.ODELSTMCell, recurrent.GRUODECell, recurrent.RNNDecayCell]
)
def test_pruned_weights_are_trained_and_stay_pruned(cell_type: type[Cell]) -> None:
    """All that a cell has, its own vectors included: hooks must run although cells and fields are not called."""
    torch.manual_seed(0)
    layer, x = lapse.RNN(2, 8, cell=cell_type), torch.randn(2, 4, 2)
    modules = [(m, n) for m in layer.modules() for n, _ in list(m.named_parameters(recurse=False))]
    prune.global_unstructured(modules, prune.RandomUnstructured, amount=0.3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    outputs = []
    for _ in range(3):
        output, _ = layer(x)
        optimizer.zero_grad()
        output.square().sum().backward()
        optimizer.step()
        outputs.append(output.detach())
    assert not torch.equal(outputs[0], outputs[1])
    now, _ = layer(x)
    for module, name in modules:
        prune.remove(module, name)
    torch.testing.assert_close(layer(x)[0], now)
    assert any(bool((getattr(module, name) == 0).any()) for module, name in modules)


@pytest.mark.parametrize("kind", ["pre", "forward"])
def test_hooks_on_gates_see_every_use(kind: str) -> None:
    seen: list[nn.Module] = []
    cell = recurrent.CTRNNCell(2, 3)
    register = (
        cell.field.gates.register_forward_pre_hook
        if kind == "pre"
        else cell.field.gates.register_forward_hook
    )
    register(lambda module, *rest: seen.append(module))
    lapse.RNN(2, 3, cell=lambda *sizes: cell)(torch.randn(2, 4, 2))
    assert len(seen) == 4 * (1 + 4)  # per step once for the input, and once per sub-step for the state
    cell.flow(cell.initial_state(2), torch.ones(2))
    assert len(seen) == 4 * (1 + 4) + 1 + 4


def test_gates_of_no_input_give_their_bias() -> None:
    gates = LSTMGates(2, 3, 1.0)
    assert torch.equal(gates.rest(torch.randn(4, 3)), gates.bias.expand(4, -1))


def test_state_sizes_that_lie_do_not_reach_the_library() -> None:
    """The library writes as much as the program says, whatever the cell says of itself."""
    cell, sizes = recurrent.CTRNNCell(2, 64), recurrent.Cell.state_sizes
    with patch.object(recurrent.Cell, "state_sizes", property(lambda self: (1,))):
        output, (h,) = kernels.unroll(cell, torch.randn(3, 2), None, torch.ones(3), lapse.Rows.padded(3, 1))
    assert output.shape == h.shape == (3, 64)
    assert recurrent.Cell.state_sizes is sizes


def test_a_hook_of_all_modules_takes_the_reference() -> None:
    layer, x = lapse.AugmentedLSTM(2, 3), torch.randn(2, 4, 2)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *arguments: None)
    try:
        with lapse.backend("fused"), pytest.raises(RuntimeError, match="no fused kernel"):
            layer(x)
    finally:
        handle.remove()
    with lapse.backend("fused"):
        layer(x)


def swap_field(cell: Cell) -> None:
    cell.field = recurrent.CTRNNCell(2, 3).field


def hook_gates(cell: Cell) -> None:
    cell.field.gates.register_full_backward_pre_hook(lambda module, grad: None)


def wide_input(cell: Cell) -> None:
    cell.field.gates.weight_ih = nn.Parameter(torch.randn(3, 2).t().contiguous().view(2, 3))


@pytest.mark.parametrize("change", [swap_field, hook_gates, wide_input])
def test_a_changed_cell_takes_the_reference(change: Change) -> None:
    layer, x = lapse.ODERNN(2, 3), torch.randn(2, 4, 2)
    layer(x)
    change(layer.cells[0])
    with lapse.backend("fused"), pytest.raises(RuntimeError, match="no fused kernel"):
        layer(x)


def test_a_part_that_is_not_the_librarys_own_takes_the_reference() -> None:
    class Relu(MLPField):
        def forward(self, state: Tensor) -> Tensor:
            return self.outer(torch.relu(self.inner(state)))

    class Half(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    x = torch.randn(2, 3, 3)
    other, wide, halved, wrong = (lapse.ODERNN(3, 4, form="jump") for _ in range(4))
    other.cells[0].field = Relu(4)
    wide.cells[0].field.inner, wide.cells[0].field.outer = torch.nn.Linear(4, 7), torch.nn.Linear(7, 4)
    torch.nn.utils.parametrize.register_parametrization(halved.cells[0].field.inner, "weight", Half())
    wrong.cells[0].field = torch.nn.Linear(4, 4)
    for layer in (other, wide, halved, wrong):
        output, _ = layer(x)
        with lapse.backend("reference"):
            assert torch.equal(layer(x)[0], output)
