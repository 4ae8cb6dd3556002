"""A table as text: Markdown, CSV, LaTeX, JSON, or for the terminal; or many of them at a glance."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lapse.report.tables import Row, Table, described

if TYPE_CHECKING:
    from rich.console import RenderableType

DIRECTION = {True: "more is better", False: "less is better"}
KEY = "bold: best; italic: not told from the best by a Welch test (p > 0.05)"


def columns(table: Table) -> list[str]:
    paper = ["paper", "difference"] if table.has_paper else []
    return ["model", f"{table.metric} (N)", *paper, "parameters", "s/epoch"]


def cells(table: Table, row: Row) -> list[str]:
    """The same figures in every format; only the marking differs."""
    paper = [published(table, row), difference(row)] if table.has_paper else []
    return [name(row), score(table, row), *paper, parameters(row), seconds(row)]


def name(row: Row) -> str:
    return f"{row.name} ({row.label})" if row.label else row.name


def score(table: Table, row: Row) -> str:
    if row.kind == "baseline":
        return table.figure(row.mean)
    spread = f" ± {table.figure(row.std)}" if row.std is not None else ""
    return f"{table.figure(row.mean)}{spread} ({row.count})"


def published(table: Table, row: Row) -> str:
    return "–" if row.paper is None else f"{table.figure(row.paper.mean)} ± {table.figure(row.paper.std)}"


def difference(row: Row) -> str:
    """Always with its sign, unless it rounds to nothing."""
    if row.difference is None:
        return "–"
    shown = f"{row.difference:+.1f}"
    return "0.0" if float(shown) == 0 else shown.replace("-", "−")


def parameters(row: Row) -> str:
    return "–" if row.parameters is None else f"{row.parameters:,}"


def seconds(row: Row) -> str:
    if row.seconds_per_epoch is None:
        return "–"
    return f"{row.seconds_per_epoch:.{2 if row.seconds_per_epoch < 10 else 0}f}"


def caption(table: Table) -> str:
    """What a reader must know to read the figures: unit, direction, and what all rows share."""
    unit = " in %" if table.unit else ""
    parts = [
        f"Test {table.metric}{unit}, {DIRECTION[table.maximize]}; mean ± standard deviation over N seeds."
    ]
    if table.has_paper:
        parts.append("Difference: ours − paper's, in the paper's standard deviations.")
    parts.append("s/epoch: the fastest epoch, which other work on the machine slows least.")
    if table.shared:
        parts.append(f"All rows: {table.shared}.")
    return " ".join(parts)


def markdown(tables: Sequence[Table]) -> str:
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    head = columns(table)
    rule = ["---", *["---:"] * (len(head) - 1)]
    body = [_emphasised(table, row, "**", "*") for row in table.rows]
    lines = [f"| {' | '.join(cell)} |" for cell in ([_bar(h) for h in head], rule, *body)]
    notes = [f"- {note}" for note in (*table.notes, f"Marks: {KEY}.")]
    return "\n".join([f"## {table.title}", "", caption(table), "", *lines, "", *notes, ""])


def _emphasised(table: Table, row: Row, best: str, tied: str) -> list[str]:
    first, second, *rest = [_bar(cell) for cell in cells(table, row)]
    around = {"best": best, "tied": tied, "": ""}[row.mark]
    return [first, f"{around}{second}{around}", *rest]


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def overview(tables: Sequence[Table]) -> str:
    """All tables as one in Markdown: a row for each task, a column for each model and baseline, the latter last."""
    rows = [row for table in tables for row in table.rows]
    names = list(dict.fromkeys(name(row) for row in sorted(rows, key=lambda row: row.kind == "baseline")))
    head = ["task", "metric", *map(_bar, names)]
    body = []
    for table in tables:
        found = {name(row): _emphasised(table, row, "**", "*")[1] for row in table.rows}
        body.append([_bar(table.title), _metric(table), *(found.get(each, "–") for each in names)])
    lines = [f"| {' | '.join(cell)} |" for cell in (head, ["---", "---", *["---:"] * len(names)], *body)]
    notes = [f"- Test figures, mean ± standard deviation over (N) seeds. Marks: {KEY}."]
    # What every table says is said once.
    notes += [f"- {note}" for note in tables[0].notes if all(note in table.notes for table in tables)]
    return "\n".join([*lines, "", *notes, ""])


def _metric(table: Table) -> str:
    return f"{table.metric}{f' in {table.unit}' if table.unit else ''}, {DIRECTION[table.maximize]}"


def latex(tables: Sequence[Table]) -> str:
    """One ``table`` environment each; needs the booktabs package."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    head = columns(table)
    body = [_latex_row(table, row) for row in table.rows]
    kinds = [row.kind for row in table.rows]
    if "baseline" in kinds:
        body.insert(kinds.index("baseline"), r"\midrule")
    notes = " ".join([caption(table), *table.notes, f"Marks: {KEY}."])
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{\textbf{{{_tex(table.title)}}}. {_tex(notes)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(_tex(cell) for cell in head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_row(table: Table, row: Row) -> str:
    first, second, *rest = [_tex(cell) for cell in cells(table, row)]
    macro = {"best": r"\textbf{%s}", "tied": r"\textit{%s}", "": "%s"}[row.mark]
    return " & ".join([first, macro % second, *rest]) + r" \\"


_TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"±": r"$\pm$", "−": "$-$", "–": "--", ">": "$>$", "\\": r"\textbackslash{}"}
)


def _tex(text: str) -> str:
    return text.translate(_TEX)


def csv_text(tables: Sequence[Table]) -> str:
    """All tables as one, one line per row, with figures that are not rounded and without notes."""
    text = io.StringIO()
    entries = [
        {"task": entry["task"], "options": entry["options"], "metric": entry["metric"], **row}
        for entry in map(described, tables)
        for row in entry["rows"]
    ]
    writer = csv.DictWriter(text, fieldnames=list(entries[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return text.getvalue()


def json_text(tables: Sequence[Table]) -> str:
    return (
        json.dumps([described(table) for table in tables], indent=2, ensure_ascii=False, allow_nan=False)
        + "\n"
    )


def terminal(tables: Sequence[Table]) -> str:
    """Drawn by rich for the terminal at hand; plain text where stdout is not one."""
    from rich.console import Console, Group
    from rich.text import Text

    console = Console()
    with console.capture() as capture:
        for table in tables:
            notes = [Text(note, style="dim") for note in (caption(table), *table.notes)]
            console.print(Group(Text(table.title, style="bold"), _grid(table), *notes, Text()))
    return capture.get()


def _grid(table: Table) -> RenderableType:
    from rich.table import Table as Grid
    from rich.text import Text

    styles = {"best": "bold green", "tied": "green", "": ""}
    marks = {"best": "▲ ", "tied": "= ", "": ""}
    # Eighty columns are few; the caption says what each is.
    shorter = {"difference": "diff.", "parameters": "params"}
    head, *others = [shorter.get(column, column) for column in columns(table)]
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    grid.add_column(head, overflow="fold", min_width=15)
    for other in others:
        grid.add_column(other, justify="right", no_wrap=True)
    for row in table.rows:
        first, second, *rest = cells(table, row)
        style = "dim" if row.kind == "baseline" else ""
        grid.add_row(Text(first), Text(marks[row.mark] + second, style=styles[row.mark]), *rest, style=style)
    return grid


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "rich": terminal,
    "markdown": markdown,
    "overview": overview,
    "csv": csv_text,
    "latex": latex,
    "json": json_text,
}
