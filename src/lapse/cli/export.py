"""The command that writes a model as a file for other programs: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lapse.cli.app import app, known, path, writable_file
from lapse.cli.tables import ModelDir


@app.command()
def export(
    model: ModelDir,
    format: Annotated[
        str, typer.Option("--format", "-f", help="onnx, or torch for torch.export.load.")
    ] = "onnx",
    step: Annotated[
        bool, typer.Option("--step/--sequence", help="One event per call, or whole sequences.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; default: step.onnx and the like.", parser=path),
    ] = None,
) -> None:
    """Write a model as a file that runs without lapse.

    Scaling, filling and probabilities are inside. The file is compared with the
    model on random sequences before it is written.

    Example: `lapse export model --format onnx --step -o step.onnx`
    """
    from lapse.export import FORMATS, load, save

    known("--format", format, FORMATS)
    form = "step" if step else "sequence"
    target = output or Path(form).with_suffix(FORMATS[format].suffix)
    writable_file("--output", target)
    difference = save(load(model), target, format=format, form=form)
    typer.echo(f"largest difference from the model on random sequences: {difference:.1e}", err=True)
    typer.echo(target)
