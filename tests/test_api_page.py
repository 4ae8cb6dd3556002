"""The API page has every public name: what `lapse` and its packages re-export or define in their `__init__.py`."""

import ast
import importlib
import re
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lapse

SOURCE = Path(lapse.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
LISTED = re.findall(r"^::: (lapse[\w.]*)", PAGE, re.MULTILINE)
# The command line is described by its own `--help`.
PACKAGES = sorted(
    path.parent for path in SOURCE.rglob("__init__.py") if path.parent.name not in ("cli", "walker_policies")
)


def public_names(source: str) -> list[str]:
    """What an `__init__.py` re-exports as `X as X`, and what it defines without an underscore."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names


def found(name: str) -> Any:
    """What a dotted name stands for; modules are imported on the way."""
    parts = name.split(".")

    def inside(outer: Any, word: str) -> Any:
        if isinstance(outer, ModuleType) and not hasattr(outer, word):
            return importlib.import_module(f"{outer.__name__}.{word}")
        return getattr(outer, word)

    return reduce(inside, parts[1:], lapse)


def test_what_is_listed_is_there_and_listed_once() -> None:
    objects = [id(found(name)) for name in LISTED]
    assert len(objects) == len(set(objects))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_public_name_is_listed(package: Path) -> None:
    dotted = ".".join(["lapse", *package.relative_to(SOURCE).parts])
    listed = {id(found(name)) for name in LISTED}
    exported = public_names((package / "__init__.py").read_text())
    # The names of a module that is exported whole are listed one by one.
    names = [name for name in exported if not isinstance(found(f"{dotted}.{name}"), ModuleType)]
    assert [f"{dotted}.{name}" for name in names if id(found(f"{dotted}.{name}")) not in listed] == []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_docstrings_hold_no_markup_that_the_pages_would_show_raw(path: Path) -> None:
    assert re.findall(r":(?:class|func|meth|mod|attr|data):`|Example::", path.read_text()) == []
