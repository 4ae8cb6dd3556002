"""The design page names places in the code; each of them is there."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

import lapse

ROOT = Path(__file__).parents[1]
SOURCE = Path(lapse.__file__).parent
PAGE = (ROOT / "docs" / "design.md").read_text()
PLACES = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)))


def test_it_names_places() -> None:
    assert len(PLACES) > 40


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_every_place_is_there(file: str, name: str) -> None:
    module = "lapse." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = reduce(getattr, name.split("."), importlib.import_module(module))
    # A class or function that the module merely imports is named where it is defined.
    assert getattr(found, "__module__", module) == module or not callable(found)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|docs)/[\w./]+)`", PAGE))))
def test_every_file_is_there(path: str) -> None:
    assert (ROOT / path).exists()
