"""One HTML page of everything in a folder of runs: no network, no script, light and dark, wide and narrow."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lapse
from lapse.gradients import gallery
from lapse.gradients.gallery import Plate
from lapse.models.registry import label_of
from lapse.report import figures, formats, theme
from lapse.report.collection import Collection, Group
from lapse.report.comparison import Comparison
from lapse.report.tables import Row, Table, build_tables
from lapse.tasks import DataFileError, Splits, Task, find
from lapse.tasks.baselines import baselines
from lapse.tasks.files import without_download

Say = Callable[[str], None]


@dataclass(frozen=True)
class Section:
    """A task on the page."""

    task: Task
    table: Table
    figures: tuple[figures.Figure, ...]
    facts: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.table.title).strip("-")

    @property
    def headline(self) -> str:
        """The table in a sentence."""
        best, *others = self.table.models
        tied = [_spoken(row) for row in others if row.mark == "tied"]
        spread = f" ± {self.table.figure(best.std)}" if best.std is not None else ""
        verdict = "is best" if best.count > 1 else "comes first, in a single run"
        said = f"{_spoken(best)} {verdict}: {self.table.figure(best.mean)}{spread} {self.table.unit}".rstrip()
        return f"{said}. The test does not tell it from {' or '.join(tied)}." if tied else f"{said}."


def report(root: str | Path, data_dir: str | Path | None = None, say: Say = lambda message: None) -> str:
    """The page for the runs under ``root``; ``say`` hears what is being worked on."""
    collection = Collection.read(root)
    sections = [_section(table, data_dir, say) for table in build_tables(collection)]
    return render(collection, sections, *stored_exhibits(Path(root)))


def stored_exhibits(root: Path) -> tuple[list[Plate], list[str]]:
    """What `lapse gradients -o FOLDER` left under `root`, the first that can be read; and which others cannot."""
    unreadable: list[str] = []
    for index in sorted(root.rglob(gallery.INDEX)):
        try:
            return gallery.read(index), unreadable
        except ValueError as error:
            unreadable.append(f"Left out: {error}.")
    return [], unreadable


def with_baselines(table: Table, data_dir: str | Path | None = None) -> tuple[Table, Splits | None]:
    """The table with trivial baselines below, and the data they were computed on; without both if there are none."""
    task, options = find(table.task), dict(table.groups[0].config.task_options)
    try:
        with without_download():
            splits = task.load(data_dir, **options)
    except (DataFileError, ImportError):
        # Which folders were searched is nothing for a page that others read; the command tells it.
        note = (
            f"No baselines: the data are not on this machine; `lapse data {task.name}` tells what is missing."
        )
        return table.with_note(note), None
    return table.with_baselines(baselines(task, splits)), splits


def _section(table: Table, data_dir: str | Path | None, say: Say) -> Section:
    say(table.title)
    table, splits = with_baselines(table, data_dir)
    task = find(table.task)
    drawn = figures.run_figures(table)
    if splits is None:
        return Section(task, table, tuple(drawn))
    drawn += figures.data_figures(task, splits)
    remarks = (*splits.notes, *task.caveats, f"beside the paper: {task.differences}")
    return Section(task, table, tuple(drawn), _facts(task, splits), remarks)


def _facts(task: Task, splits: Splits) -> tuple[tuple[str, str], ...]:
    sizes = " / ".join(f"{len(part):,}" for part in splits.parts().values())
    lengths = splits.train.lengths
    return (
        ("sequences, train / validation / test", sizes),
        ("events in a sequence", f"{lengths.min()} to {lengths.max()}, mean {lengths.mean():.1f}"),
        ("time unit", f"{task.time_unit}; median gap {splits.train.median_gap:.3g}"),
        ("features", f"{splits.train.num_features}, {splits.train.missing:.1%} of values not observed"),
        ("source", f"{task.source}; licence: {task.licence}"),
    )


def environment() -> Any:
    """Where the templates of the pages are, and how they are filled in: every string is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("lapse.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(
    collection: Collection,
    sections: Sequence[Section],
    plates: Sequence[Plate] = (),
    remarks: Sequence[str] = (),
) -> str:
    """The page of these parts; every string is escaped by the template."""
    pages = environment()
    pages.globals.update(
        formats=formats,
        label_of=label_of,
        display_name=display_name,
        swatches=swatches,
        config_text=config_text,
    )
    pages.filters["base64"] = lambda content: base64.b64encode(content).decode()
    models = sorted({row.name for section in sections for row in section.table.models})
    text: str = pages.get_template("page.html.jinja").render(
        collection=collection,
        sections=sections,
        plates=plates,
        remarks=[collection.left_out(), *collection.remarks, *remarks],
        theme=theme.css(models),
        version=lapse.__version__,
        models=models,
        comparison=Comparison.of([section.table for section in sections]),
    )
    return text


def display_name(row: Row) -> str:
    """A model as people write it."""
    return label_of(row.name) if row.kind == "model" else row.name


def _spoken(row: Row) -> str:
    return f"{display_name(row)} ({row.label})" if row.label else display_name(row)


def swatches(table: Table) -> list[dict[str, str]]:
    """How each model row is drawn in the figures: the table is their legend."""
    return [
        {"colour": theme.variable(row.name), "dash": theme.css_dash(theme.model_dash(row.name, variant))}
        for row, variant in zip(table.models, figures.variants(table), strict=True)
    ]


def config_text(group: Group, root: Path) -> str:
    """What would repeat the runs of a row: their config, seeds and folders."""
    values: dict[str, Any] = group.config.as_dict()
    values["train"].pop("seed")
    runs = {
        str(run.folder.relative_to(root)): {
            "seed": run.result.config.train.seed,
            "test": run.result.test,
            "best_epoch": run.result.best_epoch,
            "epochs": run.result.epochs,
            "version": run.result.version,
        }
        for run in group.runs
    }
    return json.dumps({"config": values, "runs": runs}, indent=2, ensure_ascii=False)
