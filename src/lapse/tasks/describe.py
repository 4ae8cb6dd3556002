"""What a task's data are like, for the terminal: sizes, gaps, classes, what is missing, one example."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.tasks.base import Splits, Task

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
BLOCKS = "▁▂▃▄▅▆▇█"
DRAWN_EVENTS, DRAWN_FEATURES = 40, 8  # fits a terminal of 80 columns
LISTED_FEATURES = 5


def describe(task: Task, splits: Splits) -> RenderableType:
    """Everything `lapse data` shows, top to bottom."""
    return Group(*_spaced(_sections(task, splits)))


def _sections(task: Task, splits: Splits) -> Iterator[RenderableType]:
    yield heading(task)
    yield sizes(splits)
    yield gap_quantiles(task, splits)
    yield targets(task, splits)
    yield missingness(splits)
    yield example(splits.train)
    yield files(splits)
    yield remarks(task, splits)


def _spaced(sections: Iterator[RenderableType]) -> Iterator[RenderableType]:
    for section in sections:
        yield section
        yield Text()


def _table(*columns: str) -> Table:
    """A plain table: names to the left, figures to the right, nothing wrapped."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _titled(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold"), body)


def heading(task: Task) -> RenderableType:
    lines = Table(box=None, show_header=False, pad_edge=False)
    lines.add_column(style="dim")
    lines.add_column(overflow="fold")
    metrics = ", ".join(f"{m.name} ({'more' if m.maximize else 'less'} is better)" for m in task.metrics)
    rows = {
        "task": f"{task.name}: {task.summary}",
        "source": task.source,
        "licence": task.licence,
        "time": f"1 = {task.time_unit}",
        "asked": task.question.sentence(task.head()),
        "metric": metrics,
        "differs": task.differences,
    }
    for name, value in rows.items():
        lines.add_row(name, Text(value))
    return lines


def sizes(splits: Splits) -> RenderableType:
    table = _table("", "sequences", "events", "shortest", "mean", "longest", "features", "groups")
    for name, part in splits.parts().items():
        groups = "–" if part.groups is None else f"{len(set(part.groups.tolist())):,}"
        lengths = part.lengths
        table.add_row(
            name,
            f"{len(part):,}",
            f"{part.num_events:,}",
            str(lengths.min()),
            f"{lengths.mean():.1f}",
            str(lengths.max()),
            str(part.num_features),
            groups,
        )
    return _titled("Sizes", table)


def gap_quantiles(task: Task, splits: Splits) -> RenderableType:
    names = ["least" if q == 0 else "most" if q == 1 else f"{q:.0%}" for q in QUANTILES]
    table = _table("", *names, "zero")
    for name, part in splits.parts().items():
        gaps = part.gaps
        if not gaps.size:
            table.add_row(name, *["–"] * len(QUANTILES), "0")
            continue
        figures = [f"{q:.3g}" for q in np.quantile(gaps, QUANTILES)]
        table.add_row(name, *figures, f"{np.count_nonzero(gaps == 0):,}")
    return _titled(f"Gaps between events (1 = {task.time_unit})", table)


def targets(task: Task, splits: Splits) -> RenderableType:
    asked = {name: task.question.asked(part) for name, part in splits.parts().items()}
    summary = task.head().summary(asked)
    table = _table(*summary.columns)
    for row in summary.rows:
        table.add_row(*row)
    return _titled(summary.title, table)


def missingness(splits: Splits) -> RenderableType:
    parts = list(splits.parts().values())
    if not any(part.missing for part in parts):
        return _titled("Not observed", Text("nothing is missing: every feature is there at every event"))
    table = _table("", *splits.parts())
    table.add_row("all values", *(f"{part.missing:.1%}" for part in parts))
    if splits.train.observed is not None:
        rates = 1 - splits.train.observed.mean(axis=0)
        order = np.argsort(rates, kind="stable")
        rarest = order[-LISTED_FEATURES:][::-1]
        for i in [*order[:LISTED_FEATURES], *(j for j in rarest if j not in order[:LISTED_FEATURES])]:
            table.add_row(
                Text(f"  {splits.train.features[i]}"), *(_missing_rate(part, int(i)) for part in parts)
            )
    for i, name in enumerate(splits.train.static_features):
        table.add_row(Text(f"  {name} (static)"), *(_static_rate(part, i) for part in parts))
    return _titled("Not observed (the most and least often observed features)", table)


def _missing_rate(part: Sequences, feature: int) -> str:
    return "0.0%" if part.observed is None else f"{1 - part.observed[:, feature].mean():.1%}"


def _static_rate(part: Sequences, feature: int) -> str:
    return "0.0%" if part.static_observed is None else f"{1 - part.static_observed[:, feature].mean():.1%}"


def example(part: Sequences) -> RenderableType:
    """The sequence of median length, drawn: its gaps, then its features, one column per event."""
    chosen = int(np.argsort(part.lengths, kind="stable")[len(part) // 2])
    one = part[chosen]
    shown = slice(0, DRAWN_EVENTS)
    table = _table("", "", "least", "most")
    table.columns[1].justify = "left"
    gaps = one.timespans[shown]
    table.add_row("gap", Text(sparkline(gaps)), f"{gaps.min():.3g}", f"{gaps.max():.3g}")
    for i in _most_observed(one)[:DRAWN_FEATURES]:
        table.add_row(Text(one.features[i]), *_drawn(one, int(i), shown))
    if (rest := one.num_features - DRAWN_FEATURES) > 0:
        table.add_row(f"and {rest} more", "", "", "")
    return _titled(_example_title(one), table)


def _example_title(one: Sequences) -> str:
    name = "" if one.ids is None else f" {one.ids[0]}"
    title = f"Example: training sequence{name}, {one.num_events} events"
    if one.num_events > DRAWN_EVENTS:
        title += f", the first {DRAWN_EVENTS} drawn"
    if one.targets is not None and not one.per_step:
        label = one.targets[0] if one.classes is None else one.classes[int(one.targets[0])]
        title += f"; target: {label}"
    return title


def _most_observed(one: Sequences) -> Array:
    if one.observed is None:
        return np.arange(one.num_features)
    return np.argsort(-one.observed.sum(axis=0), kind="stable")


def _drawn(one: Sequences, feature: int, shown: slice) -> tuple[Text, str, str]:
    values = one.values[shown, feature].astype(float)
    if one.observed is not None:
        values = np.where(one.observed[shown, feature], values, np.nan)
    if np.isnan(values).all():
        return Text("·" * len(values), style="dim"), "–", "–"
    return Text(sparkline(values)), f"{np.nanmin(values):.3g}", f"{np.nanmax(values):.3g}"


def sparkline(values: Array) -> str:
    """One block per value, from the least (▁) to the most (█); a dot where nothing was observed."""
    low, high = np.nanmin(values), np.nanmax(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    levels = np.nan_to_num((values - low) * scale).round().astype(int)
    return "".join(
        "·" if gone else BLOCKS[level] for level, gone in zip(levels, np.isnan(values), strict=True)
    )


def files(splits: Splits) -> RenderableType:
    if not splits.sources:
        return _titled("Files", Text("none: generated here, or part of an installed package"))
    lines = Text("\n").join(
        Text.assemble(source.folder, "\n  ", (source.digest, "dim")) for source in splits.sources
    )
    return _titled("Files, and hashes of their contents", lines)


def remarks(task: Task, splits: Splits) -> RenderableType:
    """What is odd about the data, and what is missing, said plainly."""
    lines = Table.grid(padding=(0, 1))
    for remark in (*splits.notes, *task.caveats):
        lines.add_row("-", Text(remark))
    if task.paper is None:
        lines.add_row("-", "missing: published results; the paper has no such task")
    if not lines.row_count:
        lines.add_row("-", "nothing is missing")
    return _titled("What to know", lines)
