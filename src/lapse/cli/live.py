"""Commands for a model in use: stream."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lapse.cli.app import app, existing_folder, path, writable_file

if TYPE_CHECKING:
    from lapse.streaming.lines import Lines


ENDINGS = ("SIGTERM", "SIGINT", "SIGHUP")  # the last, of a closed terminal, is not known everywhere


class Late(StrEnum):
    """What becomes of an event that is older than the last one of its id."""

    refuse = "refuse"
    drop = "drop"
    clamp = "clamp"


class Stopped(Exception):
    """A signal asks the command to end."""


@app.command()
def stream(
    model: Annotated[
        Path,
        typer.Argument(help="A model's folder.", metavar="MODEL", parser=existing_folder),
    ],
    snapshot: Annotated[
        Path | None,
        typer.Option(help="Go on from this file, if it is there, and write it at the end.", parser=path),
    ] = None,
    every: Annotated[int, typer.Option(help="Write the snapshot after so many lines too.", min=0)] = 0,
    late: Annotated[Late, typer.Option(help="Events older than the last one of their id.")] = Late.refuse,
    max_ids: Annotated[int, typer.Option(help="Ids to keep; the oldest are forgotten.", min=1)] = 100_000,
    strict: Annotated[bool, typer.Option("--strict", help="End at the first bad line.")] = False,
) -> None:
    """Events in, answers out, one line of JSON each.

    An event is `{"id": "a", "time": 12.5, "values": {"pressure": 2.1}}`, a question
    `{"id": "a", "time": 20, "ask": true}`. A bad line is answered with its number
    and the reason. MODEL is what `lapse fit` or `SequenceModel.save` wrote, or the folder
    `model` of a run.

    Example: `lapse stream model --snapshot state.safetensors < events.jsonl`
    """
    from lapse.export import load
    from lapse.streaming import Stream
    from lapse.streaming.lines import Lines
    from lapse.streaming.snapshot import hold

    if snapshot is not None:
        writable_file("--snapshot", snapshot)
    live = Stream(load(model), max_ids=max_ids, late=late.value)
    lines = Lines(live)
    with nullcontext() if snapshot is None else hold(snapshot):
        if snapshot is not None and snapshot.exists():
            live.restore(snapshot)
        try:
            _answer_all(lines, snapshot, every, strict)
        finally:
            if snapshot is not None:
                live.snapshot(snapshot)
    if strict and lines.failed:
        raise typer.Exit(1)


def _answer_all(lines: Lines, snapshot: Path | None, every: int, strict: bool) -> None:
    """Answer line after line, until there are no more, or a signal comes, or a bad line under --strict."""
    with _signals() as waiting:
        for line in waiting(sys.stdin.buffer):
            if not line.strip():
                lines.count += 1  # so that numbers are those of the input
                continue
            sys.stdout.write(lines.answer(line) + "\n")
            sys.stdout.flush()
            if snapshot is not None and every and lines.count % every == 0:
                lines.stream.snapshot(snapshot)
            if strict and lines.failed:
                return


@contextmanager
def _signals() -> Iterator[Any]:
    """Let SIGTERM, SIGINT and SIGHUP end the reading of lines, and nothing else: a line that was read is answered.

    So a snapshot at the end holds exactly the events that were answered.
    """
    state = {"reading": False, "stop": False}

    def on_signal(*_: Any) -> None:
        state["stop"] = True
        if state["reading"]:
            raise Stopped

    def waiting(file: Any) -> Iterator[bytes]:
        while not state["stop"]:
            state["reading"] = True
            try:
                line = file.readline()
            except Stopped:
                return
            finally:
                state["reading"] = False
            if not line:
                return
            yield line

    numbers = (getattr(signal, name) for name in ENDINGS if hasattr(signal, name))
    # What is ignored, as nohup has it for SIGHUP, stays so.
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
