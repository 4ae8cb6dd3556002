"""Commands that show what was found: table, report, gradients, bench."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from lapse.cli.app import (
    LARGEST,
    MOST_PROCESSES,
    DataDir,
    RunsDir,
    Seed,
    app,
    known,
    path,
    writable,
    writable_file,
)
from lapse.cli.endings import on_interrupt


@app.command()
def table(
    runs: RunsDir,
    format: Annotated[
        str, typer.Option("--format", "-f", help="rich, markdown, overview, csv, latex or json.")
    ] = "rich",
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Trivial baselines, computed from the data.")
    ] = True,
    data_dir: DataDir = None,
) -> None:
    """Ours beside the paper's: one table per task, with what a test tells apart and what trivial baselines reach.

    Example: `lapse table runs --format markdown > results.md`
    """
    from rich.console import Console

    from lapse.report.collection import Collection, NoRuns
    from lapse.report.formats import FORMATS
    from lapse.report.page import with_baselines
    from lapse.report.tables import build_tables

    known("--format", format, FORMATS)
    try:
        collection = Collection.read(runs)
        tables = build_tables(collection)
    except NoRuns as error:
        raise typer.BadParameter(str(error), param_hint="DIR") from error
    if baselines:
        with Console(stderr=True).status("computing baselines"):
            tables = [with_baselines(each, data_dir)[0] for each in tables]
    typer.echo(FORMATS[format](tables), nl=False)
    notes = dict.fromkeys(note for each in tables for note in each.notes) if format == "csv" else {}
    for message in dict.fromkeys((*notes, collection.left_out(), *collection.remarks)):
        if message:
            typer.echo(message, err=True)


@app.command()
def report(
    runs: RunsDir,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; default: DIR/report.html.", parser=path),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """One HTML page of a folder of runs: tables, curves, data, configs. It needs no network and no other file.

    Figures of `lapse gradients -o DIR/gradients` are taken in.

    Example: `lapse report runs -o page.html`
    """
    from rich.console import Console

    from lapse.report.collection import NoRuns
    from lapse.report.page import report as make_page
    from lapse.sequences.storage import write_atomically

    target = output or runs / "report.html"
    writable_file("--output", target)
    try:
        with Console(stderr=True).status("reading runs") as status:
            page = make_page(runs, data_dir, say=lambda title: status.update(f"drawing {title}"))
    except NoRuns as error:
        raise typer.BadParameter(str(error), param_hint="DIR") from error
    write_atomically(target, lambda file: file.write(page.encode()))
    typer.echo(target)


@app.command()
def gradients(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figures, numbers and their list.", parser=path)
    ],
    models: Annotated[str, typer.Option(help="Names with commas between, or `all`.")] = "all",
    lags: Annotated[
        int, typer.Option(help="How many observations to look back.", min=2, max=LARGEST, metavar="N")
    ] = 256,
    hidden_size: Annotated[
        int, typer.Option(help="Units of each model.", min=1, max=LARGEST, metavar="N")
    ] = 128,
    seed: Seed = 0,
) -> None:
    """The theory in figures: error flow, Jacobians and theorems.

    Example: `lapse gradients --models ode-rnn,ode-lstm --lags 64 -o theory`
    """
    from lapse.gradients.exhibits import Settings
    from lapse.gradients.gallery import run, write, write_index
    from lapse.models.registry import find_layer, layers

    chosen = tuple(layers()) if models == "all" else tuple(name.strip() for name in models.split(","))
    for name in chosen:
        known("--models", name, layers(), find_layer)
    try:
        settings = Settings(chosen, lags, hidden_size, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    writable("--output", output)
    start = time.monotonic()
    exhibits = []
    with on_interrupt(f"what is finished is in {output}; the same command begins anew"):
        for exhibit in run(settings):
            exhibits.append(exhibit)
            write(exhibit, output)
            write_index(exhibits, output)
            typer.echo(f"{time.monotonic() - start:6.1f} s  {exhibit.name}", err=True)
            typer.echo(f"{exhibit.name}: {exhibit.caption}")


@app.command()
def bench(
    only: Annotated[list[str] | None, typer.Option(help="Run this section; may be repeated.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="Compare this model in `reference`; may be repeated, all if not given."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each comparison.")] = 15,
    threads: Annotated[
        int, typer.Option(min=1, max=MOST_PROCESSES, metavar="N", help="Threads of torch and of the kernels.")
    ] = 2,
    output: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file too.", parser=path)
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Append the ratios to this file, say what moved, and draw them all on a page beside it.",
            parser=path,
        ),
    ] = None,
) -> None:
    """Speed against peers, as ratios measured in turns in one run.

    Sections: lstm, reference, authors, cfc, torchdiffeq, ragged, roofline, latency, small, growth, scan, memory,
    compile, export, stream.

    Example: `lapse bench --only lstm --only authors --repeats 25`
    """
    from lapse import bench as speed
    from lapse.bench.history import Entry, keep, read
    from lapse.models import registry

    sections = only or list(speed.SECTIONS)
    for name in sections:
        known("--only", name, speed.SECTIONS)
    for name in model or ():
        known("--model", name, registry.layers(), registry.find_layer)
    if output is not None:
        writable_file("--json", output)
    if history is not None:
        writable_file("--history", history)
        try:
            earlier = read(history)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--history") from error
    settings = speed.Settings(repeats, threads, tuple(model or ()))
    lines = []
    with on_interrupt("nothing is kept of it; `--only SECTION` measures less"):
        for one in speed.bench(sections, settings):
            typer.echo(f"{one.name}: {one.ratio:.2f}", err=True)
            lines.append(one)
    typer.echo(speed.markdown(lines), nl=False)
    if output is not None:
        output.write_text(json.dumps(speed.record(lines, settings), indent=1) + "\n")
    if history is not None:
        for move in keep(history, earlier, Entry.of(lines, settings)):
            typer.echo(f"moved: {move.text}", err=True)
