"""The command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Neural networks that know how much time has passed.", no_args_is_help=True)


@app.callback()
def _lapse() -> None:
    """Neural networks that know how much time has passed."""


@app.command()
def data(
    task: Annotated[
        str, typer.Argument(help="xor-dense, mnist-event, person, walker, ...: see `lapse list`.")
    ],
    data_dir: Annotated[
        Path | None, typer.Option(help="Look here first; then in $LAPSE_DATA, the cache, the web.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="person: paper, recording or subject.")] = None,
    fold: Annotated[int | None, typer.Option(help="person: which recordings or person to hold out.")] = None,
    lengths: Annotated[
        tuple[int, int] | None, typer.Option(help="xor: blocks of LOW to HIGH - 1 bits.", metavar="LOW HIGH")
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="xor: no test block that is in training.")
    ] = False,
    generate: Annotated[
        bool, typer.Option("--generate", help="walker: simulate rollouts instead of the authors'.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of what is generated or split here.")] = None,
) -> None:
    """Prepare a task's data and describe them: sizes, gaps, classes, what is missing, where the files are."""
    given = {"split": split, "fold": fold, "lengths": lengths, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {name: True for name, on in {"distinct": distinct, "generate": generate}.items() if on}
    _describe(task, data_dir, options)


def _describe(task: str, data_dir: Path | None, options: dict[str, Any]) -> None:
    from rich.console import Console

    from lapse.tasks import TASKS, DataFileError
    from lapse.tasks.describe import describe

    if task not in TASKS:
        raise typer.BadParameter(f"no task {task!r}; expected one of {', '.join(TASKS)}", param_hint="TASK")
    try:
        with Console(stderr=True).status(f"preparing {task}"):
            splits = TASKS[task].load(data_dir, **options)
    except DataFileError as error:
        Console(stderr=True, soft_wrap=True).print(f"lapse data {task}: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    Console().print(describe(TASKS[task], splits))


def main() -> None:
    app()
