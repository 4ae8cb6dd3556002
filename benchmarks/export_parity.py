"""Question: do exported files answer as the models do? The rival is the model itself, in lapse.

Every model and form, one step and whole sequences, as a program of torch and as ONNX: the largest difference of an
answer on random sequences, or the reason why there is no file. The models have 32 units, missing values, static
features that set the first state and enter the readout, and two kinds of pooling.

    python benchmarks/export_parity.py [MODEL ...]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lapse import MODELS, SequenceModel, Sequences, export
from lapse.models.registry import default_options, find

FORMATS = ("torch", "onnx")


def data() -> Sequences:
    """Sequences of three features, often missing, with a static feature and two classes."""
    random = np.random.default_rng(0)
    lengths = random.integers(2, 20, 32)
    values = [np.where(random.random((n, 3)) < 0.3, np.nan, random.normal(5, 2, (n, 3))) for n in lengths]
    times = [np.cumsum(random.exponential(2.0, n)) for n in lengths]
    static = random.normal(size=(32, 1))
    return Sequences.from_arrays(values, times, targets=np.arange(32) % 2, static=static, unit="h")


def rows(names: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What a row is called, the model and its options: the default, every other form, and one solver that adapts."""
    for name in names:
        yield name, name, {}
        others = [form for form in find(name).forms if form != default_options(name).get("form")]
        for form in others:
            yield f"{name}, {form}", name, {"form": form}
    yield "any with a solver that adapts", "ode-lstm", {"solver": "dopri5"}


def compared(name: str, options: dict[str, Any], form: str) -> list[str]:
    """The largest difference of each format, or the reason why there is none."""
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "static": "state+head", "pooling": "last+mean"}
    model = SequenceModel.for_data(data(), model=name, options=options, **settings)
    try:
        step = model.stepper()
        made = export.FORMS[form](step)
        files = [(export.FORMATS[format], export.FORMATS[format].write(made)) for format in FORMATS]
        return [f"{export.largest_difference(step, made, kind.read(file, made)):.0e}" for kind, file in files]
    except ValueError as error:
        return [f"no: {error}"] * len(FORMATS)


def main() -> None:
    titles = [f"{form}, {format}" for form in export.FORMS for format in FORMATS]
    print(f"| model | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}", flush=True)
    for title, name, options in rows(sys.argv[1:] or list(MODELS)):
        found = [cell for form in export.FORMS for cell in compared(name, options, form)]
        print(f"| {title} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
