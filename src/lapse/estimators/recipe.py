"""Defaults that depend on the data: bins, batches, epochs. Each was chosen by measurements on several data sets."""

from __future__ import annotations

import math

import numpy as np

from lapse.sequences import Sequences

# Where each event holds few of many features, a network sees more of them at once in bins: hourly bins of two days in
# intensive care are 48 events in place of 73 that hold 16 % of the features each.
BINS = 48
SPARSE = 0.5  # share of values not observed above which binning pays
# Optimiser steps that a training needs at least; more epochs where there are few sequences. With 300 of them the
# held-out loss of JapaneseVowels (270 sequences, 9 classes) was a tenth higher; that of pbc2 was the same.
STEPS = 500
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100


def bin_width(s: Sequences) -> float | None:
    """The width of bins in the unit of the table, a round number; None where events are better left as they are.

    Args:
        s: the training split.
    """
    if s.per_step or s.missing < SPARSE or np.median(s.lengths) <= BINS:
        return None
    spans = s.times[s.offsets[1:] - 1] - s.times[s.offsets[:-1]]
    width = float(np.median(spans[spans > 0])) / BINS
    return rounded(width)


def rounded(number: float) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, by ratio.

    Args:
        number: any positive number.
    """
    power = 10.0 ** math.floor(math.log10(number))
    return min((factor * power for factor in (1, 2, 5, 10)), key=lambda near: abs(math.log(near / number)))


def batch_size(sequences: int) -> int:
    """Smaller batches for fewer sequences, so that an epoch has some steps.

    Args:
        sequences: the number of training sequences.
    """
    return 64 if sequences >= 2000 else 32


def epochs(sequences: int, batch: int) -> int:
    """So many epochs that there are enough steps.

    Args:
        sequences: the number of training sequences.
        batch: the number of sequences per batch.
    """
    wanted = math.ceil(STEPS / math.ceil(sequences / batch))
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, wanted))
