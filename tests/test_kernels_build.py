"""How the compiled library comes to be: once, whole, and without it everything still works."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.random.mtrand
import pytest
import torch

import emulated
import lapse
from fuzz_kernels import Case, check
from lapse.kernels import build, native, program
from lapse.kernels import compiler as compiling


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, and a library that was not looked for yet."""
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))
    native.library.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    native.library.cache_clear()


BUILT = build.build() if native.library() is not None else Path("nowhere")


def compiler(folder: Path, action: str) -> Path:
    """A compiler that does what a line of shell says; $out is the file it should make. It notes every call."""
    path = folder / "compiler"
    path.write_text(
        f"""#!/bin/sh
for out; do :; done
[ "$out" = --version ] && echo one of ours && exit
echo compiled >> {folder}/calls
{action}
"""
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def copying(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A compiler that is done in no time, for it has the library already; how often it was called."""
    monkeypatch.setenv("CXX", str(compiler(fresh, f"cp {BUILT} $out")))
    return lambda: len((fresh / "calls").read_text().splitlines())


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
    code = (
        "from lapse.kernels import build, native; native.library().lapse_vector_bytes(); print(build.build())"
    )
    environment = {**os.environ, "LAPSE_CACHE": str(tmp_path), "LAPSE_CXXFLAGS": "-O0"}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    paths = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert {str(p) for p in (tmp_path / "kernels").glob("*.so")} == paths


@pytest.mark.slow
@pytest.mark.parametrize("level", build.LEVELS)
def test_every_level_compiles(level: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    monkeypatch.setenv("LAPSE_CPU", level)
    assert build.build().stat().st_size > 0


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:-999] + b"?" + b[-998:]]
)
def test_a_damaged_library_is_built_again(
    damage: Callable[[bytes], bytes], copying: Callable[[], int]
) -> None:
    """Loading one that was cut off ends the process with SIGBUS."""
    path = build.build()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert build.build().read_bytes() == whole
    assert copying() == 2
    assert native.library() is not None
    assert copying() == 2


@pytest.mark.parametrize("before", ["env ", "env A=1 "])
def test_a_compiler_may_come_with_words_before_and_after(
    before: str, copying: Callable[[], int], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `ccache g++` and `g++ -pipe`."""
    monkeypatch.setenv("CXX", f"{before}{fresh}/compiler -pipe")
    assert native.library() is not None
    assert copying() == 1


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("true", "wrote no library: is it a C\\+\\+ compiler?"),
        ("echo no licence >&2; exit 3", "failed: no licence"),
        ("printf '\\377' >&2; exit 1", "failed: \ufffd"),
        ("echo nonsense > $out", "invalid ELF header|file too short"),
        (f"cp {numpy.random.mtrand.__file__} $out", "lapse_layout"),
        ("sleep 60", "timed out"),
    ],
    ids=["nothing", "failure", "bytes", "nonsense", "another library", "sleep"],
)
def test_an_odd_compiler_is_reported(
    action: str, message: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "PATIENCE", 2.0)
    monkeypatch.setenv("CXX", str(compiler(fresh, action)))
    with pytest.warns(UserWarning, match=message):
        assert native.library() is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CXX", "g++ 'half", "cannot read CXX=g\\+\\+ 'half"),
        ("CXX", "/nowhere/g++ -O1", "CXX=/nowhere/g\\+\\+ -O1: there is no program '/nowhere/g\\+\\+'"),
        ("CXX", "/", "there is no program '/' that can be run"),
        ("LAPSE_CXXFLAGS", '"half', "cannot read LAPSE_CXXFLAGS"),
        ("LAPSE_CPU", "AVX512", "LAPSE_CPU=AVX512 is beyond this processor, which has AVX2"),
        ("LAPSE_CPU", "pentium", "LAPSE_CPU must be one of DEFAULT, AVX2, AVX512, got PENTIUM"),
        ("LAPSE_CACHE", "~no-such-user/cache", "no folder for the compiled kernels"),
    ],
)
def test_an_odd_variable_is_reported(
    variable: str,
    value: str,
    message: str,
    copying: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv(variable, value)
    with pytest.warns(UserWarning, match=message):
        assert native.library() is None


def test_a_lower_level_may_be_asked_for(
    copying: Callable[[], int], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_CPU", "default")
    assert build.level() == "DEFAULT"


@pytest.mark.parametrize("capability", ["DEFAULT", "SVE128", "SVE256", "AVX2"])
def test_levels_are_those_of_x86(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processors have one level, whatever torch calls what they can do."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.delenv("LAPSE_CPU", raising=False)
    assert build.level() == "DEFAULT"
    monkeypatch.setenv("LAPSE_CPU", "AVX2")
    with pytest.raises(build.Unavailable, match="AVX2 is beyond this processor, which has DEFAULT"):
        build.level()


@pytest.mark.parametrize("which", ["folder", "file"])
@pytest.mark.parametrize("fault", ["group", "others", "owner"])
def test_code_that_others_could_change_is_refused(
    which: str, fault: str, copying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.build()
    path = path.parent if which == "folder" else path
    if fault == "owner":
        if os.geteuid():
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        else:
            os.chown(path, 12345, 12345)
        message = "belongs to another user"
    else:
        path.chmod(path.stat().st_mode | (0o020 if fault == "group" else 0o002))
        message = "others may write to"
    with pytest.warns(UserWarning, match=message):
        assert native.library() is None


@pytest.mark.parametrize("fault", ["others", "owner"])
def test_code_below_a_folder_that_others_could_swap_is_refused(
    fault: str, copying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    above = build.build().parents[1]
    if fault == "others":
        above.chmod(0o1777)
        assert native.library() is not None, "in a folder with the sticky bit, entries stay whose they are"
        native.library.cache_clear()
        above.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only the administrator can give a folder away")
    else:
        os.chown(above, 12345, 12345)
    with pytest.warns(UserWarning, match="another user could replace what is in"):
        assert native.library() is None


def test_code_is_private_whatever_the_users_mask(copying: Callable[[], int]) -> None:
    before = os.umask(0)
    try:
        path = build.build()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o755
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert native.library() is not None


def test_what_a_killed_compiler_left_is_removed(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fresh / "cache" / "kernels"
    monkeypatch.setenv("CXX", str(compiler(fresh, "echo part > $out; exec sleep 60")))
    code = "from lapse.kernels import build; build.build()"
    # Its own group of processes, so that the compiler is killed too.
    victim = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while not list(folder.glob(".partial-*/*.so")):
        assert victim.poll() is None
        time.sleep(0.02)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    compiler(fresh, f"cp {BUILT} $out")
    monkeypatch.setenv("LAPSE_CXXFLAGS", "-DOTHER")  # the next one may be for other settings
    path = build.build()
    assert sorted(p.suffix for p in folder.iterdir()) == [".lock", ".so"]
    assert path.read_bytes() == BUILT.read_bytes()


def test_a_library_of_another_layout_is_refused(
    copying: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "LAYOUT", (*native.LAYOUT[:-1], 9))
    with pytest.warns(UserWarning, match="compiled with another layout"):
        assert native.library() is None


def test_every_operation_of_the_sources_is_in_the_table() -> None:
    """A struct that is not in the list of csrc/ops.h could not be used."""
    declared = {
        name
        for source in (compiling.SOURCES / "ops").iterdir()
        for name, rest in re.findall(r"^struct (\w+)(.*?)^};", source.read_text(), re.MULTILINE | re.DOTALL)
        if "static void forward(" in rest
    }
    loaded = native.library()
    assert loaded is not None
    assert declared == set(native.operations(loaded))


def test_what_an_operation_does_comes_from_the_library() -> None:
    loaded = native.library()
    assert loaded is not None
    kinds = native.operations(loaded)
    assert [kind.code for kind in kinds.values()] == list(range(len(kinds)))
    lstm = kinds["LSTM"]
    assert (lstm.count, lstm.makes, lstm.writes) == (8, (5, 6), (0, 1, 2, 3, 4))
    assert (lstm.reads, lstm.replays, lstm.optional) == ((0, 1, 2, 3, 4, 7), (6, 7), ())
    assert kinds["Linear"].optional == (1, 3, 4)


@pytest.mark.parametrize("operands", [(0,), (0, 1, 2), (0, program.NONE)])
def test_a_program_with_the_wrong_number_of_operands_is_refused(operands: tuple[int, ...]) -> None:
    """The library would look for the one that is missing at an address that is not its own."""
    written = program.Program()
    written.input(3)
    written.state(3)
    written.emit("Tanh", *operands)
    with pytest.raises(ValueError, match=r"Tanh takes 2 operands, of which \[\] may be left out"):
        native.Plan(written, torch.float32)


def test_a_change_of_any_source_makes_another_library(
    copying: Callable[[], int], fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "SOURCES", Path(shutil.copytree(compiling.SOURCES, fresh / "csrc")))
    sources = [path for path in compiling.SOURCES.rglob("*") if path.is_file()]
    paths = {build.build()}
    for source in sources:
        source.write_text(source.read_text() + "\n")
        paths.add(build.build())
    assert len(paths) == 1 + len(sources) == copying()


@pytest.fixture
def prebuilt(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library as a wheel brings it, and no compiler."""
    folder = fresh / "prebuilt"
    folder.mkdir()
    monkeypatch.setattr(build, "PREBUILT", folder)
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    mark = compiling.fingerprint((platform.machine(), build.level()))
    return Path(shutil.copy(BUILT, folder / compiling.library_name(mark, BUILT)))


def test_a_library_that_came_with_the_package_needs_no_compiler(prebuilt: Path) -> None:
    assert build.library_file() == prebuilt
    assert build.origin() == "prebuilt"
    assert native.library() is not None


def test_a_library_of_other_sources_or_another_level_or_damaged_is_not_taken(
    prebuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = compiling.fingerprint((platform.machine(), "another level"))
    moved = prebuilt.rename(prebuilt.with_name(compiling.library_name(other, prebuilt)))
    assert build.prebuilt(build.level()) is None
    moved.rename(prebuilt)
    prebuilt.write_bytes(prebuilt.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        assert native.library() is None


def test_flags_of_ones_own_are_compiled_with(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_CXXFLAGS", "-DLAPSE_POISON")
    with pytest.raises(build.Unavailable, match="no C\\+\\+ compiler"):
        build.library_file()


@pytest.mark.parametrize(("content", "minor"), [(b"GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9", 34), (b"", 17)])
def test_the_oldest_c_library_that_a_wheel_needs(content: bytes, minor: int, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(content)
    assert compiling_wheels().glibc_needed(library) == minor


def compiling_wheels() -> Any:
    path = Path(__file__).parents[1] / "hatch_build.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpacked_wheel(folder: Path, **environment: str) -> tuple[str, Path]:
    """The name of a wheel built as `make wheel` does, and where its contents are."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "LAPSE_PREBUILT": "1", **environment},
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return wheel.name, folder / "installed"


@pytest.mark.slow
def test_the_wheel_runs_fused_without_a_compiler(tmp_path: Path) -> None:
    """Unpacked into an empty folder, with nothing on the path."""
    name, installed = unpacked_wheel(tmp_path)
    assert re.fullmatch(r"lapse-.*-py3-none-manylinux_2_\d+_\w+\.whl", name)
    code = """
import torch, lapse
from lapse.kernels import build
with lapse.backend("fused"):
    lapse.ODELSTM(2, 8)(torch.randn(3, 4, 2))
print(lapse.__file__, build.origin(), build.level())
"""
    for level in compiling.LEVELS:
        if tuple(compiling.LEVELS).index(level) > tuple(compiling.LEVELS).index(build.level()):
            continue
        shown = run(code, PYTHONPATH=str(installed), PATH=str(tmp_path), LAPSE_CPU=level, CXX="")
        assert shown.stdout.split() == [str(installed / "lapse/__init__.py"), "prebuilt", level], shown.stderr


@pytest.mark.slow
def test_the_wheel_for_another_processor_has_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if absent := emulated.missing():
        pytest.skip(f"not found: {absent}")
    name, installed = unpacked_wheel(tmp_path, LAPSE_MACHINE="aarch64", CXX=emulated.COMPILER)
    assert re.fullmatch(r"lapse-.*-py3-none-manylinux_2_\d+_aarch64\.whl", name)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(build, "PREBUILT", installed / "lapse/kernels/prebuilt")
    library = build.prebuilt(build.level())
    assert library is not None
    started = emulated.Emulated(library, tmp_path)
    assert started.layout() == native.LAYOUT
    monkeypatch.setattr(native, "library", lambda: started)
    check(Case("ODELSTMCell", seed=1, hidden_size=8, lengths=(3, 2), dtype="float32", threads=2))
    started.close()
