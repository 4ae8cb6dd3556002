"""`person`: what a person is doing, at every reading of four tags they wear.

Source: UCI Localization Data for Person Activity; 5 people, 5 recordings each. An event is one reading of one tag: a
one-hot of the 4 tags, then x, y, z. The eleven activities make 7 classes, as in the paper. Time counts in units of
100 ms, as in the authors' code. Recordings are cut into windows of 32 readings, one every 16 readings.

There are three splits, of which the paper has only the first:

- `paper`: windows are shuffled; 20 % are test, and a tenth of the rest is validation. Windows overlap, so half of a
  test window's readings are usually in training: the figure says little about a new recording.
- `recording`: of each person one recording is test and one is validation. `fold` (0 to 4) chooses which.
- `subject`: one person is test and one is validation; none of their windows is in training. `fold` chooses who.
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lapse.heads import Classes
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.tasks.base import PaperSettings, Splits, Task
from lapse.tasks.files import DataFile, DataFileError, read
from lapse.tasks.prepared import prepared
from lapse.tasks.published import PUBLISHED
from lapse.tasks.windows import windows

FILE = DataFile(
    path="person/ConfLongDemo_JSI.txt",
    # The second is the original at UCI; the first has its timestamps rebuilt to within 11 microseconds.
    digests=(
        "sha256:a6cee72a5c3d644a7085f457a3f23e3b09edd6835ad65957c78e48acc11784af",
        "md5:280a677ae0d673ec9a50ada480d8a529",
    ),
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/00196/ConfLongDemo_JSI.txt",
    other_paths=("person/ConfLongDemo_JSI.txt.gz",),
    size=21_546_346,
)
COLUMNS = ["recording", "tag", "ticks", "date", "x", "y", "z", "activity"]
TAGS = ("010-000-024-033", "010-000-030-096", "020-000-033-111", "020-000-032-221")
CLASSES = {
    "lying": ("lying", "lying down"),
    "sitting": ("sitting", "sitting down"),
    "standing up": (
        "standing up from lying",
        "standing up from sitting",
        "standing up from sitting on the ground",
    ),
    "walking": ("walking",),
    "falling": ("falling",),
    "on all fours": ("on all fours",),
    "sitting on the ground": ("sitting on the ground",),
}
CLASS_OF = {word: index for index, words in enumerate(CLASSES.values()) for word in words}
TICKS_PER_UNIT = 10**6  # a tick is 100 ns, a unit of time 100 ms
WINDOW, STRIDE = 32, 16
SPLITS = ("paper", "recording", "subject")
FOLDS = 5


def load(data_dir: str | Path | None = None, *, split: str = "paper", fold: int = 0) -> Splits:
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
    if fold not in range(FOLDS) or (split == "paper" and fold):
        raise ValueError(f"fold={fold}: expected 0 to {FOLDS - 1}; split 'paper' has only fold 0")
    content, source = read(FILE, data_dir)
    options = {"split": split, "fold": fold}
    return prepared("person", (source,), options, lambda: _prepare(content, split, fold))


def _prepare(content: bytes, split: str, fold: int) -> Splits:
    recordings, notes = read_recordings(content)
    cut = windows(recordings, WINDOW, STRIDE)
    parts = (cut.take(part) for part in divided(cut, split, fold))
    if split == "paper":
        notes.append("windows overlap and were shuffled before the split: test shares readings with training")
    return Splits(*parts, notes=tuple(notes))


def divided(cut: Sequences, split: str, fold: int) -> tuple[Array, Array, Array]:
    """The positions of the windows in training, validation and test."""
    if split == "paper":
        order = np.random.RandomState(98841).permutation(len(cut))
        test, rest = np.split(order, [len(cut) // 5])
        validation, train = np.split(rest, [len(rest) // 10])
        return np.sort(train), np.sort(validation), np.sort(test)
    assert cut.ids is not None
    assert cut.groups is not None
    part = _rank_of_recording(cut.ids, cut.groups) if split == "recording" else _rank(cut.groups)
    test_mask, validation_mask = part == fold, part == (fold + 1) % FOLDS
    train_mask = ~(test_mask | validation_mask)
    return np.flatnonzero(train_mask), np.flatnonzero(validation_mask), np.flatnonzero(test_mask)


def _rank(names: Array) -> Array:
    return np.unique(names, return_inverse=True)[1]


def _rank_of_recording(recording: Array, subject: Array) -> Array:
    """Which of their subject's recordings each one is: 0, 1, 2, ..."""
    names, first, inverse = np.unique(recording, return_index=True, return_inverse=True)
    owner = subject[first]
    before = np.arange(len(names)) - np.searchsorted(owner, owner)  # names are sorted, so owners are too
    return before[inverse]


def read_recordings(content: bytes) -> tuple[Sequences, list[str]]:
    """All recordings whole, in order of time, and what was odd about their times."""
    table = _table(content)
    ticks = table["ticks"].to_numpy()
    recording = table["recording"].to_numpy()
    notes = _gap_notes(recording, ticks)
    # Ticks have 18 digits, more than a float64 holds, so they are counted from each recording's first.
    origin = table.groupby("recording")["ticks"].transform("min").to_numpy()
    table["time"] = (ticks - origin) / TICKS_PER_UNIT
    names = []
    for tag in TAGS:
        names.append(f"tag {tag}")
        table[names[-1]] = (table["tag"] == tag).astype(float)
    table["class"] = table["activity"].map(CLASS_OF)
    table["subject"] = table["recording"].str[0]
    return _sequences(table, [*names, "x", "y", "z"]), notes


def _sequences(table: Any, values: list[str]) -> Sequences:
    from dataclasses import replace

    read_in = Sequences.from_frame(
        table,
        id="recording",
        time="time",
        values=values,
        target="class",
        per_step=True,
        group="subject",
        unit="100 ms",
    )
    return replace(read_in, classes=tuple(CLASSES))


def _table(content: bytes) -> Any:
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(content), header=None, names=COLUMNS, dtype={"ticks": "int64"})
    except (ValueError, pd.errors.ParserError) as error:
        raise DataFileError(
            f"{FILE.path} is not the table expected ({error}); expected columns {COLUMNS}"
        ) from error
    for name, known in (("tag", TAGS), ("activity", CLASS_OF)):
        strange = np.flatnonzero(~table[name].isin(list(known)))
        if strange.size:
            row = int(strange[0])
            raise DataFileError(
                f"{FILE.path} row {row}: unknown {name} {table[name][row]!r}, expected one of {list(known)}"
            )
    return table


def _gap_notes(recording: Array, ticks: Array) -> list[str]:
    gaps = np.diff(ticks)[recording[1:] == recording[:-1]]
    zero, negative = np.count_nonzero(gaps == 0), np.count_nonzero(gaps < 0)
    notes = []
    if zero:
        notes.append(f"{zero} gaps in the file are 0: kept")
    if negative:
        worst = -gaps.min() / 10_000
        notes.append(f"{negative} gaps in the file are negative, by up to {worst:.1f} ms: sorted by time")
    return notes


TASK = Task(
    name="person",
    summary="what a person is doing, at each reading of four tags they wear",
    loader=load,
    head=partial(Classes, tuple(CLASSES), per_step=True),
    input_size=7,
    time_unit="100 ms",
    source="UCI Localization Data for Person Activity, https://archive.ics.uci.edu/dataset/196",
    licence="CC BY 4.0",
    differences="all 25 recordings (the authors' loader drops the last); first gap 0 (theirs 500 ms); "
    "readings sorted by time; a tenth of the paper split's training windows set aside for validation",
    paper=PaperSettings(epochs=200),
    published=PUBLISHED["person"],
)
