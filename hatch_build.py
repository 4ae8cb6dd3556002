"""Compiled kernels in the wheel, if LAPSE_PREBUILT=1 asks for them (`make wheel`): one library per level of processor.

The libraries know nothing of Python or torch, so one wheel serves all versions of both: py3-none-manylinux_2_N_ARCH,
where 2.N is the oldest C library that has every symbol they need. Without it, the wheel is pure Python and compiles on
first use. LAPSE_MACHINE names another machine than this one, for which $CXX compiles (`make wheel PLATFORM=aarch64`).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The C++ library goes into ours, so that the one that the system has may be older.
SELF_CONTAINED = ("-static-libstdc++", "-static-libgcc", "-s")


class PrebuiltKernels(BuildHookInterface[Any]):
    """Compiles the libraries into a folder of the build, and has them put into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("LAPSE_PREBUILT") != "1" or version == "editable":
            return
        folder = Path(self.directory) / "prebuilt"
        libraries = compile_all(Path(self.root) / "src/lapse/kernels", folder)
        build_data["force_include"].update(
            {str(path): f"lapse/kernels/prebuilt/{path.name}" for path in libraries}
        )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(map(glibc_needed, libraries))}_{machine()}"


def machine() -> str:
    return os.environ.get("LAPSE_MACHINE") or platform.machine()


def compile_all(kernels: Path, folder: Path) -> list[Path]:
    """A library per level that the machine may have, each with the name that lapse/kernels/build.py looks for."""
    compiler = load(kernels / "compiler.py")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for level in compiler.LEVELS if machine() == "x86_64" else ["DEFAULT"]:
        path = folder / f"{level}.so"
        compiler.compile_to([*compiler.command_for(level), *SELF_CONTAINED], path)
        mark = compiler.fingerprint((machine(), level))
        made.append(path.rename(folder / compiler.library_name(mark, path)))
    return made


def load(path: Path) -> Any:
    """A module from its file alone: importing it through its package would need torch."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def glibc_needed(library: Path) -> int:
    """N of the oldest glibc 2.N that has all symbols that a library asks for, at least 17 as the oldest manylinux.

    The names of the versions are read from the file itself, whatever processor it is for.
    """
    minors = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    return max([17, *map(int, minors)])
