"""The compiled library's file: built once with the system's C++ compiler, verified whenever it is loaded.

It has a plain C interface and includes nothing of torch or Python, so it builds in seconds and suits any version of
either. The file's name holds two hashes. The first is of the sources, the flags, the compiler and the processor's
level: whatever changes makes another file. The second is of the file itself: one that is truncated or damaged is not
loaded but built again. Files are put in place whole, so processes may race.

Loading a library runs its code, so neither the file nor its folder may belong to, or be writable by, anyone but this
user and the system's administrator.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import torch

from lapse.cache import cache_folder, writing

SOURCES = Path(__file__).parent / "csrc"

# By the names of torch.backends.cpu.get_cpu_capability(), which looks at the processor this runs on, from the lowest
# to the highest. Elsewhere (ARM, old x86) the compiler's baseline: the sources use its vector types, not one
# processor's instructions.
LEVELS: dict[str, tuple[str, ...]] = {
    "DEFAULT": (),
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"),
}
# Every loop begins a line of code: the products are faster for it, the most where two threads share a core.
ALIGNED = ("-falign-functions=64", "-falign-loops=64")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", *ALIGNED, "-fPIC", "-shared", "-pthread", "-Wno-psabi")
PATIENCE = 600.0  # seconds for the compiler, which needs some ten


class Unavailable(RuntimeError):
    """There is no compiled library, and why."""


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


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, which may have arguments of its own, or the first one found."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        words = _words("CXX", name or "")
        if words and (path := shutil.which(words[0])):
            return [path, *words[1:]]
    raise Unavailable("no C++ compiler found (c++, g++, clang++ or $CXX)")


def build() -> Path:
    """The library's file, verified; compiled if there is none."""
    command = [*compiler(), *FLAGS, *LEVELS[level()]]
    command += _words("LAPSE_CXXFLAGS", os.environ.get("LAPSE_CXXFLAGS", ""))
    fingerprint = _fingerprint(command)
    try:
        folder = _private_folder()
        if found := _verified(folder, fingerprint):
            return found
        with writing(folder / f"kernels-{fingerprint}.so", locks=folder) as made:
            # Another process may have made it while this one waited.
            return _verified(folder, fingerprint) or _compiled(command, made, folder)
    except OSError as error:
        raise Unavailable(f"cannot write the compiled kernels: {error}") from error


def _words(variable: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Unavailable(f"cannot read {variable}={text}: {error}") from error


def _fingerprint(command: list[str]) -> str:
    digest = hashlib.sha256("\0".join((_run([*command, "--version"]), platform.machine(), *command)).encode())
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        name = source.relative_to(SOURCES).as_posix()
        digest.update(name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _private_folder() -> Path:
    try:
        folder = cache_folder() / "kernels"
    except RuntimeError as error:  # a home that nobody has
        raise Unavailable(f"no folder for the compiled kernels: {error} Set LAPSE_CACHE.") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_owner(folder)
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


def _verified(folder: Path, fingerprint: str) -> Path | None:
    """The file with this fingerprint whose contents have the hash of its name; damaged ones are removed."""
    for path in sorted(folder.glob(f"kernels-{fingerprint}-*.so")):
        _check_owner(path)
        if path.name == _name(fingerprint, path):
            return path
        path.unlink(missing_ok=True)
    return None


def _name(fingerprint: str, path: Path) -> str:
    return f"kernels-{fingerprint}-{hashlib.sha256(path.read_bytes()).hexdigest()[:32]}.so"


def _compiled(command: list[str], made: Path, folder: Path) -> Path:
    _run([*command, *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(made)])
    made.chmod(0o755)  # whatever the user's mask lets others do by default
    path = folder / _name(made.stem.removeprefix("kernels-"), made)
    with made.open("rb") as file:
        os.fsync(file.fileno())  # or a crash of the machine could leave the name without the contents
    made.replace(path)
    return path


def _run(command: list[str]) -> str:
    """What a command of the compiler prints; an error if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(f"{command[0]} failed: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise Unavailable(f"{command[0]} failed: {said[0]}")
    return done.stdout
