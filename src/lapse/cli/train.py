"""Commands that train: train, study, tune."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lapse.cli.app import (
    MOST_PROCESSES,
    DataDir,
    ModelName,
    Output,
    Preset,
    Seed,
    Setting,
    TaskName,
    app,
    known,
    path,
    writable,
)
from lapse.cli.endings import fail, on_interrupt
from lapse.extras import extra

MOST_SEEDS = 100_000  # a larger number is a slip; its list of runs alone would take minutes
# What every machine of a run has to be told by its environment, unless a cluster's launcher tells it.
RENDEZVOUS = {
    "MASTER_ADDR": "the first machine",
    "MASTER_PORT": "a free port there",
    "NODE_RANK": "0 on the first machine, then 1, 2, ...",
}


@app.command()
def train(
    task: TaskName,
    model: ModelName = "ode-lstm",
    preset: Preset = "default",
    seed: Seed = 0,
    setting: Setting = None,
    output: Output = Path("runs"),
    data_dir: DataDir = None,
    devices: Annotated[
        int,
        typer.Option(
            help="Processes on this machine, data-parallel.", min=1, max=MOST_PROCESSES, metavar="N"
        ),
    ] = 1,
    nodes: Annotated[
        int, typer.Option(help="Machines, data-parallel.", min=1, max=MOST_PROCESSES, metavar="N")
    ] = 1,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew instead of going on.")] = False,
) -> None:
    """One run: train, restore the best epoch by validation, test once. Goes on where an earlier call was cut off.

    Example: `lapse train mini-digits --model ode-lstm --set form=autonomous --set train.epochs=30`
    """
    from lapse.runs import run

    config = configure(task, model, preset, seed, setting or [])
    _check_nodes(nodes)
    writable("--output", output)
    with on_interrupt(f"the same command goes on after the last whole epoch, from {config.folder(output)}"):
        result = run(
            config,
            output,
            data_dir=data_dir,
            restart=restart,
            progress=True,
            devices=devices,
            nodes=nodes,
        )
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes of one machine, one speaks
        typer.echo(json.dumps({"folder": str(config.folder(output)), **dataclasses.asdict(result)}, indent=2))


def _check_nodes(nodes: int) -> None:
    """Exit with 2 if nothing tells this process where the other machines are: it would wait for them in silence.

    Args:
        nodes: how many machines there are to be.
    """
    absent = [name for name in RENDEZVOUS if name not in os.environ]
    if nodes == 1 or not absent or _launched_by_a_cluster():
        return
    variables = ", ".join(f"{name} ({what})" for name, what in RENDEZVOUS.items())
    raise typer.BadParameter(
        f"nothing tells where the {nodes} machines meet: {', '.join(absent)} not set. Give this command on each of "
        f"them, with {variables}; or let torchrun or srun start it",
        param_hint="--nodes",
    )


def _launched_by_a_cluster() -> bool:
    """Whether Lightning learns from a launcher, such as torchrun or srun, what it needs of other machines."""
    with extra("train"):
        from lightning.fabric.plugins.environments.lsf import LSFEnvironment
        from lightning.fabric.plugins.environments.mpi import MPIEnvironment
        from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
        from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    # Those that Lightning itself looks for.
    launchers = (TorchElasticEnvironment, SLURMEnvironment, LSFEnvironment, MPIEnvironment)
    return any(launcher.detect() for launcher in launchers)


def _ray_address(address: str | None) -> str | None:
    """Exit with 2 if this is not of the form of an address; whether anybody answers there is seen later."""
    if address is None or address in ("auto", "local"):
        return address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port:
        raise typer.BadParameter(f"expected HOST:PORT, ray://HOST:PORT, auto or local, got {address!r}")
    return address


@app.command()
def study(
    file: Annotated[
        Path | None,
        typer.Argument(help="A study in a TOML file, e.g. studies/paper.toml.", metavar="FILE", parser=path),
    ] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, with commas between.")] = "",
    models: Annotated[str, typer.Option(help="Models, with commas between, or `all`.")] = "all",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N - 1.", min=1, max=MOST_SEEDS, metavar="N")] = 5,
    workers: Annotated[
        int, typer.Option(help="Runs at a time on this machine.", min=1, max=MOST_PROCESSES, metavar="N")
    ] = 2,
    threads: Annotated[
        int, typer.Option(help="Threads per run.", min=1, max=MOST_PROCESSES, metavar="N")
    ] = 1,
    preset: Preset = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A setting for all runs, or WHICH:NAME=VALUE for a task or model."),
    ] = None,
    match: Annotated[
        str,
        typer.Option(
            help="Choose widths so that every model has so many parameters, within 5 %.",
            metavar="parameters=N",
        ),
    ] = "",
    output: Output = Path("runs"),
    data_dir: DataDir = None,
    ray: Annotated[
        str | None,
        typer.Option(help="A Ray cluster's address, or `local`.", metavar="ADDRESS", callback=_ray_address),
    ] = None,
) -> None:
    """Every task with every model and seed; killed or cut short, the same command goes on where it was.

    The runs come from a FILE, or from --tasks, --models, --seeds and --set. Exit status 1 when a run failed; its
    traceback is in error.txt of its folder.

    Example: `lapse study studies/paper.toml`, or `lapse study --tasks mini-digits --models ode-lstm,gru-d --seeds 3`
    """
    from lapse.study import Outcome
    from lapse.study import study as run_study
    from lapse.study.estimate import hours_left
    from lapse.study.progress import Progress

    if file and match:
        raise typer.BadParameter(
            "a FILE says it for each of its grids: match = { parameters = N }", param_hint="--match"
        )
    configs = (
        _configs_of_file(file, data_dir)
        if file
        else _configs_of_grid(tasks, models, seeds, preset, setting or [], match, data_dir)
    )
    if file:
        hours = hours_left(configs, output, data_dir)
        typer.echo(f"{len(configs)} runs; at most {hours:.1f} hours of one core are left", err=True)
    writable("--output", output)
    place = _workers(ray, output, workers, threads, data_dir)
    with on_interrupt("the same command goes on where this one was"), Progress(workers) as progress:
        outcome: Outcome = run_study(configs, output, workers=place, watchers=[progress])
    typer.echo(f"{len(outcome.results)} of {len(outcome.runs)} runs are done in {output}")
    if outcome.failed:
        fail("\n".join(f"failed: {run.folder / 'error.txt'}" for run in outcome.failed))


@app.command()
def tune(
    task: TaskName,
    model: ModelName = "ode-lstm",
    trials: Annotated[int, typer.Option(help="Trials in all, earlier ones included.", min=1)] = 20,
    preset: Preset = "default",
    seed: Seed = 0,
    setting: Setting = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the trials.", parser=path)] = Path(
        "trials"
    ),
    data_dir: DataDir = None,
) -> None:
    """Search step size, batch, width, unit of time and form by validation; the test split is not looked at.

    Cut short, the same command goes on; several at once share the work. Needs `lapse[tune]`.

    Example: `lapse tune mini-digits --model ode-lstm --trials 20 --set train.epochs=15`
    """
    from lapse.tune import tune as search

    config = configure(task, model, preset, seed, setting or [])

    def tell(trial: Any) -> None:
        outcome = "failed" if trial.value is None else f"{trial.value:.5g}"
        typer.echo(f"trial {trial.number}: {outcome}  {json.dumps(trial.params)}", err=True)

    writable("--output", output)
    with on_interrupt("the same command goes on with the trial that was cut off"):
        best = search(config, output, trials, data_dir=data_dir, progress=True, after_trial=tell)
    typer.echo(f"validation {best.metric} {best.value:.5g} is the best of {best.trials} trials; its test:")
    settings = "".join(f" --set {word}" for word in setting or [])
    typer.echo(f"{best.command(output)}{settings} --preset {preset}")


def _workers(ray: str | None, output: Path, workers: int, threads: int, data_dir: Path | None) -> Any:
    from lapse.study import LocalWorkers

    if ray is None:
        return LocalWorkers(output, workers, threads=threads, data_dir=data_dir)
    from lapse.study.cluster import RayWorkers

    return RayWorkers(output, ray, count=workers, threads=threads, data_dir=data_dir)


def _configs_of_file(file: Path, data_dir: Path | None) -> list[Any]:
    from lapse.study.matching import Matching
    from lapse.study.plan import BadPlan, Plan

    try:
        plan = Plan.read(file)
    except BadPlan as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    try:
        return plan.configs(
            lambda preset, task, model, seed, settings: configure(task, model, preset, seed, settings),
            Matching(data_dir),
        )
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from error


def _parameters(match: str) -> int | None:
    """N of `parameters=N`; None for nothing."""
    name, _, count = match.partition("=")
    if match and (name != "parameters" or not count.isdecimal() or int(count) < 1):
        raise typer.BadParameter(
            f"expected parameters=N, such as parameters=30000, got {match!r}", param_hint="--match"
        )
    return int(count) if match else None


def _configs_of_grid(
    tasks: str,
    models: str,
    seeds: int,
    preset: str,
    settings: list[str],
    match: str,
    data_dir: Path | None,
) -> list[Any]:
    from lapse import MODELS
    from lapse.study import Grid
    from lapse.study.matching import Matching

    names = list(MODELS) if models == "all" else _names(models)
    for what, given in {"--tasks": _names(tasks), "--models": names}.items():
        if not given:
            raise typer.BadParameter("name at least one, or give a FILE of a study", param_hint=what)
    try:
        grid = Grid(_names(tasks), names, range(seeds), settings, _parameters(match))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error
    try:
        return grid.configs(
            lambda task, model, seed, s: configure(task, model, preset, seed, s), Matching(data_dir)
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--match") from error


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def configure(task: str, model: str, preset: str, seed: int, settings: Iterable[str]) -> Any:
    """A run's config from what the command line says; every word of it checked."""
    from lapse.models import registry
    from lapse.runs import PRESETS
    from lapse.tasks import TASKS, find

    known("TASK", task, TASKS, find)
    known("--model", model, registry.MODELS, registry.find)
    known("--preset", preset, PRESETS)
    try:
        config = PRESETS[preset](find(task), model, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--preset") from error
    try:
        for setting in settings:
            config = config.with_setting(*_name_and_value(setting))
        config.check_model()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error
    return config


def _name_and_value(setting: str) -> tuple[str, Any]:
    """`NAME=VALUE`; numbers, lists and null as JSON reads them, true and false in any case of letters, else a word."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise ValueError(f"expected NAME=VALUE, got {setting!r}")
    if text.lower() in ("true", "false"):
        return name, text.lower() == "true"
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return name, text
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {text}")
    return name, value
