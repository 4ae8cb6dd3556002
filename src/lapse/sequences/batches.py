"""Padded batches of sequences of like length, reshuffled every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lapse.sequences.ragged import Array, Sequences, concatenated_ranges

# Sequences may swap places with others up to a tenth longer or shorter: enough to make every epoch's
# batches new, at the price of a few percent of padding.
MIXING = 0.1


@dataclass(frozen=True)
class Batch:
    """B sequences padded with zeros to the longest of them, T events.

    Args:
        values: (B, T, F) float32.
        timespans: (B, T) float32, the gap before each event; finite, never negative.
        lengths: (B,) int64.
        observed: (B, T, F) bool; None if everything was observed.
        targets: (B, ...) or (B, T, ...), int64 or float32; None without any.
        static: (B, K) float32; None without any.
        static_observed: (B, K) bool; None if every static value is known.
        index: (B,) int64, the position of each row in the `Sequences` that it came from.
        starts: (B,) float64, the absolute time at which the clock of each sequence started; None if that is 0.
        weights: (B,) float32, how much each sequence counts in training; None if all count the same.
    """

    values: Tensor
    timespans: Tensor
    lengths: Tensor
    observed: Tensor | None
    targets: Tensor | None
    static: Tensor | None
    static_observed: Tensor | None
    index: Tensor
    starts: Tensor | None = None
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Tensor:
        """(B, T) bool, true for events, false for padding."""
        steps = torch.arange(self.values.shape[1], device=self.lengths.device)
        return steps < self.lengths[:, None]

    @property
    def times(self) -> Tensor:
        """(B, T) float64, the absolute time of each event: the start of its clock and all gaps since then."""
        since_start = self.timespans.double().cumsum(1)
        return since_start if self.starts is None else since_start + self.starts[:, None]

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """The batch on another device, as `Tensor.to` moves a tensor; Lightning calls this."""
        return self._each(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Batch:
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Any) -> Batch:
        old = {field.name: getattr(self, field.name) for field in fields(self)}
        new: dict[str, Any] = {k: None if tensor is None else change(tensor) for k, tensor in old.items()}
        return Batch(**new)


def pad(s: Sequences, index: Array) -> Batch:
    lengths = s.lengths[index]
    rows = concatenated_ranges(s.offsets[:-1][index], lengths)
    steps = int(lengths.max(initial=0))
    # Where each event goes in the flattened (B * T) grid.
    places = concatenated_ranges(np.arange(len(index)) * steps, lengths)

    def grid(flat: Array | None) -> Tensor | None:
        if flat is None:
            return None
        padded = np.zeros((len(index) * steps, *flat.shape[1:]), flat.dtype)
        padded[places] = flat[rows]
        return torch.from_numpy(padded.reshape(len(index), steps, *flat.shape[1:]))

    def chosen(array: Array | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array[index])

    values, timespans = grid(s.values), grid(s.timespans)
    assert values is not None
    assert timespans is not None
    return Batch(
        values=values,
        timespans=timespans,
        lengths=torch.from_numpy(lengths),
        observed=grid(s.observed),
        targets=grid(s.targets) if s.per_step else chosen(s.targets),
        static=chosen(s.static),
        static_observed=chosen(s.static_observed),
        index=torch.from_numpy(np.array(index)),
        starts=chosen(s.times[s.offsets[:-1]] if s.starts is None else s.starts),
        weights=chosen(s.weights),
    )


class LengthBatches(Sampler[list[int]]):
    """Positions of the sequences of each batch: similar lengths together, every sequence once per epoch.

    Every pass is a new epoch; `set_epoch` jumps to one, as Lightning does when it resumes. With several processes a
    batch has `batch_size` rows for each of them and is dealt out row by row, so that together they do what one process
    does with the larger batch. In the last batch a process may get fewer rows, or none.

    Args:
        lengths: (S,), the number of events in each sequence.
        batch_size: sequences per batch and process.
        shuffle: whether the order is new in every epoch. Otherwise batches come in order of length and are not dealt
            out, which is for evaluation: every process then comes to the same figures.
        seed: decides the order of every epoch, together with the number of the epoch.
        replicas: the number of processes; None asks `torch.distributed`.
        rank: which of them this is.
    """

    def __init__(
        self,
        lengths: Array,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.lengths, self.batch_size, self.shuffle, self.seed = lengths, batch_size, shuffle, seed
        self._place = None if replicas is None else (replicas, rank or 0)
        self.epoch = 0

    @property
    def sampler(self) -> LengthBatches:
        """Lightning looks for `set_epoch` on the `sampler` of a batch sampler: this is it."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _replicas_and_rank(self) -> tuple[int, int]:
        # Asked at every pass: loaders are built before the processes have found each other.
        if self._place is not None:
            return self._place
        ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not ready or not self.shuffle:
            return 1, 0
        return torch.distributed.get_world_size(), torch.distributed.get_rank()

    def __len__(self) -> int:
        replicas, _ = self._replicas_and_rank()
        return -(-len(self.lengths) // (self.batch_size * replicas))

    def __iter__(self) -> Iterator[list[int]]:
        replicas, rank = self._replicas_and_rank()
        random = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        batches = self._batches(random, self.batch_size * replicas)
        if self.shuffle:
            batches = [batches[i] for i in random.permutation(len(batches))]
        for batch in batches[: len(self)]:
            yield batch[rank::replicas].tolist()

    def _batches(self, random: np.random.Generator, size: int) -> list[Array]:
        jitter = random.uniform(1 - MIXING, 1 + MIXING, len(self.lengths)) if self.shuffle else 1.0
        order = np.argsort(self.lengths * jitter, kind="stable")
        return np.split(order, range(size, len(order), size))


class _PaddedItems(Dataset[Batch]):
    """`Sequences` as a map-style dataset whose items are fetched a batch at a time."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> Batch:
        return self.sequences.batch([index])

    def __getitems__(self, index: list[int]) -> Batch:
        return self.sequences.batch(index)


def _as_is(batch: Any) -> Any:
    return batch


def loader(
    s: Sequences, batch_size: int, shuffle: bool, seed: int, num_workers: int, pin_memory: bool
) -> DataLoader[Batch]:
    return DataLoader(
        _PaddedItems(s),
        batch_sampler=LengthBatches(s.lengths, batch_size, shuffle=shuffle, seed=seed),
        collate_fn=_as_is,
        num_workers=num_workers,
        pin_memory=pin_memory,
        # DataLoader draws a seed for its workers every epoch; its own generator leaves torch's global one
        # alone.
        generator=torch.Generator().manual_seed(seed),
    )
