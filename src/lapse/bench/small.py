"""A few rows, few units and wide inputs: where calls are too small to fill the products' tiles."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from lapse.bench import sizes
from lapse.bench.race import Line, Settings, line
from lapse.bench.work import agree, training_step
from lapse.recurrent import ODELSTM, AugmentedLSTM

ROWS, HIDDEN, INPUTS = (1, 4), (16, 32), (1, 100)
WIDE = 64, 200  # units and inputs of one row: matrices that no longer fit the first-level cache
TURNS = 5  # calls per turn, each of them below a millisecond


def small(s: Settings) -> Iterator[Line]:
    """Training steps of the ODE-LSTM against `nn.LSTM`, and of the smallest against the reference loop."""
    for rows in ROWS:
        for hidden in HIDDEN:
            for inputs in INPUTS:
                yield _against_lstm(rows, hidden, inputs, s)
        yield _against_reference(rows, s)
    yield _against_lstm(1, *WIDE, s)
    yield _lstm_against_lstm(1, *WIDE, s)


def _lstm_against_lstm(rows: int, hidden: int, inputs: int, s: Settings) -> Line:
    """Our own LSTM, which takes the gap as one more input."""
    x, spans = torch.randn(rows, sizes.STEPS, inputs), torch.rand(rows, sizes.STEPS)
    ours, theirs = AugmentedLSTM(inputs - 1, hidden), nn.LSTM(inputs, hidden, batch_first=True)
    values = x[..., 1:].contiguous()
    runs = (
        training_step(ours, lambda: ours(values, timespans=spans)[0][:, -1], "fused"),
        training_step(theirs, lambda: theirs(x)[0][:, -1]),
    )
    name = f"small: lstm {rows} x {hidden}, {inputs} inputs"
    return line(name, "fused", "nn.LSTM", runs, s, agreed="the same sizes", inner=TURNS)


def _against_lstm(rows: int, hidden: int, inputs: int, s: Settings) -> Line:
    x, spans = torch.randn(rows, sizes.STEPS, inputs), torch.rand(rows, sizes.STEPS)
    ours, theirs = ODELSTM(inputs, hidden, form="driven"), nn.LSTM(inputs, hidden, batch_first=True)
    runs = (
        training_step(ours, lambda: ours(x, timespans=spans)[0][:, -1], "fused"),
        training_step(theirs, lambda: theirs(x)[0][:, -1]),
    )
    name = f"small: {rows} x {hidden}, {inputs} inputs"
    return line(name, "fused", "nn.LSTM", runs, s, agreed="another function", inner=TURNS)


def _against_reference(rows: int, s: Settings) -> Line:
    x, spans = torch.randn(rows, sizes.STEPS, sizes.INPUT), torch.rand(rows, sizes.STEPS)
    layer = ODELSTM(sizes.INPUT, HIDDEN[0], form="driven")
    fused, reference = (
        training_step(layer, lambda: layer(x, timespans=spans)[0][:, -1], backend)
        for backend in ("fused", "reference")
    )
    name, agreed = f"small: {rows} x {HIDDEN[0]}: reference", agree(layer, x, spans)
    return line(name, "fused", "reference loop", (fused, reference), s, agreed=agreed)
