"""`lapse stream`: lines of JSON in and out, bad lines answered, a kill in the middle without a trace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lapse
from lapse.cli import app
from lapse.models import SequenceModel

EVENTS = [
    {
        "id": f"pump {k % 3}",
        "time": 0.5 * k,
        "values": {"pressure": float(k % 7), "heat": None if k % 4 else 3.0},
    }
    for k in range(24)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    values = [random.normal(size=(6, 2)) for _ in range(8)]
    values[0][0, 0] = np.nan
    data = lapse.Sequences.from_arrays(
        values, [np.arange(6.0)] * 8, targets=[0, 1] * 4, features=("pressure", "heat")
    )
    model = SequenceModel.for_data(data, hidden_size=8, options={"form": "jump"})
    path = tmp_path_factory.mktemp("model")
    model.save(path)
    return path


def lines(*objects: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in objects)


def run(folder: Path, text: str | bytes, *options: str, status: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["stream", str(folder), *options], input=text)
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_answers_are_those_of_a_stream(folder: Path) -> None:
    model = SequenceModel.load(folder)
    stream = lapse.Stream(model)
    for event, answer in zip(EVENTS, run(folder, lines(*EVENTS)), strict=True):
        expected = stream.push(event["id"], event["time"], event["values"])  # type: ignore[arg-type]
        assert answer == {"id": event["id"], "time": event["time"], **dict(expected or {})}


def test_questions_lists_and_starts(folder: Path) -> None:
    found = run(
        folder,
        lines(
            {"id": 1, "time": 2, "start": 0, "values": [1.0, 2.0]},
            {"id": 2, "time": 2, "values": [1.0, 2.0]},
            {"id": 1, "time": 9, "ask": True},
            {"id": 1, "time": 1, "values": [1.0, 2.0]},
        ),
        "--late",
        "drop",
    )
    assert found[0]["p_1"] != found[1]["p_1"]
    assert list(found[2]) == ["id", "time", "prediction", "p_0", "p_1"]
    assert found[3] == {"id": 1, "time": 1, "dropped": True}


BAD: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{oops", "not a line of JSON"),
    "no UTF-8": (b'{"id": "\xff"}', "not a line of JSON"),
    "nested too deeply": (b"[" * 100_000, "not a line of JSON"),
    "a list": (b"[1, 2]", "expected an object"),
    "another field": (b'{"id": 1, "time": 2, "value": [1, 2]}', "the features are inside values"),
    "no id": (b'{"time": 2, "values": [1, 2]}', "id must be text or a whole number, got nothing"),
    "a boolean id": (
        b'{"id": true, "time": 2, "values": [1, 2]}',
        "id must be text or a whole number, got true",
    ),
    "time as text": (b'{"id": 1, "time": "2", "values": [1, 2]}', "time must be a number or a date, got '2'"),
    "a date without a unit": (
        b'{"id": 1, "time": "2026-01-01", "values": [1, 2]}',
        "dates cannot be counted",
    ),
    "a list for a time": (
        b'{"id": 1, "time": [2], "values": [1, 2]}',
        "time must be a number or a date, got [2]",
    ),
    "no time": (b'{"id": 1, "time": NaN, "values": [1, 2]}', "has no time"),
    "no values": (b'{"id": 1, "time": 2}', 'there are no "values"'),
    "values as text": (b'{"id": 1, "time": 2, "values": "12"}', "values must be an object or a list"),
    "a value too few": (b'{"id": 1, "time": 2, "values": [1]}', "expected one value per feature, 2"),
    "a value as text": (b'{"id": 1, "time": 2, "values": ["x", 1]}', "is 'x', expected a finite number"),
    "a value that is a list": (b'{"id": 1, "time": 2, "values": {"heat": [1]}}', "is [1], expected a finite"),
    "numbers as text": (b'{"id": 1, "time": 2, "values": ["1", "2"]}', "is '1', expected a finite number"),
    "a whole number beyond floats": (
        b'{"id": 1, "time": 2, "values": [1, 1%s]}' % (b"0" * 400),
        "expected a finite number",
    ),
    "a time beyond floats": (b'{"id": 1, "time": 1%s, "values": [1, 2]}' % (b"0" * 400), "time must be"),
    "a gap beyond floats": (b'{"id": "pump 1", "time": 1e300, "values": [1, 2]}', "the gap before it"),
    "an infinite value": (b'{"id": 1, "time": 2, "values": [1, Infinity]}', "infinite value"),
    "a huge number": (b'{"id": 1, "time": 2, "values": [1, 1e999]}', "infinite value"),
    "misspelt": (b'{"id": 1, "time": 2, "values": {"presure": 1}}', "did you mean 'pressure'"),
    "asked too early": (b'{"id": 1, "time": 2, "ask": true}', "no event of 1 yet"),
    "opened in vain": (
        b'{"id": "pump 0", "time": -9, "start": -5, "values": [1, 2]}',
        "is older than the one before",
    ),
    "static of none": (
        b'{"id": 1, "time": 2, "values": [1, 2], "static": {"age": 3}}',
        "no static feature 'age'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_answered_and_leave_no_trace(folder: Path, name: str) -> None:
    line, reason = BAD[name]
    text = lines(EVENTS[1]).encode() + b"\n" + line + b"\n" + lines(EVENTS[3]).encode()
    first, error, last = run(folder, text)
    assert error["line"] == 3
    assert reason in error["error"]
    assert [first, last] == run(folder, lines(EVENTS[1], EVENTS[3]))
    strict = run(folder, text, "--strict", status=1)
    assert strict == [first, error]


def test_a_snapshot_in_the_middle_goes_on_to_the_bit(folder: Path, tmp_path: Path) -> None:
    whole, file = run(folder, lines(*EVENTS)), str(tmp_path / "state.safetensors")
    parts = [run(folder, lines(*EVENTS[k : k + 8]), "--snapshot", file) for k in (0, 8, 16)]
    assert [answer for part in parts for answer in part] == whole


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM that can be caught")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_killed_stream_goes_on_to_the_bit(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    # A signal that is ignored here, as nohup has it for SIGHUP, would be ignored by the stream as well.
    before = signal.signal(getattr(signal, name), signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(getattr(signal, name), before))
    whole, file = run(folder, lines(*EVENTS)), str(tmp_path / "state.safetensors")
    command = [sys.executable, "-m", "lapse", "stream", str(folder), "--snapshot", file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdin is not None
        assert killed.stdout is not None
        first = []
        for event in EVENTS[:10]:
            killed.stdin.write(lines(event))
            killed.stdin.flush()
            first.append(json.loads(killed.stdout.readline()))
        killed.send_signal(getattr(signal, name))
        assert killed.wait(60) == 0
        assert killed.stdout.read() == ""
    assert first + run(folder, lines(*EVENTS[10:]), "--snapshot", file) == whole


def test_a_snapshot_is_for_one_stream_at_a_time(folder: Path, tmp_path: Path) -> None:
    """Of two, the one that ends last would undo what the other has kept."""
    file = tmp_path / "state.safetensors"
    (tmp_path / f".{file.name}.0123.part").write_bytes(b"of one that was killed")
    command = [sys.executable, "-m", "lapse", "stream", str(folder), "--snapshot", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write(lines(EVENTS[0]))
        first.stdin.flush()
        first.stdout.readline()
        result = CliRunner().invoke(app, ["stream", str(folder), "--snapshot", str(file)], input="")
        assert result.exit_code == 1
        assert f"another process uses {file}" in result.stderr
        first.stdin.close()
        assert first.wait(60) == 0
    assert not list(tmp_path.glob("*.part"))
    run(folder, lines(*EVENTS[1:3]), "--snapshot", str(file))


def test_snapshots_now_and_then(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    run(folder, lines(*EVENTS[:5]), "--snapshot", str(file), "--every", "2")
    stream = lapse.Stream(SequenceModel.load(folder))
    stream.restore(file)
    assert len(stream) == 3


def test_what_cannot_be_done(folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "state.safetensors"
    damaged.write_bytes(b"no snapshot")
    result = CliRunner().invoke(app, ["stream", str(folder), "--snapshot", str(damaged)], input="")
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert damaged.read_bytes() == b"no snapshot"
    result = CliRunner().invoke(app, ["stream", str(tmp_path)], input="")
    assert result.exit_code == 1
    assert "holds no lapse model" in result.stderr
