"""The compiled library's file: one that came with the package, or built once with the system's C++ compiler.

It has a plain C interface and includes nothing of torch or Python, so it builds in seconds and suits any version of
either. The file's name holds two hashes. The first is of the sources, the flags, the compiler and the processor's
level: whatever changes makes another file. The second is of the file itself: one that is truncated or damaged is not
loaded but built again. Files are put in place whole, so processes may race.

Loading a library runs its code, so neither a file built here nor its folder may belong to, or be writable by, anyone
but this user and the system's administrator, and nobody else may be able to swap a folder above it. One that came with
the package is trusted as the Python beside it is.
"""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path

import torch

from lapse.cache import cache_folder, writing
from lapse.kernels.compiler import (
    LEVELS,
    Unavailable,
    command_for,
    compile_to,
    fingerprint,
    library_name,
    run,
)

# Wheels bring libraries in this folder, see hatch_build.py; a checkout has none.
PREBUILT = Path(__file__).parent / "prebuilt"


def level() -> str:
    """The processor's level: "AVX512", "AVX2" or "DEFAULT"; the environment variable LAPSE_CPU asks for a lower one."""
    known = tuple(LEVELS)
    found = torch.backends.cpu.get_cpu_capability()
    found = found if found in known and platform.machine().lower() in ("x86_64", "amd64") else "DEFAULT"
    asked = (os.environ.get("LAPSE_CPU") or found).upper()
    if asked not in known:
        raise Unavailable(f"LAPSE_CPU must be one of {', '.join(known)}, got {asked}")
    if known.index(asked) > known.index(found):
        raise Unavailable(f"LAPSE_CPU={asked} is beyond this processor, which has {found}")
    return asked


def library_file() -> Path:
    """The library's file, verified: the one of the package, unless $CXX or $LAPSE_CXXFLAGS ask for another."""
    asked = os.environ.get("CXX") or os.environ.get("LAPSE_CXXFLAGS")
    return (None if asked else prebuilt(level())) or build()


def prebuilt(level: str) -> Path | None:
    """The whole library for this machine and level that came with the package, made of the sources beside it."""
    mark = fingerprint((platform.machine(), level))
    return next((p for p in PREBUILT.glob(f"kernels-{mark}-*.so") if p.name == library_name(mark, p)), None)


def origin() -> str:
    """Where the library comes from, in a word for people."""
    return "prebuilt" if library_file().parent == PREBUILT else "compiled here"


def build() -> Path:
    """The library's file in the cache, verified; compiled if there is none."""
    command = command_for(level())
    mark = fingerprint((run([*command, "--version"]), platform.machine(), *command))
    try:
        folder = _private_folder()
        if found := _verified(folder, mark):
            return found
        # One name for all fingerprints, so that whatever a killed compilation left is removed by the next one.
        with writing(folder / "kernels.so", locks=folder) as made:
            # Another process may have made it while this one waited.
            return _verified(folder, mark) or _compiled(command, made, folder, mark)
    except OSError as error:
        raise Unavailable(f"cannot write the compiled kernels: {error}") from error


def _private_folder() -> Path:
    try:
        folder = cache_folder() / "kernels"
    except RuntimeError as error:  # a home that nobody has
        raise Unavailable(f"no folder for the compiled kernels: {error} Set LAPSE_CACHE.") from error
    # Whatever the user's mask lets others do by default.
    for above in reversed([path for path in folder.parents if not path.exists()]):
        above.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_owner(folder)
    for above in folder.resolve().parents:
        _check_above(above)
    return folder


def _check_owner(path: Path) -> None:
    """Refuse a place where others could put code."""
    if not hasattr(os, "geteuid"):
        return
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise Unavailable(f"{path} belongs to another user; set LAPSE_CACHE to a folder of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(
            f"others may write to {path}; take that from them with chmod go-w, or set LAPSE_CACHE"
        )


def _check_above(folder: Path) -> None:
    """Refuse a folder whose entries others could swap for their own.

    In a folder with the sticky bit, such as /tmp, everyone may add entries and nobody may take those of others away. A
    group that may write is trusted here, because homes of colleagues are often kept so.
    """
    if not hasattr(os, "geteuid"):
        return
    status = folder.stat()
    shared = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    if shared or status.st_uid not in (os.geteuid(), 0):
        raise Unavailable(
            f"another user could replace what is in {folder}, where the compiled kernels are; set LAPSE_CACHE to a "
            "folder of your own"
        )


def _verified(folder: Path, mark: str) -> Path | None:
    """The file with this fingerprint whose contents have the hash of its name; damaged ones are removed."""
    for path in sorted(folder.glob(f"kernels-{mark}-*.so")):
        _check_owner(path)
        if path.name == library_name(mark, path):
            return path
        path.unlink(missing_ok=True)
    return None


def _compiled(command: list[str], made: Path, folder: Path, mark: str) -> Path:
    compile_to(command, made)
    made.chmod(0o755)  # whatever the user's mask lets others do by default
    path = folder / library_name(mark, made)
    with made.open("rb") as file:
        os.fsync(file.fileno())  # or a crash of the machine could leave the name without the contents
    made.replace(path)
    return path
