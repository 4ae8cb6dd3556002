"""`mnist-event`: which digit, from the runs of a thresholded image.

Source: MNIST, 60,000 training and 10,000 test images of 28 x 28 pixels. Pixels above 128 are 1, the others
0; the 784 of an image, row after row, are coded as events (`lapse.encode_events`); 256 pixels last 1 unit
of time. Of the training images 6,000 are the validation split.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from lapse.events import encode_events
from lapse.heads import Classes
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.tasks.base import PaperSettings, Splits, Task
from lapse.tasks.files import DataFile, DataFileError, read
from lapse.tasks.prepared import prepared
from lapse.tasks.published import PUBLISHED

THRESHOLD = 128
SYMBOLS_PER_UNIT = 256


def _file(name: str, size: int, sha256: str) -> DataFile:
    return DataFile(
        path=f"mnist/{name}.gz",
        url=f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
        digests=(f"sha256:{sha256}",),
        other_paths=(f"mnist/{name}",),
        size=size,
    )


FILES = (
    _file(
        "train-images-idx3-ubyte",
        9_912_422,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _file(
        "train-labels-idx1-ubyte", 28_881, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    _file(
        "t10k-images-idx3-ubyte",
        1_648_877,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _file(
        "t10k-labels-idx1-ubyte", 4_542, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
)


def load(data_dir: str | Path | None = None) -> Splits:
    contents, sources = zip(*(read(file, data_dir) for file in FILES), strict=True)

    def prepare() -> Splits:
        arrays = [idx_array(content, file.path) for content, file in zip(contents, FILES, strict=True)]
        training = image_events(arrays[0], arrays[1], THRESHOLD, SYMBOLS_PER_UNIT)
        train, validation = training.split_by_sequence((0.9, 0.1), seed=0)
        return Splits(train, validation, image_events(arrays[2], arrays[3], THRESHOLD, SYMBOLS_PER_UNIT))

    return prepared("mnist-event", sources, {}, prepare)


def idx_array(content: bytes, name: str) -> Array:
    """The array of an IDX file: two zero bytes, a type, the number of axes, their sizes, the numbers."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataFileError(f"{name} is no IDX file of bytes: it begins with {content[:4]!r}")
    shape = np.frombuffer(content, ">u4", content[3], offset=4)
    body = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if body.size != np.prod(shape, dtype=np.int64):
        raise DataFileError(
            f"{name} is truncated: {body.size:,} values where its header has {shape.tolist()}"
        )
    return body.reshape(shape)


def image_events(images: Array, labels: Array, threshold: int, symbols_per_unit: int) -> Sequences:
    """Events of images (S, height, width), pixels above `threshold` being 1, time 0 before the first."""
    events = encode_events((images > threshold).reshape(len(images), -1).view(np.int8))
    return Sequences(
        values=events.symbols[:, None].astype(np.float32),
        times=events.times / symbols_per_unit,
        offsets=events.offsets,
        targets=labels.astype(np.int64),
        starts=np.zeros(len(images)),
        features=("pixel",),
        classes=tuple(str(digit) for digit in range(10)),
        unit=f"{symbols_per_unit} pixels",
    )


TASK = Task(
    name="mnist-event",
    summary="handwritten digits as the runs of a black and white image",
    loader=load,
    head=partial(Classes, "0123456789"),
    input_size=1,
    time_unit=f"{SYMBOLS_PER_UNIT} pixels",
    source="MNIST, http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0, as commonly stated",
    differences="an event stands at the end of its run, so the last run's length is kept; the authors' code "
    "stamps the start and drops it; 6,000 training images are set aside for validation",
    caveats=("missing: who wrote a digit; validation images may share writers with training",),
    paper=PaperSettings(epochs=200),
    published=PUBLISHED["mnist-event"],
)
