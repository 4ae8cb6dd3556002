"""Runs in processes of this machine: one process per run, one thread per process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

from _lapse_lifeline import STARTER, end_with_parent
from lapse.runs import RunBusy, RunConfig, run
from lapse.study.schedule import Ending, Run

BUSY = 75  # the exit status that sysexits.h calls "try again later"
TERMINATED = 128 + signal.SIGTERM  # the exit status that a shell gives a process ended by this signal
# Set before a worker loads its numerical libraries, which read them once.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# A fork server would look for modules in the folder in which it is started first, so that a `queue.py` of the user
# there would stand in for that of Python. A worker looks where the study does.
SAFE_PATH = "PYTHONSAFEPATH"


class LocalWorkers:
    """At most `count` processes at a time, each for one run.

    One thread per process, because at these sizes two runs side by side finish sooner than one on two threads. A
    process ends with the study that started it, however that ends: nothing is left behind to hold a folder.

    Args:
        root: the folder of the runs.
        count: how many processes at a time.
        threads: threads of each process.
        data_dir: where the data of the tasks are looked for first.
    """

    target: ClassVar[Callable[..., None]]  # what a process does; set below, where it is defined

    def __init__(
        self, root: str | Path, count: int = 2, *, threads: int = 1, data_dir: str | Path | None = None
    ) -> None:
        if count < 1 or threads < 1:
            raise ValueError(f"workers and threads must be at least 1, got {count} and {threads}")
        self.root, self.count, self.threads, self.data_dir = Path(root), count, threads, data_dir
        self._processes: list[tuple[Run, BaseProcess]] = []
        self._context = _context()
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> LocalWorkers:
        told = {
            **dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
            STARTER: str(os.getpid()),
            SAFE_PATH: "1",
        }
        self._environment = {name: os.environ.get(name) for name in told}
        os.environ.update(told)
        return self

    def __exit__(self, *exception: object) -> None:
        for _, process in self._processes:
            process.kill()
            process.join()
        self._processes = []
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    @property
    def free(self) -> bool:
        return len(self._processes) < self.count

    def start(self, run: Run) -> None:
        arguments = (run.config.as_dict(), str(self.root), self.data_dir, self.threads)
        process = self._context.Process(target=type(self).target, args=arguments)
        process.start()
        self._processes.append((run, process))

    def ended(self) -> Iterator[tuple[Run, Ending]]:
        for entry in list(self._processes):
            run, process = entry
            if process.exitcode is not None:
                self._processes.remove(entry)
                yield run, ending_of(process.exitcode)


def ending_of(status: int) -> Ending:
    """What the exit status of a worker tells; a negative one is the signal that killed it."""
    if status < 0 or status == TERMINATED:
        return Ending.KILLED
    return {0: Ending.DONE, BUSY: Ending.BUSY}.get(status, Ending.FAILED)


def _context() -> Any:
    """Processes forked from a server that has loaded everything and done nothing: clean, and quick to start."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["_lapse_lifeline", "lapse.study.local", "lightning"])
    return context


def run_in_worker(config: dict[str, Any], root: str, data_dir: str | Path | None, threads: int) -> None:
    """In the worker: do the run, and tell by the exit status how it went."""
    end_with_parent()  # the fork server, which ends with the study
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the study, which ends its workers
    sys.exit(work(RunConfig.from_dict(config), root, data_dir, threads))


def work(config: RunConfig, root: str | Path, data_dir: str | Path | None, threads: int) -> int:
    """One attempt at a run, with what it prints in its folder instead of over the table of progress."""
    import torch

    torch.set_num_threads(threads)
    folder = config.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("a") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    try:
        run(config, root, data_dir=data_dir)
    except RunBusy:
        return BUSY
    except SystemExit:
        return TERMINATED  # Lightning turns SIGTERM into an exit without a status
    except Exception:
        return 1  # run() has left the traceback in error.txt
    return 0


LocalWorkers.target = staticmethod(run_in_worker)


def _end_with_the_study() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
