"""Commands that show what there is: demo, list, info, data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lapse.cli.app import DataDir, TaskName, app, known, path, writable
from lapse.cli.endings import fail, on_interrupt


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the runs and the page go.", parser=path)
    ] = Path("lapse-demo"),
) -> None:
    """Two minutes without a download: four models, a table and a page.

    Example: `lapse demo`
    """
    from lapse.demo import demo as run_demo

    writable("--output", output)
    with on_interrupt("the same command goes on where this one was"):
        outcome = run_demo(output)
    if outcome.failed:
        fail("\n".join(f"failed: {run.folder / 'error.txt'}" for run in outcome.failed))


@app.command("list")
def list_names() -> None:
    """Models, tasks and solvers by name.

    Example: `lapse list`
    """
    from rich.console import Console
    from rich.table import Table

    from lapse import MODELS, SOLVERS, TASKS

    console = Console()
    described: dict[str, dict[str, str]] = {
        "model": {name: _first_line(layer.__doc__) for name, layer in MODELS.items()},
        "task": {name: task.summary for name, task in TASKS.items()},
        "solver": {name: repr(solver) for name, solver in SOLVERS.items()},
    }
    for kind, entries in described.items():
        table = Table(kind, "what it is", box=None, header_style="bold", pad_edge=False)
        for name, text in entries.items():
            table.add_row(name, text)
        console.print(table, "", sep="\n")


@app.command()
def info(data_dir: DataDir = None) -> None:
    """Versions, threads, backend, data found: what a bug report needs.

    Example: `lapse info`
    """
    from lapse.environment import describe

    for name, value in describe(data_dir).items():
        typer.echo(f"{name:<14}{value}")


@app.command()
def data(
    task: TaskName,
    data_dir: DataDir = None,
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
    seed: Annotated[int | None, typer.Option(help="Seed of what is generated or split here.", min=0)] = None,
) -> None:
    """Prepare a task's data and describe them: sizes, gaps, classes, what is missing, where the files are.

    Example: `lapse data person --split subject`
    """
    from rich.console import Console

    from lapse.tasks import TASKS, find
    from lapse.tasks.describe import describe

    known("TASK", task, TASKS, find)
    given = {"split": split, "fold": fold, "lengths": lengths, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {name: True for name, on in {"distinct": distinct, "generate": generate}.items() if on}
    try:
        with Console(stderr=True).status(f"preparing {task}"):
            splits = find(task).load(data_dir, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    Console().print(describe(find(task), splits))


def _first_line(text: str | None) -> str:
    """The first paragraph of a docstring, as plain text."""
    return " ".join((text or "").split("\n\n")[0].split()).replace("`", "")
