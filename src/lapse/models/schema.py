"""What a model knows of the table that it was trained on, and how other tables are brought into the same form."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lapse.arguments import check_kind
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.sequences.units import NANOSECONDS


class SchemaWarning(UserWarning):
    """A table differs from the training table in a way that the model can cope with."""


@dataclass(frozen=True)
class Column:
    """One feature, or static feature, of the training table.

    Args:
        name: what the table calls it.
        optional: whether it was missing anywhere in the training table.
        words: the categories that it had there, sorted; None for a column of numbers.
    """

    name: str
    optional: bool = False
    words: tuple[str, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the numbers that a model sees of it: one, or one per category."""
        return (self.name,) if self.words is None else tuple(f"{self.name}={word}" for word in self.words)


@dataclass(frozen=True)
class Schema:
    """The form of the training table, into which every other table is brought before a model sees it.

    Args:
        features: the columns of features, in the order in which the model takes them.
        static: the columns of static features.
        unit: the unit in which the training table counted time; None if nobody said.
        unused: columns without any value in the training table, which the model therefore does not know.
    """

    features: tuple[Column, ...]
    static: tuple[Column, ...] = ()
    unit: str | None = None
    unused: tuple[str, ...] = ()

    @classmethod
    def of(cls, train: Sequences) -> Schema:
        """The schema of the training split. A column without any value is left out, with a `SchemaWarning`."""
        features, static = _columns(_features(train)), _columns(_static(train))
        used = {column.name for column in features + static}
        unused = tuple(name for name in train.features + train.static_features if name not in used)
        if not features:
            raise ValueError(
                f"no value was ever observed in {_listed(unused)}: there is nothing to learn from"
            )
        if unused:
            _warn(f"no value was ever observed in {_listed(unused)}, so that the model does not use it")
        return cls(features, static, train.unit, unused)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the numbers that a model sees at every event."""
        return _inputs(self.features)

    @property
    def static_inputs(self) -> tuple[str, ...]:
        """The names of the numbers that a model sees once per sequence."""
        return _inputs(self.static)

    @property
    def missing(self) -> bool:
        """Whether any feature was missing anywhere in the training table."""
        return any(column.optional for column in self.features)

    def conform(self, sequences: Sequences) -> Sequences:
        """The sequences in the form that the model takes.

        Columns are found by name and put in order, each word becomes one number per category, and time is counted in
        the unit of the training table. What the model can cope with is named in a `SchemaWarning` and treated as not
        observed: a column that is missing here and was missing at times in training, a word that never occurred
        there. Columns that the model does not know are named too. Everything else raises ValueError: a missing column
        that training always had, words for numbers or numbers for words, a unit of time that cannot be converted.

        Args:
            sequences: any sequences. Those that have the right form already are returned as they are.
        """
        check_kind(
            "sequences", sequences, Sequences, "make it with Sequences.from_frame or Sequences.from_arrays"
        )
        sequences = self.in_unit(sequences)
        features, static = _features(sequences), _static(sequences)
        new_features = _fitted(features, self.features, self.unused)
        new_static = _fitted(static, self.static, self.unused)
        if new_features is features and new_static is static:
            return sequences
        return replace(
            sequences,
            values=new_features.values,
            observed=new_features.observed,
            features=new_features.names,
            static=new_static.values if self.static else None,
            static_observed=new_static.observed if self.static else None,
            static_features=new_static.names,
            categories={},
        )

    def restricted(self, sequences: Sequences) -> Sequences:
        """The sequences with the columns of the training table alone, in its order; words stay words.

        Args:
            sequences: any sequences; a column that they lack is not observed throughout.
        """
        features, static = _features(sequences), _static(sequences)
        values, observed = _gathered(features, self.features)
        static_values, static_observed = _gathered(static, self.static)
        names = {column.name for column in self.features + self.static}
        return replace(
            sequences,
            values=values,
            observed=observed,
            features=tuple(column.name for column in self.features),
            static=static_values if self.static else None,
            static_observed=static_observed if self.static else None,
            static_features=tuple(column.name for column in self.static),
            categories={name: words for name, words in sequences.categories.items() if name in names},
        )

    def in_unit(self, s: Sequences) -> Sequences:
        """The sequences with their times in the unit of the training table.

        Args:
            s: any sequences.
        """
        if s.unit == self.unit:
            return s
        if s.unit not in NANOSECONDS or self.unit not in NANOSECONDS:
            raise ValueError(
                f"the model was trained on times with unit={self.unit!r}, and these sequences have "
                f"unit={s.unit!r}, which cannot be converted; read both tables with one of {list(NANOSECONDS)}"
            )
        factor = NANOSECONDS[s.unit] / NANOSECONDS[self.unit]
        starts = None if s.starts is None else s.starts * factor
        return replace(s, times=s.times * factor, starts=starts, unit=self.unit)

    def config(self) -> dict[str, Any]:
        """Plain values from which `from_config` builds an equal schema."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Schema:
        """The schema whose `config` method returned these values.

        Args:
            config: the plain values; tuples may have become lists.
        """

        def columns(stored: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
            return tuple(
                Column(c["name"], c["optional"], None if c["words"] is None else tuple(c["words"]))
                for c in stored
            )

        features, static = columns(config["features"]), columns(config["static"])
        return cls(features, static, config["unit"], tuple(config["unused"]))


class _Block(NamedTuple):
    """The features of a table, or its static features."""

    kind: str
    names: tuple[str, ...]
    values: Array  # (rows, columns)
    observed: Array | None
    categories: Mapping[str, tuple[str, ...]]

    def column(self, name: str) -> tuple[Array, Array]:
        """Values (rows,) and which of them were observed."""
        if name not in self.names:
            return np.zeros(len(self.values), np.float32), np.zeros(len(self.values), bool)
        index = self.names.index(name)
        everything = np.ones(len(self.values), bool)
        return self.values[:, index], everything if self.observed is None else self.observed[:, index]


def _features(s: Sequences) -> _Block:
    words = {name: words for name, words in s.categories.items() if name in s.features}
    return _Block("feature", s.features, s.values, s.observed, words)


def _static(s: Sequences) -> _Block:
    values = np.zeros((len(s), 0), np.float32) if s.static is None else s.static
    words = {name: words for name, words in s.categories.items() if name in s.static_features}
    return _Block("static feature", s.static_features, values, s.static_observed, words)


def _columns(block: _Block) -> tuple[Column, ...]:
    """The columns of a training table that hold any value."""
    observed = {name: block.column(name)[1] for name in block.names}
    return tuple(
        Column(name, not observed[name].all(), block.categories.get(name))
        for name in block.names
        if observed[name].any()
    )


def _gathered(block: _Block, columns: tuple[Column, ...]) -> tuple[Array, Array]:
    """(rows, columns) values as the table has them, and which of them were observed."""
    parts = [block.column(column.name) for column in columns]
    values = [np.zeros((len(block.values), 0), np.float32), *(part[0][:, None] for part in parts)]
    observed = [np.zeros((len(block.values), 0), bool), *(part[1][:, None] for part in parts)]
    return np.concatenate(values, 1), np.concatenate(observed, 1)


def _inputs(columns: tuple[Column, ...]) -> tuple[str, ...]:
    return tuple(name for column in columns for name in column.inputs)


def _fitted(block: _Block, columns: tuple[Column, ...], unused: tuple[str, ...]) -> _Block:
    """The block with these columns; the block itself if it has them."""
    _tell_of_holes(block, columns)
    if block.names == _inputs(columns) and not block.categories:
        return block
    _compare_names(block, columns, unused)
    parts = [_numbers(block, column) for column in columns]
    rows = len(block.values)
    values = np.concatenate([np.zeros((rows, 0), np.float32), *(part[0] for part in parts)], 1)
    observed = np.concatenate([np.ones((rows, 0), bool), *(part[1] for part in parts)], 1)
    return _Block(block.kind, _inputs(columns), values, None if observed.all() else observed, {})


def _compare_names(block: _Block, columns: tuple[Column, ...], unused: tuple[str, ...]) -> None:
    lacking = [column for column in columns if column.name not in block.names]
    known = {column.name for column in columns} | set(unused)
    unknown = [name for name in block.names if name not in known]
    told = [f"unknown {block.kind} {_listed(unknown)} is not used"] if unknown else []
    if lacking:
        names = _listed(column.name for column in lacking)
        told.append(f"{block.kind} {names} is missing{_guess(lacking, unknown)}")
    if any(not column.optional for column in lacking):
        always = _listed(column.name for column in lacking if not column.optional)
        raise ValueError(f"{'; '.join(told)}; the model needs {always}, which training always had")
    if told:
        _warn(f"{'; '.join(told)}; what is missing is taken as not observed")


def _guess(lacking: list[Column], unknown: list[str]) -> str:
    close = [difflib.get_close_matches(column.name, unknown, n=1, cutoff=0.5) for column in lacking]
    return f" (is it {close[0][0]!r}?)" if close[0] else ""


def _numbers(block: _Block, column: Column) -> tuple[Array, Array]:
    """(rows, k) values and which of them were observed, where k is 1, or the number of categories."""
    values, observed = block.column(column.name)
    words = block.categories.get(column.name)
    if column.words is None:
        if words is not None:
            raise ValueError(f"{block.kind} {column.name!r} holds words ({_listed(words)}), expected numbers")
        return values[:, None], observed[:, None]
    if words is None and observed.any():
        raise ValueError(
            f"{block.kind} {column.name!r} holds numbers, expected words ({_listed(column.words)}); convert it to text"
        )
    code = _recoded(block, column, words or (), values, observed)
    one_hot = code[:, None] == np.arange(len(column.words))
    return one_hot.astype(np.float32), np.repeat(code[:, None] >= 0, len(column.words), axis=1)


def _recoded(block: _Block, column: Column, words: tuple[str, ...], values: Array, observed: Array) -> Array:
    """(rows,) the position of each word among those of training; -1 for what is not known."""
    assert column.words is not None
    position = {word: i for i, word in enumerate(column.words)}
    # The last entry stands for what was not observed.
    lookup = np.array([*(position.get(word, -1) for word in words), -1])
    number = np.where(observed, values, -1).astype(np.int64)
    met = {words[i] for i in np.unique(number[observed])}
    if strange := sorted(met - set(column.words)):
        _warn(
            f"{block.kind} {column.name!r} has {_listed(strange)}, which training never had (it had "
            f"{_listed(column.words)}); it is taken as not observed"
        )
    return lookup[number]


def _tell_of_holes(block: _Block, columns: tuple[Column, ...]) -> None:
    """Name the columns with values that are missing here and were never missing in training."""
    if block.observed is None:
        return
    full = {name for column in columns if not column.optional for name in (column.name, *column.inputs)}
    holes = [name for name in block.names if name in full and not block.column(name)[1].all()]
    if holes:
        _warn(
            f"{block.kind} {_listed(holes)} was never missing in training and is missing here in places; "
            "the middle of its training values is taken there"
        )


def _listed(names: Iterable[str]) -> str:
    named = [repr(name) for name in names]
    return ", ".join(named if len(named) <= 10 else [*named[:10], f"and {len(named) - 10} more"])


def _warn(message: str) -> None:
    warnings.warn(message, SchemaWarning, stacklevel=2)
