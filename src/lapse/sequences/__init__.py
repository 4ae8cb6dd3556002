"""Ragged sequences of irregular events: tables in, honest splits, batches out."""

from lapse.sequences.batches import Batch as Batch
from lapse.sequences.batches import LengthBatches as LengthBatches
from lapse.sequences.cuts import CutBatch as CutBatch
from lapse.sequences.cuts import Cuts as Cuts
from lapse.sequences.ragged import Sequences as Sequences
