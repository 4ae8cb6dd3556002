"""Batches: everything once an epoch, little padding, the same for the same seed, at home in torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from example_sequences import ragged
from lapse import Batch, LengthBatches, Sequences


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40), st.integers(1, 9), st.booleans())
def test_every_sequence_exactly_once_an_epoch(lengths: list[int], batch_size: int, shuffle: bool) -> None:
    s = ragged(lengths, missing=0.2)
    loader = s.batches(batch_size, shuffle=shuffle, seed=3)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader)
        index = torch.cat([batch.index for batch in batches])
        assert sorted(index.tolist()) == list(range(len(s)))
        assert all(len(batch) <= batch_size for batch in batches)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12))
def test_a_batch_holds_the_sequences_end_to_end(lengths: list[int]) -> None:
    s = ragged(lengths, missing=0.3)
    for batch in s.batches(4):
        chosen = s[batch.index.numpy()]
        assert batch.lengths.tolist() == chosen.lengths.tolist()
        for name in ("values", "timespans", "times", "observed"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(chosen, name))
        assert batch.timespans.dtype == batch.values.dtype == torch.float32
        assert (batch.timespans >= 0).all()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12))
def test_a_batch_is_padded_with_zeros_on_request(lengths: list[int]) -> None:
    s = ragged(lengths, missing=0.3)
    for batch in s.batches(4):
        padded = batch.padded()
        assert padded.values.shape == (len(batch), int(batch.lengths.max()), 2)
        for name in ("values", "timespans", "times") + ("observed",) * (batch.observed is not None):
            tensor = getattr(padded, name)
            assert not tensor[~padded.mask].any()
            assert torch.equal(tensor[padded.mask], getattr(batch, name))
            assert torch.equal(batch.rows.unpad(tensor), getattr(batch, name))


def test_an_empty_batch_can_be_made() -> None:
    """A process may get no row of the last batch."""
    batch = ragged([2, 3]).batch([])
    assert len(batch) == 0
    assert batch.padded().values.shape == (0, 0, 2)


def test_absolute_times_count_from_the_start_of_the_clock() -> None:
    s = Sequences.from_arrays([[1, 2], [3, 4, 5]], [[10, 12], [0.5, 4, 9]], starts=[7.0, 0.5])
    assert s.batch([0, 1]).times.tolist() == [10, 12, 0.5, 4, 9]
    assert s.batch([0, 1]).timespans.tolist() == [3, 2, 0, 3.5, 5]


def test_targets_per_event_lie_as_the_events_do() -> None:
    s = Sequences.from_arrays(
        [[1, 2], [3]], [[0, 1], [0]], targets=[[[1.0, 2.0]] * 2, [[3.0, 4.0]]], per_step=True
    )
    batch = s.batch([1, 0])
    assert batch.targets is not None
    assert batch.targets.tolist() == [[3, 4], [1, 2], [1, 2]]
    assert batch.rows.pad(batch.targets).tolist() == [[[3, 4], [0, 0]], [[1, 2], [1, 2]]]


def orders(s: Sequences, seed: int, epochs: int) -> list[list[int]]:
    loader = s.batches(8, seed=seed)
    return [torch.cat([batch.index for batch in loader]).tolist() for _ in range(epochs)]


def test_epochs_are_reshuffled_and_seeded() -> None:
    s = ragged(np.random.default_rng(0).integers(1, 50, 100).tolist())
    first, second = orders(s, 1, 2)
    assert first != second
    assert orders(s, 1, 2) == [first, second]
    assert orders(s, 2, 1) != [first]


def test_batches_themselves_change_from_epoch_to_epoch() -> None:
    sampler = LengthBatches(np.arange(100, 200), 10)
    first, second = ({frozenset(batch) for batch in sampler} for _ in range(2))
    assert first != second


def test_an_epoch_can_be_asked_for() -> None:
    sampler = LengthBatches(np.arange(1, 50), 5, seed=7)
    epochs = [list(sampler) for _ in range(3)]
    sampler.sampler.set_epoch(1)
    assert list(sampler) == epochs[1]


def test_little_is_padded() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 5000)
    s = Sequences.from_arrays([np.zeros(n) for n in lengths], [np.arange(n) for n in lengths])
    cells = sum(batch.rows.mask.numel() for batch in s.batches(64))
    assert 1 - s.num_events / cells < 0.12
    cells = sum(batch.rows.mask.numel() for batch in s.batches(64, shuffle=False))
    assert 1 - s.num_events / cells < 0.03


def test_the_global_random_state_is_left_alone() -> None:
    s = ragged([2, 3, 4])
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    list(s.batches(2))
    assert torch.rand(1) == expected


def test_processes_share_an_epoch_without_overlap() -> None:
    parts = [list(LengthBatches(np.ones(64, int), 8, replicas=2, rank=rank)) for rank in (0, 1)]
    assert [len(part) for part in parts] == [4, 4]
    assert sorted(i for part in parts for batch in part for i in batch) == list(range(64))


def test_workers_give_the_same_batches() -> None:
    s = ragged([2, 3, 4, 5])
    plain = [batch.index.tolist() for batch in s.batches(2, seed=1)]
    assert [batch.index.tolist() for batch in s.batches(2, seed=1, num_workers=1)] == plain


def test_a_batch_moves_as_a_tensor_does() -> None:
    batch = ragged([2, 3]).batch([0, 1])
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert moved.values.device.type == "meta"
    assert moved.observed is None


def test_a_batch_is_pinned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    assert ragged([2]).batch([0]).pin_memory().index.tolist() == [1]


def test_the_loader_has_a_dataset_of_single_sequences() -> None:
    dataset = ragged([2, 3]).batches(2).dataset
    assert len(dataset) == 2  # type: ignore[arg-type]
    assert dataset[1].lengths.tolist() == [3]


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and loggers is not what is tested
def test_lightning_takes_the_loader_and_resumes_its_order(tmp_path: Path) -> None:
    import lightning

    class Reader(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(2, 1), dict[int, list[int]]()

        def training_step(self, batch: Batch) -> torch.Tensor:
            self.seen.setdefault(self.current_epoch, []).extend(batch.index.tolist())
            return self.layer(batch.values).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(epochs: int, checkpoint: Path | None) -> Reader:
        reader = Reader()
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=epochs, enable_checkpointing=False, **quiet)
        trainer.fit(reader, s.batches(4, seed=5), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return reader

    s = ragged(list(range(1, 20)))
    straight, _, resumed = fit(3, None), fit(2, None), fit(3, tmp_path / "2.ckpt")
    assert all(sorted(order) == list(range(19)) for order in straight.seen.values())
    assert straight.seen[0] != straight.seen[1]
    assert resumed.seen == {2: straight.seen[2]}


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, got 0"):
        ragged([1]).batches(0)
