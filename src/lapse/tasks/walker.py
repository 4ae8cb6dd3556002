"""`walker`: the next frame of a simulated walking robot, when a tenth of the frames is missing.

Source: the authors' 400 rollouts of gym's Walker2d under PPO policies of four training stages, 17 numbers a
frame. The files in order of name are shuffled by NumPy's RandomState(125487): 60 test, 40 validation, 300
training. A frame is kept when the next draw of RandomState(891374) is below 0.9, frame by frame over
training, validation, then test. An event is a kept frame; its target is the very next frame of the
simulation, kept or not, raw; its gap counts frames since the last kept one (the first frame of a rollout
has gap 1). Windows of 64 events every 16.

Without the file, `generate=True` (`lapse data walker --generate`) makes 400 rollouts like them with the
simulator; they are treated the same, but results on them are not comparable with the paper's.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lapse.cache import cache_folder
from lapse.heads import Numbers
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.tasks.base import PaperSettings, Splits, Task
from lapse.tasks.files import (
    DataFile,
    DataFileError,
    Members,
    Source,
    members_digest,
    read_archive,
    writing,
)
from lapse.tasks.prepared import prepared
from lapse.tasks.published import PUBLISHED
from lapse.tasks.windows import windows

FILE = DataFile(
    path="walker/walker.zip",
    url="https://pub.ist.ac.at/~mlechner/datasets/walker.zip",
    digests=("sha256:270029dd0b62ed6799661331a572a11e689eb786170f4003bf9d36b6dfb72028",),
    hint="Or make similar rollouts here: lapse data walker --generate (needs lapse[walker]).",
    size=32_643_172,
)
WINDOW, STRIDE = 64, 16
KEEP = 0.9
JOINTS = ("torso", "thigh", "leg", "foot", "left thigh", "left leg", "left foot")
FEATURES = (
    "height",
    *(f"{joint} angle" for joint in JOINTS),
    "x speed",
    "z speed",
    *(f"{joint} speed" for joint in JOINTS),
)


def load(data_dir: str | Path | None = None, *, generate: bool = False, seed: int = 0) -> Splits:
    if seed and not generate:
        raise ValueError(f"seed={seed} is the generator's: pass generate=True, or leave it out")
    members, source = _generated(seed) if generate else read_archive(FILE, data_dir)

    def prepare() -> Splits:
        parts = (windows(part, WINDOW, STRIDE) for part in kept_frames(rollouts(members)))
        note = ("rollouts generated here, not the authors': results are not comparable with the paper's",)
        return Splits(*parts, notes=note if generate else ())

    return prepared("walker", (source,), {"generate": generate}, prepare)


def _generated(seed: int) -> tuple[Members, Source]:
    folder = cache_folder() / "walker" / f"generated-seed-{seed}"
    with writing(folder) as partial:
        if not folder.exists():
            _simulate(partial, seed)
            os.replace(partial, folder)
    members = {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}
    return members, Source("generated rollouts", str(folder), members_digest(members))


def _simulate(folder: Path, seed: int) -> None:
    from importlib import import_module

    try:
        # gymnasium and MuJoCo are only asked for when it runs, so the call can fail to import as well.
        import_module("lapse.tasks.walker_simulator").generate(folder, seed=seed)
    except ImportError as error:
        raise DataFileError(f"generating rollouts needs the simulator: {error}") from error


def rollouts(members: Members) -> list[Array]:
    """The (steps, 17) float arrays of the archive, in order of name."""
    names = sorted(name for name in members if name.endswith(".npy"))
    if not names:
        raise DataFileError(f"{FILE.path} has no .npy files; expected one a rollout")
    return [_array(name, members[name]) for name in names]


def _array(name: str, content: bytes) -> Array:
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataFileError(f"{name} in {FILE.path} is no NumPy array ({error})") from error
    if array.ndim != 2 or array.shape[1] != len(FEATURES) or array.dtype.kind != "f":
        raise DataFileError(
            f"{name} in {FILE.path} has shape {array.shape} and dtype {array.dtype}, "
            f"expected (steps, {len(FEATURES)}) floats"
        )
    return np.asarray(array)


def kept_frames(frames: list[Array]) -> tuple[Sequences, Sequences, Sequences]:
    """Training, validation and test rollouts with a tenth of their frames gone, as the authors drew them."""
    order = list(range(len(frames)))
    np.random.RandomState(125487).shuffle(order)
    tests, validations = len(order) * 15 // 100, len(order) * 25 // 100
    random = np.random.RandomState(891374)
    train, validation, test = (
        _thinned([frames[i] for i in part], part, random)
        for part in (order[validations:], order[tests:validations], order[:tests])
    )
    return train, validation, test


def _thinned(frames: Sequence[Array], ids: Sequence[int], random: np.random.RandomState) -> Sequences:
    kept = [np.flatnonzero(random.random_sample(len(rollout) - 1) < KEEP) for rollout in frames]
    return Sequences.from_arrays(
        [rollout[rows] for rollout, rows in zip(frames, kept, strict=True)],
        kept,
        targets=[rollout[rows + 1] for rollout, rows in zip(frames, kept, strict=True)],
        per_step=True,
        starts=np.full(len(frames), -1.0),
        ids=ids,
        features=FEATURES,
        unit="frames",
    )


TASK = Task(
    name="walker",
    summary="the next frame of a simulated walking robot, a tenth of the frames missing",
    loader=load,
    # Learned in their own scale, as the paper does.
    head=partial(Numbers, FEATURES, scale=False, per_step=True),
    input_size=len(FEATURES),
    time_unit="one simulator frame",
    source="the ODE-LSTM authors' rollouts, https://github.com/mlech26l/ode-lstms",
    licence="MIT (with the authors' code)",
    differences="none: the authors' files, split and windows",
    caveats=(
        "in 90% of the steps the target is the next input: a model that sees ahead cheats",
        "to beat on the authors' test rollouts: predicting the mean has MSE 9.46, repeating the input 4.54",
    ),
    paper=PaperSettings(epochs=200),
    published=PUBLISHED["walker"],
)
