"""The command that says what moved an answer, or which variables matter: explain."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from lapse.cli.app import Seed, app, known, path, writable_file
from lapse.cli.tables import ModelDir, TableFile, is_forecaster, load_fitted, sequences_of, warnings_told

if TYPE_CHECKING:
    from lapse.explain import Explanation, Importance
    from lapse.sequences import Sequences

MOST_LINES = 15


@app.command()
def explain(
    model: ModelDir,
    file: TableFile,
    id: Annotated[str | None, typer.Option(help="Whose answer; default: the whole table.")] = None,
    answer: Annotated[str | None, typer.Option(help="Which class, label or number.", metavar="NAME")] = None,
    at: Annotated[int, typer.Option(help="Of answers per event: which event; -1 is the last.")] = -1,
    metric: Annotated[str | None, typer.Option(help="For a table: the figure that gets worse.")] = None,
    repeats: Annotated[int, typer.Option(help="For a table: how often to shuffle.", min=1)] = 5,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Picture (.svg, .png, .pdf) or table (.csv, ...).", parser=path),
    ] = None,
) -> None:
    """What moved an answer, or which variables matter.

    With `--id`: what each value and each gap contributed to the answer for one id.
    Without: how much worse the answers to a table with targets get when a variable
    is shuffled.

    Example: `lapse explain model visits.csv --id 17 -o picture.svg`
    """
    if is_forecaster(model):
        raise typer.BadParameter(
            f"{model} holds a forecast, and only answers of other models are explained", param_hint="MODEL"
        )
    if output is not None:
        _check_output(output)
    with warnings_told():
        ensemble, roles = load_fitted(model)
        data = replace(sequences_of(file, roles), target_names=roles.target)
        found: Explanation | Importance
        if id is not None:
            found = ensemble.explain(data[_position(data, id)], answer, at=at)
        elif data.targets is None:
            raise ValueError(
                f"{file} has no column {', '.join(roles.target)}; to learn what matters in a table its targets are "
                "needed, and without them --id explains the answer for one id"
            )
        else:
            found = _importance(ensemble, data, metric=metric, repeats=repeats, seed=seed)
    if output is not None:
        _write(found, output)
    lines = _importance_lines(found) if id is None else _explanation_lines(found)
    typer.echo("\n".join(lines))


def _check_output(output: Path) -> None:
    """Exit with 2 if neither a picture nor a table can be written to this file: before the work, not after it."""
    from lapse.explain.picture import KINDS
    from lapse.tables.files import WRITERS

    known("--output", output.suffix.lower(), [*KINDS, *WRITERS])
    writable_file("--output", output)


def _position(data: Sequences, id: str) -> int:
    """The position of the sequence with this id."""
    ids = [str(one) for one in (range(len(data)) if data.ids is None else data.ids)]
    if id not in ids:
        near = difflib.get_close_matches(id, ids, n=3) or ids[:3]
        raise typer.BadParameter(
            f"no id {id!r} in the table; it has for example {', '.join(near)}", param_hint="--id"
        )
    return ids.index(id)


def _importance(ensemble: Any, data: Sequences, **options: Any) -> Importance:
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("shuffling") as status:
        found: Importance = ensemble.importance(
            data, say=lambda name: status.update(Text(f"shuffling {name}")), **options
        )
    return found


def _write(found: Explanation | Importance, output: Path) -> None:
    from lapse.explain.picture import KINDS
    from lapse.tables.files import write_table

    if output.suffix.lower() in KINDS:
        found.save(output)
    else:
        write_table(found.frame(), output)
    typer.echo(output, err=True)


def _explanation_lines(found: Any) -> list[str]:
    totals = found.totals()[0]
    order = np.argsort(-np.abs(totals), kind="stable")[:MOST_LINES]
    rows = [(found.variables[k], f"{totals[k]:+.4g}") for k in order if totals[k]]
    unit = "log odds" if found.head.gives_probabilities else f"in the unit of {found.names[0]}"
    return [found.sentence(0), *_aligned("variable", f"contribution ({unit})", rows)]


def _importance_lines(found: Any) -> list[str]:
    from lapse.heads.metrics import shown_decimals

    mean, spread = found.worse.mean(1), found.worse.std(1)
    digits = shown_decimals(float(np.abs(mean).max()), 4, digits=5)
    rows = [
        (found.variables[k], f"{round(mean[k], digits) + 0.0:+.{digits}f} ± {spread[k]:.{digits}f}")
        for k in found.order
    ]
    name = found.metric.name
    first = f"{name} is {found.figure:.4g} on {found.sequences:,} ids; when a variable is shuffled it gets worse by:"
    return [first, *_aligned("variable", f"{name} worse by", rows)]


def _aligned(left: str, right: str, rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in [(left, right), *rows])
    return [f"{name:<{width}}  {text}" for name, text in [(left, right), *rows]]
