"""A model as a file that runs without lapse: its answers are those of the model."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lapse
from example_models import model_for, sequences
from lapse import Sequences, export
from lapse.cli import app
from lapse.export.parity import random_sequences
from lapse.models import SequenceModel, Step
from lapse.models.registry import layers
from test_step import EVERY, ONCE, STEPPED, restless, with_holes

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "once": ({"missing": True, "static": True}, ONCE),
    "every": ({"missing": True, "per_step": True, "numbers": True}, EVERY),
}


def make(model: str, kind: str, **settings: Any) -> SequenceModel:
    table, options = KINDS[kind]
    return restless(sequences(**table), model=model, **options, **settings)


# Files that several tests look at, each made once: an export takes seconds.
@pytest.fixture(scope="module")
def step_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SequenceModel]:
    model, file = make("ode-lstm", "every"), tmp_path_factory.mktemp("export") / "step.onnx"
    assert export.save(model, file, form="step") <= export.TOLERANCE
    return file, model


@pytest.fixture(scope="module")
def sequence_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SequenceModel]:
    model, file = make("gru-d", "once"), tmp_path_factory.mktemp("export") / "sequence.onnx"
    assert export.save(model, file) <= export.TOLERANCE
    return file, model


@pytest.fixture(scope="module")
def program_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("export") / "sequence.pt2"
    assert export.save(make("rnn-decay", "once"), file, format="torch") <= export.TOLERANCE
    return file


CELLS = [(name, {}) for name in STEPPED] + [
    (name, {"form": form}) for name, layer in layers().items() for form in layer.forms
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", export.FORMS)
@pytest.mark.parametrize("format", export.FORMATS)
@pytest.mark.parametrize(("name", "options"), CELLS, ids=str)
def test_every_model_answers_the_same(
    name: str, options: dict[str, str], format: str, form: str, kind: str, tmp_path: Path
) -> None:
    model = make(name, kind, num_layers=2, options=options)
    assert export.save(model, tmp_path / "file", format=format, form=form) <= export.TOLERANCE


WITHOUT_LAPSE = """
import sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
given = dict(np.load(sys.argv[2]))
found = session.run(None, given)
np.savez(sys.argv[3], *found)
assert not {"torch", "lapse", "onnx"} & set(sys.modules), "something else was imported"
"""


def run_without_lapse(file: Path, given: dict[str, Any], folder: Path) -> list[Any]:
    np.savez(folder / "in.npz", **given)
    command = [
        sys.executable,
        "-c",
        WITHOUT_LAPSE,
        str(file),
        str(folder / "in.npz"),
        str(folder / "out.npz"),
    ]
    subprocess.run(command, check=True, cwd=folder, env={"PYTHONPATH": ""})
    return list(np.load(folder / "out.npz").values())


def test_the_step_runs_where_neither_lapse_nor_torch_is(
    step_file: tuple[Path, SequenceModel], tmp_path: Path
) -> None:
    file, model = step_file
    step = Step(model)
    batch = random_sequences(step).batch(range(8))
    values = with_holes(batch.values, batch.observed)
    state = step.start(len(values))  # as many sequences as there are events, each with one event
    answer, after = step(values, batch.timespans, state)
    given = {"values": values, "timespan": batch.timespans} | state
    found = run_without_lapse(file, {name: part.numpy() for name, part in given.items()}, tmp_path)
    for ours, theirs in zip((answer, *after.values()), found, strict=True):
        np.testing.assert_allclose(theirs, ours.detach().numpy(), atol=1e-5, rtol=1e-5)


def test_sequences_run_where_neither_lapse_nor_torch_is(
    sequence_file: tuple[Path, SequenceModel], tmp_path: Path
) -> None:
    file, model = sequence_file
    data = random_sequences(Step(model), seed=1)
    batch = data.batch(range(len(data)))
    padded = batch.padded()
    values = with_holes(padded.values, padded.observed)
    spans = padded.timespans.masked_fill(~padded.mask, torch.nan)  # padding has no effect, whatever it holds
    given = {"values": values, "timespans": spans, "lengths": batch.lengths, "static": batch.static}
    (found,) = run_without_lapse(file, {name: part.numpy() for name, part in given.items()}, tmp_path)  # type: ignore[union-attr]
    expected = model.head.answer(model.outputs(data)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_program_of_torch_runs_without_lapse(program_file: Path) -> None:
    code = """
import sys, torch
module = torch.export.load(sys.argv[1]).module()
given = {"values": torch.randn(1, 4, 2), "timespans": torch.ones(1, 4), "lengths": torch.tensor([4])}
answer = module(**given, static=torch.ones(1, 1))
print(tuple(answer.shape), answer.requires_grad, "lapse" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(program_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "(1, 2) False False"


def test_the_file_says_what_goes_in_and_out(step_file: tuple[Path, SequenceModel]) -> None:
    import onnx
    import onnxruntime

    file, model = step_file
    session = onnxruntime.InferenceSession(str(file))
    inputs = {node.name: node.shape for node in session.get_inputs()}
    outputs = {node.name: node.shape for node in session.get_outputs()}
    states = Step(model).state_sizes
    assert inputs == {"values": ["batch", 2], "timespan": ["batch"]} | {
        k: ["batch", n] for k, n in states.items()
    }
    assert outputs == {"answer": ["batch", 2]} | {f"next_{k}": ["batch", n] for k, n in states.items()}
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["lapse.version"] == lapse.__version__
    assert json.loads(facts["lapse.values"]) == list(model.schema.inputs)
    assert json.loads(facts["lapse.answer"]) == list(model.head.answer_names)
    assert json.loads(facts["lapse.schema"])["unit"] == facts["lapse.unit"] == "h"
    assert json.loads(facts["lapse.states"]) == states
    onnx.checker.check_model(onnx.load(file), full_check=True)
    assert b"/src/lapse" not in file.read_bytes()  # no paths of the machine that wrote it


def test_a_program_of_torch_holds_the_same_facts_and_no_paths(program_file: Path) -> None:
    facts = {"lapse.json": ""}
    torch.export.load(program_file, extra_files=facts)
    told = json.loads(facts["lapse.json"])
    assert (told["form"], told["model"], told["answer"]) == ("sequence", "rnn-decay", ["p_0", "p_1"])
    assert b"/src/lapse" not in program_file.read_bytes()


def test_a_solver_that_adapts_is_refused_by_name() -> None:
    for solver in ("dopri5", "dopri5-adjoint"):
        model = make("ode-lstm", "every", options={"solver": solver})
        with pytest.raises(ValueError, match="chooses its steps by the data"):
            export.step_form(Step(model))
    assert export.step_form(Step(make("ode-lstm", "every", options={"solver": "rk4:2"})))


@pytest.mark.parametrize("wrong", [{"format": "tflite"}, {"form": "loop"}])
def test_an_unknown_format_or_form_is_refused(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        export.save(make("ode-lstm", "every"), tmp_path / "m", **wrong)


def test_a_file_with_other_answers_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(export.TorchProgram):
        def write(self, form: export.Form) -> bytes:
            return b""

        def read(self, content: bytes, form: export.Form) -> export.Run:
            return lambda given: dict.fromkeys(form.outputs, torch.full((8, 1), torch.nan))

    monkeypatch.setitem(export.FORMATS, "torch", Wrong())
    with pytest.raises(export.NotTheSame, match="differ by nan"):
        export.save(make("rnn-decay", "once"), tmp_path / "m.pt2", format="torch")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_checked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_for(sequences(), model="rnn-decay").save("model")
    done = CliRunner().invoke(app, ["export", "model", "--format", "torch", "--step"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "step.pt2\n"
    assert "largest difference" in done.stderr
    assert (tmp_path / "step.pt2").stat().st_size > 0
    wrong = CliRunner().invoke(app, ["export", "model", "--format", "onx"])
    assert wrong.exit_code == 2
    assert "did you mean onnx" in wrong.stderr


def test_the_page_serves_a_step_and_shows_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
    (served, *_) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (configuration,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    data = Sequences.from_arrays(
        [[[81.0], [np.nan]], [[90.0], [97.0]]], [[0, 1], [0, 2]], targets=[0, 1], features=["pulse"]
    )
    model = model_for(data, model="gru-d", hidden_size=16)
    assert export.triton_config(model.stepper(), name="pulse") == configuration
    monkeypatch.chdir(tmp_path)
    export.save(model, "step.onnx", form="step")
    exec(compile(served, "export.md", "exec"), {})
    assert capsys.readouterr().out.count("[[") == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_for_triton_names_every_tensor(kind: str) -> None:
    step = make("gru-d", kind).stepper()
    text = export.triton_config(step)
    assert re.findall(r'output_name: "next_(\w+)"', text) == list(step.state_sizes)
    assert text.count("zero_data: true") == 1
    assert ('name: "static"' in text) == (kind == "once")
