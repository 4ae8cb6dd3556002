"""What is timed: a training step of a layer, on data of the usual sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import lapse
from lapse.bench import sizes
from lapse.bench.race import Run


def data(batch: int | None = None, steps: int | None = None) -> tuple[Tensor, Tensor]:
    """Inputs (B, T, 1) and gaps (B, T), of the usual sizes where none is given."""
    shape = batch or sizes.BATCH, steps or sizes.STEPS
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, sizes.INPUT, generator=generator), torch.rand(*shape, generator=generator)


def training_step(layer: nn.Module, forward: Callable[[], Tensor], backend: str = "auto") -> Run:
    """Forward, backward and an RMSprop step, on the last output: what a training loop repeats."""
    optimizer = torch.optim.RMSprop(layer.parameters(), lr=1e-6)

    def run() -> None:
        optimizer.zero_grad()
        with lapse.backend(backend):  # type: ignore[arg-type]
            loss = forward().square().mean()
        loss.backward()
        optimizer.step()

    return run


def step_of(layer: lapse.RNN, x: Tensor, spans: Tensor, backend: str = "auto", **options: Any) -> Run:
    return training_step(layer, lambda: layer(x, timespans=spans, **options)[0][:, -1], backend)


def driven_ode_lstm(hidden: int | None = None, **options: Any) -> lapse.ODELSTM:
    """The ODE-LSTM of the paper's Algorithm 1, which all lines without a form are about."""
    return lapse.ODELSTM(sizes.INPUT, hidden or sizes.HIDDEN, form="driven", **options)


def agree(layer: lapse.RNN, x: Tensor, spans: Tensor) -> str:
    """That the fused and the reference path give the same outputs and gradients, and how nearly."""
    worst = 0.0
    results = []
    for backend in ("fused", "reference"):
        with lapse.backend(backend):
            output = layer(x[:8], timespans=spans[:8])[0]
        results.append(
            [output.detach(), *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]
        )
    for a, b in zip(*results, strict=True):
        worst = max(worst, float((a - b).abs().max() / (b.abs().max() + 1e-6)))
    assert worst < 1e-3, f"the two paths differ by {worst}"
    return f"values and gradients to {worst:.0e}"
