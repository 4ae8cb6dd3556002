"""What is known of the real files, where present: in $LAPSE_DATA, or in shared/data beside the checkout."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from lapse import TASKS, Sequences
from lapse.tasks import Splits, mnist, person, physionet, walker
from lapse.tasks.files import DataFile, read

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
FOLDER = Path(os.environ.get("LAPSE_DATA") or BESIDE)
FILES = {
    "mnist-event": mnist.FILES,
    "person": (person.FILE,),
    "walker": (walker.FILE,),
    "physionet2012": (physionet.RECORDS, physionet.OUTCOMES),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _isolated(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_CACHE", str(cache))


def missing(file: DataFile) -> bool:
    return not any((FOLDER / name).is_file() for name in (file.path, *file.other_paths))


def load(name: str, **options: object) -> Splits:
    for file in FILES[name]:
        if missing(file):
            pytest.skip(f"{file.path} is not in {FOLDER}; set LAPSE_DATA to a folder that holds it")
    return TASKS[name].load(FOLDER, **options)


def sizes(splits: Splits) -> list[int]:
    return [len(part) for part in splits.parts().values()]


def test_walker_windows() -> None:
    splits = load("walker")
    assert sizes(splits) == [9_684, 1_272, 1_937]
    assert (splits.train.lengths == 64).all()


def test_walker_trivial_predictors() -> None:
    splits = load("walker")
    train, test = splits.train.targets, splits.test.targets
    assert train is not None
    assert test is not None
    mean = np.mean((test - train.mean(axis=0)) ** 2)
    persistence = np.mean((test - splits.test.values) ** 2)
    assert mean == pytest.approx(9.46, abs=0.01)
    assert persistence == pytest.approx(4.54, abs=0.01)


def test_walker_target_is_usually_the_next_input() -> None:
    test = load("walker").test
    assert test.targets is not None
    values = test.values.reshape(-1, 64, 17)
    targets = test.targets.reshape(-1, 64, 17)
    assert (targets[:, :-1] == values[:, 1:]).all(axis=2).mean() == pytest.approx(0.9, abs=0.01)


def test_person_windows() -> None:
    for split in person.SPLITS:
        splits = load("person", split=split)
        assert sum(sizes(splits)) == 10_265
    recordings = {name for part in splits.parts().values() for name in part.ids.tolist()}  # type: ignore[union-attr]
    assert recordings == {f"{who}0{i}" for who in "ABCDE" for i in range(1, 6)}
    assert sizes(load("person"))[2] == 2_053


def test_person_file() -> None:
    load("person")
    recordings, notes = person.read_recordings(read(person.FILE, FOLDER)[0])
    assert notes[0] == "23 gaps in the file are 0: kept"
    assert notes[1].startswith("12 gaps in the file are negative, by up to 5.")
    assert recordings.num_events == 164_860
    assert recordings.targets is not None
    counts = np.bincount(recordings.targets)
    assert counts.tolist() == [60_648, 28_950, 22_590, 32_710, 2_973, 5_210, 11_779]
    assert recordings.median_gap == pytest.approx(0.27, abs=0.001)  # 27 ms


def readings(part: Sequences) -> set[bytes]:
    return {row.tobytes() for row in part.values}


def shared(splits: Splits) -> float:
    """The share of the test split's readings that are in training too."""
    train = readings(splits.train)
    return sum(row in train for row in readings(splits.test)) / len(readings(splits.test))


def test_no_reading_of_what_is_held_out_is_in_training() -> None:
    for split in ("recording", "subject"):
        assert shared(load("person", split=split)) < 0.001  # a reading may repeat by chance
    assert shared(load("person")) > 0.5  # the paper's split is no test of a new recording


def test_mnist_events() -> None:
    splits = load("mnist-event")
    assert sizes(splits) == [54_000, 6_000, 10_000]
    lengths = np.concatenate([part.lengths for part in splits.parts().values()])
    assert lengths.mean() == pytest.approx(53, abs=0.5)
    assert lengths.max() <= 256


def test_mnist_is_coded_in_five_seconds() -> None:
    load("mnist-event")
    images, labels = (
        np.concatenate([mnist.idx_array(read(mnist.FILES[i], FOLDER)[0], "") for i in pair])
        for pair in ((0, 2), (1, 3))
    )
    assert len(images) == 70_000
    started = time.process_time()  # what it costs, however busy the machine
    mnist.image_events(images, labels, mnist.THRESHOLD, mnist.SYMBOLS_PER_UNIT)
    assert time.process_time() - started < 5.0


def test_mnist_batches_are_padded_little() -> None:
    train = load("mnist-event").train
    cells = sum(batch.rows.mask.numel() for batch in train.batches(256))
    assert 1 - train.num_events / cells < 0.12


def test_physionet_stays() -> None:
    splits = load("physionet2012")
    assert sizes(splits) == [2_560, 640, 800]
    deaths = [int(part.targets.sum()) for part in splits.parts().values()]  # type: ignore[union-attr]
    assert sum(deaths) == 554
    assert splits.train.num_features == 37
    assert splits.train.static_features == physionet.DESCRIPTORS
    assert max(float(part.times.max()) for part in splits.parts().values()) == 48.0


def test_xor_blocks_as_the_paper_and_as_the_authors_code() -> None:
    paper = TASKS["xor-event"].load()
    assert sizes(paper) == [90_000, 10_000, 10_000]
    authors = TASKS["xor-event"].load(lengths=(2, 32))
    repeated = float(authors.notes[0].split("%")[0])
    assert 30 < repeated < 40  # a third of the test blocks are in training
    distinct = TASKS["xor-event"].load(lengths=(2, 32), distinct=True)
    assert len(distinct.test) == pytest.approx(10_000 * (1 - repeated / 100), abs=5)
