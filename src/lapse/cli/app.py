"""The application, and the words and checks that commands share."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lapse.cli.endings import Commands
from lapse.references import is_reference

app = typer.Typer(
    cls=Commands,
    help="Neural networks that know how much time has passed: learning from irregularly-sampled time series.",
    epilog="Example: `lapse demo`, then `lapse COMMAND --help`",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # `Commands` says what went wrong; --debug shows Python's own traceback
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def path(text: str | Path) -> Path:
    """The path that a word of the command line names. An empty word, as an unset variable leaves it, names none.

    Args:
        text: the word, or the default of an option.
    """
    if not str(text):
        raise typer.BadParameter("expected a path, got ''")
    return Path(text)


def existing_folder(text: str | Path) -> Path:
    """The folder of this name, which must be there.

    Args:
        text: a word of the command line.
    """
    found = path(text)
    if not found.exists():
        raise typer.BadParameter(f"the folder '{found}' does not exist")
    if not found.is_dir():
        raise typer.BadParameter(f"'{found}' is a file, expected a folder")
    return found


def existing_file(text: str | Path) -> Path:
    """The file of this name, which must be there; a device or a pipe has no name that tells what kind of file it is.

    Args:
        text: a word of the command line.
    """
    found = path(text)
    if not found.exists():
        raise typer.BadParameter(f"the file '{found}' does not exist")
    if found.is_dir():
        raise typer.BadParameter(f"'{found}' is a directory, expected a file")
    if not found.is_file():
        raise typer.BadParameter(f"'{found}' is a device or a pipe, expected a regular file")
    return found


# No machine has more processors, and no run more machines. A larger number is a slip, and would exhaust the machine.
MOST_PROCESSES = 1024
LARGEST = 2**31 - 1  # of a size: nothing of more units or observations fits any memory

TaskName = Annotated[
    str, typer.Argument(help="A task of `lapse list`, or package.module:NAME.", metavar="TASK")
]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="A model of `lapse list`, or package.module:Class.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Look here first; then in $LAPSE_DATA, the cache, the web.", parser=existing_folder),
]
Seed = Annotated[int, typer.Option(help="Decides all that is random.", min=0, max=2**63 - 1)]
Preset = Annotated[str, typer.Option(help="default: what works best here; paper: the paper's protocol.")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Any setting of the run, e.g. train.epochs=20, form=autonomous."),
]
RunsDir = Annotated[
    Path, typer.Argument(help="A folder of runs, as train and study write it.", metavar="DIR", parser=path)
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs.", parser=path)]


def known(what: str, name: str, names: Iterable[str], find: Callable[[str], Any] | None = None) -> None:
    """Exit with 2 and the nearest names if `name` is none of them.

    Args:
        what: the argument or option that the name was given for.
        name: the name.
        names: the names that there are.
        find: looks up `package.module:NAME`, where such a reference is as good as a name; the module may be in the
            folder that the command was started in.
    """
    if find is not None and is_reference(name):
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # at the end, so that nothing there hides a module that is installed
        try:
            find(name)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=what) from error
        return
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"
    raise typer.BadParameter(f"no {name!r}; {hint}", param_hint=what)


def writable(what: str, folder: Path) -> None:
    """Exit with 2 if nothing can be written to `folder`, which is made if need be: before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(f"cannot write to {folder}: {error.strerror}", param_hint=what) from error


def writable_file(what: str, file: Path) -> None:
    """Exit with 2 if `file` cannot be written: before the work, not after it."""
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder, expected a file", param_hint=what)
    writable(what, file.parent)
