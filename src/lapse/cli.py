"""The command line: data on stdout, progress on stderr."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Neural networks that know how much time has passed."
)


@app.callback()
def lapse() -> None:
    """Neural networks that know how much time has passed."""


@app.command()
def gradients(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figures, numbers and the page's section.")
    ],
    models: Annotated[
        str, typer.Option(help="Models to compare: names with commas between, or `all`.")
    ] = "all",
    lags: Annotated[int, typer.Option(help="How many observations to look back.", min=2)] = 256,
    hidden_size: Annotated[int, typer.Option(help="Units of each model.", min=1)] = 128,
    seed: Annotated[int, typer.Option(help="Of weights, inputs and gaps.")] = 0,
) -> None:
    """The theory's figures and numbers: error flow, Jacobians, theorems, loss surfaces."""
    from lapse.gradients.exhibits import Settings
    from lapse.gradients.gallery import html_fragment, run, write
    from lapse.models import MODELS

    chosen = tuple(MODELS) if models == "all" else tuple(name.strip() for name in models.split(","))
    try:
        settings = Settings(chosen, lags, hidden_size, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    start = time.monotonic()
    exhibits = []
    for exhibit in run(settings):
        exhibits.append(exhibit)
        write(exhibit, output)
        typer.echo(f"{time.monotonic() - start:6.1f} s  {exhibit.name}", err=True)
        typer.echo(f"{exhibit.name}: {exhibit.caption}")
    (output / "gradients.html").write_text(html_fragment(exhibits), encoding="utf-8")


def main() -> None:
    """The ``lapse`` command."""
    app()
