"""The same runs on a Ray cluster: any number of machines that see one folder."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lapse.extras import extra
from lapse.runs import RunConfig
from lapse.study.local import ending_of, work
from lapse.study.schedule import Ending, Run

PATIENCE = 10.0  # seconds to wait for a cluster to answer


class ClusterNotFound(RuntimeError):
    """Nobody answers at the address of the cluster."""


class RayWorkers:
    """As many runs at a time as the cluster at ``address`` has processors for.

    "local" starts a cluster of ``count`` workers on this machine and ends it with the study. The folder of the
    runs must be the same for all machines, on a file system whose locks hold between them. Ray does not try again
    by itself: a run whose worker or machine died goes back to the study, which starts it again where it was.
    """

    def __init__(
        self,
        root: str | Path,
        address: str,
        *,
        count: int = 2,
        threads: int = 1,
        data_dir: str | Path | None = None,
    ) -> None:
        self._ray = _import_ray()
        self.root, self.address, self.count, self.threads = Path(root).resolve(), address, count, threads
        self.data_dir = None if data_dir is None else str(Path(data_dir).resolve())
        self._pending: dict[Any, Run] = {}
        self._started = False

    def __enter__(self) -> RayWorkers:
        if not self._ray.is_initialized():
            _check_answers(self.address)
            self._ray.init(**self._cluster(), log_to_driver=False, include_dashboard=False)
            self._started = True
        # A new process for every run, as on one machine; Ray gives it as many threads as processors.
        self._attempt = self._ray.remote(num_cpus=self.threads, max_calls=1, max_retries=0)(_attempt)
        return self

    def _cluster(self) -> dict[str, Any]:
        return (
            {"num_cpus": self.count * self.threads} if self.address == "local" else {"address": self.address}
        )

    def __exit__(self, *exception: object) -> None:
        for reference in self._pending:
            self._ray.cancel(reference, force=True)
        self._pending = {}
        if self._started:
            self._ray.shutdown()

    @property
    def free(self) -> bool:
        processors: float = self._ray.cluster_resources().get("CPU", 0)
        return len(self._pending) < processors // self.threads

    def start(self, run: Run) -> None:
        arguments = (run.config.as_dict(), str(self.root), self.data_dir, self.threads)
        self._pending[self._attempt.remote(*arguments)] = run

    def ended(self) -> Iterator[tuple[Run, Ending]]:
        if not self._pending:
            return
        ready, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        for reference in ready:
            yield self._pending.pop(reference), self._ending(reference)

    def _ending(self, reference: Any) -> Ending:
        try:
            status = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:
            return Ending.FAILED
        except self._ray.exceptions.RayError:
            return Ending.KILLED  # of the worker, its machine, or for want of memory
        return ending_of(status)


def _check_answers(address: str) -> None:
    """Raise at once if nobody listens at `HOST:PORT`, for which Ray itself waits several minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # "auto" and the like, which Ray looks up
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterNotFound(
            f"no Ray cluster answers at {address} ({error}); `ray status` on its head node tells the address, and "
            "`local` starts a cluster here"
        ) from error


def _attempt(config: dict[str, Any], root: str, data_dir: str | None, threads: int) -> int:
    """On a machine of the cluster."""
    return work(RunConfig.from_dict(config), root, data_dir, threads)


def _import_ray() -> Any:
    with extra("ray"):
        import ray
    return ray
