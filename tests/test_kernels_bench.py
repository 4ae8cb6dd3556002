"""The benchmark runs, agrees before it times, and says what it measured."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lapse
from lapse import bench, kernels
from lapse.bench import layers, sizes, streams, work
from lapse.cli import app
from lapse.kernels import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"BATCH": 4, "STEPS": 3, "HIDDEN": 5, "LONG": 40}.items():
        monkeypatch.setattr(sizes, name, size)


def test_the_command_writes_a_table_and_json(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    options = ["--only", "lstm", "--only", "latency", "--repeats", "1", "--threads", "1", "--json", str(path)]
    done = CliRunner().invoke(app, ["bench", *options])
    assert done.exit_code == 0, done.output
    assert "| ode-lstm: nn.LSTM |" in done.stdout
    result = json.loads(path.read_text())
    assert [one["name"] for one in result["lines"]] == [
        "ode-lstm: nn.LSTM",
        "lstm: nn.LSTM",
        "one event: reference",
    ]
    assert result["settings"] == {"repeats": 1, "threads": 1, "models": []}


def test_the_help_names_the_sections() -> None:
    done = CliRunner().invoke(app, ["bench", "--help"])
    assert f"Sections: {', '.join(bench.SECTIONS)}." in " ".join(done.stdout.split())


def test_an_unknown_section_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["bench", "--only", "everything"])
    assert done.exit_code == 2
    assert "no 'everything'" in done.output


def test_sections_run() -> None:
    names = ["reference", "authors", "cfc", "torchdiffeq", "ragged", "roofline", "small", "scan"]
    lines = list(bench.bench(names, bench.Settings(repeats=1, threads=1)))
    assert len(lines) == len(layers.variants()) + 4 + 1 + 1 + 4 + 2 + 12 + 1
    assert all(one.ratio > 0 for one in lines)


def test_compiled_and_exported_graphs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torch's compiler, which takes a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", lambda program, package_path: None)
    monkeypatch.setattr("torch._inductor.aoti_load_package", lambda path: lambda x, spans, lengths: x)
    lines = list(bench.bench(["compile", "export"], bench.Settings(repeats=1, threads=1)))
    assert [one.name for one in lines] == [
        "ode-lstm: compiled",
        "gru-d: compiled",
        "ct-lstm: compiled",
        f"ode-lstm, {4 * sizes.STEPS} steps: compiled",
        "model: compiled",
        "ode-lstm: nn.LSTM, both compiled",
        "ode-lstm: exported",
    ]
    assert all("to 0e+00" in one.agreed for one in lines[:3])


def test_streams_are_compared_with_stepping_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MEMORY", streams.MEMORY.replace("20_000", "2_000"))
    one, *exported, many, memory = bench.bench(["stream"], bench.Settings(repeats=1, threads=1))
    assert one.rival_ms > 3 * one.ours_ms
    assert [other.rival for other in exported] in ([], ["a step in onnxruntime"])
    assert many.agreed == "outputs to 1e-6"
    assert memory.ours_ms < 10


def test_models_of_ones_own_are_compared() -> None:
    """With a program the fused loop is compared with the reference loop, without one the layer with `nn.LSTM`."""
    done = CliRunner().invoke(
        app,
        [
            "bench",
            "--only",
            "reference",
            "--repeats",
            "1",
            "-m",
            "toy_model:Drift",
            "-m",
            "toy_model:SlowDrift",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "| toy_model:Drift: reference |" in done.stdout
    assert "| toy_model:SlowDrift: nn.LSTM |" in done.stdout


@pytest.mark.slow
def test_the_long_sections_run() -> None:
    lines = list(bench.bench(["growth", "memory"], bench.Settings(repeats=1, threads=1)))
    assert lines[-1].ratio > 4


def test_sides_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = lapse.RNNDecay(1, 5)
    x, spans = work.data(4, 3)
    reference = kernels.unroll_reference
    monkeypatch.setattr(kernels, "unroll_reference", lambda cell, x, *rest: reference(cell, 2 * x, *rest))
    with pytest.raises(AssertionError, match="the two paths differ"):
        work.agree(layer, x, spans)
