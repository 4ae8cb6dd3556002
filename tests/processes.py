"""Processes as the kernel sees them, for tests that kill some and look for the others. Linux only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Command:
    """A `lapse` command in a process of its own, whose descendants can be found by a mark in their environment."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of subprocess.Popen
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lapse", *self.words],
            env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment, "LAPSE_MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **self.options,
        )

    @property
    def alive(self) -> list[int]:
        """The living processes of the command, the first one among them."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                state = (process / "stat").read_text().rpartition(") ")[2][0]
                if self.mark.encode() in (process / "environ").read_bytes() and state != "Z":
                    found.append(int(process.name))
            except OSError:
                continue  # it ended, or is not ours
        return found

    def orphans(self, patience: float = 2.0) -> list[int]:
        """Those that are still alive after so many seconds, once the command itself has ended."""
        end = time.monotonic() + patience
        while (left := self.alive) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def end(self, timeout: float = 600.0) -> tuple[int, str]:
        """Wait for the end: the exit status, and all that was said."""
        said, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, said


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
