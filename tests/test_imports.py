"""Imports follow the flow of the data: no arrow points backward."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lapse

ROOT = Path(__file__).parents[1]
SOURCE = Path(lapse.__file__).parent
# A module may import those before it, and its own package. `lapse` itself gathers what is public, and may import
# anything; importing it for its version is no arrow.
FLOW = (
    "torch_private",
    "threads",
    "extras",
    "arguments",
    "rows",
    "examples",
    "references",
    "cache",
    "sequences",
    "events",
    "solvers",
    "stored_config",
    "kernels",
    "palette",
    "recurrent",
    "testing",
    "encoders",
    "heads",
    "tables",
    "models",
    "training",
    "streaming",
    "explain",
    "estimators",
    "sktime",
    "aeon",
    "export",
    "tasks",
    "runs",
    "study",
    "tune",
    "gradients",
    "report",
    "bench",
    "demo",
    "environment",
    "cli",
    "__main__",
)
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def package(name: str) -> str | None:
    """``lapse.sequences.batches`` -> ``sequences``; None outside lapse and for lapse itself."""
    parts = name.split(".")
    return parts[1] if parts[0] == "lapse" and len(parts) > 1 else None


def exports() -> dict[str, str]:
    """Where the public names of `lapse` come from: importing ODELSTM from it is an arrow to recurrent."""
    found = {}
    for node in ast.parse((SOURCE / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
    return found


def imported(text: str) -> set[str]:
    """The packages of lapse that a source imports anywhere, also inside functions and for types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    public = exports()
    found = {package(public.get(name.removeprefix("lapse."), name)) for name in names}
    return {name for name in found if name in FLOW}


def backward(importer: str, text: str) -> list[str]:
    allowed = FLOW[: FLOW.index(importer) + 1]
    return sorted(name for name in imported(text) if name not in allowed)


def owner(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_module_has_its_place_in_the_flow() -> None:
    assert {owner(path) for path in MODULES} <= set(FLOW) | {"__main__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_arrow_points_backward(path: Path) -> None:
    assert backward(owner(path), path.read_text()) == []


def test_a_backward_arrow_would_be_seen() -> None:
    assert backward("kernels", "from lapse.recurrent import RNN") == ["recurrent"]
    assert backward("kernels", "from lapse import recurrent, solvers") == ["recurrent"]
    assert backward("kernels", "from lapse import ODELSTM") == ["recurrent"]
    assert backward("kernels", "def f():\n    import lapse.study.local") == ["study"]
    assert backward("recurrent", "from lapse.recurrent.cell import Cell\nimport lapse") == []


def told(page: str) -> list[list[str]]:
    """The chains of names with arrows between them, `a` → `b` (explained) → `c`, in a text."""
    words = re.sub(r"\([^()]*\)|`", "", (ROOT / page).read_text())
    return [re.split(r"\s*→\s*", chain) for chain in re.findall(r"\w+(?:\s*→\s*\w+){3,}", words)]


def test_the_design_page_tells_the_whole_flow() -> None:
    assert told("docs/design.md") == [list(FLOW)]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_readme_and_contributing_tell_the_same_flow(page: str) -> None:
    (chain,) = told(page)
    assert chain == [name for name in FLOW if name in chain]


IMPORTED = """
import sys, lapse, torch
later = ("events", "models", "sequences", "streaming", "tasks", "testing")
assert not [name for name in later if f"lapse.{name}" in sys.modules], "imported although nobody asked"
assert torch.ops.lapse.unroll and torch.ops.lapse.scan, "a stored graph may hold them"
for name in dir(lapse):
    getattr(lapse, name)
assert lapse.SequenceModel is lapse.models.SequenceModel and lapse.TASKS is lapse.tasks.TASKS
assert not hasattr(lapse, "no_such_name")
"""


def test_what_layers_do_not_need_is_imported_when_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)
