"""What a model says about sequences, with their ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lapse.extras import extra
from lapse.sequences.ragged import Array


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers in the order of the sequences that were asked about: one row per sequence, or one per event.

    Args:
        ids: (M,), the id of the sequence of each row.
        times: (M,), the time of the event of each row, as the caller's table counts it; None for one row per sequence.
        columns: (M,) per name: "prediction", probabilities, quantiles, as the head of the model gives them.
    """

    ids: Array
    times: Array | None
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> Array:
        """(M,), the column of this name."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return self.columns[name]

    def frame(self, *, id: str = "id", time: str = "time") -> Any:
        """A pandas table: the ids first, then times where there is one row per event, then the columns.

        Args:
            id: what to call the column of ids.
            time: what to call the column of times.
        """
        with extra("tables"):
            import pandas as pd

        times = {} if self.times is None else {time: self.times}
        return pd.DataFrame({id: self.ids} | times | self.columns)

    def __repr__(self) -> str:
        what = "sequences" if self.times is None else f"events of {len(np.unique(self.ids))} sequences"
        return f"Predictions({len(self):,} {what}: {', '.join(self.columns)})"
