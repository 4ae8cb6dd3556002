"""The ratios of many runs of the benchmark: kept in a file, compared with each other, drawn on a page."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import lapse
from lapse.bench.race import Line, Settings
from lapse.bench.tables import machine
from lapse.report import theme
from lapse.report.page import environment

MUCH = 0.10  # a ratio that moves by less may be the machine's mood


@dataclass(frozen=True)
class Entry:
    """One run of the benchmark.

    Args:
        when: The date and time, in UTC.
        commit: Of the sources, or the version where there is no repository.
        machine: What the ratios depend on beside the sources: processor, level of its instructions, torch, threads.
        ratios: Of each comparison, by its name.
    """

    when: str
    commit: str
    machine: Mapping[str, str]
    ratios: Mapping[str, float]

    @staticmethod
    def of(lines: Sequence[Line], settings: Settings) -> Entry:
        """The run that has just given these lines."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        here = {**machine(), "threads": str(settings.threads)}
        return Entry(now, commit(), here, {one.name: round(one.ratio, 4) for one in lines})


@dataclass(frozen=True)
class Move:
    """A comparison whose ratio is not what it was: `before` is the median of earlier runs on such a machine."""

    name: str
    before: float
    now: float

    @property
    def text(self) -> str:
        return (
            f"{self.name}: {self.before:.2f} before, {self.now:.2f} now ({self.now / self.before - 1:+.0%})"
        )


def commit() -> str:
    """The commit of the sources, marked if they were changed since; the version where they are in no repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return lapse.__version__


def keep(path: Path, earlier: Sequence[Entry], now: Entry) -> list[Move]:
    """Add a run to the file of earlier ones, one JSON object per line, and draw all of them on a page beside it.

    Returns:
        What moved by more than a tenth.
    """
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(now)) + "\n")
    path.with_suffix(".html").write_text(page([*earlier, now]), encoding="utf-8")
    return moved(earlier, now)


def read(path: Path) -> list[Entry]:
    """The runs in a file, the earliest first; none if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: str) -> Entry:
    try:
        entry = Entry(**json.loads(line))
        return Entry(
            str(entry.when),
            str(entry.commit),
            {str(name): str(value) for name, value in entry.machine.items()},
            {str(name): float(ratio) for name, ratio in entry.ratios.items()},
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}, line {number}, is no run of `lapse bench --history`: {error}") from error


def moved(earlier: Sequence[Entry], now: Entry, by: float = MUCH) -> list[Move]:
    """The comparisons that are further than `by` from the median of earlier runs on such a machine."""
    alike = [entry for entry in earlier if entry.machine == now.machine]
    moves = []
    for name, ratio in now.ratios.items():
        before = [entry.ratios[name] for entry in alike if name in entry.ratios]
        if before and abs(ratio / (median := statistics.median(before)) - 1) > by:
            moves.append(Move(name, median, ratio))
    return moves


WIDTH, HEIGHT = 180.0, 28.0  # of a line on the page


@dataclass(frozen=True)
class Curve:
    """One comparison over all runs of one machine: its ratios, and where they lie in a small drawing."""

    name: str
    ratios: Sequence[float]

    @property
    def points(self) -> list[tuple[float, float]]:
        low, high = min(self.ratios), max(self.ratios)
        across = WIDTH / max(1, len(self.ratios) - 1)
        scale = (HEIGHT - 6) / (high - low) if high > low else 0
        return [(i * across, HEIGHT - 3 - (ratio - low) * scale) for i, ratio in enumerate(self.ratios)]


def page(entries: Sequence[Entry]) -> str:
    """The runs as one HTML page: a part per machine, and in it a line per comparison."""
    text: str = (
        environment()
        .get_template("history.html.jinja")
        .render(parts=list(_parts(entries)), theme=theme.css([]), width=WIDTH, height=HEIGHT)
    )
    return text


def _parts(entries: Sequence[Entry]) -> Iterator[tuple[str, list[Entry], list[Curve]]]:
    machines = dict.fromkeys(tuple(sorted(entry.machine.items())) for entry in entries)
    for key in machines:
        runs = [entry for entry in entries if tuple(sorted(entry.machine.items())) == key]
        names = dict.fromkeys(name for entry in runs for name in entry.ratios)
        curves = [Curve(name, [e.ratios[name] for e in runs if name in e.ratios]) for name in names]
        yield ", ".join(f"{name} {value}" for name, value in key), runs, curves
