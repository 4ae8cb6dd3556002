"""Speed against peers: every line a ratio of two sides timed in turn in one run, after checking that they agree.

A machine's clock, its neighbours and its caches change from minute to minute, so a time means little beside a time of
another day; the ratio of two times taken turn by turn does. ``ratio`` is the median of the turns' ratios and
``spread`` their quartiles; ``cpu`` is the same ratio of processor time over all threads, which a busy machine bends
less. Where the rival computes another function (``nn.LSTM``, CfC) there is nothing to agree on, and the line says so.
"""

from __future__ import annotations

import html
import importlib.util
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import lapse
from lapse import kernels, recurrent
from lapse.kernels import build, native

BATCH, STEPS, HIDDEN, INPUT = 256, 32, 64, 1
Run = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One comparison: how many times the first side's time the second side takes."""

    name: str
    ours: str
    rival: str
    ratio: float
    spread: tuple[float, float]
    cpu: float
    ours_ms: float
    rival_ms: float
    aim: str = ""
    agreed: str = ""


@dataclass(frozen=True)
class Settings:
    repeats: int = 15
    threads: int = 2


@dataclass(frozen=True)
class Race:
    """Rival over ours: median and quartiles over the turns, the same of processor time, and median times in ms."""

    ratio: float
    spread: tuple[float, float]
    cpu: float
    ours_ms: float
    rival_ms: float

    def line(
        self, name: str, ours: str, rival: str, aim: str = "", agreed: str = "", work: float = 1.0
    ) -> Line:
        """``work`` is how many times the rival's run the comparison asks for."""
        spread = self.spread[0] * work, self.spread[1] * work
        times = self.cpu * work, self.ours_ms, self.rival_ms * work
        return Line(name, ours, rival, self.ratio * work, spread, *times, aim, agreed)


def race(ours: Run, rival: Run, repeats: int, inner: int = 1) -> Race:
    turns = []
    for run in (ours, rival):
        run()
    for i in range(repeats):
        times = {}
        for run in (ours, rival) if i % 2 else (rival, ours):  # neither side always has the warmer cache
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(inner):
                run()
            times[run] = (time.perf_counter() - start) / inner, (time.process_time() - cpu) / inner
        turns.append((times[ours], times[rival]))
    ratios = [b[0] / a[0] for a, b in turns]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Race(
        statistics.median(ratios),
        (quartiles[0], quartiles[2]),
        statistics.median(b[1] / max(a[1], 1e-9) for a, b in turns),
        1e3 * statistics.median(a[0] for a, _ in turns),
        1e3 * statistics.median(b[0] for _, b in turns),
    )


def line(
    name: str,
    ours: str,
    rival: str,
    runs: tuple[Run, Run],
    s: Settings,
    aim: str = "",
    agreed: str = "",
    inner: int = 1,
) -> Line:
    return race(*runs, s.repeats, inner).line(name, ours, rival, aim, agreed)


def data(batch: int = BATCH, steps: int = STEPS, size: int = INPUT) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, steps, size, generator=generator), torch.rand(batch, steps, generator=generator)


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


def driven_ode_lstm(hidden: int | None = None, **options: Any) -> lapse.ODELSTM:
    """The ODE-LSTM of the paper's Algorithm 1, which all lines without a form are about."""
    return lapse.ODELSTM(INPUT, hidden or HIDDEN, form="driven", **options)


LAYERS: dict[str, Callable[[], lapse.RNN]] = {
    "ode-lstm driven": lambda: driven_ode_lstm(),
    "ode-lstm driven euler": lambda: driven_ode_lstm(solver="euler"),
    "ode-lstm autonomous": lambda: lapse.ODELSTM(INPUT, HIDDEN),
    "ct-rnn rk4": lambda: lapse.CTRNN(INPUT, HIDDEN, solver="rk4"),
    "ct-rnn": lambda: lapse.CTRNN(INPUT, HIDDEN),
    "ode-rnn rk4": lambda: lapse.ODERNN(INPUT, HIDDEN, solver="rk4"),
    "ode-rnn jump": lambda: lapse.ODERNN(INPUT, HIDDEN, form="jump"),
    "bidirectional": lambda: lapse.CoupledLSTMODERNN(INPUT, HIDDEN),
    "gru-ode": lambda: lapse.GRUODE(INPUT, HIDDEN),
    "gru-d": lambda: lapse.GRUD(INPUT, HIDDEN),
    "ct-gru": lambda: lapse.CTGRU(INPUT, HIDDEN),
    "rnn-decay": lambda: lapse.RNNDecay(INPUT, HIDDEN),
    "ct-lstm": lambda: lapse.CTLSTM(INPUT, HIDDEN),
    "phased-lstm": lambda: lapse.PhasedLSTM(INPUT, HIDDEN),
    "lstm": lambda: lapse.AugmentedLSTM(INPUT, HIDDEN),
}
AIMS = {"ode-lstm driven": "at least 3", "ct-rnn rk4": "at least 4", "ode-rnn rk4": "at least 4"}


def against_reference(s: Settings) -> Iterator[Line]:
    """Every fused cell against our own reference loop."""
    x, spans = data()
    for name, make in LAYERS.items():
        layer = make()
        runs = step_of(layer, x, spans, "fused"), step_of(layer, x, spans, "reference")
        agreed = agree(layer, x, spans)
        yield line(
            f"{name}: reference", "fused", "reference loop", runs, s, AIMS.get(name, "at least 2.5"), agreed
        )


def against_lstm(s: Settings) -> Iterator[Line]:
    """``nn.LSTM``'s time over ODE-LSTM's, which does 2.2 times its arithmetic, and over that of our own LSTM."""
    x, spans = data()
    theirs = nn.LSTM(INPUT, HIDDEN, batch_first=True)
    runs = (
        step_of(driven_ode_lstm(), x, spans, "fused"),
        training_step(theirs, lambda: theirs(x)[0][:, -1]),
    )
    yield line(
        "ode-lstm: nn.LSTM", "fused", "nn.LSTM", runs, s, "at least 0.77 (1.3x its time)", "another function"
    )
    ours, theirs = lapse.AugmentedLSTM(INPUT, HIDDEN), nn.LSTM(INPUT + 1, HIDDEN, batch_first=True)
    w_ih, w_hh, b_ih, b_hh = (p.detach() for p in theirs.parameters())
    ours.cells[0].load_state_dict(
        {"gates.weight_ih": w_ih, "gates.weight_hh": w_hh, "gates.bias": b_ih + b_hh}
    )
    wide = torch.cat([x, spans.unsqueeze(-1)], -1)
    torch.testing.assert_close(ours(x, timespans=spans)[0], theirs(wide)[0], rtol=1e-4, atol=1e-5)
    runs = step_of(ours, x, spans, "fused"), training_step(theirs, lambda: theirs(wide)[0][:, -1])
    yield line("lstm: nn.LSTM", "fused", "nn.LSTM", runs, s, agreed="outputs to 1e-4")


class AuthorsODELSTM(nn.Module):
    """The authors' PyTorch ODE-LSTM in plain torch: an LSTMCell, then three sub-steps of an autonomous MLP field."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(INPUT, HIDDEN)
        self.field = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN))
        self.advance = {"euler": self.euler, "rk4": self.rk4}[method]

    def euler(self, y: Tensor, h: Tensor) -> Tensor:
        moved: Tensor = y + h * self.field(y)
        return moved

    def rk4(self, y: Tensor, h: Tensor) -> Tensor:
        k1 = self.field(y)
        k2 = self.field(y + k1 * h * 0.5)
        k3 = self.field(y + k2 * h * 0.5)
        k4 = self.field(y + k3 * h)
        moved: Tensor = y + h * (k1 + 2 * k2 + 2 * k3 + k4) / 6.0
        return moved

    def forward(self, x: Tensor, spans: Tensor) -> Tensor:
        h, c = x.new_zeros(len(x), HIDDEN), x.new_zeros(len(x), HIDDEN)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            for _ in range(3):
                h = self.advance(h, spans[:, t].view(-1, 1) / 3)
            outputs.append(h)
        return torch.stack(outputs, 1)

    def copy_to(self, ours: lapse.ODELSTM) -> None:
        cell = ours.cells[0]
        assert isinstance(cell, recurrent.AutonomousODELSTMCell)
        with torch.no_grad():
            cell.gates.weight_ih.copy_(self.cell.weight_ih)
            cell.gates.weight_hh.copy_(self.cell.weight_hh)
            cell.gates.bias.copy_(self.cell.bias_ih + self.cell.bias_hh)
            cell.field.inner.load_state_dict(self.field[0].state_dict())
            cell.field.outer.load_state_dict(self.field[2].state_dict())


def against_authors(s: Settings) -> Iterator[Line]:
    """Our ODE-LSTM in both forms against the authors' own, which is autonomous."""
    x, spans = data()
    for method, aim in (("euler", "at least 4"), ("rk4", "at least 10")):
        theirs = AuthorsODELSTM(method)
        tableau = lapse.EULER if method == "euler" else lapse.RK4
        same = lapse.ODELSTM(INPUT, HIDDEN, form="autonomous", solver=lapse.FixedStep(tableau, 3))
        theirs.copy_to(same)
        torch.testing.assert_close(same(x, timespans=spans)[0], theirs(x, spans), rtol=1e-4, atol=1e-5)
        rival = training_step(theirs, lambda m=theirs: m(x, spans)[:, -1])  # type: ignore[misc]
        own = step_of(driven_ode_lstm(), x, spans, "fused")
        name = f"authors' {method} 3"
        yield line(f"ode-lstm: {name}", "fused, driven", name, (own, rival), s, aim, "another function")
        runs = step_of(same, x, spans, "fused"), rival
        yield line(
            f"ode-lstm autonomous: {name}", f"fused, {method} 3", name, runs, s, agreed="outputs to 1e-4"
        )


def against_cfc(s: Settings) -> Iterator[Line]:
    """ODE-LSTM against the closed-form CfC of ncps."""
    if importlib.util.find_spec("ncps") is None:
        return
    from ncps.torch import CfC

    x, spans = data()
    theirs = CfC(INPUT, HIDDEN)
    wide = spans.unsqueeze(-1).expand(
        -1, -1, HIDDEN
    )  # it squeezes each step's gaps, so a gap a unit is what fits
    runs = (
        step_of(driven_ode_lstm(), x, spans, "fused"),
        training_step(theirs, lambda: theirs(x, timespans=wide)[0][:, -1]),
    )
    yield line("ode-lstm: ncps CfC", "fused", "ncps CfC", runs, s, agreed="another function")


def against_torchdiffeq(s: Settings) -> Iterator[Line]:
    """Our adaptive solver against torchdiffeq's dopri5, one gap for all rows (theirs takes no other)."""
    if importlib.util.find_spec("torchdiffeq") is None:
        return
    from torchdiffeq import odeint

    field = recurrent.CTRNNCell(INPUT, HIDDEN).field
    y0 = torch.randn(BATCH, HIDDEN, generator=torch.Generator().manual_seed(0)).requires_grad_()
    drive = field.rest(y0).detach()
    solver = lapse.Adaptive(lapse.DOPRI5, rtol=1e-4, atol=1e-6)
    spans, ends = torch.ones(BATCH), torch.tensor([0.0, 1.0])

    def ours() -> Tensor:
        return solver(field, y0, spans, drive)

    def theirs() -> Tensor:
        solved: Tensor = odeint(
            lambda t, y: field(y, drive), y0, ends, rtol=1e-4, atol=1e-6, method="dopri5"
        )[-1]
        return solved

    torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-4)
    runs = (lambda: ours().sum().backward()), (lambda: theirs().sum().backward())
    yield line("adaptive: torchdiffeq", "Adaptive", "torchdiffeq dopri5", runs, s, agreed="ends to 1e-3")


def event_lengths(count: int) -> Tensor:
    """Lengths like those of `mnist-event`: mean 53, padded to 256."""
    drawn = 53 + 14 * torch.randn(count, generator=torch.Generator().manual_seed(0))
    return drawn.round().long().clamp(8, 256)


def ragged(s: Settings) -> Iterator[Line]:
    """The same kernel on rows of their own lengths and on padded ones."""
    x, spans = data(BATCH, 256)
    lengths, layer = event_lengths(BATCH), driven_ode_lstm()
    with torch.no_grad():
        short, full = layer(x, timespans=spans, lengths=lengths)[0], layer(x, timespans=spans)[0]
    assert all(torch.equal(a[:n], b[:n]) for a, b, n in zip(short, full, lengths.tolist(), strict=True))
    packs = [
        nn.utils.rnn.pack_padded_sequence(t, lengths, batch_first=True, enforce_sorted=False)
        for t in (x, spans)
    ]
    rows = torch.arange(BATCH)
    packed = training_step(layer, lambda: layer(packs[0], timespans=packs[1])[1][0][0], "fused")
    masked = training_step(
        layer, lambda: layer(x, timespans=spans, lengths=lengths)[0][rows, lengths - 1], "fused"
    )
    padded = training_step(layer, lambda: layer(x, timespans=spans)[1][0][0], "fused")
    for name, run, aim in (("packed", packed, "at least 4"), ("with lengths=", masked, "")):
        yield line(f"ragged: {name}", f"mean 53, {name}", "padded to 256", (run, padded), s, aim, "same bits")


def multiplications(size: int = INPUT, hidden: int = HIDDEN, substeps: int = 4) -> int:
    """Of one row's step of an ODE-LSTM, forward and backward."""
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
    work = multiplications() * BATCH * STEPS / 512**3
    yield race(run, sgemm(), s.repeats).line(
        "roofline", "training step", "sgemm of as many products", work=work
    )
    lengths, rows = event_lengths(BATCH), torch.arange(BATCH)
    x, spans = data(BATCH, int(lengths.max()))
    layer = driven_ode_lstm()
    run = training_step(
        layer, lambda: layer(x, timespans=spans, lengths=lengths)[0][rows, lengths - 1], "fused"
    )
    work = multiplications() * int(lengths.sum()) / 512**3
    one = race(run, sgemm(), s.repeats).line(
        "mnist-event epoch: sgemm", "60,000 images", "sgemm of as many products", "at least 0.5", work=work
    )
    batches = 60_000 / BATCH
    yield replace(one, ours_ms=one.ours_ms * batches, rival_ms=one.rival_ms * batches)


def latency(s: Settings) -> Iterator[Line]:
    """One event through an ODE-LSTM."""
    cell = recurrent.ODELSTMCell(4, HIDDEN)
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


def growth(s: Settings) -> Iterator[Line]:
    """How time grows: the ratio is the time that proportion to the smallest would give over the time it takes."""
    for name, shapes in {
        "length": [(8, n, HIDDEN) for n in (32, 256, 2048, 8192)],
        "batch": [(n, STEPS, HIDDEN) for n in (16, 64, 256, 1024)],
        "hidden size": [(BATCH, STEPS, n) for n in (16, 32, 64, 128, 256)],
    }.items():
        few = Settings(max(3, s.repeats // 3), s.threads)
        small = _sized(*shapes[0])
        for shape in shapes[1:]:
            factor = shape[0] * shape[1] / (shapes[0][0] * shapes[0][1])
            factor *= multiplications(INPUT, shape[2]) / multiplications(INPUT, shapes[0][2])
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
    code = MEMORY.format(input=INPUT, hidden=HIDDEN)
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


SECTIONS: dict[str, Callable[[Settings], Iterator[Line]]] = {
    "lstm": against_lstm,
    "reference": against_reference,
    "authors": against_authors,
    "cfc": against_cfc,
    "torchdiffeq": against_torchdiffeq,
    "ragged": ragged,
    "roofline": roofline,
    "latency": latency,
    "growth": growth,
    "memory": memory,
}


def bench(sections: list[str], settings: Settings) -> Iterator[Line]:
    """Run the named sections, a line at a time."""
    if native.library() is None:
        raise RuntimeError("the fused kernels are not available here, so there is nothing to compare")
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    try:
        for name in sections:
            yield from SECTIONS[name](settings)
    finally:
        torch.set_num_threads(before)


def record(lines: list[Line], settings: Settings) -> dict[str, Any]:
    """The results and the machine they are of, for JSON."""
    machine = {
        "processor": platform.processor() or platform.machine(),
        "level": build.level(),
        "torch": torch.__version__,
    }
    return {"settings": asdict(settings), "machine": machine, "lines": [asdict(one) for one in lines]}


COLUMNS = (
    "comparison", "ours", "rival", "rival / ours", "quartiles", "CPU time", "ours, ms", "rival, ms", "aim", "agreement",
)  # fmt: skip


def cells_of(one: Line) -> tuple[str, ...]:
    spread = f"{one.spread[0]:.2f}–{one.spread[1]:.2f}"
    times = f"{one.ours_ms:.3g}", f"{one.rival_ms:.3g}"
    return (
        one.name,
        one.ours,
        one.rival,
        f"{one.ratio:.2f}",
        spread,
        f"{one.cpu:.2f}",
        *times,
        one.aim,
        one.agreed,
    )


def markdown(lines: list[Line]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(cells_of(one) for one in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def html_section(lines: list[Line]) -> str:
    """A section for the report's page."""
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells_of(one)) + "</tr>" for one in lines
    )
    head = "".join(f"<th>{html.escape(c)}</th>" for c in COLUMNS)
    return f"<section id='bench'><h2>Speed</h2><table><tr>{head}</tr>{body}</table></section>"
