"""Commands for a table of one's own: fit, predict, evaluate, example."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lapse.cli.app import (
    ModelName,
    Seed,
    app,
    existing_file,
    existing_folder,
    known,
    path,
    writable,
    writable_file,
)
from lapse.cli.endings import on_interrupt

if TYPE_CHECKING:
    from rich.console import Console

    from lapse.estimators.trial import Trial
    from lapse.sequences import Sequences
    from lapse.tables import Roles
TableFile = Annotated[
    Path,
    typer.Argument(help="A .csv, .parquet or .arrow table.", metavar="FILE", parser=existing_file),
]
ModelDir = Annotated[
    Path,
    typer.Argument(help="A folder that `lapse fit` wrote.", metavar="MODEL", parser=existing_folder),
]


@app.command()
def fit(
    file: TableFile,
    id: Annotated[str | None, typer.Option(help="Column of ids.", metavar="COLUMN")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times.", metavar="COLUMN")] = None,
    target: Annotated[str, typer.Option(help="What to predict.", metavar="COLUMN,...")] = "",
    values: Annotated[str, typer.Option(help="Features of an event.", metavar="COLUMN,...")] = "",
    static: Annotated[str, typer.Option(help="What never changes.", metavar="COLUMN,...")] = "",
    ignore: Annotated[str, typer.Option(help="What to leave out.", metavar="COLUMN,...")] = "",
    group: Annotated[str | None, typer.Option(help="What is never split.", metavar="COLUMN")] = None,
    unit: Annotated[str | None, typer.Option(help="Of time: s, min, h, D.")] = None,
    long: Annotated[bool, typer.Option("--long", help="A row per measurement.")] = False,
    variable: Annotated[str | None, typer.Option(help="Long: its name.", metavar="COLUMN")] = None,
    value: Annotated[str | None, typer.Option(help="Long: its value.", metavar="COLUMN")] = None,
    forecast: Annotated[bool, typer.Option("--forecast", help="Forecast --target.")] = False,
    horizon: Annotated[str | None, typer.Option(help="How far: 6h.", metavar="TIME")] = None,
    model: ModelName = "gru-d",
    members: Annotated[int, typer.Option(help="Networks (default 3).", show_default=False, min=1)] = 3,
    no_boosting: Annotated[bool, typer.Option("--no-boosting", help="Networks alone.")] = False,
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder (default model).", show_default=False, parser=path)
    ] = Path("model"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """From a table of events to a checked model.

    A fifth of the ids is held out. What is not told is guessed and shown.

    Example: `lapse fit visits.csv --id patient --time day --target died`
    """
    from rich.console import Console

    from lapse.models.registry import MODELS, find
    from lapse.tables import examine

    known("--model", model, MODELS, find)
    console = Console(stderr=True, markup=False)  # "Vibration [mm/s]" is a name, and no markup
    lists = {"target": _split(target), "values": _split(values), "static": _split(static)}
    lists["ignore"] = _split(ignore)
    told: dict[str, Any] = lists | {"id": id, "time": time, "group": group, "unit": unit}
    told |= {"long": long, "variable": variable, "value": value}
    if horizon is not None and not forecast:
        raise typer.BadParameter("is for --forecast", param_hint="--horizon")
    roles, data = _read(file, told | {"target": ()} if forecast else told, need_target=not forecast)
    writable("--output", output)
    findings = examine(data)
    _show_data(console, roles, data, findings)
    if not yes and sys.stdin.isatty() and not typer.confirm("Go on?", default=True, err=True):
        raise typer.Exit(1)
    if forecast:
        return _fit_forecast(roles, data, lists["target"], horizon, model, seed, output, console)
    estimator = _estimator(
        data, model=model, members=members, boosting=not no_boosting, random_state=seed, progress=True
    )
    with on_interrupt("nothing is kept of it; the same command begins anew"):
        trial = _tried(estimator, data, console)
    _write(trial, roles, data, findings, output)
    _show_trial(trial)
    # They were first shown above all progress. No figure means much if one of them is right.
    _show_findings(console, [finding for finding in findings if finding.grave])
    typer.echo(f"{output / 'report.html'}\n{output}", err=True)


@app.command()
def predict(
    model: ModelDir,
    file: TableFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .csv, .parquet or .arrow file; default: stdout.", parser=path),
    ] = None,
    at: Annotated[str, typer.Option(help="Of a forecast: when, such as 24,48.", metavar="TIMES")] = "",
    ahead: Annotated[
        str, typer.Option(help="Of a forecast: how long after the last event: 1h,6h.", metavar="TIMES")
    ] = "",
) -> None:
    """Answers for every id of a table.

    Ids come first, then a column per class or number.

    Example: `lapse predict model visits.csv -o predictions.csv`
    """
    from lapse.tables.files import write_table

    if output is not None:
        _writable_table(output)
    with warnings_told():
        table = _answers(model, file, at, ahead)
        if output is not None:
            write_table(table, output)
    if output is None:
        typer.echo(table.to_csv(index=False), nl=False)


@app.command()
def evaluate(model: ModelDir, file: TableFile) -> None:
    """Figures of a model on a table with targets.

    They are JSON: each figure with its 95 % interval. Ids that the model was fitted to
    flatter it: give others. Those of a forecast are about random cuts of each id.

    Example: `lapse evaluate model later-visits.csv`
    """
    from lapse.cli.forecasts import evaluated
    from lapse.estimators.trial import score
    from lapse.tables import Roles

    if is_forecaster(model):
        with warnings_told():
            found = evaluated(model, sequences_of(file, Roles.load(model / "table.json")))
        return typer.echo(json.dumps(found, indent=2))
    with warnings_told():
        ensemble, roles = load_fitted(model)
        data = sequences_of(file, roles)
        if data.targets is None:
            raise ValueError(f"{file} has no column {', '.join(roles.target)}, which holds the target")
        trial = score(ensemble, data)
    typer.echo(_figures_json(trial))


def _figures_json(trial: Trial) -> str:
    """The figures as JSON, a line for each with its value and the ends of its interval."""
    figures = {
        scored.name: {name: [float(f"{end:.6g}") for end in found] for name, found in scored.figures.items()}
        for scored in trial.scores
    }
    text = json.dumps({"sequences": trial.test_size, "figures": figures}, indent=2)
    return re.sub(r"\[\s+([^]]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


@app.command()
def example(
    name: Annotated[str, typer.Argument(help="pbc2: visits of patients with a liver disease.")] = "pbc2",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; default: NAME.csv.", parser=path)
    ] = None,
) -> None:
    """Write a small real table to try things on.

    Example: `lapse example pbc2 -o pbc2.csv`
    """
    from lapse import examples
    from lapse.tables.files import write_table

    tables = {"pbc2": examples.pbc2}
    known("NAME", name, tables)
    target = output or Path(f"{name}.csv")
    _writable_table(target)
    write_table(tables[name](), target)
    typer.echo(target)


@contextmanager
def warnings_told() -> Iterator[None]:
    """What a model can cope with, as lines on stderr."""
    from lapse.models import SchemaWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SchemaWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"note: {message}", err=True)


def _writable_table(file: Path) -> None:
    """Exit with 2 if a table cannot be written to `file`: before the work, not after it."""
    from lapse.tables.files import WRITERS

    writable_file("--output", file)
    known("--output", file.suffix.lower(), WRITERS)


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _read(file: Path, told: dict[str, Any], *, need_target: bool) -> tuple[Roles, Sequences]:
    from lapse.cli.forecasts import features_alone
    from lapse.tables import RolesError, guess, read_table

    table = read_table(file)
    try:
        roles = guess(table, told, need_target=need_target)
    except RolesError as error:
        raise typer.BadParameter(str(error)) from error
    roles = roles if need_target else features_alone(roles)
    return roles, roles.sequences(table)


def _fit_forecast(
    roles: Roles,
    data: Sequences,
    targets: tuple[str, ...],
    horizon: str | None,
    model: str,
    seed: int,
    output: Path,
    console: Console,
) -> None:
    from rich.console import Console

    from lapse.cli.forecasts import terminal, time_or_number, verdict
    from lapse.estimators import IrregularForecaster
    from lapse.estimators.forecast_trial import run_forecast_trial

    estimator = IrregularForecaster(
        model,
        targets=targets or None,
        horizon=None if horizon is None else time_or_number(horizon),
        random_state=seed,
        progress=True,
    )
    with on_interrupt("nothing is kept of it; the same command begins anew"):
        trial = run_forecast_trial(
            estimator, data, say=lambda message: console.print(message, highlight=False)
        )
    trial.forecaster.save(output)
    roles.save(output / "table.json")
    Console().print(terminal(trial))
    typer.echo(verdict(trial))
    typer.echo(output, err=True)


def is_forecaster(model: Path) -> bool:
    from lapse import Forecaster
    from lapse.models.storage import format_of

    return format_of(model) == Forecaster.format


def _answers(model: Path, file: Path, at: str, ahead: str) -> Any:
    """The answers of a stored model of any kind, as a pandas table."""
    from lapse.cli.forecasts import predicted
    from lapse.tables import Roles

    if is_forecaster(model):
        roles = Roles.load(model / "table.json")
        found = predicted(model, sequences_of(file, roles), at, ahead)
    else:
        if at or ahead:
            raise typer.BadParameter(
                f"--at and --ahead are for forecasts, and {model} holds another kind of model"
            )
        ensemble, roles = load_fitted(model)
        found = ensemble.predict(sequences_of(file, roles))
    return found.frame(id=roles.id, time=roles.time)


def sequences_of(file: Path, roles: Roles) -> Sequences:
    from lapse.tables import read_table

    return roles.sequences(read_table(file))


def load_fitted(folder: Path) -> tuple[Any, Roles]:
    from lapse.estimators import Ensemble
    from lapse.tables import Roles

    ensemble = Ensemble.load(folder)
    return ensemble, Roles.load(folder / "table.json")


def _estimator(data: Sequences, **settings: Any) -> Any:
    from lapse import heads
    from lapse.estimators.trial import kind_for

    return kind_for(heads.for_data(data))(**settings)


def _tried(estimator: Any, data: Sequences, console: Console) -> Trial:
    from lapse.estimators.trial import run_trial

    return run_trial(estimator, data, say=lambda message: console.print(message, highlight=False))


def _show_data(console: Console, roles: Roles, data: Sequences, findings: list[Any]) -> None:
    from rich.table import Table

    from lapse.tables.findings import facts

    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, text in (*roles.described(), *facts(data)):
        grid.add_row(name, text)
    console.print(grid)
    _show_findings(console, findings)


def _show_findings(console: Console, findings: list[Any]) -> None:
    for finding in findings:
        word, style = ("WARNING", "red") if finding.grave else ("note", "")
        console.print(f"{word}: {finding.text}", style=style, highlight=False)


def _show_trial(trial: Trial) -> None:
    from rich.console import Console

    from lapse.report.trial import terminal, verdict

    console = Console()
    console.print(terminal(trial, console.width))
    console.print(verdict(trial), markup=False, highlight=False)


def _write(trial: Trial, roles: Roles, data: Sequences, findings: list[Any], folder: Path) -> None:
    from lapse.report.trial import card, page
    from lapse.sequences.storage import write_atomically

    trial.ensemble.save(folder, card=card(trial, roles, findings))
    roles.save(folder / "table.json")
    text = page(trial, roles, data, findings)
    write_atomically(folder / "report.html", lambda file: file.write(text.encode()))
