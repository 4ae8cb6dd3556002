"""What the checks of a call cost: training steps of layers with the checks of their arguments and without, in turn.

    python benchmarks/cost_of_checks.py --turns 100

prints the processor time with checks over the time without, in two ways: from steps with and without them in turn,
and from the time that passes inside the checks of one and the same step, which noise between two steps does not
touch. All runs in one process on one thread. The checks are those of shapes, types, devices, rows, gaps and values in
the layers, and the one of weights after an epoch of `fit`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import lapse
from lapse.kernels import fused
from lapse.recurrent import rnn
from lapse.training import TrainConfig, fit, record

ROWS, STEPS, INPUT, HIDDEN = 256, 32, 8, 64
CHECKS: list[tuple[Any, str]] = [
    (rnn.RNN, "_check_input"),
    (rnn.RNN, "_check_shape"),
    (rnn, "check_timespans"),
    (rnn, "check_values"),
    (record, "_check_weights"),
    (fused, "_fits"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, run in cases().items():
        run()
        both = []
        for turn in range(turns):
            order = (True, False) if turn % 2 else (False, True)  # neither side always comes after the other
            times = {checked: seconds(run, checked) for checked in order}
            both.append((times[True], times[False]))
        ratio = statistics.median(with_checks / without for with_checks, without in both)
        inside = statistics.median(inside_checks(run) for _ in range(turns))
        took = 1e3 * statistics.median(a for a, _ in both)
        print(
            f"{name:28} {took:8.2f} ms, with / without checks: in turn {ratio:.3f}, inside {inside:.3f}",
            flush=True,
        )


def cases() -> dict[str, Callable[[], object]]:
    x, spans = torch.randn(ROWS, STEPS, INPUT), torch.rand(ROWS, STEPS)
    lengths = torch.randint(1, STEPS + 1, (ROWS,))
    found: dict[str, Callable[[], object]] = {}
    for layer in (lapse.ODELSTM, lapse.AugmentedLSTM, lapse.RNNDecay, lapse.CTLSTM, lapse.GRUD):
        found[layer.__name__] = step(layer(INPUT, HIDDEN), x, spans)
    found["ODELSTM, lengths="] = step(lapse.ODELSTM(INPUT, HIDDEN), x, spans, lengths)
    long = torch.randn(4, 2048, INPUT), torch.rand(4, 2048)
    found["ODELSTM, 2,048 steps"] = step(lapse.ODELSTM(INPUT, HIDDEN), *long)
    found["ODELSTM, one step of one row"] = step(lapse.ODELSTM(INPUT, HIDDEN), x[:1, :1], spans[:1, :1])
    found["fit, one epoch"] = epoch()
    return found


def step(
    layer: lapse.RNN, x: torch.Tensor, spans: torch.Tensor, lengths: torch.Tensor | None = None
) -> Callable[[], object]:
    def run() -> None:
        layer.zero_grad()
        layer(x, timespans=spans, lengths=lengths)[0].square().mean().backward()

    return run


def epoch() -> Callable[[], object]:
    random = np.random.default_rng(0)
    lengths = random.integers(1, STEPS + 1, 4 * ROWS)
    data = lapse.Sequences.from_arrays(
        [random.standard_normal((n, INPUT)) for n in lengths],
        [random.exponential(1, n).cumsum() for n in lengths],
        targets=np.arange(len(lengths)) % 2,
    )
    model = lapse.SequenceModel.for_data(data, model="ode-lstm", hidden_size=HIDDEN)
    return lambda: fit(model, data, data, TrainConfig(epochs=1, batch_size=ROWS), progress=False)


def seconds(run: Callable[[], object], checked: bool) -> float:
    with ExitStack() as off:
        if not checked:
            for place, name in CHECKS:
                off.enter_context(patch.object(place, name, lambda *_: True))
        begin = time.process_time()
        run()
        return time.process_time() - begin


def inside_checks(run: Callable[[], object]) -> float:
    """The time of a step over its time outside the checks."""
    spent = 0.0

    def timed(check: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal spent
            begin = time.process_time()
            found = check(*arguments)
            spent += time.process_time() - begin
            return found

        return call

    with ExitStack() as on:
        for place, name in CHECKS:
            on.enter_context(patch.object(place, name, timed(getattr(place, name))))
        begin = time.process_time()
        run()
        took = time.process_time() - begin
    return took / (took - spent)


if __name__ == "__main__":
    main()
