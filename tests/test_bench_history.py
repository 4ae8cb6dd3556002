"""Ratios of many runs: kept, compared only with those of such a machine, and drawn without running anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lapse.bench import history, sizes
from lapse.bench.history import Entry
from lapse.cli import app
from lapse.kernels import native

HERE = {"processor": "x86_64", "level": "AVX2", "torch": "2.13.0", "threads": "2"}
BEFORE = [
    Entry("2026-01-01 12:00", f"abc{i}", HERE, {"a: b": r, "c: d": 2.0})
    for i, r in enumerate((4.0, 4.2, 9.0))
]


def test_what_moved_is_told_from_the_median_of_such_machines() -> None:
    now = Entry("2026-01-02 12:00", "abd", HERE, {"a: b": 3.5, "c: d": 1.9, "new": 1.0})
    assert [move.text for move in history.moved(BEFORE, now)] == ["a: b: 4.20 before, 3.50 now (-17%)"]
    assert not history.moved(BEFORE, replace(now, machine={**HERE, "level": "AVX512"}))


def test_a_file_keeps_what_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    assert history.read(path) == []
    for i, entry in enumerate(BEFORE):
        history.keep(path, BEFORE[:i], entry)
    assert history.read(path) == BEFORE
    page = path.with_suffix(".html").read_text()
    assert page.count("<polyline") == 2
    assert "3 runs, from 2026-01-01 12:00 (abc0)" in page


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"when": 1}', '{"when": "", "commit": "", "machine": 1, "ratios": {}}']
)
def test_another_kind_of_file_is_refused_before_the_work(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match="line 1, is no run of `lapse bench --history`"):
        history.read(path)
    assert CliRunner().invoke(app, ["bench", "--history", str(path)]).exit_code == 2


def test_names_are_shown_as_text() -> None:
    evil = '"><script>alert(1)</script>'
    page = history.page([Entry(evil, evil, {evil: evil}, {evil: 1.0})])
    assert "<script" not in page
    assert "Content-Security-Policy" in page


@pytest.mark.skipif(native.library() is None, reason="no C++ compiler")
def test_the_command_says_what_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"BATCH": 4, "STEPS": 3, "HIDDEN": 5}.items():
        monkeypatch.setattr(sizes, name, size)
    path = tmp_path / "bench.jsonl"
    command = ["bench", "--only", "latency", "--repeats", "1", "--threads", "1", "--history", str(path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    (first,) = history.read(path)
    faster = replace(first, ratios={name: 10 * ratio for name, ratio in first.ratios.items()})
    path.unlink()
    history.keep(path, [], faster)
    done = CliRunner().invoke(app, command)
    assert "moved: one event: reference" in done.stderr
    assert len(history.read(path)) == 2
