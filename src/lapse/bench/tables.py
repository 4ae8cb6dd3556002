"""The lines as Markdown and JSON."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lapse.bench.race import Line, Settings
from lapse.kernels import build


def machine() -> dict[str, str]:
    """What the ratios depend on beside the sources."""
    return {
        "processor": processor(),
        "level": build.level(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The name of the processor's model, where the system tells; else that of its family."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def record(lines: list[Line], settings: Settings) -> dict[str, Any]:
    """The results and the machine they are of, for JSON."""
    return {"settings": asdict(settings), "machine": machine(), "lines": [asdict(one) for one in lines]}


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
