"""One page per model, made from its class when the site is built, so that a new model gets its page for free."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import lapse
from lapse import RNN, TASKS, Rows
from lapse.encoders import Encoder, Observations
from lapse.gradients.theorems import irregular_batch
from lapse.kernels.programs import written
from lapse.models.registry import MODELS, ModelClass, label_of, look_of
from lapse.palette import PAGE_WIDTH, drawing
from lapse.recurrent import Cell
from lapse.report import formats
from lapse.report.collection import Collection
from lapse.report.tables import Table, build_tables

RESULTS = Path(__file__).parents[1] / "results"
EXPERIMENTS = "reasons"  # a study of single settings, not of models
INPUT, HIDDEN = 4, 64  # the sizes that costs are told for
SECOND, END = 3.0, 4.5  # when the second observation of a picture comes, and when the picture ends
UNITS = 3  # of which the picture shows the state
EVENTS = 64  # of the sequence over which the cost of an encoder is a mean


@dataclass(frozen=True)
class Words:
    """The docstring of a class, up to its arguments: its first line, its equations, and the rest."""

    summary: str
    equations: str
    text: str

    @staticmethod
    def of(kind: type) -> Words:
        """Equations are the paragraphs that are indented."""
        paragraphs = (inspect.getdoc(kind) or "").split("\n\nArgs:")[0].split("\n\n")
        plain = [p for p in paragraphs[1:] if not p.startswith((" ", "```"))]
        equations = [inspect.cleandoc("\n" + p) for p in paragraphs[1:] if p.startswith(" ")]
        return Words(paragraphs[0], "\n".join(equations), "\n\n".join(plain))


def cells(model: ModelClass) -> dict[str, Cell]:
    """The cells of a recurrent layer by the name of their form; none for another encoder."""
    if not issubclass(model, RNN):
        return {}
    torch.manual_seed(0)
    make: Callable[..., RNN] = model
    if not model.forms:
        return {"": make(INPUT, HIDDEN).stack[0]}
    return {form: make(INPUT, HIDDEN, form=form).stack[0] for form in model.forms}


def encoders(model: ModelClass, size: int = HIDDEN) -> dict[str, Encoder]:
    """The encoders of a model that is no stack of cells, by the name of their form; none for a recurrent layer."""
    if issubclass(model, RNN):
        return {}
    torch.manual_seed(0)
    make: Callable[..., Encoder] = model
    return {
        form: make(INPUT, size, **({"form": form} if form else {})).eval() for form in model.forms or ("",)
    }


def page(name: str) -> str:
    """The page of a model, in Markdown."""
    model = MODELS[name]
    forms, others = cells(model), encoders(model)
    package = [] if hasattr(lapse, model.__name__) else model.__module__.split(".")[1:2]
    public = ".".join(["lapse", *package, model.__name__])
    parts = [f"# {label_of(name)}", f"`{name}`, [`{public}`](../api.md#{public})."]
    parts += [Words.of(model).summary, *definitions(model, forms)]
    told = picture_text(name, forms) if forms else encoder_picture_text(name, others)
    parts += ["## Between two observations", told, "## Cost of a step", cost(forms, others)]
    parts += ["## Where it won and lost", results(name)]
    return "\n\n".join(parts) + "\n"


def definitions(model: ModelClass, forms: dict[str, Cell]) -> Iterator[str]:
    """The equations of each form, with their sources; those of the class itself for what has no cells."""
    yield "## Equations"
    kinds = {form: type(cell) for form, cell in forms.items()} or {"": model}
    for form, kind in kinds.items():
        words = Words.of(kind)
        if form:
            yield f"### Form `{form}`"
        yield f"`{kind.__name__}`. {words.summary}"
        if words.equations:
            yield f"```text\n{words.equations}\n```"
        yield words.text


def picture_text(name: str, forms: dict[str, Cell]) -> str:
    """The picture, and what is in it."""
    cell = next(iter(forms.values()))
    memory, jumps = cell.memory, not cell.flow_starts_at_output
    dashed = f", the memory `{memory}` beside it (dashed)" if memory else ""
    pieces = [form or "this model" for form, cell in forms.items() if cell.splits_gaps]
    told = (
        f"A gap may be passed in pieces ({', '.join(pieces)})." if pieces else "A gap is passed in one piece."
    )
    if jumps:
        told += " Its `flow` may move the output even over no time, so that lines need not begin at the dots."
    return (
        f"![The state of {label_of(name)} between two observations]({name}.svg)\n\n"
        f"The output of {UNITS} of 16 units before any training{dashed}. Observations arrive at the dots, which are "
        f"what the model gives there; the lines are its `flow`, what it gives when it is asked in between. {told}"
    )


def encoder_picture_text(name: str, forms: dict[str, Encoder]) -> str:
    """The picture of what has no cells, and what is in it."""
    still = [form or "this model" for form, encoder in forms.items() if not encoder.flows]
    told = (
        f" Nothing changes between events ({', '.join(still)}): time acts when the next one comes."
        if still
        else ""
    )
    return (
        f"![The features of {label_of(name)} between two observations]({name}.svg)\n\n"
        f"{UNITS} of 16 features before any training. Observations arrive at the dots; the lines are what the model "
        f"gives when it is asked in between.{told}"
    )


def cost(forms: dict[str, Cell], others: dict[str, Encoder]) -> str:
    """Parameters and products per event of each form, beside those of torch's LSTM."""
    lstm = torch.nn.LSTM(INPUT, HIDDEN)
    rows: list[tuple[str, torch.nn.Module, int]] = [("`nn.LSTM`", lstm, 4 * HIDDEN * (INPUT + HIDDEN))]
    for form, cell in forms.items():
        program = written(cell)
        rows.append((form, cell, _products_of_step(cell) if program is None else program.multiplications))
    for form, encoder in others.items():
        rows.append((form, encoder, _products(lambda encoder=encoder: encoder(_observed(EVENTS))) // EVENTS))
    lines = [
        f"| {what or 'this model'} | {sum(p.numel() for p in module.parameters()):,} | {products:,} |"
        for what, module, products in rows
    ]
    head = f"| {HIDDEN} units, {INPUT} features | parameters | products per event |\n|---|---|---|"
    mean = f"Products are the mean over a sequence of {EVENTS} events. " if others else ""
    unfused = (
        "It does not run in the fused loop. " if any(written(cell) is None for cell in forms.values()) else ""
    )
    return (
        "\n".join([head, *lines])
        + f"\n\n{mean}{unfused}Measured times are in [performance](../performance.md)."
    )


def _products(call: Callable[[], Any]) -> int:
    """The multiplications in the matrix products of a call."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return counter.get_total_flops() // 2  # a product counts as a multiplication and an addition


def _products_of_step(cell: Cell) -> int:
    x = cell.step_input(torch.zeros(1, INPUT), None)
    return _products(lambda: cell.step(x, cell.initial_state(1), torch.ones(1)))


def _observed(events: int, *, last_gap: float | None = None) -> Observations:
    """One sequence of observations at irregular times; the last gap may be told."""
    batch = irregular_batch(1, EVENTS, INPUT, seed=0)
    values, gaps = (batch[name][0, :events].float() for name in ("input", "timespans"))
    if last_gap is not None:
        gaps = torch.cat([gaps[:-1], torch.tensor([last_gap])])
    return Observations(values, None, gaps, Rows.flat([events]))


def results(name: str) -> str:
    """The model's place in every table of the runs that the repository keeps, and in those of the paper."""
    lines = [*_kept(name), *_published(name)]
    if not lines:
        return (
            "No runs of it on the tasks are kept. Every encoder on intensive-care stays is in "
            "[Beyond the paper](../successors.md#every-encoder-on-intensive-care-stays)."
        )
    return "| task | score (runs) | place | best |\n|---|---|---|---|\n" + "\n".join(lines)


@cache
def tables() -> list[Table]:
    """One table per task of every study in `results` that compares models."""
    folders = sorted(path for path in RESULTS.iterdir() if path.is_dir() and path.name != EXPERIMENTS)
    return [table for folder in folders for table in build_tables(Collection.read(folder))]


def _kept(name: str) -> Iterator[str]:
    for table in tables():
        models = table.models
        for place, row in enumerate(models, start=1):
            if row.name == name:
                label = f"; {row.label}" if row.label else ""
                best = f"{models[0].name} {table.figure(models[0].mean)}"
                told = f"{formats.score(table, row)}{label}"
                yield f"| {table.title}, {table.metric} | {told} | {place} of {len(models)} | {best} |"


def _published(name: str) -> Iterator[str]:
    for task in TASKS.values():
        if name not in task.published:
            continue
        sign = -1 if task.metrics[0].maximize else 1
        score = task.published[name]
        better = [other for other, its in task.published.items() if sign * its.mean < sign * score.mean]
        best = min([name, *better], key=lambda other: sign * task.published[other].mean)
        told = f"{score.mean} ± {score.std} (the paper's)"
        place = f"{len(better) + 1} of {len(task.published)}"
        yield f"| {task.name}, {task.metrics[0].name} | {told} | {place} | {best} {task.published[best].mean} |"


def picture(name: str) -> bytes:
    """The picture of a model as SVG, one panel per form."""
    from matplotlib.figure import Figure

    torch.manual_seed(0)
    model: Any = MODELS[name]
    forms = model.forms or ("",)
    recurrent, colour = issubclass(model, RNN), look_of(name).colour
    with drawing():
        figure = Figure(figsize=(PAGE_WIDTH * min(1.0, 0.25 + 0.25 * len(forms)), 2.2))
        panels = figure.subplots(1, len(forms), squeeze=False)[0]
        for axes, form in zip(panels, forms, strict=True):
            if recurrent:
                layer = model(INPUT, 16, **({"form": form} if form else {})).double()
                _draw(axes, layer.stack[0], colour)
            else:
                _draw_encoder(axes, encoders(model, 16)[form], colour)
            axes.set_title(form or label_of(name))
        panels[0].set_ylabel("output h" if recurrent else "features")
        figure.supxlabel("time since an observation (units)", fontsize=8)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


@torch.no_grad()
def _draw_encoder(axes: Any, encoder: Encoder, colour: str) -> None:
    for start, end, events, gap in ((0.0, SECOND, 12, None), (SECOND, END, 13, SECOND)):
        times = torch.linspace(0.0, end - start, 61)
        seen = _observed(events, last_gap=gap)
        features = encoder.after(seen, times, torch.zeros(61, dtype=torch.long))
        _draw_part(axes, start, encoder(seen).final, (times, features), colour)


def _draw_part(axes: Any, start: float, at: Tensor, after: tuple[Tensor, Tensor], colour: str) -> None:
    """What a model gives at an observation, and at times after it until the next one."""
    times, output = after
    axes.axvline(start, color="#999999", linewidth=0.6)
    axes.plot([start] * UNITS, at[0, :UNITS], "o", color=colour, markersize=3)
    axes.plot(start + times, output[:, :UNITS], color=colour, linewidth=1.0)


@torch.no_grad()
def _draw(axes: Any, cell: Cell, colour: str) -> None:
    batch = irregular_batch(1, 12, INPUT, seed=0)
    inputs = [cell.step_input(x, None) for x in batch["input"].unbind(1)]
    state = cell.initial_state(1, dtype=torch.float64)
    for x, gap in zip(inputs[:-1], batch["timespans"].unbind(1), strict=False):
        _, state = cell.step(x, state, gap)
    _, after = cell.step(inputs[-1], state, torch.tensor([SECOND], dtype=torch.float64))
    for start, end, at in ((0.0, SECOND, state), (SECOND, END, after)):
        times, output, memory = _flow(cell, at, end - start)
        _draw_part(axes, start, at[0], (times, output), colour)
        if memory is not None:
            axes.plot(start + times, memory, color=colour, linewidth=0.8, linestyle=(0, (4, 2)), alpha=0.6)


def _flow(cell: Cell, state: tuple[Tensor, ...], duration: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """The output and the memory of some units at every time since an observation."""
    times = torch.linspace(0.0, duration, 61, dtype=torch.float64)
    output, later = cell.flow(tuple(part.expand(len(times), -1).contiguous() for part in state), times)
    memory = None if cell.memory is None else later[cell.state_names.index(cell.memory)][:, :UNITS]
    return times, output, memory


def on_config(config: Any) -> Any:
    """mkdocs calls this first: the pages of the models go behind the guides."""
    config.nav.insert(2, {"Models": [{label_of(name): f"models/{name}.md"} for name in MODELS]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this with the files of the site."""
    from mkdocs.structure.files import File

    for name in MODELS:
        files.append(File.generated(config, f"models/{name}.md", content=page(name)))
        files.append(File.generated(config, f"models/{name}.svg", content=picture(name)))
    return files
