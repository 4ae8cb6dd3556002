"""How figures look: one colour and one dash a model, the same wherever the model is drawn.

Colours are Paul Tol's "muted" scheme, which stays apart under the common colour blindnesses, with black for the
ODE-LSTM and a mid grey for the plain LSTM; the dash tells the family, so that no curve hangs on its colour alone. This
module imports nothing of lapse, and matplotlib only to draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

COLUMN_WIDTH = 3.5  # inches: a column of a two-column page
PAGE_WIDTH = 7.0

SOLID, DASHED, DOTTED = "-", (0, (5, 1.5)), (0, (1.2, 1.2))


@dataclass(frozen=True)
class Look:
    """A model in a figure."""

    label: str
    colour: str
    dash: Any


# Solid: the state follows an ODE. Dashed: it decays. Dotted: nothing happens to it between observations, or a clock.
MODELS: dict[str, Look] = {
    "ode-rnn": Look("ODE-RNN", "#CC6677", SOLID),
    "ct-rnn": Look("CT-RNN", "#332288", SOLID),
    "lstm": Look("Augmented LSTM", "#7F7F7F", DOTTED),
    "ct-gru": Look("CT-GRU", "#117733", DASHED),
    "rnn-decay": Look("RNN-Decay", "#999933", DASHED),
    "bidirectional": Look("LSTM + ODE-RNN", "#882255", SOLID),
    "gru-d": Look("GRU-D", "#88CCEE", DASHED),
    "phased-lstm": Look("Phased LSTM", "#AA4499", DOTTED),
    "gru-ode": Look("GRU-ODE", "#44AA99", SOLID),
    "ct-lstm": Look(
        "CT-LSTM", "#C9A227", DASHED
    ),  # Tol's sand, darkened: the original is too pale for a line
    "ode-lstm": Look("ODE-LSTM", "#000000", SOLID),
}

# For curves that are not models (a tolerance, a bias, a regime): Tol's "bright", again safe, in this order.
SERIES: tuple[str, ...] = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CCBB44")

_RC: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "svg.hashsalt": "lapse",  # the same figure is the same file
}


@contextmanager
def drawing() -> Iterator[None]:
    """Figures made and saved inside the block have the project's look; matplotlib's own settings stay as they were."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield
