"""Fixed windows over long recordings, as the authors cut them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lapse.sequences import Sequences
from lapse.sequences.ragged import concatenated_ranges


def windows(recordings: Sequences, length: int, stride: int) -> Sequences:
    """Windows of `length` events every `stride`, while the start is below the recording's length − `length`.

    A window keeps the id and group of its recording, and its first gap is the true one, since the event
    before it. The rule leaves out a last window that would fit exactly; it is the authors', and gives their
    counts.
    """
    counts = np.maximum(0, -(-(recordings.lengths - length) // stride))
    index = np.repeat(np.arange(len(recordings)), counts)
    begins = concatenated_ranges(np.zeros_like(counts), counts) * stride
    first = recordings.offsets[index] + begins  # (W,) the row each window starts at
    lengths = np.full(len(index), length)
    cut = recordings.gather(concatenated_ranges(first, lengths), lengths, index)
    own = recordings.times[first] if recordings.starts is None else recordings.starts[index]
    starts = np.where(begins > 0, recordings.times[np.maximum(first - 1, 0)], own)
    return replace(cut, starts=starts)
