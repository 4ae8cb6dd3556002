"""The demonstration: what it promises to train, and a tiny one from start to page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lapse.demo import MODELS, demo, demo_configs
from lapse.runs import RunConfig
from lapse.training import TrainConfig


def test_four_models_on_two_tasks_that_need_no_download() -> None:
    configs = demo_configs()
    assert {config.task for config in configs} == {"mini-digits", "xor-event"}
    assert len(configs) == 2 * len(MODELS) == 8
    assert len({config.folder("") for config in configs}) == 8


def tiny(model: str) -> RunConfig:
    options = {"lengths": [2, 5], "size": 200}
    return RunConfig("xor-event", model, hidden_size=4, task_options=options, train=TrainConfig(epochs=2))


def test_tables_curves_and_page_come_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = demo(tmp_path, [tiny("lstm"), tiny("ct-lstm")])
    assert not outcome.failed
    out, err = capsys.readouterr()
    assert "xor-event (lengths=[2,5], size=200)" in out
    assert "xor-event ct-lstm" in out
    assert out.strip().splitlines()[-1].startswith("Next: ")
    assert "nothing downloaded" in err
    assert "nothing downloaded" not in out
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_a_run_that_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = dataclasses.replace(tiny("lstm"), model_options={"no_such_option": 1})
    outcome = demo(tmp_path, [wrong])
    assert len(outcome.failed) == 1
    assert "failed" in capsys.readouterr().err
