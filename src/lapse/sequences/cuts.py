"""Sequences that are cut at some time, and what is asked about the time after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import DataLoader

from lapse.arguments import as_names, check_count, check_kind, check_number
from lapse.sequences.arrays import as_float32
from lapse.sequences.batches import Batch, gather, loader
from lapse.sequences.checks import positions
from lapse.sequences.ragged import Array, Sequences, concatenated_ranges, offsets_of


@dataclass(frozen=True, kw_only=True)
class CutBatch(Batch):
    """A batch of histories, and what is asked about each: B cuts with Q queries in all.

    Args:
        queries: one row per cut and one event per query, without features; its targets are what is to be answered.
        spans: (Q,) float32, the time from the last event of the history to each query; never negative.
    """

    queries: Batch
    spans: Tensor

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(super()._each(change), queries=self.queries._each(change))


@dataclass(frozen=True, eq=False, repr=False)
class Cuts:
    """Sequences up to some time each, with queries about later times: C cuts with Q queries in all.

    `random` draws them for training, `until` cuts all sequences at one time, `at` and `ahead` are for asking. The
    history of a cut is the first events of a sequence, and nothing after them. It is copied batch by batch, so that
    many cuts of a sequence take little memory.

    Args:
        sequences: the whole sequences.
        index: (C,) int64, the position of the sequence that each cut is of.
        lengths: (C,) int64, the number of events that are the history; at least 1.
        queries: C sequences without features: one event per query, at the time that is asked about, with one row of
            targets per query if the answers are known; NaN where one is not.
    """

    sequences: Sequences
    index: Array
    lengths: Array
    queries: Sequences

    def __post_init__(self) -> None:
        check_kind("sequences", self.sequences, Sequences)
        check_kind("queries", self.queries, Sequences)
        if not (np.isfinite(self.spans) & (self.spans >= 0)).all():
            raise ValueError(
                "the times that are asked about must not come before the last known event, nor be further from it than "
                f"float32 can hold; got {self.spans.min():g} to {self.spans.max():g} after it"
            )

    @classmethod
    def random(
        cls,
        sequences: Sequences,
        targets: str | Sequence[str] | None = None,
        *,
        count: int = 4,
        queries: int | None = 16,
        horizon: float | None = None,
        seed: int = 0,
    ) -> Cuts:
        """Cuts at random events; what is asked about are later events, at which any target was observed.

        Events at the time of the cut belong to the history, however many there are. A sequence without two different
        times has no cut.

        Args:
            sequences: the sequences to cut.
            targets: the features whose values are asked for; None for all that hold numbers.
            count: the largest number of cuts per sequence; no two are the same.
            queries: the largest number of queries per cut, drawn at random; None for all later events.
            horizon: the longest time after the cut that is asked about, in the unit of the sequences; None for any.
            seed: decides what is drawn.
        """
        check_kind("sequences", sequences, Sequences)
        check_count("count", count)
        check_count("seed", seed, 0)
        if queries is not None:
            check_count("queries", queries)
        if horizon is not None:
            check_number("horizon", horizon, "a finite time that is not negative", least=0.0)
        names = _target_names(sequences, targets)
        truth = _truth(sequences, names)
        generator = np.random.default_rng(seed)
        drawn = [
            (position, *cut)
            for position in range(len(sequences))
            for cut in _drawn(sequences, position, truth, count, queries, horizon, generator)
        ]
        if not drawn:
            raise ValueError(
                f"no sequence has an event with a known value of {', '.join(names)} after another event"
                f"{'' if horizon is None else f' and within {horizon:g} of it'}; there is nothing to forecast"
            )
        index = np.array([position for position, _, _ in drawn], np.int64)
        lengths = np.array([length for _, length, _ in drawn], np.int64)
        events = np.concatenate([asked for _, _, asked in drawn])
        counts = np.array([len(asked) for _, _, asked in drawn])
        return cls(
            sequences,
            index,
            lengths,
            _queries(sequences, index, counts, sequences.times[events], truth[events], names),
        )

    @classmethod
    def until(cls, sequences: Sequences, time: float, targets: str | Sequence[str] | None = None) -> Cuts:
        """One cut per sequence, at the same time for all; what is asked about are all later events.

        A sequence without an event up to that time, or without a known target after it, has no cut.

        Args:
            sequences: the sequences to cut.
            time: the last time of the histories, in the unit of the sequences.
            targets: the features whose values are asked for; None for all that hold numbers.
        """
        names = _target_names(sequences, targets)
        truth = _truth(sequences, names)
        sequence = np.repeat(np.arange(len(sequences)), sequences.lengths)
        past = sequences.times <= time
        asked = ~past & ~np.isnan(truth).all(axis=1)
        known, counts = (np.bincount(sequence[which], minlength=len(sequences)) for which in (past, asked))
        index = np.flatnonzero((known > 0) & (counts > 0))
        if not len(index):
            raise ValueError(
                f"no sequence has an event up to time {time:g} and a known value of {', '.join(names)} after it; there "
                "is nothing to forecast"
            )
        asked &= known[sequence] > 0
        queries = _queries(sequences, index, counts[index], sequences.times[asked], truth[asked], names)
        return cls(sequences, index, known[index], queries)

    @classmethod
    def at(cls, sequences: Sequences, times: Sequence[ArrayLike] | ArrayLike) -> Cuts:
        """Queries about any times. Each one is answered from the events up to its time, and from no later one.

        Args:
            sequences: what is asked about.
            times: in the unit of the sequences: one list per sequence, or one list for all of them.
        """
        check_kind("sequences", sequences, Sequences)
        asked = _per_sequence(sequences, times)
        counts = np.array([len(each) for each in asked], np.int64)
        sequence, moments = np.repeat(np.arange(len(sequences)), counts), np.concatenate([[], *asked])
        known = _events_up_to(sequences, asked)
        if (early := np.flatnonzero(known == 0)).size:
            first = int(sequence[early[0]])
            raise ValueError(
                f"id {_ids(sequences)[first]} is asked about time {moments[early[0]]:g}, before its first event at "
                f"{sequences.times[sequences.offsets[first]]:g}; nothing is known of it then"
            )
        # Queries that follow each other and have the same history are one cut.
        new = np.flatnonzero((np.diff(sequence, prepend=-1) != 0) | (np.diff(known, prepend=-1) != 0))
        index, lengths = sequence[new], known[new]
        sizes = np.diff(np.append(new, len(moments)))
        return cls(sequences, index, lengths, _queries(sequences, index, sizes, moments))

    @classmethod
    def ahead(cls, sequences: Sequences, spans: ArrayLike) -> Cuts:
        """Queries about the time after the last event of each sequence.

        Args:
            sequences: what is asked about.
            spans: how long after the last event, in the unit of the sequences; the same for every sequence.
        """
        check_kind("sequences", sequences, Sequences)
        steps = _numbers("ahead", spans)
        if (steps < 0).any():
            raise ValueError(f"ahead must be times that are finite and not negative, got {spans!r}")
        last = sequences.times[sequences.offsets[1:] - 1]
        sizes = np.full(len(sequences), len(steps))
        everyone = np.arange(len(sequences))
        moments = (last[:, None] + steps).ravel()
        return cls(sequences, everyone, sequences.lengths, _queries(sequences, everyone, sizes, moments))

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"Cuts({len(self):,} cuts of {len(np.unique(self.index)):,} sequences, {len(self.spans):,} queries)"

    @property
    def history(self) -> Sequences:
        """The events up to each cut, as sequences of their own."""
        return self._history(np.arange(len(self)))

    @cached_property
    def spans(self) -> Array:
        """(Q,) float32, the time from the last event of the history to each query."""
        last = self.sequences.times[self.sequences.offsets[self.index] + self.lengths - 1]
        return as_float32(self.queries.times - np.repeat(last, self.queries.lengths))

    def batch(self, index: ArrayLike) -> CutBatch:
        """Some cuts as tensors, end to end.

        Args:
            index: their positions.
        """
        chosen = positions(len(self), index) % len(self)
        history = gather(self._history(chosen), np.arange(len(chosen)))
        places = concatenated_ranges(self.queries.offsets[chosen], self.queries.lengths[chosen])
        parts: dict[str, Any] = {each.name: getattr(history, each.name) for each in fields(history)}
        parts |= {"index": torch.from_numpy(np.array(chosen)), "targets": None, "weights": None}
        return CutBatch(
            **parts, queries=gather(self.queries, chosen), spans=torch.from_numpy(self.spans[places])
        )

    def batches(
        self, batch_size: int, *, shuffle: bool = True, seed: int = 0, num_workers: int = 0
    ) -> DataLoader[Batch]:
        """A PyTorch `DataLoader` of `CutBatch`es; histories of similar length share a batch.

        Args:
            batch_size: cuts per batch.
            shuffle: whether every pass over the loader is a new epoch in a new order.
            seed: decides the order of every epoch, together with the number of the epoch.
            num_workers: processes that make batches; 0 makes them where they are used.
        """
        return loader(self, batch_size, shuffle, seed, num_workers, pin_memory=False)

    def _history(self, cuts: Array) -> Sequences:
        index, lengths = self.index[cuts], self.lengths[cuts]
        plain = replace(self.sequences, targets=None, per_step=False)
        return plain.gather(concatenated_ranges(plain.offsets[index], lengths), lengths, index)


def _drawn(
    s: Sequences,
    position: int,
    truth: Array,
    count: int,
    queries: int | None,
    horizon: float | None,
    generator: np.random.Generator,
) -> list[tuple[int, Array]]:
    """The cuts of one sequence: how many events are the history, and the rows of the events that are asked about."""
    first, end = s.offsets[position], s.offsets[position + 1]
    times = s.times[first:end]
    askable = np.flatnonzero(~np.isnan(truth[first:end]).all(axis=1))
    # The next event that can be asked about comes after the time of a cut, and within the horizon.
    following = np.searchsorted(times[askable], times, side="right")
    can = following < len(askable)
    if horizon is not None:
        can[can] = times[askable[following[can]]] <= times[can] + horizon
    can[:-1] &= times[1:] > times[:-1]  # events at one time are never apart
    cuts = np.flatnonzero(can)
    found = []
    for cut in np.sort(generator.permutation(cuts)[:count]):
        asked = askable[following[cut] :]
        if horizon is not None:
            asked = asked[times[asked] <= times[cut] + horizon]
        if queries is not None:
            asked = np.sort(generator.permutation(asked)[:queries])
        found.append((int(cut) + 1, first + asked))
    return found


def _target_names(s: Sequences, targets: str | Sequence[str] | None) -> tuple[str, ...]:
    numbers = tuple(name for name in s.features if name not in s.categories)
    names = numbers if targets is None else as_names("targets", targets)
    if unknown := [name for name in names if name not in numbers]:
        raise ValueError(f"{unknown[0]!r} cannot be forecast; expected features that are numbers: {numbers}")
    if not names:
        raise ValueError("no feature holds numbers, so there is nothing to forecast")
    return names


def _truth(s: Sequences, names: tuple[str, ...]) -> Array:
    """(N, K) the values of some features, NaN where they were not observed."""
    columns = [s.features.index(name) for name in names]
    values = s.values[:, columns].astype(np.float32)
    return values if s.observed is None else np.where(s.observed[:, columns], values, np.float32(np.nan))


def _queries(
    s: Sequences,
    index: Array,
    counts: Array,
    times: Array,
    targets: Array | None = None,
    names: tuple[str, ...] = (),
) -> Sequences:
    """The queries of all cuts as sequences without features."""
    return Sequences(
        values=np.zeros((len(times), 0), np.float32),
        times=times,
        offsets=offsets_of(counts),
        targets=targets,
        per_step=True,
        ids=_ids(s)[index],
        weights=None if s.weights is None else s.weights[index],
        target_names=names,
        unit=s.unit,
        origin=s.origin,
        zone=s.zone,
    )


def _ids(s: Sequences) -> Array:
    return np.arange(len(s)) if s.ids is None else s.ids


def _per_sequence(s: Sequences, times: Sequence[ArrayLike] | ArrayLike) -> list[Array]:
    """One array of finite times per sequence."""
    given: Any = times
    alone = not hasattr(given, "__len__") or isinstance(given, str) or not len(given)
    if alone or np.ndim(next(iter(given))) == 0:
        return [_numbers("times", given)] * len(s)
    if len(given) != len(s):
        raise ValueError(f"times has {len(given)} lists for {len(s)} sequences; expected one for each")
    return [_numbers("times", each) for each in given]


def _numbers(name: str, given: Any) -> Array:
    """(k,) float64 finite numbers, at least one; text, dates and truths are none."""
    try:
        found = np.atleast_1d(np.asarray(given))
        if found.ndim == 1 and found.size and found.dtype.kind in "iuf" and np.isfinite(found).all():
            return found.astype(np.float64)
    except ValueError:  # lists of different lengths
        pass
    raise ValueError(
        f"{name} must be one or more finite numbers, in the unit of the sequences, got {given!r}"
    )


def _events_up_to(s: Sequences, asked: list[Array]) -> Array:
    """(Q,) the number of events of its sequence up to the time of each query."""
    counts = [
        np.searchsorted(s.times[first:end], times, side="right")
        for first, end, times in zip(s.offsets[:-1], s.offsets[1:], asked, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *counts])
