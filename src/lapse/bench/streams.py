"""A stream of events against a model that is stepped in torch, as one would write it by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import torch

import lapse
from lapse.bench import sizes
from lapse.bench.race import Line, Run, Settings, line
from lapse.export import Onnx, step_form
from lapse.models import SequenceModel, Step

IDS, FEATURES, MANY = 100, 4, 4096


def model() -> SequenceModel:
    """An untrained ODE-LSTM with two classes."""
    random = np.random.default_rng(0)
    data = lapse.Sequences.from_arrays(
        [random.normal(size=(8, FEATURES)) for _ in range(16)], [np.arange(8.0)] * 16, targets=[0, 1] * 8
    )
    torch.manual_seed(0)
    return SequenceModel.for_data(data, hidden_size=sizes.HIDDEN).eval()


def against_stepping(s: Settings) -> Iterator[Line]:
    """One event at a time, many at once, and memory per id."""
    asked = model()
    values = np.random.default_rng(1).normal(size=(MANY, FEATURES))
    runs = _pushing(lapse.Stream(asked), values), _stepping(asked, values)
    aim = "at most 0.015 ms"
    yield line("stream: one event", "push", "a step in torch", runs, s, aim, _agreed(asked), inner=200)
    if find_spec("onnxruntime") is not None:
        runs = _pushing(lapse.Stream(asked), values), _exported(asked, values, s.threads)
        yield line("stream: onnxruntime", "push", "a step in onnxruntime", runs, s, inner=200)
    with lapse.backend("reference"):
        slow = lapse.Stream(asked)
    runs = _many(lapse.Stream(asked), values), _many(slow, values)
    aim = f"at most {1e3 * MANY / 300_000:.1f} ms (300,000 per s)"
    yield line(f"stream: {MANY:,} events", "push_many", "steps in torch", runs, s, aim, _agreed(asked))
    yield from _memory()


def _pushing(stream: lapse.Stream, values: np.ndarray) -> Run:
    clock, rows = iter(range(10**9)), [list(row) for row in values]

    def once() -> None:
        k = next(clock)
        stream.push(k % IDS, float(k), rows[k % MANY])

    return once


def _stepping(asked: SequenceModel, values: np.ndarray) -> Run:
    """The state of every id in a dictionary of tensors, as one would write it by hand."""
    step, span = Step(asked), torch.ones(1)
    states = {id: step.start(1) for id in range(IDS)}
    clock, rows = iter(range(10**9)), list(torch.from_numpy(values).float().unsqueeze(1))

    @torch.no_grad()
    def once() -> None:
        k = next(clock)
        answer, states[k % IDS] = step(rows[k % MANY], span, states[k % IDS])
        answer.numpy()

    return once


def _exported(asked: SequenceModel, values: np.ndarray, threads: int) -> Run:
    """The same with the exported step."""
    import onnxruntime

    form = step_form(asked.stepper())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(Onnx().write(form), options, providers=["CPUExecutionProvider"])
    first = {name: part[:1].numpy() for name, part in form.arguments["state"].items()}
    states, span = dict.fromkeys(range(IDS), first), np.ones(1, np.float32)
    clock, rows = iter(range(10**9)), list(values.astype(np.float32)[:, None])

    def once() -> None:
        k = next(clock)
        given = {"values": rows[k % MANY], "timespan": span, **states[k % IDS]}
        _, *after = session.run(None, given)
        states[k % IDS] = dict(zip(first, after, strict=True))

    return once


def _many(stream: lapse.Stream, values: np.ndarray) -> Run:
    ids, clock = [k % (MANY // 2) for k in range(MANY)], iter(range(10**9))
    return lambda: stream.push_many(ids, np.full(MANY, float(next(clock))), values)


def _agreed(asked: SequenceModel) -> str:
    found = lapse.Stream(asked)
    with lapse.backend("reference"):
        expected = lapse.Stream(asked)
    values = np.random.default_rng(2).normal(size=(20, FEATURES))
    ids, times = [k % 3 for k in range(20)], np.arange(20.0)
    raw = [stream.push_many(ids, times, values).raw for stream in (found, expected)]
    np.testing.assert_allclose(raw[0], raw[1], rtol=1e-5, atol=1e-6)
    return "outputs to 1e-6"


MEMORY = """
import sys, numpy as np, lapse
from lapse.bench import sizes, streams
from lapse.models import Step
sizes.HIDDEN = {hidden}
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
count = 20_000
model, ids = streams.model(), [f"id {{k}}" for k in range(count)]
stream, step = lapse.Stream(model, max_ids=count), Step(model)
stream.push("id 0", 0.0, [0.0] * streams.FEATURES)
before = resident()
if sys.argv[1] == "stream":
    stream.push_many(ids, np.zeros(count), np.zeros((count, streams.FEATURES)))
else:
    states = {{id: {{name: part.clone() for name, part in step.start(1).items()}} for id in ids}}
print((resident() - before) / count)
"""


def _memory() -> Iterator[Line]:
    """How much more memory the process takes per id; KB in place of ms."""
    if not sys.platform.startswith("linux"):
        return
    code = MEMORY.format(hidden=sizes.HIDDEN)
    used = [
        float(
            subprocess.run(
                [sys.executable, "-c", code, way], capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("stream", "torch")
    ]
    ratio = used[1] / used[0]
    yield Line(
        "stream: memory per id",
        "KB per id",
        "tensors per id",
        ratio,
        (ratio, ratio),
        ratio,
        used[0],
        used[1],
        "at most 10 KB",
    )
