"""The core works without the extras, and what needs one says which."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lapse.extras import MissingExtra, extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
CORE = {"torch", "numpy", "narwhals", "safetensors", "filelock"}

# A fresh interpreter in which nothing can be imported that only the extras bring.
WITHOUT_EXTRAS = """
import sys

class Absent:
    names = set(NAMES)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
ABSENT = [
    "gymnasium", "jinja2", "lightning", "matplotlib", "mujoco", "onnx", "onnx_ir", "onnxruntime", "onnxscript",
    "optuna", "pandas", "platformdirs", "polars",
    "pyarrow", "ray", "rich", "scipy", "sklearn", "typer",
]  # fmt: skip


def run(code: str) -> subprocess.CompletedProcess[str]:
    whole = WITHOUT_EXTRAS.replace("NAMES", repr(ABSENT)) + code
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)


def test_the_core_dependencies_are_few() -> None:
    assert {word.partition(">")[0] for word in PROJECT["dependencies"]} == CORE


def test_layers_and_sequences_work_with_the_core_alone() -> None:
    code = """
import lapse, torch
output, _ = lapse.ODELSTM(2, 4)(torch.zeros(1, 3, 2), timespans=torch.ones(1, 3))
data = lapse.Sequences.from_arrays([[1.0, 2.0], [3.0]], [[0.0, 1.0], [5.0]], targets=[0, 1])
parts = data.split_by_sequence((0.5, 0.5))
print(output.shape, len(list(data.batches(2))), list(lapse.TASKS)[0], len(parts))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "torch.Size([1, 3, 4]) 1 xor-dense 2"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import lapse\nlapse.Sequences.from_frame({}, id='a', time='b', values='c')", "tables"),
        ("import lapse\nlapse.TASKS['mini-digits'].load()", "tasks"),
        ("import lapse.sktime", "sktime"),
        ("import lapse.aeon", "aeon"),
        ("import lapse.tune\nlapse.tune._import_optuna()", "tune"),
        ("import lapse.export\nlapse.export.Onnx().write(None)", "export"),
        ("from lapse.__main__ import main\nmain()", "cli"),
    ],
)
def test_what_needs_an_extra_names_it(code: str, name: str) -> None:
    done = run(code)
    assert done.returncode == 1
    assert f"pip install 'lapse[{name}]'" in done.stderr


def test_every_extra_that_is_named_exists() -> None:
    source = Path(__file__).parents[1] / "src"
    named = {
        part.partition('"')[0]
        for path in source.rglob("*.py")
        for part in path.read_text().split('with extra("')[1:]
    }
    assert named - {"..."} <= set(PROJECT["optional-dependencies"])


def test_an_error_is_wrapped_once() -> None:
    with pytest.raises(MissingExtra, match=r"lapse\[inner\]"), extra("outer"), extra("inner"):
        raise ImportError("gone")
