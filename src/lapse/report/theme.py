"""Light and dark: every colour of the page and its figures is a CSS variable with two values.

Figures are drawn in light colours; on the page each of those becomes a variable, so that one drawing serves both
themes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from lapse.models.registry import look_of

# Drawn in place of black, which matplotlib leaves out of its SVG as the default, and so beyond our reach.
INK, MUTED, RULE, GROUND, DATA = "#1c1b1a", "#6b6862", "#e5e5e5", "#fefefe", "#44aa98"

# Light, dark.
SURFACES: dict[str, tuple[str, str]] = {
    "ground": ("#fdfcfa", "#15171a"),
    "card": ("#ffffff", "#1c1f23"),
    "ink": (INK, "#e8e5df"),
    "muted": (MUTED, "#a19d95"),
    "rule": ("#e7e3dc", "#30343a"),
    "accent": ("#0b6e69", "#6cc5bd"),
    "data": (DATA, "#5cc7b5"),
    "wash": ("#eef5f3", "#1d2b2b"),
}

# Other settings of the same model keep its colour and take another dash, in this order.
VARIANT_DASHES = ((0, (6, 1.2, 1.2, 1.2)), (0, (2.5, 1.2)), (0, (8, 2)), (0, (1.2, 2.4)))


def model_colour(model: str) -> str:
    """The colour to draw a model with; never pure black."""
    colour = look_of(model).colour.lower()
    return "#010101" if colour == "#000000" else colour


def variable(model: str) -> str:
    """The colour in CSS: a variable with a light and a dark value."""
    return f"var({_variable_name(model)})"


def _variable_name(model: str) -> str:
    """The name of a model as CSS takes it; other characters than letters, digits and hyphens are spelled out."""
    return "--m-" + re.sub(r"[^a-zA-Z0-9-]", lambda found: f"_{ord(found[0]):x}_", model)


def model_dash(model: str, variant: int = 0) -> object:
    return look_of(model).dash if variant == 0 else VARIANT_DASHES[(variant - 1) % len(VARIANT_DASHES)]


def css_dash(dash: object) -> str:
    """A matplotlib dash as SVG's ``stroke-dasharray``, for the swatches in the tables."""
    return " ".join(str(2 * length) for length in dash[1]) if isinstance(dash, tuple) else "none"


def css(models: Iterable[str]) -> str:
    """The variables, light by default and dark where the reader's system asks for it.

    Args:
        models: The names of the models on the page.
    """
    light = {f"--{name}": pair[0] for name, pair in SURFACES.items()}
    dark = {f"--{name}": pair[1] for name, pair in SURFACES.items()}
    looks = {_variable_name(model): look_of(model) for model in models}
    light |= {name: look.colour for name, look in looks.items()}
    dark |= {name: look.dark for name, look in looks.items()}
    return f":root{{{_declared(light)}}}\n@media (prefers-color-scheme:dark){{:root{{{_declared(dark)}}}}}"


def _declared(variables: dict[str, str]) -> str:
    return "".join(f"{name}:{value};" for name, value in variables.items())


_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    GROUND: "var(--card)",
    DATA: "var(--data)",
}


def inline_svg(svg: str, description: str, models: Iterable[str] = ()) -> str:
    """A matplotlib SVG made fit to stand in a page: themed, described, its ids unlike those of any other figure.

    Args:
        svg: What matplotlib wrote.
        description: The figure in words, escaped for an attribute.
        models: The names of the models in it.
    """
    variables = _VARIABLES | {model_colour(model): variable(model) for model in models}
    prefix = f"f{hashlib.sha256((description + svg).encode()).hexdigest()[:8]}-"
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # A style element inside an inline SVG would reach the whole page.
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", body)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda found: variables.get(found[0], found[0]), body)
    box = re.search(r'viewBox="[^"]*"', body)
    assert box, "matplotlib writes a viewBox"
    opening = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" aria-label="{description}">'
    )
    # By a function, since a description may hold backslashes, which a replacement would take for groups.
    return re.sub(r"^<svg[^>]*>", lambda _: opening, body, count=1)
