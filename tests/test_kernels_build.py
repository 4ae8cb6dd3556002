"""How the compiled library comes to be: once, whole, and without it everything still works."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import lapse
from lapse.kernels import native, program


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and a library that was not looked for yet."""
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))
    native.library.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    native.library.cache_clear()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_without_a_compiler_one_notice_and_the_reference(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    layer, x = lapse.CTRNN(2, 3), torch.randn(1, 2, 2)
    with pytest.warns(UserWarning, match="without its fused kernels.*no C\\+\\+ compiler"):
        output, _ = layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, _ = layer(x)
    with lapse.backend("reference"):
        assert torch.equal(layer(x)[0], output)
    assert torch.equal(output, again)


def test_a_compiler_that_fails_is_reported(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_CXXFLAGS", "--no-such-flag")
    with pytest.warns(UserWarning, match="failed: .*no-such-flag"):
        assert native.library() is None


def test_a_folder_that_cannot_be_written_is_reported(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("LAPSE_CACHE", str(fresh / "file" / "cache"))
    with pytest.warns(UserWarning, match="cannot write the compiled kernels"):
        assert native.library() is None


def test_import_compiles_nothing(tmp_path: Path) -> None:
    done = run("import lapse", LAPSE_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_processes_may_race(tmp_path: Path) -> None:
    code = "from lapse.kernels import native; native.library().lapse_vector_bytes(); print(native.build())"
    environment = {**os.environ, "LAPSE_CACHE": str(tmp_path), "LAPSE_CXXFLAGS": "-O0"}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    paths = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert [str(p) for p in tmp_path.iterdir()] == list(paths)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["DEFAULT", "AVX2", "AVX512"])
def test_every_level_compiles(level: str, tmp_path: Path) -> None:
    code = "from lapse.kernels import native; print(native.build())"
    done = run(code, LAPSE_CACHE=str(tmp_path), LAPSE_CPU=level)
    assert done.returncode == 0, done.stderr


def test_operations_are_numbered_as_in_the_sources() -> None:
    text = (native.SOURCES / "ops.h").read_text()
    table = text[text.index("#define LAPSE_OPS") : text.index("enum Code")]
    names = [part.split(")")[0] for part in table.replace("LAPSE_OPS(X)", "").split("X(")[1:]]
    assert names == list(program.KINDS)
