"""The application, the words that commands share, and how they fail."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lapse.references import is_reference

app = typer.Typer(
    help="Neural networks that know how much time has passed: learning from irregularly-sampled time series.",
    epilog="Example: `lapse demo`, then `lapse COMMAND --help`",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

TaskName = Annotated[
    str, typer.Argument(help="A task of `lapse list`, or package.module:NAME.", metavar="TASK")
]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="A model of `lapse list`, or package.module:Class.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Look here first; then in $LAPSE_DATA, the cache, the web.")
]
Preset = Annotated[str, typer.Option(help="default: what works best here; paper: the paper's protocol.")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Any setting of the run, e.g. train.epochs=20, form=autonomous."),
]
RunsDir = Annotated[
    Path, typer.Argument(help="A folder of runs, as train and study write it.", metavar="DIR")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the runs.")]


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


def fail(message: str) -> Any:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(message, style="red", markup=False, highlight=False)
    raise typer.Exit(1)
