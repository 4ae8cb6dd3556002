"""The loop of a study: start what can be started, wait for what others hold, count what is done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from lapse.runs import Result, RunBusy, RunConfig, hold

# How often a run is started before it is given up, if its process was killed; for want of memory that tends to repeat.
ATTEMPTS = 3
# Seconds between two looks at the workers and folders.
POLL = 0.2


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ELSEWHERE = "elsewhere"  # another study has it
    DONE = "done"
    FAILED = "failed"


class Ending(Enum):
    """How a worker's attempt at a run ended."""

    DONE = "done"
    FAILED = "failed"  # an exception: error.txt tells
    BUSY = "busy"  # another process had the folder
    KILLED = "killed"  # the process ended without a result and without an exception


class Workers(Protocol):
    """Where runs are done: a few processes here, or a cluster."""

    def __enter__(self) -> Workers: ...

    def __exit__(self, *exception: object) -> None: ...

    @property
    def free(self) -> bool:
        """Whether another run can be started now."""
        ...

    def start(self, run: Run) -> None: ...

    def ended(self) -> Iterable[tuple[Run, Ending]]:
        """The runs that ended since the last call, and how."""
        ...


class Watcher(Protocol):
    """Whoever wants to see a study proceed."""

    def changed(self, run: Run) -> None: ...

    def looked(self, runs: Sequence[Run]) -> None: ...


@dataclass
class Run:
    """One run as the study sees it."""

    config: RunConfig
    folder: Path
    state: State = State.WAITING
    attempts: int = 0

    @property
    def error(self) -> str:
        """The traceback of a failed run."""
        path = self.folder / "error.txt"
        return path.read_text() if path.exists() else ""

    @property
    def is_done(self) -> bool:
        """Whether there is a whole result; what a worker says of it is not enough."""
        return Result.read(self.folder) is not None

    @property
    def is_held(self) -> bool:
        """Whether a process works in the folder right now."""
        try:
            with hold(self.folder, patience=0):
                return False
        except RunBusy:
            return True


@dataclass(frozen=True)
class Outcome:
    """What became of a study's runs."""

    runs: list[Run]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.state is State.FAILED]

    @property
    def results(self) -> list[Result]:
        """Of the runs that are done, in the order of the grid."""
        found = (Result.read(run.folder) for run in self.runs)
        return [result for result in found if result is not None]


def study(
    configs: Sequence[RunConfig],
    root: str | Path,
    *,
    workers: Workers | None = None,
    data_dir: str | Path | None = None,
    watchers: Sequence[Watcher] = (),
) -> Outcome:
    """Do every run that is not done yet; ``workers`` are two processes of this machine unless told otherwise.

    Any number of studies may work on one folder at the same time: a run that another one has is waited for, and
    taken over if that one dies.
    """
    if workers is None:
        from lapse.study.local import LocalWorkers

        workers = LocalWorkers(root, data_dir=data_dir)
    runs = {config.folder(root): Run(config, config.folder(root)) for config in configs}
    schedule = _Schedule(list(runs.values()), watchers)
    with workers:
        while not schedule.step(workers):
            time.sleep(POLL)
    return Outcome(schedule.runs)


@dataclass
class _Schedule:
    runs: list[Run]
    watchers: Sequence[Watcher]
    queue: deque[Run] = field(default_factory=deque)

    def __post_init__(self) -> None:
        for run in self.runs:
            if run.is_done:
                run.state = State.DONE  # no news to anyone
            else:
                self.queue.append(run)

    def step(self, workers: Workers) -> bool:
        """Take note of what ended, start what can be started; whether all is over."""
        for run, ending in workers.ended():
            self._end(run, ending)
        # Once around the queue at most: what is held elsewhere goes to its end.
        for _ in range(len(self.queue)):
            if not workers.free:
                break
            self._try(self.queue.popleft(), workers)
        for watcher in self.watchers:
            watcher.looked(self.runs)
        return all(run.state in (State.DONE, State.FAILED) for run in self.runs)

    def _try(self, run: Run, workers: Workers) -> None:
        if run.is_done:
            self._set(run, State.DONE)
        elif run.is_held:
            self._set(run, State.ELSEWHERE)
            self.queue.append(run)
        else:
            run.attempts += 1
            self._set(run, State.RUNNING)
            workers.start(run)

    def _end(self, run: Run, ending: Ending) -> None:
        if ending is Ending.DONE and not run.is_done:
            ending = Ending.KILLED
        if ending is Ending.DONE:
            self._set(run, State.DONE)
        elif ending is Ending.BUSY:
            run.attempts -= 1
            self._again(run, State.ELSEWHERE)
        elif ending is Ending.KILLED and run.attempts < ATTEMPTS:
            self._again(run, State.WAITING)
        else:
            if ending is Ending.KILLED:
                (run.folder / "error.txt").write_text(
                    f"The process of this run ended {run.attempts} times without a result, as happens when it is "
                    "killed or memory runs out. Start the study again with fewer workers or smaller batches; the "
                    "run goes on from its last epoch.\n"
                )
            self._set(run, State.FAILED)

    def _again(self, run: Run, state: State) -> None:
        self._set(run, state)
        self.queue.append(run)

    def _set(self, run: Run, state: State) -> None:
        if run.state is state:
            return
        run.state = state
        for watcher in self.watchers:
            watcher.changed(run)


def describe_failure(run: Run) -> str:
    """What went wrong, without where: of a traceback, the line behind the last place in the code."""
    lines = [line for line in run.error.splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith(" ")]
    behind = lines[places[-1] + 1 :] if places else lines[-1:]
    return behind[0] if behind else "no traceback was left"
