"""The site's page of every model, made from its class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lapse import MODELS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    import model_pages

    yield model_pages
    sys.path.remove(str(DOCS))
    del sys.modules["model_pages"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_its_equations_and_its_source(pages: ModuleType, name: str) -> None:
    text = pages.page(name)
    kinds = [type(cell) for cell in pages.cells(MODELS[name]).values()] or [MODELS[name]]
    for kind in kinds:
        words = pages.Words.of(kind)
        assert words.summary in text
        assert words.equations
        assert words.equations in text
        assert "Args:" not in words.text
    assert "Source" in text
    assert "| `nn.LSTM` | 17,920 | 17,408 |" in text
    assert f"({name}.svg)" in text
    assert "## Where it won and lost" in text


def test_a_page_tells_what_the_class_declares(pages: ModuleType) -> None:
    text = pages.page("ode-lstm")
    assert "| `nn.LSTM` | 17,920 | 17,408 |" in text
    assert "| driven | 26,048 | 37,888 |" in text
    assert "A gap may be passed in pieces (jump)." in text
    assert "| walker, mse | 0.883 ± 0.014 (the paper's) | 1 of 11 | ode-lstm 0.883 |" in text
    assert "| xor-dense, accuracy | 100.0 ± 0.0 (the paper's) | 1 of 11 |" in text  # a tie is a first place
    assert "lines need not begin at the dots" in pages.page("cfc")


def test_costs_of_what_has_no_program_are_counted(pages: ModuleType) -> None:
    """By hand: W enters 64 x 4, B 128 x 64, C 64 x 128, W₁ and W₂ 128 x 64 together."""
    assert f"| this model | 25,344 | {64 * 4 + 128 * 64 + 64 * 128 + 128 * 64:,} |" in pages.page(
        "state-space"
    )
    text = pages.page("neural-cde")
    assert "It does not run in the fused loop." in text
    assert "Nothing changes between events (causal, reference)" in pages.page("mtan")


def test_a_picture_shows_the_state_and_is_the_same_file_every_time(pages: ModuleType) -> None:
    first = pages.picture("ltc")
    assert first.startswith(b"<?xml")
    assert first == pages.picture("ltc")
    assert first != pages.picture("cfc")
    assert pages.picture("state-space") == pages.picture("state-space") != pages.picture("mtan")


def test_a_new_model_gets_its_page_for_free(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from toy_model import Drift  # a layer outside the package

    monkeypatch.setitem(MODELS, "toy", Drift)
    assert "## Between two observations" in pages.page("toy")
    assert "No runs of it on the tasks are kept" in pages.page("toy")


def test_the_site_gets_a_page_and_a_picture_of_each(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.setattr(pages, "page", lambda name: f"# {name}\n")
    monkeypatch.setattr(pages, "picture", lambda name: b"<svg/>")
    plugins = SimpleNamespace(_current_plugin="model_pages")
    config = SimpleNamespace(use_directory_urls=True, site_dir="site", plugins=plugins)
    files: list[Any] = []
    pages.on_files(files, config)
    assert [file.src_uri for file in files if file.src_uri.endswith(".md")] == [
        f"models/{n}.md" for n in MODELS
    ]
    assert [file.src_uri for file in files if file.src_uri.endswith(".svg")] == [
        f"models/{n}.svg" for n in MODELS
    ]
    listed = pages.on_config(SimpleNamespace(nav=[{}, {}, {}])).nav[2]["Models"]
    assert len(listed) == len(MODELS)
