"""Ragged rows, scans, the machine's limit, one event at a time, growth with size, and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from lapse import kernels, recurrent
from lapse.bench import sizes
from lapse.bench.race import Line, Run, Settings, line, race
from lapse.bench.work import data, driven_ode_lstm, step_of, training_step
from lapse.kernels.scan import scan
from lapse.rows import Rows


def event_lengths(count: int) -> Tensor:
    """Lengths like those of `mnist-event`: mean 53, padded to 256."""
    drawn = 53 + 14 * torch.randn(count, generator=torch.Generator().manual_seed(0))
    return drawn.round().long().clamp(8, 256)


def ragged(s: Settings) -> Iterator[Line]:
    """The same kernel on rows of their own lengths and on padded ones."""
    x, spans = data(sizes.BATCH, 256)
    lengths, layer = event_lengths(sizes.BATCH), driven_ode_lstm()
    with torch.no_grad():
        short, full = layer(x, timespans=spans, lengths=lengths)[0], layer(x, timespans=spans)[0]
    assert all(torch.equal(a[:n], b[:n]) for a, b, n in zip(short, full, lengths.tolist(), strict=True))
    packs = [
        nn.utils.rnn.pack_padded_sequence(t, lengths, batch_first=True, enforce_sorted=False)
        for t in (x, spans)
    ]
    rows = torch.arange(sizes.BATCH)
    padding = Rows.padded(sizes.BATCH, 256, lengths)
    ends = [Rows.flat(lengths).take(t.flatten(0, 1), padding) for t in (x, spans)]
    packed = training_step(layer, lambda: layer(packs[0], timespans=packs[1])[1][0][0], "fused")
    flat = training_step(
        layer, lambda: layer(ends[0], timespans=ends[1], rows=Rows.flat(lengths))[1][0][0], "fused"
    )
    masked = training_step(
        layer, lambda: layer(x, timespans=spans, lengths=lengths)[0][rows, lengths - 1], "fused"
    )
    padded = training_step(layer, lambda: layer(x, timespans=spans)[1][0][0], "fused")
    for name, run, aim in (
        ("packed", packed, "at least 4"),
        ("flat", flat, ""),
        ("with lengths=", masked, ""),
    ):
        yield line(f"ragged: {name}", f"mean 53, {name}", "padded to 256", (run, padded), s, aim, "same bits")
    yield line("ragged: flat and packed", "flat", "packed", (flat, packed), s, "at least 1", "same bits")


def multiplications(hidden: int | None = None, substeps: int = 4) -> int:
    """Of one step of one row of an ODE-LSTM, forward and backward."""
    size, hidden = sizes.INPUT, hidden or sizes.HIDDEN
    state = hidden * hidden * (4 + 1 + substeps)
    return 3 * state + 2 * 4 * hidden * size


def sgemm() -> Run:
    """A square product in torch: the machine's speed for what a kernel cannot avoid."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    out = torch.empty(512, 512)
    return lambda: torch.mm(a, b, out=out)


def roofline(s: Settings) -> Iterator[Line]:
    """The share of sgemm's speed that a training step reaches, and an epoch of `mnist-event` in the same terms."""
    x, spans = data()
    run = step_of(driven_ode_lstm(), x, spans, "fused")
    work = multiplications() * sizes.BATCH * sizes.STEPS / 512**3
    yield race(run, sgemm(), s.repeats).line(
        "roofline", "training step", "sgemm of as many products", work=work
    )
    lengths, rows = event_lengths(sizes.BATCH), torch.arange(sizes.BATCH)
    x, spans = data(sizes.BATCH, int(lengths.max()))
    layer = driven_ode_lstm()
    run = training_step(
        layer, lambda: layer(x, timespans=spans, lengths=lengths)[0][rows, lengths - 1], "fused"
    )
    work = multiplications() * int(lengths.sum()) / 512**3
    one = race(run, sgemm(), s.repeats).line(
        "mnist-event epoch: sgemm", "60,000 images", "sgemm of as many products", "at least 0.5", work=work
    )
    batches = 60_000 / sizes.BATCH
    yield replace(one, ours_ms=one.ours_ms * batches, rival_ms=one.rival_ms * batches)


def latency(s: Settings) -> Iterator[Line]:
    """One event through an ODE-LSTM."""
    cell = recurrent.ODELSTMCell(4, sizes.HIDDEN)
    x, span, state = torch.randn(1, 4), torch.rand(1), cell.initial_state(1)

    def run(step: Callable[..., object]) -> Run:
        def once() -> None:
            with torch.no_grad():
                step(x, state, span)

        return once

    fast = run(lambda *a: kernels.step(cell, *a))
    with torch.no_grad():
        torch.testing.assert_close(kernels.step(cell, x, state, span)[0], cell.step(x, state, span)[0])
    runs = fast, run(cell.step)
    yield line(
        "one event: reference", "fused step", "cell.step", runs, s, "at least 10", "outputs to 1e-5", inner=50
    )


def against_loop(s: Settings) -> Iterator[Line]:
    """A linear recurrence over one long row, forward and backward: the scan beside the same recurrence step by step."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(sizes.LONG, 2 * sizes.HIDDEN, generator=generator) for _ in range(2))
    a = 0.5 * torch.tanh(a)
    rows, gradient = Rows.flat([sizes.LONG]), torch.randn(a.shape, generator=generator)
    leaves = a.requires_grad_(), b.requires_grad_()

    def loop() -> Tensor:
        x, states = torch.zeros(1, b.shape[1] // 2, dtype=torch.complex64), []
        for factor, term in zip(*(torch.complex(*part.chunk(2, 1)).split(1) for part in leaves), strict=True):
            x = factor * x + term
            states.append(x)
        found = torch.cat(states)
        return torch.cat([found.real, found.imag], 1)

    def fast() -> Tensor:
        return scan(*leaves, rows)

    def run(states: Callable[[], Tensor]) -> Run:
        return lambda: torch.autograd.grad(states(), leaves, gradient)

    torch.testing.assert_close(fast(), loop(), rtol=1e-5, atol=1e-5)
    runs = run(fast), run(loop)
    few = Settings(max(3, s.repeats // 5), s.threads)
    yield line(
        f"scan: {sizes.LONG:,} steps", "scan", "loop of torch", runs, few, "at least 10", "states to 1e-5"
    )


def growth(s: Settings) -> Iterator[Line]:
    """How time grows: the ratio is the time that proportion to the smallest would give over the time it takes."""
    for name, shapes in {
        "length": [(8, n, sizes.HIDDEN) for n in (32, 256, 2048, 8192)],
        "batch": [(n, sizes.STEPS, sizes.HIDDEN) for n in (16, 64, 256, 1024)],
        "hidden size": [(sizes.BATCH, sizes.STEPS, n) for n in (16, 32, 64, 128, 256)],
    }.items():
        few = Settings(max(3, s.repeats // 3), s.threads)
        small = _sized(*shapes[0])
        for shape in shapes[1:]:
            factor = shape[0] * shape[1] / (shapes[0][0] * shapes[0][1])
            factor *= multiplications(shape[2]) / multiplications(shapes[0][2])
            label = f"{name} {shape[('batch', 'length', 'hidden size').index(name)]}"
            aim = "at least 0.87 (1.15x)" if label == "length 8192" else ""
            yield race(_sized(*shape), small, few.repeats).line(
                f"growth: {label}", "one call", "in proportion to the smallest", aim, work=factor
            )


def _sized(batch: int, steps: int, hidden: int) -> Run:
    x, spans = data(batch, steps)
    return step_of(driven_ode_lstm(hidden), x, spans, "fused")


MEMORY = """
import sys, torch, lapse
from contextlib import nullcontext
from lapse import kernels
torch.set_num_threads(1)
layer = lapse.ODELSTM({input}, {hidden}, form="driven")
def resident(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
def step(n):
    x, spans = torch.randn(8, n, {input}), torch.rand(8, n)
    with kernels.recompute(every=64) if sys.argv[1] == "recompute" else nullcontext():
        layer(x, timespans=spans)[0][:, -1].sum().backward()
step(32)
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = resident("VmRSS")
step(8192)
print(resident("VmHWM") - before)
"""


def memory(s: Settings) -> Iterator[Line]:
    """Peak memory of one training step of 8,192 events, with and without recomputation; MB in place of ms."""
    if not sys.platform.startswith("linux"):
        return
    code = MEMORY.format(input=sizes.INPUT, hidden=sizes.HIDDEN)
    used = [
        int(
            subprocess.run(
                [sys.executable, "-c", code, way], capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("recompute", "plain")
    ]
    ours, rival = (n / 1024 for n in used)
    ratio = rival / ours
    yield Line(
        "memory: 8,192 steps",
        "recompute every 64",
        "plain",
        ratio,
        (ratio, ratio),
        ratio,
        ours,
        rival,
        "at least 4",
    )
