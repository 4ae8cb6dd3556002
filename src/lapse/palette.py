"""How figures look: one colour and one dash per model, the same wherever the model is drawn.

A model brings its look as a class attribute. The colours of the library's own are Paul Tol's "muted" scheme,
which stays apart under the common colour blindnesses, with black for the ODE-LSTM and a mid grey for the
ordinary LSTM; on a dark ground they are the same hues, lifted. The dash tells the family, so that no curve is
told by its colour alone. This module imports nothing of lapse, and matplotlib only to draw.
"""

from __future__ import annotations

import colorsys
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

COLUMN_WIDTH = 3.5  # inches: a column of a two-column page
PAGE_WIDTH = 7.0

SOLID, DASHED, DOTTED = "-", (0, (5, 1.5)), (0, (1.2, 1.2))


class Look(NamedTuple):
    """How a model is drawn.

    Args:
        colour: Its colour on a light ground.
        dark: Its colour on a dark ground.
        dash: Its dash as matplotlib takes it: solid if the state follows an ODE, dashed if it decays, dotted if
            nothing happens to it between observations, or a clock does.
    """

    colour: str
    dark: str
    dash: Any


def look_from(name: str) -> Look:
    """A look for a model that brings none: always the same for the same name.

    Args:
        name: The name of the model.
    """
    digest = hashlib.sha256(name.encode()).digest()
    light, dark = (colorsys.hls_to_rgb(digest[0] / 256, level, 0.5) for level in (0.38, 0.7))
    return Look(_hexadecimal(light), _hexadecimal(dark), (SOLID, DASHED, DOTTED)[digest[1] % 3])


def _hexadecimal(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


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
def drawing(*, mathematics: bool = True) -> Iterator[None]:
    """Figures made and saved inside the block have the project's look; matplotlib's own settings stay as they were.

    Args:
        mathematics: whether text between dollar signs is mathematics. A figure with names of a user's columns or
            classes must not take them for that.
    """
    import matplotlib

    with matplotlib.rc_context(_RC | {"text.parse_math": mathematics}):
        yield
