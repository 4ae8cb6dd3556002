"""Promises about numbers: gradients, precision, and the same results on every path."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from lapse.kernels import backend, native
from lapse.kernels.programs import has_program
from lapse.testing.choice import needs
from lapse.testing.subject import (
    LENGTHS,
    Make,
    as_given,
    assert_same,
    build,
    example,
    first_cell,
    states,
)


def check_gradients(make: Make) -> None:
    """Gradients with respect to inputs, gaps and weights are those of difference quotients."""
    layer, (input, timespans) = build(make), example(rows=2, steps=3)
    input.requires_grad_()
    timespans += 0.05  # max(0, ·) and clocks have kinks at 0
    timespans.requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, gaps: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        swapped = dict(zip(names, weights, strict=True))
        output, h_n = torch.func.functional_call(layer, swapped, (x,), {"timespans": gaps, "lengths": [3, 2]})
        return (output, *states(h_n))

    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    with backend("reference"):
        assert torch.autograd.gradcheck(run, (input, timespans, *weights), atol=1e-6)


@needs("program")
def check_fused_and_reference_agree(make: Make) -> None:
    """The fused loop gives the outputs, states and every gradient of the reference loop, in both precisions."""
    if native.library() is None or not has_program(first_cell(make(1, 1))):
        return
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 3e-5)):
        for rows, steps, lengths in ((1, 1, [1]), (5, 6, LENGTHS), (70, 3, [3] * 40 + [1] * 30)):
            input, timespans = example(rows, steps, dtype=dtype)
            layer = build(make, dtype=dtype)
            results = [_everything(layer, input, timespans, lengths, name) for name in ("fused", "reference")]
            for name, ours in results[0].items():
                expected = results[1][name]
                error = float((ours - expected).abs().max() / (expected.abs().max() + 1e-2))
                where = f"{rows} rows of {steps} steps in {dtype}"
                assert error <= tolerance, f"{name} of the fused loop is off by {error:.1e}, {where}"


def _everything(
    layer: Any, input: Tensor, timespans: Tensor, lengths: list[int], path: Any
) -> dict[str, Tensor]:
    """Outputs, final states and all gradients, those of the states to start from among them."""
    x, gaps = input.clone().requires_grad_(), timespans.clone().requires_grad_()
    hx = [
        0.5 * torch.ones_like(s).requires_grad_() for s in states(layer.initial_state(len(x), dtype=x.dtype))
    ]
    with backend(path):
        output, h_n = layer(x, as_given(hx), timespans=gaps, lengths=lengths)
    generator = torch.Generator().manual_seed(2)
    ends = [output, *states(h_n)]
    pulls = [torch.randn(end.shape, generator=generator, dtype=torch.float64).to(end) for end in ends]
    leaves = {"input": x, "gaps": gaps} | {
        f"start of {n}": s for n, s in zip(layer.state_names, hx, strict=True)
    }
    leaves |= dict(layer.named_parameters())
    grads = torch.autograd.grad(ends, list(leaves.values()), pulls, allow_unused=True, materialize_grads=True)
    values = dict(zip(("output", *layer.state_names), (end.detach() for end in ends), strict=True))
    return values | {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}


def check_float32_follows_float64(make: Make) -> None:
    """In single precision the outputs are those of double precision, to 1e-4."""
    _follow(make, torch.float32, 1e-4)


@needs("tolerates_bfloat16")
def check_bfloat16_follows_float64(make: Make) -> None:
    """In 8 bits the outputs are still those of double precision, to 0.2."""
    _follow(make, torch.bfloat16, 0.2)


def _follow(make: Make, dtype: torch.dtype, tolerance: float) -> None:
    reference, (input, timespans) = build(make), example()
    expected, _ = reference(input, timespans=timespans)
    layer = copy.deepcopy(reference).to(dtype)
    output, _ = layer(input.to(dtype), timespans=timespans.to(dtype))
    assert output.dtype == dtype
    assert_same(output.double(), expected, rtol=0.0, atol=tolerance)


def check_bfloat16_is_finite(make: Make) -> None:
    """In 8 bits the layer runs, whatever becomes of its accuracy."""
    _follow(make, torch.bfloat16, 2.0)


def check_autocast(make: Make) -> None:
    """Where `nn.LSTM` runs under autocast, so does the layer, in the precision of its weights."""
    layer, (input, timespans) = build(make, num_layers=2, dtype=torch.float32), example(dtype=torch.float32)
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    for name in ("auto", "reference"):
        with backend(name), torch.autocast("cpu", dtype=torch.bfloat16):
            again, _ = layer(input, timespans=timespans, lengths=LENGTHS)
            # What comes from a layer below is in half precision.
            below = as_given(s.detach().bfloat16() for s in states(h_n))
            half, _ = layer(input.bfloat16(), below, timespans=timespans, lengths=LENGTHS)
        assert_same(again, output, rtol=1e-4, atol=1e-5)
        assert half.dtype == torch.float32
        half.sum().backward()
