"""How fast is a table of events turned into its first padded batch?

Question: events per second from a pandas frame (rows in any order) to the first batch of tensors. Rival:
what one writes by hand, `sort_values` + `groupby` + `torch.nn.utils.rnn.pad_sequence`. Both must give the
same batch before either is timed; repetitions are interleaved, so that whatever else the machine does hits
both alike.

    python benchmarks/frame_to_batch.py [--events 1000000] [--repeats 5]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lapse import Sequences

BATCH = 256
FEATURES = ["x", "y", "z"]


def events_table(events: int, seed: int = 0) -> pd.DataFrame:
    """Sequences of 1 to 199 events with random gaps, shuffled."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 200, events // 100)
    table = pd.DataFrame({"id": np.repeat(np.arange(len(lengths)), lengths)})
    table["time"] = random.exponential(size=len(table)).cumsum()
    table[FEATURES] = random.normal(size=(len(table), len(FEATURES)))
    return table.iloc[random.permutation(len(table))].reset_index(drop=True)


def with_lapse(table: pd.DataFrame, index: list[int] | None = None) -> tuple[Tensor, Tensor, list[int]]:
    sequences = Sequences.from_frame(table, id="id", time="time", values=FEATURES)
    batch = next(iter(sequences.batches(BATCH))) if index is None else sequences.batch(index)
    padded = batch.padded()
    return padded.values, padded.timespans, batch.index.tolist()


def with_pandas(table: pd.DataFrame, index: list[int] | None = None) -> tuple[Tensor, Tensor, list[int]]:
    values, gaps = [], []
    for _, group in table.sort_values(["id", "time"]).groupby("id"):
        values.append(torch.from_numpy(group[FEATURES].to_numpy(np.float32)))
        times = group["time"].to_numpy()
        gaps.append(torch.from_numpy(np.diff(times, prepend=times[:1]).astype(np.float32)))
    chosen = list(range(BATCH)) if index is None else index
    return (
        pad_sequence([values[i] for i in chosen], batch_first=True),
        pad_sequence([gaps[i] for i in chosen], batch_first=True),
        chosen,
    )


def check_agreement(table: pd.DataFrame) -> None:
    ours = with_lapse(table)
    theirs = with_pandas(table, ours[2])
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


def seconds(run: Callable[[pd.DataFrame], object], table: pd.DataFrame) -> float:
    started = time.perf_counter()
    run(table)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    table = events_table(arguments.events)
    check_agreement(table)
    pairs = [(seconds(with_lapse, table), seconds(with_pandas, table)) for _ in range(arguments.repeats)]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(
        f"frame to first batch, {len(table):,} events: lapse {len(table) / ours:,.0f} events/s, "
        f"pandas groupby + pad_sequence {len(table) / theirs:,.0f} events/s, ratio {ratio:.1f}x"
    )


if __name__ == "__main__":
    main()
