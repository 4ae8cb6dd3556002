"""The command line: data on stdout, progress on stderr, usage errors exit with 2."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Neural networks that know how much time has passed: learning from irregularly-sampled time series.",
    epilog="Example: `lapse demo`, then `lapse COMMAND --help`",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

TaskName = Annotated[str, typer.Argument(help="A task: see `lapse list`.", metavar="TASK")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="A model: see `lapse list`.")]
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


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the runs and the page go.")] = Path(
        "lapse-demo"
    ),
) -> None:
    """The product in two minutes: four models on irregular events, a table, curves and a page; no download.

    Example: `lapse demo`
    """
    from lapse.demo import demo as run_demo

    outcome = run_demo(output)
    if outcome.failed:
        _fail("\n".join(f"failed: {run.folder / 'error.txt'}" for run in outcome.failed))


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
        "solver": {name: str(solver) for name, solver in SOLVERS.items()},
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
    seed: Annotated[int | None, typer.Option(help="Seed of what is generated or split here.")] = None,
) -> None:
    """Prepare a task's data and describe them: sizes, gaps, classes, what is missing, where the files are.

    Example: `lapse data person --split subject`
    """
    from rich.console import Console

    from lapse.tasks import TASKS, DataFileError
    from lapse.tasks.describe import describe

    known("TASK", task, TASKS)
    given = {"split": split, "fold": fold, "lengths": lengths, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {name: True for name, on in {"distinct": distinct, "generate": generate}.items() if on}
    try:
        with Console(stderr=True).status(f"preparing {task}"):
            splits = TASKS[task].load(data_dir, **options)
    except DataFileError as error:
        _fail(f"lapse data {task}: {error}")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    Console().print(describe(TASKS[task], splits))


@app.command()
def train(
    task: TaskName,
    model: ModelName = "ode-lstm",
    preset: Preset = "default",
    seed: Annotated[int, typer.Option(help="Decides weights, order of batches and dropout.")] = 0,
    setting: Setting = None,
    output: Output = Path("runs"),
    data_dir: DataDir = None,
    devices: Annotated[int, typer.Option(help="Processes on this machine, data-parallel.")] = 1,
    nodes: Annotated[int, typer.Option(help="Machines, data-parallel.")] = 1,
) -> None:
    """One run: train, restore the best epoch by validation, test once. Goes on where an earlier call was cut off.

    Example: `lapse train mini-digits --model ode-lstm --set form=autonomous --set train.epochs=30`
    """
    from lapse.runs import RunBusy, run
    from lapse.tasks import DataFileError
    from lapse.training import NonFiniteLoss, SeesTheFuture

    config = configure(task, model, preset, seed, setting or [])
    try:
        result = run(config, output, data_dir=data_dir, progress=True, devices=devices, nodes=nodes)
    except (DataFileError, NonFiniteLoss, RunBusy, SeesTheFuture) as error:
        _fail(f"lapse train {task}: {error}")
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes of one machine, one speaks
        typer.echo(json.dumps({"folder": str(config.folder(output)), **dataclasses.asdict(result)}, indent=2))


@app.command()
def gradients(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figures, numbers, the page's section.")
    ],
    models: Annotated[str, typer.Option(help="Names with commas between, or `all`.")] = "all",
    lags: Annotated[int, typer.Option(help="How many observations to look back.", min=2)] = 256,
    hidden_size: Annotated[int, typer.Option(help="Units of each model.", min=1)] = 128,
    seed: Annotated[int, typer.Option(help="Of weights, inputs and gaps.")] = 0,
) -> None:
    """The theory's figures and numbers: error flow, Jacobians, theorems, loss surfaces.

    Example: `lapse gradients --models ode-rnn,ode-lstm --lags 64 -o theory`
    """
    from lapse.gradients.exhibits import Settings
    from lapse.gradients.gallery import html_fragment, run, write
    from lapse.models import MODELS

    chosen = tuple(MODELS) if models == "all" else tuple(name.strip() for name in models.split(","))
    for name in chosen:
        known("--models", name, MODELS)
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


@app.command()
def study(
    tasks: Annotated[str, typer.Option(help="Tasks, with commas between.")],
    models: Annotated[str, typer.Option(help="Models, with commas between, or `all`.")] = "all",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N - 1.", min=1)] = 5,
    workers: Annotated[int, typer.Option(help="Runs at a time on this machine.", min=1)] = 2,
    threads: Annotated[int, typer.Option(help="Threads a run.", min=1)] = 1,
    preset: Preset = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A setting for all runs, or WHICH:NAME=VALUE for a task or model."),
    ] = None,
    output: Output = Path("runs"),
    data_dir: DataDir = None,
    ray: Annotated[
        str | None, typer.Option(help="A Ray cluster's address, or `local`.", metavar="ADDRESS")
    ] = None,
) -> None:
    """Every task with every model and seed; killed or cut short, the same command goes on where it was.

    Exit status 1 when a run failed; its traceback is in error.txt of its folder.

    Example: `lapse study --tasks mini-digits --models ode-lstm,gru-d --seeds 3 --set ode-lstm:form=autonomous`
    """
    from lapse import MODELS
    from lapse.study import Grid, Outcome
    from lapse.study import study as run_study
    from lapse.study.progress import Progress

    names = list(MODELS) if models == "all" else _names(models)
    try:
        grid = Grid(_names(tasks), names, range(seeds), setting or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error
    configs = grid.configs(lambda task, model, seed, s: configure(task, model, preset, seed, s))
    place = _workers(ray, output, workers, threads, data_dir)
    try:
        with Progress(workers) as progress:
            outcome: Outcome = run_study(configs, output, workers=place, watchers=[progress])
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on where this one was", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{len(outcome.results)} of {len(outcome.runs)} runs are done in {output}")
    if outcome.failed:
        _fail("\n".join(f"failed: {run.folder / 'error.txt'}" for run in outcome.failed))


@app.command()
def tune(
    task: TaskName,
    model: ModelName = "ode-lstm",
    trials: Annotated[int, typer.Option(help="Trials in all, earlier ones included.", min=1)] = 20,
    preset: Preset = "default",
    seed: Annotated[int, typer.Option(help="Decides the runs and the search.")] = 0,
    setting: Setting = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the trials.")] = Path("trials"),
    data_dir: DataDir = None,
) -> None:
    """Search step size, batch, width, unit of time and form by validation; the test split is not looked at.

    Cut short, the same command goes on; several at once share the work. Needs `lapse[tune]`.

    Example: `lapse tune mini-digits --model ode-lstm --trials 20 --set train.epochs=15`
    """
    from lapse.tune import TuningFailed
    from lapse.tune import tune as search

    config = configure(task, model, preset, seed, setting or [])

    def tell(trial: Any) -> None:
        outcome = "failed" if trial.value is None else f"{trial.value:.5g}"
        typer.echo(f"trial {trial.number}: {outcome}  {json.dumps(trial.params)}", err=True)

    try:
        best = search(config, output, trials, data_dir=data_dir, progress=True, after_trial=tell)
    except (ImportError, TuningFailed) as error:
        _fail(f"lapse tune {task}: {error}")
    typer.echo(f"validation {best.metric} {best.value:.5g} is the best of {best.trials} trials; its test:")
    settings = "".join(f" --set {word}" for word in setting or [])
    typer.echo(f"{best.command(output)}{settings} --preset {preset}")


def _workers(ray: str | None, output: Path, workers: int, threads: int, data_dir: Path | None) -> Any:
    from lapse.study import LocalWorkers

    if ray is None:
        return LocalWorkers(output, workers, threads=threads, data_dir=data_dir)
    from lapse.study.cluster import RayWorkers

    try:
        return RayWorkers(output, ray, count=workers, threads=threads, data_dir=data_dir)
    except ImportError as error:
        _fail(f"lapse study --ray: {error}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def table(
    runs: RunsDir,
    format: Annotated[
        str, typer.Option("--format", "-f", help="rich, markdown, csv, latex or json.")
    ] = "rich",
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Trivial baselines, computed from the data.")
    ] = True,
    data_dir: DataDir = None,
) -> None:
    """Ours beside the paper's: a table a task, with what a test tells apart and what trivial baselines reach.

    Example: `lapse table runs --format markdown > results.md`
    """
    from rich.console import Console

    from lapse.report.collection import Collection, NoRuns
    from lapse.report.formats import FORMATS
    from lapse.report.page import with_baselines
    from lapse.report.tables import NothingFinished, build_tables

    known("--format", format, FORMATS)
    try:
        collection = Collection.read(runs)
        tables = build_tables(collection)
    except NoRuns as error:
        raise typer.BadParameter(str(error), param_hint="DIR") from error
    except NothingFinished as error:
        _fail(f"lapse table: {error}")
    if baselines:
        with Console(stderr=True).status("computing baselines"):
            tables = [with_baselines(each, data_dir)[0] for each in tables]
    typer.echo(FORMATS[format](tables), nl=False)
    notes = dict.fromkeys(note for each in tables for note in each.notes) if format == "csv" else {}
    for message in dict.fromkeys((*notes, collection.left_out())):
        if message:
            typer.echo(message, err=True)


@app.command()
def report(
    runs: RunsDir,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; default: DIR/report.html.")
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
    from lapse.report.tables import NothingFinished
    from lapse.sequences.storage import write_atomically

    target = output or runs / "report.html"
    try:
        with Console(stderr=True).status("reading runs") as status:
            page = make_page(runs, data_dir, say=lambda title: status.update(f"drawing {title}"))
    except NoRuns as error:
        raise typer.BadParameter(str(error), param_hint="DIR") from error
    except NothingFinished as error:
        _fail(f"lapse report: {error}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, lambda file: file.write(page.encode()))
    typer.echo(target)


def configure(task: str, model: str, preset: str, seed: int, settings: Iterable[str]) -> Any:
    """A run's config from what the command line says; every word of it checked."""
    from lapse import MODELS
    from lapse.runs import PRESETS
    from lapse.tasks import TASKS

    known("TASK", task, TASKS)
    known("--model", model, MODELS)
    known("--preset", preset, PRESETS)
    try:
        config = PRESETS[preset](TASKS[task], model, seed)
        for setting in settings:
            config = _with_setting(config, TASKS[task], setting)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error
    return config


def _with_setting(config: Any, task: Any, setting: str) -> Any:
    """``train.NAME``, a field of the run, an option of the task, or else an option of the model."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise ValueError(f"expected NAME=VALUE, got {setting!r}")
    value = _plain_value(text)
    if name.startswith("train."):
        field = name.removeprefix("train.")
        known("--set", field, [f.name for f in dataclasses.fields(config.train)])
        return dataclasses.replace(config, train=dataclasses.replace(config.train, **{field: value}))
    if name in ("hidden_size", "num_layers"):
        return dataclasses.replace(config, **{name: value})
    if name in task.options:
        return dataclasses.replace(config, task_options={**config.task_options, name: value})
    return dataclasses.replace(config, model_options={**config.model_options, name: value})


def _plain_value(text: str) -> Any:
    """Numbers, true, false, null and lists as JSON reads them; anything else is a word."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def known(what: str, name: str, names: Iterable[str]) -> None:
    """Exit with 2 and the nearest names if ``name`` is none of them."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(names)}"
    raise typer.BadParameter(f"no {name!r}; {hint}", param_hint=what)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0].replace("\n", " ").replace("    ", "")


def _fail(message: str) -> Any:
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(message, style="red", markup=False, highlight=False)
    raise typer.Exit(1)


def main() -> None:
    app()
