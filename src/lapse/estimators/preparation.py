"""From a user's sequences to what networks and trees are given: the same in training and for every later table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lapse.models import Schema
from lapse.sequences import Sequences
from lapse.sequences.arrays import split_missing
from lapse.sequences.ragged import Array
from lapse.sequences.summaries import LEVELS, STATISTICS, present, summarize
from lapse.stored_config import added, with_absent_fields


class Prepared(NamedTuple):
    """The two forms of the same sequences.

    Args:
        sequences: for networks: in bins, if there are any, and with summaries as static features if asked for.
        table: (S, columns) for trees, or (N, columns) where there is one answer per event; NaN where missing.
    """

    sequences: Sequences
    table: Array


@dataclass(frozen=True)
class Preparation:
    """How sequences are brought into the form in which they are learned from.

    Args:
        schema: the form of the training table.
        per_step: whether there is one answer per event.
        bin: the width of bins of time; None leaves events as they are.
        summaries: whether networks get summaries of each feature as static features.
        statistics: what a summary consists of, of `lapse.sequences.summaries.STATISTICS`.
    """

    schema: Schema
    per_step: bool
    bin: float | None = None
    summaries: bool = True
    statistics: tuple[str, ...] = added(LEVELS, before=LEVELS)

    def __post_init__(self) -> None:
        if unknown := set(self.statistics).difference(STATISTICS):
            raise ValueError(
                f"the model was fitted to statistics that this version of lapse does not know: {sorted(unknown)}; "
                f"it knows {', '.join(STATISTICS)}; load it with the version of lapse that wrote it, or fit it again"
            )

    def __call__(self, sequences: Sequences) -> Prepared:
        """Both forms of any sequences; `Schema.conform` says what is an error and what a warning.

        Args:
            sequences: sequences of the training table, or of another one.
        """
        conformed = self.schema.conform(sequences)
        if self.per_step:
            return Prepared(conformed, present(conformed).values)
        names, table = summarize(conformed, self.statistics)
        binned = conformed if self.bin is None else conformed.bin(self.bin)
        if not self.summaries:
            return Prepared(binned, table)
        static, known = split_missing(table)
        return Prepared(replace(binned, static=static, static_observed=known, static_features=names), table)

    def config(self) -> dict[str, Any]:
        """Plain values from which `from_config` builds an equal preparation."""
        settings = {"per_step": self.per_step, "bin": self.bin, "summaries": self.summaries}
        return {"schema": self.schema.config(), **settings, "statistics": list(self.statistics)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Preparation:
        """The preparation whose `config` method returned these values.

        Args:
            config: the plain values.
        """
        values = with_absent_fields(cls, config)
        schema, statistics = Schema.from_config(values["schema"]), tuple(values["statistics"])
        return cls(**{**values, "schema": schema, "statistics": statistics})
