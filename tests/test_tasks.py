"""The tasks: a contract they all keep, what each is known to be, and how each refuses what is wrong."""

import gzip
import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standins
from example_sequences import same
from lapse import TASKS, Forecaster, Sequences, Task, decode_events
from lapse.events import Events
from lapse.tasks import DataFileError, Splits, mnist, person, physionet, walker, xor
from lapse.tasks.published import PUBLISHED
from lapse.tasks.windows import windows

MODELS = {
    *("ode-rnn", "ct-rnn", "lstm", "ct-gru", "rnn-decay", "bidirectional"),
    *("gru-d", "phased-lstm", "gru-ode", "ct-lstm", "ode-lstm"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAPSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LAPSE_DATA", raising=False)
    monkeypatch.setattr(xor, "TRAIN", 900)
    monkeypatch.setattr(xor, "VALIDATION", 100)
    monkeypatch.setattr(xor, "TEST", 100)
    return standins.install(tmp_path / "data", monkeypatch)


# The contract every task keeps


def check_shapes(task: Task, part: Sequences) -> None:
    assert part.num_features == task.input_size == len(part.features)
    head, asked = task.head(), task.question.asked(part)
    known = head.targets_of(asked).known
    # A forecast is asked for where any value was observed, all others for what is always there.
    assert bool((known.any(1) if task.question.model is Forecaster else known).all())
    assert part.classes is None or part.classes == head.names
    assert head.sentence.endswith("per event" if asked.per_step else "per sequence")


def check_numbers(task: Task, part: Sequences) -> None:
    assert part.values.dtype == np.float32
    assert np.isfinite(part.values).all()
    assert np.isfinite(part.timespans).all()
    assert (part.timespans >= 0).all()
    assert (part.lengths > 0).all()


def check_batch(task: Task, part: Sequences) -> None:
    batch = next(iter(task.question.examples(part).batches(4)))
    assert batch.values.shape[1] == task.input_size
    asked = getattr(batch, "queries", batch)
    assert asked.targets is not None
    assert len(asked.targets) == (len(asked.values) if task.head().per_step else len(batch))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("check", [check_shapes, check_numbers, check_batch])
def test_contract(name: str, check: Any, folder: Path) -> None:
    task = TASKS[name]
    for part in task.load(folder).parts().values():
        check(task, part)


@pytest.mark.parametrize("name", TASKS)
def test_loading_twice_gives_the_same(name: str, folder: Path) -> None:
    first, second = (TASKS[name].load(folder) for _ in range(2))
    same(first.train, second.train)
    assert first.notes == second.notes
    assert first.sources == second.sources


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_documented(name: str) -> None:
    task = TASKS[name]
    assert task.name == name
    assert all([task.summary, task.source, task.licence, task.time_unit, task.differences])
    module = sys.modules[task.loader.__module__]
    assert module.__doc__ is not None
    assert f"`{name}`" in module.__doc__
    assert "Source:" in module.__doc__
    assert task.paper is None or set(task.published) == MODELS


def test_the_published_table_is_complete() -> None:
    assert set(PUBLISHED) == {name for name, task in TASKS.items() if task.paper is not None}
    assert TASKS["walker"].published["ode-lstm"] == (0.883, 0.014)
    assert TASKS["xor-event"].published["rnn-decay"].std == 5.28
    paper = TASKS["person"].paper
    assert paper is not None
    assert (paper.epochs, paper.hidden_size, paper.batch_size, paper.learning_rate) == (200, 64, 256, 5e-3)


def test_an_unknown_option() -> None:
    with pytest.raises(
        ValueError, match="task 'xor-dense' has no option 'fold'; it takes lengths, distinct, size, seed"
    ):
        TASKS["xor-dense"].load(fold=1)


# XOR


def bits_of(part: Sequences) -> list[np.ndarray]:
    times = np.rint(part.times * xor.BITS).astype(int)
    return decode_events(Events(part.values[:, 0].astype(int), times, part.offsets))


def test_xor_is_parity_in_both_codings() -> None:
    dense, event = TASKS["xor-dense"].load().test, TASKS["xor-event"].load().test
    assert dense.targets is not None
    assert event.targets is not None
    blocks = dense.values.reshape(-1, 32)
    np.testing.assert_array_equal(blocks.sum(1) % 2, dense.targets)
    np.testing.assert_array_equal(dense.targets, event.targets)
    np.testing.assert_array_equal(np.stack(bits_of(event)), blocks)
    for part in (dense, event):
        np.testing.assert_allclose(part.times[part.offsets[1:] - 1], 1.0)
        np.testing.assert_allclose(np.add.reduceat(part.timespans, part.offsets[:-1]), 1.0, rtol=1e-5)


@settings(max_examples=10)
@given(st.integers(1, 31), st.integers(1, 10), st.integers(0, 99))
def test_xor_blocks_of_random_length(low: int, more: int, seed: int) -> None:
    high = min(33, low + more)
    part = xor.load_event(lengths=(low, high), seed=seed).test
    blocks = bits_of(part)
    assert {len(block) for block in blocks} <= set(range(low, high))
    assert part.targets is not None
    assert [int(block.sum() % 2) for block in blocks] == part.targets.tolist()


def test_xor_distinct_blocks_share_nothing() -> None:
    plain = TASKS["xor-event"].load(lengths=(2, 12))
    splits = TASKS["xor-event"].load(lengths=(2, 12), distinct=True)
    train, validation, test = ({tuple(b) for b in bits_of(part)} for part in splits.parts().values())
    assert not train & validation
    assert not (train | validation) & test
    assert 0 < len(splits.test) < len(plain.test)
    assert "were removed" in splits.notes[0]


@pytest.mark.parametrize("lengths", [(0, 5), (5, 5), (2, 34)])
def test_xor_wrong_lengths(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        TASKS["xor-dense"].load(lengths=lengths)


# Images


def test_images_survive_the_coding() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    part = mnist.image_events(images, np.arange(5), 128, 256)
    times = np.rint(part.times * 256).astype(int)
    back = np.stack(decode_events(Events(part.values[:, 0], times, part.offsets)))
    np.testing.assert_array_equal(back.reshape(images.shape), images > 128)


def test_mnist_splits(folder: Path) -> None:
    splits = TASKS["mnist-event"].load(folder)
    assert [len(part) for part in splits.parts().values()] == [36, 4, 10]


def test_files_that_are_no_images() -> None:
    with pytest.raises(DataFileError, match="x is no IDX file"):
        mnist.idx_array(b"PNG", "x")
    with pytest.raises(DataFileError, match="x is truncated: 3 values"):
        mnist.idx_array(standins.idx(np.zeros(4))[:-1], "x")


# Person


def test_person_splits_hold_out_what_they_say(folder: Path) -> None:
    for fold in range(5):
        recording = TASKS["person"].load(folder, split="recording", fold=fold)
        subject = TASKS["person"].load(folder, split="subject", fold=fold)
        for splits, label in ((recording, "ids"), (subject, "groups")):
            parts = [set(getattr(part, label)) for part in splits.parts().values()]
            assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
            assert sum(len(part) for part in splits.parts().values()) == 25 * 5
        assert recording.test.groups is not None
        assert subject.test.groups is not None
        assert set(recording.test.groups) == set("ABCDE")
        assert set(subject.test.groups) == {"ABCDE"[fold]}


def test_person_odd_gaps_are_mended_and_reported(folder: Path) -> None:
    splits = TASKS["person"].load(folder)
    assert splits.notes[0] == "25 gaps in the file are 0: kept"
    assert splits.notes[1] == "25 gaps in the file are negative, by up to 5.0 ms: sorted by time"
    assert all((part.timespans >= 0).all() for part in splits.parts().values())


def test_person_file_may_be_packed(folder: Path) -> None:
    plain = folder / person.FILE.path
    expected = TASKS["person"].load(folder)
    standins.put(plain.with_name(plain.name + ".gz"), gzip.compress(plain.read_bytes()))
    plain.unlink()
    packed = TASKS["person"].load(folder)
    same(packed.test, expected.test)
    assert packed.sources[0].folder.endswith(".txt.gz")


def test_person_features_and_time() -> None:
    recordings, _ = person.read_recordings(standins.person_rows())
    assert (recordings.values[:, :4].sum(axis=1) == 1).all()
    assert 0.2 < recordings.median_gap < 0.4  # 20 to 40 ms, in units of 100 ms
    cut = windows(recordings, 32, 16)
    first, second = cut[0], cut[1]
    assert first.timespans[0] == 0
    assert second.timespans[0] == first.timespans[16] > 0


def test_person_wrong_options_and_tables() -> None:
    for options, message in {
        (("split", "honest"),): "expected one of paper, recording, subject",
        (("split", "subject"), ("fold", 5)): "fold=5: expected 0 to 4",
        (("fold", 1),): "split 'paper' has only fold 0",
    }.items():
        with pytest.raises(ValueError, match=message):
            TASKS["person"].load(**dict(options))
    good = standins.person_rows().split(b"\n")
    with pytest.raises(DataFileError, match="row 3: unknown activity 'dancing'"):
        person.read_recordings(b"\n".join([*good[:3], good[3].rsplit(b",", 1)[0] + b",dancing"]))
    with pytest.raises(DataFileError, match="row 0: unknown tag"):
        person.read_recordings(good[0].replace(person.TAGS[0].encode(), b"007"))
    with pytest.raises(DataFileError, match="is not the table expected"):
        person.read_recordings(b"A01,x,yesterday,d,1,2,3,walking")


# Windows


@given(st.lists(st.integers(1, 80), min_size=1, max_size=5), st.integers(1, 20), st.integers(1, 20))
def test_windows_follow_the_authors_rule(lengths: list[int], size: int, stride: int) -> None:
    s = Sequences.from_arrays(
        [np.arange(n) for n in lengths], [np.cumsum(np.arange(1, n + 1)) for n in lengths]
    )
    expected = [(i, t) for i, n in enumerate(lengths) for t in range(0, n - size, stride)]
    cut = windows(s, size, stride)
    assert cut.ids is not None
    assert list(zip(cut.ids, cut.values[cut.offsets[:-1], 0], strict=True)) == expected
    for k, (_, begin) in enumerate(expected):
        gaps = [begin + step + 1 for step in range(size)]
        assert cut[k].timespans.tolist() == ([0, *gaps[1:]] if begin == 0 else gaps)


# Walker


def walker_by_the_book(frames: list[np.ndarray]) -> list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """The authors' procedure frame by frame, as the issue words it."""
    files = [f"rollout_{i:03}.npy" for i in range(len(frames))]
    order = dict(zip(files, frames, strict=True))
    np.random.RandomState(125487).shuffle(files)
    tests, rest = int(0.15 * len(files)), int(0.25 * len(files))
    draw = np.random.RandomState(891374)
    parts = []
    for names in (files[rest:], files[tests:rest], files[:tests]):
        found = []
        for frame in (order[name] for name in names):
            rows, gaps, gap = [], [], 0
            for t in range(len(frame) - 1):
                gap += 1
                if draw.rand() < 0.9:
                    rows.append(t)
                    gaps.append(gap)
                    gap = 0
            for start in range(0, len(rows) - 64, 16):
                chosen = np.array(rows[start : start + 64])
                found.append((frame[chosen], np.array(gaps[start : start + 64]), frame[chosen + 1]))
        parts.append(found)
    return parts


def test_walker_is_the_authors_procedure(folder: Path) -> None:
    splits = TASKS["walker"].load(folder)
    frames = walker.rollouts({k.split("/")[1]: v for k, v in standins.rollout_members().items()})
    for part, expected in zip(splits.parts().values(), walker_by_the_book(frames), strict=True):
        assert len(part) == len(expected)
        for i, (values, gaps, targets) in enumerate(expected):
            np.testing.assert_array_equal(part[i].values, values.astype(np.float32))
            np.testing.assert_array_equal(part[i].timespans, gaps)
            np.testing.assert_array_equal(part[i].targets, targets.astype(np.float32))


def test_walker_generates_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def generate(where: Path, seed: int = 0) -> None:
        calls.append(seed)
        for name, content in standins.rollout_members().items():
            standins.put(where / name.split("/")[1], content)

    fake = types.ModuleType("lapse.tasks.walker_simulator")
    fake.generate = generate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lapse.tasks.walker_simulator", fake)
    for _ in range(2):
        splits = TASKS["walker"].load(generate=True, seed=3)
        assert "generated here" in splits.notes[0]
        assert len(splits.test) > 0
    assert calls == [3]
    assert (tmp_path / "cache/walker/generated-seed-3/rollout_000.npy").exists()


def test_walker_without_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(DataFileError, match=r"pip install 'lapse\[walker\]'"):
        TASKS["walker"].load(generate=True)
    assert not list((tmp_path / "cache/walker").iterdir())


def test_walker_seed_is_the_generators() -> None:
    with pytest.raises(ValueError, match="seed=1 is the generator's"):
        TASKS["walker"].load(seed=1)


def test_walker_wrong_archives() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, 2)))
    with pytest.raises(DataFileError, match=r"has no \.npy files"):
        walker.rollouts({"a.txt": b""})
    with pytest.raises(DataFileError, match=r"a\.npy in .* has shape \(3, 2\)"):
        walker.rollouts({"a.npy": buffer.getvalue()})
    with pytest.raises(DataFileError, match="is no NumPy array"):
        walker.rollouts({"a.npy": b"nothing"})


# PhysioNet


def stays() -> Sequences:
    members, outcomes = standins.stay_members()
    return physionet.read_stays({name.split("/")[1]: c for name, c in members.items()}, outcomes)


def test_physionet_tables() -> None:
    s = stays()
    assert len(s) == 30
    assert s.ids is not None
    assert s.ids[0] == 132539
    assert s.observed is not None
    assert not s[0].observed.any()  # type: ignore[union-attr]
    assert s.static is not None
    assert s.static_observed is not None
    assert s.static[1].tolist() == [51, 0, 170, 2, 71]
    assert s.static_observed[0].tolist() == [True, False, True, True, False]
    one = s[1]
    assert one.times.tolist() == pytest.approx([0, 0.5, 1.5, 2.5, 47 + 59 / 60, 47 + 59 / 60])
    assert one.values[-2:, physionet.VARIABLES.index("Urine")].tolist() == [10, 20]
    assert s.targets is not None
    assert s.targets.sum() == 6


def test_physionet_splits_keep_the_share_of_deaths(folder: Path) -> None:
    splits = TASKS["physionet2012"].load(folder)
    assert [len(part) for part in splits.parts().values()] == [19, 5, 6]
    assert "1 of 30 stays have no measurement" in splits.notes[0]
    assert "29 events share the time" in splits.notes[1]


def test_physionet_wrong_files() -> None:
    members, outcomes = standins.stay_members(3)
    named = {name.split("/")[1]: content for name, content in members.items()}
    with pytest.raises(DataFileError, match=r"132539\.txt in .* begins b'a,b'"):
        physionet.read_stays({"132539.txt": b"a,b\n1,2\n"}, outcomes)
    with pytest.raises(DataFileError, match="has time 'noon', expected HH:MM"):
        physionet.read_stays({"132539.txt": b"Time,Parameter,Value\nnoon,HR,2\n"}, outcomes)
    with pytest.raises(DataFileError, match="blank or broken lines"):
        physionet.read_stays({"132539.txt": b"Time,Parameter,Value\n\n\n00:00,HR,2\n"}, outcomes)
    with pytest.raises(DataFileError, match="no column 'In-hospital_death'"):
        physionet.read_stays(named, b"RecordID\n132539")
    with pytest.raises(DataFileError, match="stay 132541 has no row"):
        physionet.read_stays(named, b"\n".join(outcomes.split(b"\n")[:-1]))


def test_splits_list_their_parts(folder: Path) -> None:
    splits = TASKS["mini-digits"].load()
    assert isinstance(splits, Splits)
    assert list(splits.parts()) == ["train", "validation", "test"]


def test_xor_can_be_small() -> None:
    splits = TASKS["xor-event"].load(lengths=(2, 9), size=50)
    assert [len(part) for part in splits.parts().values()] == [45, 5, 5]
    with pytest.raises(ValueError, match="size must be a whole number of at least 10"):
        TASKS["xor-event"].load(size=9)
