"""How the C++ of the kernels becomes a library: the compiler, its flags, and the levels of processors.

Of Python it needs the standard library alone, since `hatch_build.py` compiles a wheel's libraries where no torch is.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

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


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, which may have arguments of its own, or the first one found."""
    asked = words_of("CXX", os.environ.get("CXX", ""))
    for words in [asked] if asked else [["c++"], ["g++"], ["clang++"]]:
        if path := shutil.which(words[0]):
            return [path, *words[1:]]
    if asked:
        raise Unavailable(f"CXX={shlex.join(asked)}: there is no program {asked[0]!r} that can be run")
    raise Unavailable("no C++ compiler found (c++, g++, clang++ or $CXX)")


def command_for(level: str) -> list[str]:
    """The command that compiles for a level, without sources and output; $LAPSE_CXXFLAGS are added to its flags."""
    added = words_of("LAPSE_CXXFLAGS", os.environ.get("LAPSE_CXXFLAGS", ""))
    return [*compiler(), *FLAGS, *LEVELS[level], *added]


def compile_to(command: Sequence[str], path: Path) -> None:
    """Compile the sources to the library at `path`."""
    run([*command, *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(path)])
    if not path.is_file():
        raise Unavailable(f"{command[0]} wrote no library: is it a C++ compiler?")


def fingerprint(words: Sequence[str]) -> str:
    """A hash of these words and of all sources."""
    digest = hashlib.sha256("\0".join(words).encode())
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        name = source.relative_to(SOURCES).as_posix()
        digest.update(name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def library_name(fingerprint: str, path: Path) -> str:
    """What the library in the file `path` is to be called: by its fingerprint and the hash of the file itself."""
    return f"kernels-{fingerprint}-{hashlib.sha256(path.read_bytes()).hexdigest()[:32]}.so"


def words_of(variable: str, text: str) -> list[str]:
    """The words of an environment variable, split as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Unavailable(f"cannot read {variable}={text}: {error}") from error


def run(command: Sequence[str]) -> str:
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
