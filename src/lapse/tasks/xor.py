"""`xor-dense`, `xor-event`: is the number of ones in a block of random bits odd?

Source: generated here, from a seed; 100,000 training and 10,000 test blocks of 32 bits, as the paper says.
A tenth of the training blocks is the validation split. 32 bits last 1 unit of time. The dense form gives
one event per bit; the event form gives one per run of equal bits (`lapse.encode_events`), so the answer hides
in the gaps.

The authors' code draws a random length for each block instead. `lengths=(2, 32)` does the same (2 to 31
bits). It is easier, and short blocks repeat: a third of the test blocks are also in training, so that
memory alone scores 68 %. `distinct=True` removes those. `size` draws fewer blocks, for a demonstration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lapse.arguments import check_count, check_flag
from lapse.events import encode_events
from lapse.heads import Classes
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array, concatenated_ranges, offsets_of
from lapse.tasks.base import PaperSettings, Splits, Task
from lapse.tasks.published import PUBLISHED

BITS = 32
TRAIN, VALIDATION, TEST = 90_000, 10_000, 10_000

Lengths = tuple[int, int]
AUTHORS_LENGTHS: Lengths = (2, 32)


def load_dense(
    data_dir: str | Path | None = None,
    *,
    lengths: Lengths | None = None,
    distinct: bool = False,
    size: int | None = None,
    seed: int = 0,
) -> Splits:
    return _load(_dense, lengths, distinct, size, seed)


def load_event(
    data_dir: str | Path | None = None,
    *,
    lengths: Lengths | None = None,
    distinct: bool = False,
    size: int | None = None,
    seed: int = 0,
) -> Splits:
    return _load(_event, lengths, distinct, size, seed)


def _load(code: Any, lengths: Lengths | None, distinct: bool, size: int | None, seed: int) -> Splits:
    low, high = _range(lengths) if lengths is not None else (BITS, BITS + 1)
    check_flag("distinct", distinct)
    check_count("seed", seed, 0)
    if not 1 <= low < high <= BITS + 1:
        raise ValueError(
            f"lengths={lengths}: expected (low, high) with 1 <= low < high <= {BITS + 1}, high not included"
        )
    counts = _counts(size)
    bits, sizes = blocks(sum(counts), low, high, seed)
    keys = _keys(bits, sizes)
    train, validation, test = np.split(np.arange(len(bits)), np.cumsum(counts)[:2])
    repeated = np.isin(keys[test], keys[: test[0]])
    notes = [f"{repeated.mean():.1%} of the test blocks are also in training"]
    if distinct:
        validation = validation[~np.isin(keys[validation], keys[train])]
        test = test[~repeated]
        notes = [f"{repeated.sum():,} test blocks that are also in training were removed"]
    if lengths is not None:
        whose = ", as in the authors' code" if (low, high) == AUTHORS_LENGTHS else ""
        notes.append(f"blocks of {low} to {high - 1} bits{whose}; the paper says {BITS}")
    parts = (code(bits[part], sizes[part]) for part in (train, validation, test))
    return Splits(*parts, notes=tuple(notes))


def _range(lengths: Lengths) -> Lengths:
    pair = lengths if isinstance(lengths, Sequence) and len(lengths) == 2 else (None, None)
    for name, number in zip(("the first of lengths", "the second of lengths"), pair, strict=True):
        check_count(name, number)
    return lengths


def _counts(size: int | None) -> tuple[int, int, int]:
    """Blocks in each part: the paper's, or of `size` a tenth for validation, and a tenth as many again to test on."""
    if size is None:
        return TRAIN, VALIDATION, TEST
    check_count("size", size, 10)  # so that every part has a block
    return size - size // 10, size // 10, size // 10


def blocks(count: int, low: int, high: int, seed: int) -> tuple[Array, Array]:
    """(count, 32) random bits, and how many of each row's are used."""
    random = np.random.default_rng(seed)
    sizes = random.integers(low, high, count)
    return random.integers(0, 2, (count, BITS), dtype=np.int8), sizes


def _keys(bits: Array, sizes: Array) -> Array:
    """A number for each block that no other block has: its bits behind a leading one."""
    weights = np.where(np.arange(BITS) < sizes[:, None], 2 ** np.arange(BITS), 0)
    keys: Array = (bits * weights).sum(axis=1) + 2**sizes
    return keys


def _flat(bits: Array, sizes: Array) -> Array:
    return bits[np.arange(BITS) < sizes[:, None]]


def _parity(bits: Array, sizes: Array) -> Array:
    used = np.arange(BITS) < sizes[:, None]
    return np.asarray(np.sum(bits, axis=1, where=used, dtype=np.int64) % 2)


def _dense(bits: Array, sizes: Array) -> Sequences:
    times = concatenated_ranges(np.ones_like(sizes), sizes)
    return _sequences(_flat(bits, sizes), times, offsets_of(sizes), _parity(bits, sizes))


def _event(bits: Array, sizes: Array) -> Sequences:
    events = encode_events(_flat(bits, sizes), offsets=offsets_of(sizes))
    return _sequences(events.symbols, events.times, events.offsets, _parity(bits, sizes))


def _sequences(symbols: Array, times: Array, offsets: Array, parity: Array) -> Sequences:
    return Sequences(
        values=symbols[:, None].astype(np.float32),
        times=times / BITS,
        offsets=offsets,
        targets=parity,
        starts=np.zeros(len(parity)),
        features=("bit",),
        classes=("even", "odd"),
        unit=f"{BITS} bits",
    )


def _task(name: str, summary: str, loader: Any) -> Task:
    return Task(
        name=name,
        summary=summary,
        loader=loader,
        head=partial(Classes, ("even", "odd")),
        input_size=1,
        time_unit=f"{BITS} bits",
        source="generated",
        licence="none needed: random bits",
        differences="the authors' code draws random lengths (here lengths=(2, 32)); the paper says 32 bits",
        paper=PaperSettings(epochs=500),
        published=PUBLISHED[name],
    )


DENSE = _task("xor-dense", "parity of random bits, 32 unless told otherwise, one event per bit", load_dense)
EVENT = _task(
    "xor-event",
    "parity of random bits, 32 unless told otherwise, one event per run of equal bits",
    load_event,
)
