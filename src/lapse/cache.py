"""The user's cache folder, and how a file comes into it: written whole by one process at a time."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock

TELL_AFTER = 2.0  # seconds of waiting for another process before saying so

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where lapse keeps what it can make or fetch again: `$LAPSE_CACHE`, or the place that the system has for that."""
    if chosen := os.environ.get("LAPSE_CACHE"):
        return Path(chosen).expanduser()
    return _system_cache() / "lapse"


def _system_cache() -> Path:
    if os.path.isabs(chosen := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(chosen)
    try:
        home = Path.home()
    except (
        RuntimeError
    ):  # neither a home in the environment nor an entry among the users, as in some containers
        return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    places = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}
    return places.get(sys.platform, home / ".cache")


@contextmanager
def writing(target: Path, locks: Path) -> Iterator[Path]:
    """A place to write `target` before renaming it; one process at a time, nothing left on failure.

    Args:
        target: The file or folder to write.
        locks: The folder of the lock file, made if it is not there.
    """
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    locks.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(str(target).encode()).hexdigest()[:16]
    prefix = f".partial-{key}-"
    with _told(FileLock(locks / f"{target.name}-{key}.lock"), target):
        # Whoever left these was killed: the lock is ours now.
        for stale in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
            yield Path(folder) / target.name


@contextmanager
def _told(lock: FileLock, target: Path) -> Iterator[None]:
    """The lock, and a line to whoever has to wait for it."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=TELL_AFTER)
    except Timeout:
        _log.warning("waiting for another process that makes %s; its lock is %s", target, lock.lock_file)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
