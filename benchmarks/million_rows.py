"""How long does a table of a million rows wait for its first epoch, and how long for its answers?

Question: seconds from a pandas frame of 1,000,000 rows and 20,000 ids to the first epoch of `IrregularClassifier.fit`,
and seconds of `predict` for all 20,000 ids with an ensemble of default size. Bounds: 3 and 10 seconds. The libraries
that a first call imports are imported before the clock starts. The answers are checked to be one per id before they
are timed.

    python benchmarks/million_rows.py [--rows 1000000] [--ids 20000] [--profile]
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lightning  # noqa: F401 - imported here so that the first call of `fit` does not wait for it
import numpy as np
import pandas as pd

from lapse.estimators import IrregularClassifier
from lapse.training.learner import Learner

FEATURES = [f"x{k}" for k in range(8)]


class FirstEpoch(Exception):
    """The first epoch has begun, and nothing after it is of interest."""


def visits(rows: int, ids: int, seed: int = 0) -> pd.DataFrame:
    """Rows of many ids in any order, at irregular times, with a third of the values missing."""
    random = np.random.default_rng(seed)
    owner = np.concatenate([np.arange(ids), random.integers(0, ids, rows - ids)])
    values = random.normal(size=(rows, len(FEATURES)))
    values[random.random(values.shape) < 1 / 3] = np.nan
    table = pd.DataFrame(values, columns=FEATURES)
    table.insert(0, "id", owner)
    table.insert(1, "time", random.uniform(0, 1000, rows))
    table["target"] = np.where(random.random(ids) < 0.3, "ill", "well")[owner]
    return table


def estimator(**settings: object) -> IrregularClassifier:
    return IrregularClassifier(id="id", time="time", target="target", **settings)


@contextmanager
def stopped_at_the_first_epoch() -> Iterator[None]:
    def stop(learner: Learner) -> None:
        raise FirstEpoch

    original = Learner.on_train_epoch_start
    Learner.on_train_epoch_start = stop  # type: ignore[method-assign]
    try:
        yield
    except FirstEpoch:
        pass
    finally:
        Learner.on_train_epoch_start = original  # type: ignore[method-assign]


def until_first_epoch(table: pd.DataFrame) -> None:
    with stopped_at_the_first_epoch():
        estimator().fit(table)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Of the wall clock, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The two times, each by the wall clock and of the processor."""
    first_epoch = seconds(lambda: until_first_epoch(table))
    # Fitted to few ids: how long an answer takes depends on the sizes of the parts, and not on how good they are.
    few = table[table["id"] < 300]
    fitted = estimator(epochs=1, batch_size=32).fit(few)
    assert len(fitted.predict(few)) == few["id"].nunique()
    return {"fit: first epoch": first_epoch, "predict": seconds(lambda: fitted.predict(table))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, default=20_000)
    parser.add_argument("--profile", action="store_true", help="where the time before the first epoch goes")
    arguments = parser.parse_args()
    table = visits(arguments.rows, arguments.ids)
    if arguments.profile:
        with cProfile.Profile() as profile:
            until_first_epoch(table)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        return
    for name, (wall, processor) in measure(table).items():
        print(f"{name}: {wall:.1f} s, of the processor {processor:.1f} s")


if __name__ == "__main__":
    main()
