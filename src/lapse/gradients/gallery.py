"""Exhibits on disk: PNG and SVG figures, CSV numbers, and a list of them for the report page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.gradients.exhibits import EXHIBITS, Exhibit, Settings
from lapse.palette import drawing
from lapse.sequences.storage import write_atomically
from lapse.threads import threads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INDEX = "gradients.json"


def run(settings: Settings) -> Iterator[Exhibit]:
    """Every exhibit, one after the other, as soon as it is computed."""
    # A product of 128 units costs less than handing half of it to a second thread: on a busy machine, ten times less.
    with threads(1):
        for make in EXHIBITS.values():
            yield from make(settings)


def write(exhibit: Exhibit, directory: Path) -> list[Path]:
    """``name.csv``, and ``name.png`` and ``name.svg`` if there is a figure: the files written."""
    directory.mkdir(parents=True, exist_ok=True)
    table = directory / f"{exhibit.name}.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(exhibit.table[0]))
        writer.writeheader()
        writer.writerows(exhibit.table)
    if exhibit.figure is None:
        return [table]
    paths = [directory / f"{exhibit.name}.{kind}" for kind in ("png", "svg")]
    with drawing():
        figure = exhibit.figure()
        for path in paths:
            path.write_bytes(_rendered(figure, path.suffix[1:]))
    return [*paths, table]


def _rendered(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date in the file: the same numbers are the same bytes.
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def write_index(exhibits: Iterable[Exhibit], directory: Path) -> None:
    """`gradients.json`: which exhibits are in the directory, with their titles and captions, for the report page."""
    entries = [{"name": e.name, "title": e.title, "caption": e.caption} for e in exhibits]
    text = json.dumps(entries, indent=1, ensure_ascii=False) + "\n"
    write_atomically(directory / INDEX, lambda file: file.write(text.encode()))


@dataclass(frozen=True)
class Plate:
    """An exhibit as it was stored: plain data, which whoever shows it must escape.

    Args:
        name: of its files, without suffix.
        title: its heading.
        caption: what it shows.
        image: the bytes of its SVG figure; None if it is a table.
        rows: the table as text; empty if it is a figure.
    """

    name: str
    title: str
    caption: str
    image: bytes | None
    rows: list[dict[str, str]]


def read(index: Path) -> list[Plate]:
    """The exhibits that a `gradients.json` lists; a ValueError that names the file if it is not one of ours."""
    try:
        return [_plate(index.parent, **entry) for entry in json.loads(index.read_bytes())]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{index} is no list of exhibits that can be read ({error})") from error


def _plate(directory: Path, name: str, title: str, caption: str) -> Plate:
    if not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"{name!r} is not the name of an exhibit")
    drawing = directory / f"{name}.svg"
    if drawing.exists():
        return Plate(name, title, caption, drawing.read_bytes(), [])
    with (directory / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = [{str(k): _short(str(v)) for k, v in row.items()} for row in csv.DictReader(file)]
    return Plate(name, title, caption, None, rows)


def _short(text: str) -> str:
    """Three digits of a number that has more; words and whole numbers as they are."""
    try:
        return text if text.lstrip("-").isdigit() else f"{float(text):.3g}"
    except ValueError:
        return text
