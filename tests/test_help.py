"""Help that fits a screen and shows how a command is called."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lapse.cli import app

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]
LINES, COLUMNS = 40, 80


def help_of(*command: str) -> list[str]:
    done = CliRunner().invoke(
        app, [*command, "--help"], env={"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)}
    )
    assert done.exit_code == 0
    return done.stdout.strip("\n").splitlines()


def test_the_commands_are_there_in_one_screen() -> None:
    lines = help_of()
    assert len(lines) <= LINES
    text = "\n".join(lines)
    assert all(re.search(rf"\b{command}\b", text) for command in COMMANDS)
    assert "Example" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help_fits_a_screen_and_has_an_example(command: str) -> None:
    lines = help_of(command)
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    text = " ".join(" ".join(lines).split())
    assert re.search(rf"Example: lapse {command}\b", text)


def test_an_unknown_name_gets_its_nearest_and_exit_2() -> None:
    for arguments in (["train", "mini-digit"], ["train", "mini-digits", "--model", "odelstm"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "did you mean" in done.stderr
