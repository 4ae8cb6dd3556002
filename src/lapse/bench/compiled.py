"""The fused loop in compiled and exported graphs, against eager calls and `nn.LSTM` compiled in the same way."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lapse
from lapse.bench import sizes
from lapse.bench.race import Line, Run, Settings, line
from lapse.bench.work import data, driven_ode_lstm, training_step
from lapse.models import SequenceModel

Call = Callable[[Any], Tensor]  # of a module, or of what was compiled from it


def compiled(s: Settings) -> Iterator[Line]:
    """Training steps on ragged rows, compiled into one graph and not; then with loss and optimiser compiled too."""
    layers = {
        "ode-lstm": driven_ode_lstm(),
        "gru-d": lapse.GRUD(sizes.INPUT, sizes.HIDDEN),
        "ct-lstm": lapse.CTLSTM(sizes.INPUT, sizes.HIDDEN),
    }
    with _without_warnings():
        for name, layer in layers.items():
            yield _layer(name, layer, s)
        yield _layer(f"ode-lstm, {4 * sizes.STEPS} steps", driven_ode_lstm(), s, 4 * sizes.STEPS)
        yield _model(s)
        yield _whole_step(s)


def _layer(name: str, layer: lapse.RNN, s: Settings, steps: int = sizes.STEPS) -> Line:
    x, spans, lengths = _ragged(steps)
    return _against_eager(name, layer, lambda f: f(x, timespans=spans, lengths=lengths)[0], s)


def exported(s: Settings) -> Iterator[Line]:
    """Outputs of a package that AOTInductor made of a layer, for any number of ragged rows and steps."""
    layer, (x, spans, lengths) = driven_ode_lstm().eval(), _ragged()
    run = _Outputs(layer)
    begin = time.perf_counter()
    with _without_warnings(), tempfile.TemporaryDirectory() as folder, torch.no_grad():
        package = _package(run, (x, spans, lengths), Path(folder) / "layer.pt2")
        seconds = time.perf_counter() - begin
        worst = float((package(x, spans, lengths) - run(x, spans, lengths)).abs().max())
        agreed = f"outputs to {worst:.0e}; exported in {seconds:.0f} s"
        runs = (lambda: package(x, spans, lengths)), (lambda: run(x, spans, lengths))
        yield line("ode-lstm: exported", "AOTInductor package", "eager", runs, s, agreed=agreed)


class _Outputs(nn.Module):
    """A layer as a function of tensors that returns one tensor."""

    def __init__(self, layer: lapse.RNN) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, timespans: Tensor, lengths: Tensor) -> Tensor:
        output: Tensor = self.layer(x, timespans=timespans, lengths=lengths)[0]
        return output


def _package(module: nn.Module, example: tuple[Tensor, ...], path: Path) -> Any:
    rows, steps = torch.export.Dim("rows"), torch.export.Dim("steps")
    shapes = {0: rows, 1: steps}, {0: rows, 1: steps}, {0: rows}
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return torch._inductor.aoti_load_package(str(path))


def _ragged(steps: int = sizes.STEPS) -> tuple[Tensor, Tensor, Tensor]:
    x, spans = data(steps=steps)
    lengths = torch.randint(1, steps + 1, (len(x),), generator=torch.Generator().manual_seed(0))
    return x, spans, lengths


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Leave out the compiler's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _model(s: Settings) -> Line:
    """A whole model, from a raw batch to its answers."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, sizes.STEPS + 1, sizes.BATCH)
    train = lapse.Sequences.from_arrays(
        [random.standard_normal((n, sizes.INPUT)) for n in lengths],
        [random.exponential(1, n).cumsum() for n in lengths],
        targets=np.arange(sizes.BATCH) % 2,
    )
    options = {"form": "driven"}
    model = SequenceModel.for_data(train, model="ode-lstm", hidden_size=sizes.HIDDEN, options=options)
    return _against_eager("model", model, lambda f: f(train.batch(range(len(train)))), s)


def _against_eager(name: str, module: nn.Module, call: Call, s: Settings) -> Line:
    torch.compiler.reset()
    begin = time.perf_counter()
    fast = torch.compile(module, fullgraph=True)
    worst = _difference(module, fast, call)
    seconds = time.perf_counter() - begin
    runs = training_step(module, lambda: call(fast)), training_step(module, lambda: call(module))
    agreed = f"values and gradients to {worst:.0e}; compiled in {seconds:.0f} s"
    return line(f"{name}: compiled", "compiled", "eager", runs, s, "at least 0.95 (1.05x its time)", agreed)


def _difference(module: nn.Module, fast: Any, call: Call) -> float:
    """The largest difference between the values and gradients of both, in units of the largest value."""
    learned, results = list(module.parameters()), []
    for each in (fast, module):
        output = call(each)
        grads = torch.autograd.grad(output.square().sum(), learned, allow_unused=True)
        results.append([output.detach(), *(grad for grad in grads if grad is not None)])
    return max(float((a - b).abs().max() / (b.abs().max() + 1e-6)) for a, b in zip(*results, strict=True))


def _whole_step(s: Settings) -> Line:
    """The ODE-LSTM and `nn.LSTM`, each with its loss and its optimiser compiled."""
    x, spans = data()
    ours, theirs = driven_ode_lstm(), nn.LSTM(sizes.INPUT, sizes.HIDDEN, batch_first=True)
    torch.compiler.reset()
    runs = (
        _compiled_step(ours, lambda: ours(x, timespans=spans)[0][:, -1]),
        _compiled_step(theirs, lambda: theirs(x)[0][:, -1]),
    )
    name = "ode-lstm: nn.LSTM, both compiled"
    return line(name, "compiled", "nn.LSTM compiled", runs, s, agreed="another function")


def _compiled_step(layer: nn.Module, forward: Callable[[], Tensor]) -> Run:
    optimizer = torch.optim.RMSprop(layer.parameters(), lr=1e-6)

    def loss() -> Tensor:
        return forward().square().mean()

    fast_loss, update = torch.compile(loss), torch.compile(optimizer.step)

    def run() -> None:
        optimizer.zero_grad()
        fast_loss().backward()
        update()

    return run
