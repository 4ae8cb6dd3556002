"""`Sequences`: many event sequences of different lengths, stored end to end without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lapse.extras import extra
from lapse.sequences.checks import SEQUENCE_FIELDS, STEP_FIELDS, check_kinds, check_shapes, positions

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from lapse.sequences.batches import Batch

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Sequences:
    """Irregularly-sampled sequences: N events in S sequences, with F features per event.

    Build one with `from_frame`, `from_long` or `from_arrays`, which check their input; the constructor checks
    shapes only. Sequence `i` is rows `offsets[i]:offsets[i + 1]`, in order of time.

    Args:
        values: (N, F) float32; 0 where a value was not observed.
        times: (N,) float64, absolute, counted in `unit`.
        offsets: (S + 1,) int64, where each sequence begins and ends; rises from 0 to N.
        observed: (N, F) bool; None if every value was observed.
        targets: (S, ...), or (N, ...) with `per_step`; int64 for classes, float32 for numbers; NaN where a target is
            not known, for which classes are float32 too; None without any.
        per_step: whether there is one target per event instead of one per sequence.
        static: (S, K) float32, what does not change within a sequence; None without any.
        static_observed: (S, K) bool; None if every static value is known.
        starts: (S,) float64, the time at which the clock of each sequence started; None if that is its first event.
        ids: (S,), what the table called each sequence; two pieces of one sequence share its id.
        groups: (S,), what must not be split over two parts, such as the patient of several stays.
        weights: (S,) float32, how much each sequence counts in training; None if all count the same.
        features: the names of the F features.
        static_features: the names of the K static features.
        categories: for each feature or static feature that holds words, its words; the values are then positions
            in this tuple.
        classes: the label of each class index, if the table had words for targets.
        target_names: what the table called the columns of its targets.
        unit: the unit of time, such as "h"; None if nobody said.
        origin: the date that is time 0, if the table had dates; in UTC if they had a time zone.
        zone: the time zone of the table's dates, in which `cut_at` reads a date.
    """

    values: Array
    times: Array
    offsets: Array
    observed: Array | None = None
    targets: Array | None = None
    per_step: bool = False
    static: Array | None = None
    static_observed: Array | None = None
    starts: Array | None = None
    ids: Array | None = None
    groups: Array | None = None
    weights: Array | None = None
    features: tuple[str, ...] = ()
    static_features: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[Any, ...] | None = None
    target_names: tuple[str, ...] = ()
    unit: str | None = None
    origin: str | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        names = self.features or tuple(f"feature {i}" for i in range(self.values.shape[1]))
        object.__setattr__(self, "features", names)
        words = {name: tuple(words) for name, words in self.categories.items()}
        object.__setattr__(self, "categories", words)
        check_shapes(self)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        id: str,
        time: str,
        values: str | Sequence[str],
        target: str | Sequence[str] | None = None,
        per_step: bool = False,
        static: str | Sequence[str] = (),
        group: str | None = None,
        weight: str | None = None,
        per_id: Any = None,
        unit: str | None = None,
    ) -> Sequences:
        """Sequences from a wide table: one row per event, one column per feature.

        Rows may come in any order: they are sorted by id, then by time, and rows of the same time stay in the order of
        the table.

        Args:
            frame: a pandas, polars or pyarrow table.
            id: the column that says to which sequence a row belongs.
            time: the column of times: numbers, dates or durations.
            values: the columns of features. NaN or null means "not observed", and a column may be missing throughout.
                Columns of words become categories.
            target: the column, or columns, to predict. Words become class indices, and `classes` keeps the words.
            per_step: whether every row has a target of its own; otherwise all rows of a sequence share one.
            static: columns that do not change within a sequence; numbers or words, null if not known.
            group: the column that says which sequences must stay together in a split.
            weight: the column that says how much each sequence counts in training.
            per_id: a second table with one row per id, in which `target` (unless `per_step`), `static`, `group` and
                `weight` are looked up instead.
            unit: the unit of time: "s", "min", "h", "D", ... Dates and durations are counted in it; for a column of
                numbers it is the unit that they have.

        >>> import pandas as pd
        >>> table = pd.DataFrame({"who": ["a", "a", "b"], "at": [0.0, 2.5, 1.0], "pulse": [61, 64, None]})
        >>> Sequences.from_frame(table, id="who", time="at", values="pulse")
        Sequences(2 sequences, 3 events, 1 feature; lengths 1 to 2; 33.3% of values not observed)
        """
        with extra("tables"):
            from lapse.sequences.frames import read_wide

        return read_wide(frame, id, time, values, target, per_step, static, group, weight, per_id, unit)

    @classmethod
    def from_long(
        cls,
        frame: Any,
        *,
        id: str,
        time: str,
        variable: str,
        value: str,
        variables: Sequence[str] | None = None,
        target: str | None = None,
        static: str | Sequence[str] = (),
        group: str | None = None,
        weight: str | None = None,
        per_id: Any = None,
        unit: str | None = None,
    ) -> Sequences:
        """Sequences from a long table: one row per measurement, which is named by a column.

        Measurements of one id at one time become one event, in which the other variables are not observed. A variable
        that was measured twice at one time gives a second event at that time, with a gap of 0: nothing is averaged or
        lost.

        Args:
            frame: a pandas, polars or pyarrow table.
            id: the column that says to which sequence a row belongs.
            time: the column of times: numbers, dates or durations.
            variable: the column that names what was measured.
            value: the column of measurements, which are numbers.
            variables: the features and their order, if not every variable that is found, sorted by name. Any other
                variable in the table is then an error.
            target: the column to predict, one value per sequence.
            static: columns that do not change within a sequence.
            group: the column that says which sequences must stay together in a split.
            weight: the column that says how much each sequence counts in training.
            per_id: a second table with one row per id, in which `target`, `static`, `group` and `weight` are looked up.
            unit: the unit of time, as in `from_frame`.
        """
        with extra("tables"):
            from lapse.sequences.frames import read_long

        return read_long(
            frame, id, time, variable, value, variables, target, static, group, weight, per_id, unit
        )

    @classmethod
    def from_arrays(
        cls,
        values: Sequence[ArrayLike],
        times: Sequence[ArrayLike],
        *,
        targets: ArrayLike | Sequence[ArrayLike] | None = None,
        per_step: bool = False,
        static: ArrayLike | None = None,
        starts: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        features: Sequence[str] = (),
        static_features: Sequence[str] = (),
        unit: str | None = None,
    ) -> Sequences:
        """Sequences from lists that hold one array per sequence.

        Args:
            values: one array (T, F) or (T,) per sequence; NaN means "not observed".
            times: one array (T,) per sequence.
            targets: one entry per sequence, or with `per_step` one array of T entries per sequence.
            per_step: whether every event has a target of its own.
            static: (S, K), what does not change within a sequence; NaN if not known.
            starts: (S,), when the clock of each sequence started, if that is known to be before its first event.
            ids: (S,), a name per sequence; their numbers if not given.
            groups: (S,), which sequences must stay together in a split.
            weights: (S,), how much each sequence counts in training.
            features: the names of the features.
            static_features: the names of the static features.
            unit: the unit of time.
        """
        from lapse.sequences.arrays import read_arrays

        return read_arrays(
            values,
            times,
            targets,
            per_step,
            static,
            starts,
            ids,
            groups,
            weights,
            features,
            static_features,
            unit,
        )

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> Sequences:
        """Sequences saved by `save`, memory-mapped: only what is used is kept in memory.

        Args:
            path: the file.
            verify: whether to read the file once and compare it with the digest in it, so that a damaged file is
                refused. Without that opening is instant, for files so large that reading them through takes too
                long, and a changed value goes unnoticed.
        """
        from lapse.sequences.storage import load

        return load(path, verify)

    def save(self, path: str | Path) -> None:
        """Write everything to one file (safetensors, no pickle); the file appears whole or not at all.

        Args:
            path: the file.
        """
        from lapse.sequences.storage import save

        save(self, path)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int | slice | ArrayLike) -> Sequences:
        """The chosen sequences, in the order asked for: an int, a slice, positions, or a mask."""
        chosen = np.arange(len(self))[index]  # type: ignore[index]
        return self.take(np.atleast_1d(chosen))

    def __repr__(self) -> str:
        n = len(self)
        lengths = f"; lengths {self.lengths.min()} to {self.lengths.max()}" if n else ""
        missing = f"; {self.missing:.1%} of values not observed" if self.observed is not None else ""
        return (
            f"Sequences({_count(n, 'sequence')}, {_count(self.num_events, 'event')}, "
            f"{_count(self.num_features, 'feature')}{lengths}{missing})"
        )

    @property
    def shape(self) -> tuple[int]:
        """(S,): as an array of sequences, which is how scikit-learn counts, splits and indexes them."""
        return (len(self),)

    @property
    def num_events(self) -> int:
        return len(self.times)

    @property
    def num_features(self) -> int:
        return int(self.values.shape[1])

    @cached_property
    def lengths(self) -> Array:
        """(S,) int64, the number of events in each sequence."""
        return np.diff(self.offsets)

    @cached_property
    def timespans(self) -> Array:
        """(N,) float32, the gap before each event; 0 before the first event of a sequence unless `starts` is given."""
        gaps = np.diff(self.times, prepend=self.times[:1])
        firsts = self.offsets[:-1]
        gaps[firsts] = 0.0 if self.starts is None else self.times[firsts] - self.starts
        return gaps.astype(np.float32)

    @property
    def gaps(self) -> Array:
        """The gaps between two events of one sequence: `timespans` without the first of each sequence."""
        inside = np.ones(self.num_events, bool)
        inside[self.offsets[:-1]] = False
        return self.timespans[inside]

    @cached_property
    def median_gap(self) -> float:
        """The median of the gaps that are not 0, a natural unit of time for a model; 1 if there is no such gap.

        Events at the same time are left out, since a table with many of them would have 0 for its unit.
        """
        gaps = self.gaps
        positive = gaps[gaps > 0]
        return float(np.median(positive)) if len(positive) else 1.0

    @property
    def missing(self) -> float:
        """The fraction of values that were not observed."""
        if self.observed is None or not self.observed.size:
            return 0.0
        return 1.0 - np.count_nonzero(self.observed) / self.observed.size

    def take(self, index: ArrayLike) -> Sequences:
        """The sequences at these positions, in this order.

        Args:
            index: (k,) positions, or a mask (S,).
        """
        index = positions(len(self), index)
        lengths = self.lengths[index]
        return self.gather(concatenated_ranges(self.offsets[:-1][index], lengths), lengths, index)

    def gather(self, rows: Array, lengths: Array, index: Array) -> Sequences:
        """New sequences made of rows of these.

        Args:
            rows: the rows of all new sequences, end to end.
            lengths: how many rows each new sequence has.
            index: for each new sequence, the position of the one whose id, target and static features it has.
        """
        rowwise = STEP_FIELDS + (("targets",) if self.per_step else ())
        changed: dict[str, Any] = {name: _picked(getattr(self, name), rows) for name in rowwise}
        changed |= {name: _picked(getattr(self, name), index) for name in SEQUENCE_FIELDS}
        if not self.per_step:
            changed["targets"] = _picked(self.targets, index)
        return replace(self, **changed, offsets=offsets_of(lengths))

    def split_by_sequence(
        self, fractions: Sequence[float] = (0.8, 0.1, 0.1), *, seed: int = 0, stratify: bool = False
    ) -> tuple[Sequences, ...]:
        """Whole sequences dealt at random into parts.

        Args:
            fractions: the share of each part; together 1.
            seed: decides who comes into which part.
            stratify: whether every class has the same share in each part, as far as whole numbers allow.
        """
        from lapse.sequences.splits import by_sequence

        return by_sequence(self, fractions, seed, stratify)

    def split_by_group(
        self, fractions: Sequence[float] = (0.8, 0.1, 0.1), *, seed: int = 0
    ) -> tuple[Sequences, ...]:
        """Whole groups dealt at random into parts: no group (a patient, a machine) is in two of them.

        Args:
            fractions: the share of each part, counted in groups; together 1.
            seed: decides which group comes into which part.
        """
        from lapse.sequences.splits import by_group

        return by_group(self, fractions, seed)

    def split_by_time(self, *at: Any) -> tuple[Sequences, ...]:
        """The sequences that end before a time, and those that begin at or after it.

        Sequences that cross a boundary are in no part, since they would show a model of the past its future. `cut_at`
        cuts them instead.

        Args:
            at: one or more boundaries: numbers in `unit`, or dates if the table had dates. A date without a time zone
                is one of the table's own zone.
        """
        from lapse.sequences.splits import by_time

        return by_time(self, at)

    def cut_at(self, at: Any) -> tuple[Sequences, Sequences]:
        """The events before a time, and those from then on; the later piece remembers the gap across the cut.

        Args:
            at: a number in `unit`, or a date if the table had dates.
        """
        from lapse.sequences.splits import cut

        return cut(self, at)

    def bin(self, width: float | str, *, counts: bool = False) -> Sequences:
        """The same sequences with at most one event per bin of time.

        The value of a feature is the mean of its observations in the bin (the last one for a category), and "not
        observed" where there was none. A bin without any event is left out: the gap to the next event tells of it.
        An event stands at the end of its bin, which is when its mean is known, and keeps the target of the last event
        in it where there is one target per step. Bins begin at multiples of the width: counted from time 0, or for
        dates from the start of 1970 (in UTC if they have a time zone), so that the bins of a sequence do not depend on
        the rest of the table.

        Args:
            width: a number in the unit of these sequences, or a number with a unit: "1h", "30min", "7D".
            counts: whether to add a feature "NAME count" for each feature, with the number of its observations.
        """
        from lapse.sequences.bins import gather_bins

        return gather_bins(self, width, counts)

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> DataLoader[Batch]:
        """A PyTorch `DataLoader` of `Batch`es, for a plain loop or for Lightning.

        Sequences of similar length share a batch, so that none waits for a much longer one.

        Args:
            batch_size: sequences per batch.
            shuffle: whether every pass over the loader is a new epoch in a new order. Otherwise batches come in order
                of length, and `Batch.index` says where each row belongs.
            seed: decides the order of every epoch, together with the number of the epoch.
            num_workers: processes that make batches; 0 makes them where they are used.
            pin_memory: whether batches are put into page-locked memory, for a GPU.
        """
        from lapse.sequences.batches import loader

        return loader(self, batch_size, shuffle, seed, num_workers, pin_memory)

    def batch(self, index: ArrayLike) -> Batch:
        """Some sequences as tensors, end to end; `Batch.padded` pads them.

        Args:
            index: their positions, or a mask (S,).
        """
        from lapse.sequences.batches import gather

        return gather(self, positions(len(self), index))


def concatenated_ranges(starts: Array, lengths: Array) -> Array:
    """`[start, ..., start + length - 1]` for each pair, end to end, without a loop."""
    ends = np.cumsum(lengths)
    first: Array = np.repeat(starts - (ends - lengths), lengths)
    return first + np.arange(len(first))


def offsets_of(lengths: Array) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def plain(value: Any) -> Any:
    """A NumPy scalar as Python's own, which an error message shows as the table does."""
    return value.item() if isinstance(value, np.generic) else value


def _picked(array: Array | None, index: Array) -> Array | None:
    return None if array is None else array[index]


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


FIELD_NAMES = tuple(each.name for each in fields(Sequences))
