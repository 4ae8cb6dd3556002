"""Batches of sequences of similar length, reshuffled every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lapse.arguments import check_count, check_flag
from lapse.rows import Rows
from lapse.sequences.ragged import Array, Sequences, concatenated_ranges

# Sequences may swap places with others up to a tenth longer or shorter. That makes every epoch's batches new, and
# sequences that share a batch still end at nearly the same step.
MIXING = 0.1


class Padded(NamedTuple):
    """The events of a batch, padded with zeros to the longest sequence, T events.

    Attributes:
        values: (B, T, F) float32.
        timespans: (B, T) float32.
        times: (B, T) float64.
        observed: (B, T, F) bool; None if everything was observed.
        mask: (B, T) bool, true for events and false for padding.
    """

    values: Tensor
    timespans: Tensor
    times: Tensor
    observed: Tensor | None
    mask: Tensor


@dataclass(frozen=True)
class Batch:
    """B sequences of N events in all, end to end without padding; `rows` says where each one lies.

    Args:
        values: (N, F) float32; 0 where a value was not observed.
        timespans: (N,) float32, the gap before each event; finite, never negative.
        times: (N,) float64, the absolute time of each event.
        rows: where the events of each sequence lie.
        observed: (N, F) bool; None if everything was observed.
        targets: (B, ...), or (N, ...) with one target per event; int64 or float32; None without any.
        static: (B, K) float32; None without any.
        static_observed: (B, K) bool; None if every static value is known.
        index: (B,) int64, the position of each sequence in the `Sequences` that it came from.
        weights: (B,) float32, how much each sequence counts in training; None if all count the same.
    """

    values: Tensor
    timespans: Tensor
    times: Tensor
    rows: Rows
    observed: Tensor | None
    targets: Tensor | None
    static: Tensor | None
    static_observed: Tensor | None
    index: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Tensor:
        """(B,) int64 on the CPU, the number of events of each sequence."""
        return self.rows.lengths

    def padded(self) -> Padded:
        """The events padded with zeros to the longest sequence; `batch.rows.pad(targets)` pads targets per event."""
        pad, observed = self.rows.pad, self.observed
        return Padded(
            values=pad(self.values),
            timespans=pad(self.timespans),
            times=pad(self.times),
            observed=None if observed is None else pad(observed),
            mask=self.rows.mask.to(self.values.device),
        )

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The batch on another device, as `Tensor.to` moves a tensor; `rows` stay on the CPU."""
        return self._each(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Self:
        """The batch in page-locked memory; torch's `DataLoader` calls this."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        changed: dict[str, Any] = {
            name: change(value) for name, value in found.items() if isinstance(value, Tensor)
        }
        return replace(self, **changed)


def gather(s: Sequences, index: Array) -> Batch:
    """The sequences at these positions as tensors."""
    lengths = s.lengths[index]
    events = concatenated_ranges(s.offsets[:-1][index], lengths)

    def chosen(array: Array | None, positions: Array) -> Tensor | None:
        return None if array is None else torch.from_numpy(array[positions])

    return Batch(
        values=torch.from_numpy(s.values[events]),
        timespans=torch.from_numpy(s.timespans[events]),
        times=torch.from_numpy(s.times[events]),
        rows=Rows.flat(torch.from_numpy(lengths)),
        observed=chosen(s.observed, events),
        targets=chosen(s.targets, events if s.per_step else index),
        static=chosen(s.static, index),
        static_observed=chosen(s.static_observed, index),
        index=torch.from_numpy(np.array(index)),
        weights=chosen(s.weights, index),
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
        check_count("batch_size", batch_size)
        check_count("seed", seed, 0)
        check_flag("shuffle", shuffle)
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


class Examples(Protocol):
    """What batches are made of: `Sequences`, or `Cuts` of them."""

    @property
    def lengths(self) -> Array: ...

    def __len__(self) -> int: ...

    def batch(self, index: ArrayLike) -> Batch: ...

    def batches(
        self, batch_size: int, *, shuffle: bool = ..., seed: int = ..., num_workers: int = ...
    ) -> DataLoader[Batch]: ...


class _Items(Dataset[Batch]):
    """Examples as a map-style dataset whose items are fetched a batch at a time."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Batch:
        return self.examples.batch([index])

    def __getitems__(self, index: list[int]) -> Batch:
        return self.examples.batch(index)


def _as_is(batch: Any) -> Any:
    return batch


def loader(
    examples: Examples, batch_size: int, shuffle: bool, seed: int, num_workers: int, pin_memory: bool
) -> DataLoader[Batch]:
    return DataLoader(
        _Items(examples),
        batch_sampler=LengthBatches(examples.lengths, batch_size, shuffle=shuffle, seed=seed),
        collate_fn=_as_is,
        num_workers=num_workers,
        pin_memory=pin_memory,
        # DataLoader draws a seed for its workers every epoch; its own generator leaves torch's global one
        # alone.
        generator=torch.Generator().manual_seed(seed),
    )
