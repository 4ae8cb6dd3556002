"""The sizes that the comparisons are made at, unless one says otherwise: those of the paper's bit-streams."""

BATCH, STEPS, HIDDEN, INPUT = 256, 32, 64, 1
LONG = 16_384  # steps of a row that is scanned
