"""Exhibits on disk and on a page: PNG and SVG figures, CSV numbers, an HTML fragment."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lapse.gradients.exhibits import EXHIBITS, Exhibit, Settings
from lapse.palette import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(settings: Settings) -> Iterator[Exhibit]:
    """Every exhibit, one after the other, as soon as it is computed."""
    threads = torch.get_num_threads()
    # A product of 128 units costs less than handing half of it to a second thread: on a busy machine, ten times less.
    torch.set_num_threads(1)
    try:
        for make in EXHIBITS.values():
            yield from make(settings)
    finally:
        torch.set_num_threads(threads)


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


def html_fragment(exhibits: Iterable[Exhibit]) -> str:
    """A ``<section>`` for a larger page: figures inside it as SVG, so that it needs no other file."""
    parts = ['<section id="gradients">', "<h2>Gradient flow</h2>"]
    with drawing():
        parts += [_figure_html(exhibit) for exhibit in exhibits]
    return "\n".join([*parts, "</section>"]) + "\n"


def _figure_html(exhibit: Exhibit) -> str:
    body = _table_html(exhibit) if exhibit.figure is None else _image_html(exhibit)
    title, caption = html.escape(exhibit.title), html.escape(exhibit.caption)
    parts = [f"<h3>{title}</h3>", body, f"<figcaption>{caption}</figcaption>"]
    return "\n".join([f'<figure id="gradients-{exhibit.name}">', *parts, "</figure>"])


def _image_html(exhibit: Exhibit) -> str:
    assert exhibit.figure is not None
    data = base64.b64encode(_rendered(exhibit.figure(), "svg")).decode()
    return f'<img alt="{html.escape(exhibit.title)}" src="data:image/svg+xml;base64,{data}">'


def _table_html(exhibit: Exhibit) -> str:
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in exhibit.table[0])
    rows = ("".join(f"<td>{html.escape(_short(v))}</td>" for v in row.values()) for row in exhibit.table)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
