"""The scripts in examples/ run as they stand; the tutorials show them."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def printed_by(name: str, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    patch.chdir(folder)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed_by("patients", tmp_path, monkeypatch, capsys).splitlines()
    auroc = float(lines[1].split("'auroc': ")[1].split(",")[0])
    assert auroc > 0.75
    assert "'auroc': 0.5" in lines[2]
    assert lines[3].split() == ["patient", "prediction", "p_False", "p_True"]
    assert (tmp_path / "pbc2-model" / "card.md").exists()


def test_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model, trivial, columns, *_, refused = printed_by("sensors", tmp_path, monkeypatch, capsys).splitlines()
    assert float(model.split()[-1]) > 70 > 40 > float(trivial.split()[-1])
    assert columns.split() == ["machine", "minute", "prediction", "p_idle", "p_running", "p_worn"]
    assert "sees the future" in refused


def test_alarms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    *alarms, verdict = printed_by("alarms", tmp_path, monkeypatch, capsys).splitlines()
    found, failing, false = map(int, re.findall(r"\d+", verdict))
    assert len(alarms) == found + false
    assert failing - 1 <= found <= failing
    assert false <= 1
    assert all(re.match(r" *[\d.]+ min: pump \d is failing \(\d+%\)", line) for line in alarms)


def test_forecast_tanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [line.split() for line in printed_by("forecast_tanks", tmp_path, monkeypatch, capsys).splitlines()]
    pinball = {row[0]: float(row[2]) for row in rows}
    assert list(pinball) == ["lapse", "persistence", "mean", "linear"]
    assert pinball["lapse"] < min(pinball[name] for name in ("persistence", "mean", "linear"))
    assert (tmp_path / "forecast.png").stat().st_size > 10_000


def test_own_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed_by("own_cell", tmp_path, monkeypatch, capsys)
    assert re.fullmatch(r"\(4, 10, 8\) \(2, 4, 8\)\n\d+ promises kept\n", out)


def test_the_cell_is_a_model_by_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from lapse.models.registry import find, label_of

    monkeypatch.syspath_prepend(ROOT / "examples")
    assert find("own_cell:Fading").__name__ == "Fading"
    assert label_of("own_cell:Fading") == "Fading"
    sys.modules.pop("own_cell")


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_is_in_a_tutorial(script: str) -> None:
    pages = [path.read_text() for path in (ROOT / "docs").glob("tutorial-*.md")]
    assert sum(f'--8<-- "examples/{script}"' in page for page in pages) == 1
