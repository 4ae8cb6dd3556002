"""Promises about layers as modules of torch: stacks, dropout, copies, seeds, transforms and graphs."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor

from lapse.kernels import backend
from lapse.recurrent import RNN
from lapse.testing.subject import Make, assert_same, build, example, raises, without_mask


def check_two_layers_are_one_above_the_other(make: Make) -> None:
    """A stack gives what its layers give one after the other."""
    layer, (input, timespans) = build(make, num_layers=2), example()

    def resized(_: int, hidden_size: int, **options: Any) -> RNN:
        return without_mask(make)(
            hidden_size, hidden_size, **options
        )  # above the first layer nothing is missing

    lower, upper = build(make), build(resized)
    lower.cells[0].load_state_dict(layer.cells[0].state_dict())
    upper.cells[0].load_state_dict(layer.cells[1].state_dict())
    middle, _ = lower(input, timespans=timespans)
    assert_same(upper(middle, timespans=timespans)[0], layer(input, timespans=timespans)[0])


def check_dropout_acts_between_layers_in_training_only(make: Make) -> None:
    """Dropout is random in training and absent in evaluation."""
    layer, (input, timespans) = build(make, num_layers=2, dropout=0.9), example()
    first, second = (layer(input, timespans=timespans)[0] for _ in range(2))
    assert not torch.equal(first, second), "dropout does nothing in training"
    layer.eval()
    dropped = layer(input, timespans=timespans)[0]
    layer.dropout = 0.0
    assert torch.equal(layer(input, timespans=timespans)[0], dropped), "dropout acts in evaluation"


def check_state_dict_and_deepcopy_round_trip(make: Make) -> None:
    """All that decides the outputs is in the state dict, and a copy is independent."""
    layer, (input, timespans) = build(make, num_layers=2), example()
    output, _ = layer(input, timespans=timespans)
    restored = build(make, num_layers=2, seed=9)
    restored.load_state_dict(layer.state_dict())
    assert torch.equal(restored(input, timespans=timespans)[0], output), "the state dict is not all there is"
    assert torch.equal(copy.deepcopy(layer)(input, timespans=timespans)[0], output), (
        "a copy gives something else"
    )


def check_same_seed_same_result(make: Make) -> None:
    """Weights are a function of torch's seed."""
    input, timespans = example()
    outputs = [build(make, seed=seed)(input, timespans=timespans)[0] for seed in (5, 5, 6)]
    assert torch.equal(outputs[0], outputs[1]), "the same seed gives other weights"
    assert not torch.equal(outputs[0], outputs[2]), "another seed gives the same weights"


def check_function_transforms(make: Make) -> None:
    """torch.func: a Jacobian and a vmap over rows agree with autograd and batching."""
    layer, (input, timespans) = build(make), example(rows=3, steps=3)

    def one(x: Tensor, gaps: Tensor) -> Tensor:
        output: Tensor = layer(x, timespans=gaps)[0]
        return output

    batched, _ = layer(input, timespans=timespans)
    assert_same(torch.func.vmap(one)(input, timespans), batched)
    jacobian = torch.func.jacrev(one)(input[0], timespans[0])
    with backend("reference"):
        expected = torch.autograd.functional.jacobian(lambda x: one(x, timespans[0]), input[0])
    assert_same(jacobian, expected)
    rows = torch.func.vmap(torch.func.jacrev(one))(input, timespans)
    assert_same(rows[0], expected)


def check_graph_capture(make: Make) -> None:
    """torch.compile traces the whole layer into one graph, and its results are the eager ones."""
    layer, (input, timespans) = build(make), example(rows=2, steps=2)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert_same(compiled(input, timespans=timespans)[0], layer(input, timespans=timespans)[0])
    with warnings.catch_warnings():
        # The loop over ragged rows is not part of the graph; torch wonders about what comes out of it.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        ragged, _ = torch.compile(layer, backend="eager")(input, timespans=timespans, lengths=[2, 1])
    assert_same(ragged, layer(input, timespans=timespans, lengths=[2, 1])[0])


def check_tracing_is_refused(make: Make) -> None:
    """A traced loop would be silently wrong at another length."""
    layer, (input, _) = build(make), example()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with raises(RuntimeError, r"torch\.jit\.trace would record the loop over exactly these steps"):
            torch.jit.trace(layer, (input,))
