"""How a command ends: the one place where an error becomes a line or two and an exit status.

0    done
1    the work failed; the message gives the reason and, for a run, its folder
2    the command line makes no sense; the message gives the nearest right thing
130  interrupted (Ctrl-C); the message says how to go on
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

# Of all that is wrong with a command line; typer does not export the name.
UsageError: Any = typer.BadParameter.__base__
# Errors that are raised with a message for the user; any other one is a mistake of ours.
EXPECTED = (ValueError, RuntimeError, OSError, ImportError, MemoryError)
INTERRUPTED = 130  # 128 + SIGINT, as a shell has it


class Commands(TyperGroup):
    """The commands, and what becomes of their errors."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            status = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except UsageError as error:
            if not standalone_mode:
                raise
            _say(_usage(error))
            status = error.exit_code
        except typer.Abort:  # Ctrl-C at a question
            status = INTERRUPTED
        if status == INTERRUPTED:  # Typer says nothing; a command would have spoken and raised SystemExit
            _say("interrupted")
        return sys.exit(status) if standalone_mode else status

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (UsageError, typer.Exit, typer.Abort):
            raise
        except (KeyboardInterrupt, Exception) as error:
            if _is_interruption(error):
                _say("interrupted")
                raise SystemExit(INTERRUPTED) from None
            if ctx.params["debug"]:
                raise
            _say(f"{ctx.command_path} {ctx.invoked_subcommand}: {_reason(error)}")
            raise typer.Exit(1) from error


def fail(message: str) -> NoReturn:
    """Exit with 1 and this message."""
    _say(message)
    raise typer.Exit(1)


@contextmanager
def on_interrupt(how: str) -> Iterator[None]:
    """Exit with 130 on Ctrl-C inside the block, and say how to go on."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interruption(error):
            raise
        _say(f"interrupted; {how}")
        raise SystemExit(INTERRUPTED) from None


def _is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause: a compiled module that it meets while it is imported raises an ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _usage(error: Any) -> str:
    path = error.ctx.command_path if error.ctx else "lapse"
    return f"{path}: {' '.join(error.format_message().split())}\nTry: {path} --help"


def _reason(error: BaseException) -> str:
    """The message, and what was noted of the circumstances, such as the folder of a run."""
    said = " ".join(str(error).split()).replace("restart=True", "--restart")  # the option, not the argument
    if not isinstance(error, EXPECTED):
        said = f"{type(error).__name__}: {said}. This is a mistake in lapse; `lapse --debug` shows where"
    notes: list[str] = getattr(error, "__notes__", [])
    return "\n".join([said or type(error).__name__, *notes])


def _say(message: str) -> None:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(message, style="red", markup=False, highlight=False)
