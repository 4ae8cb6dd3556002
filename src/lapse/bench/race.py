"""Two sides timed in turn, and the line of the table that comes of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

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
    """How to measure.

    Args:
        repeats: The number of turns of each comparison.
        threads: Threads of torch and of the kernels.
        models: The models of the section that compares models; empty for all of the registry.
    """

    repeats: int = 15
    threads: int = 2
    models: tuple[str, ...] = ()


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
        """`work` is how many times the rival's run the comparison asks for."""
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
