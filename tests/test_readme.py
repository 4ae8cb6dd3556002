"""What the README says is run: its Python as it stands, its commands by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lapse.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_block_is_short():
    lines = [line for line in blocks("python")[0].splitlines() if line]
    assert len(lines) <= 6
    assert "pbc2" in lines[1]


def test_the_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lapse.estimators.recipe.epochs", lambda *_: 2)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    first, *table, last = capsys.readouterr().out.splitlines()
    assert float(first) > 0.6
    assert "p_True" in table[0]
    assert ast.literal_eval(last)["auroc"] > 0.7
    assert (tmp_path / "ill" / "card.md").exists()


@pytest.mark.parametrize("target", re.findall(r"^make (\S+)", "\n".join(blocks("bash")), re.MULTILINE))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"^lapse (\S+)", "\n".join(blocks("bash")), re.MULTILINE)))
)
def test_commands_exist(command):
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
