"""What a bug report needs to know of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

import lapse
from lapse.kernels import build, native
from lapse.tasks.files import search_folders


def describe(data_dir: Path | None = None) -> dict[str, str]:
    """Name and value of everything that has ever decided a bug."""
    return {
        "lapse": lapse.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **{name: importlib.metadata.version(name) for name in ("torch", "numpy", "lightning", "pandas")},
        "cores": str(os.cpu_count()),
        "torch threads": str(torch.get_num_threads()),
        "fused kernels": "none" if native.library() is None else f"{build.level()}, {build.origin()}",
        "data searched": ", ".join(str(folder) for folder in search_folders(data_dir)),
    }
