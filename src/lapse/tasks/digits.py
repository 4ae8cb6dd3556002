"""`mini-digits`: scikit-learn's 8 x 8 digits, coded as `mnist-event` is: real data, no download.

Source: the 1,797 images that come with scikit-learn (UCI Optical Recognition of Handwritten Digits, test
part). Pixels run from 0 to 16; those above 8 are 1. 64 pixels, a whole image, last 1 unit of time. The
split is 70 / 15 / 15 by image, each digit in equal shares; writers are not known, so one writer's digits
may be in several parts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lapse.heads import Classes
from lapse.tasks.base import Splits, Task
from lapse.tasks.mnist import image_events

THRESHOLD = 8
SYMBOLS_PER_UNIT = 64


def load(data_dir: str | Path | None = None, *, seed: int = 0) -> Splits:
    from sklearn.datasets import load_digits

    digits = load_digits()
    events = image_events(digits.images, digits.target, THRESHOLD, SYMBOLS_PER_UNIT)
    return Splits(*events.split_by_sequence((0.7, 0.15, 0.15), seed=seed, stratify=True))


TASK = Task(
    name="mini-digits",
    summary="small handwritten digits as the runs of a black and white image; bundled with scikit-learn",
    loader=load,
    head=partial(Classes, "0123456789"),
    input_size=1,
    time_unit=f"{SYMBOLS_PER_UNIT} pixels",
    source="scikit-learn's load_digits (UCI Optical Recognition of Handwritten Digits)",
    licence="CC BY 4.0",
    differences="not in the paper: a small relative of mnist-event for demonstrations and tests",
    caveats=("missing: who wrote a digit; all parts may share writers",),
)
