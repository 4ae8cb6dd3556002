"""Solvers as words that can be stored: the name of a ready-made one, and settings.

rk4                   3 sub-steps of RK4
rk4:8                 8 of them
exponential:4:2       the exponential integrator of order 2 in 4 sub-steps
dopri5:rtol=1e-5      adaptive steps, to another tolerance
package.module:NAME   the solver `NAME` of a module of one's own; settings may follow, if it has any
"""

from __future__ import annotations

from typing import Any

from lapse.references import resolve
from lapse.solvers.adaptive import Adaptive
from lapse.solvers.adjoint import Adjoint
from lapse.solvers.base import Configurable, Solver
from lapse.solvers.exponential import Exponential
from lapse.solvers.fixed import FixedStep
from lapse.solvers.semi_implicit import SemiImplicit
from lapse.solvers.tableaux import DOPRI5, EULER, HEUN, RK4, Tableau

# The ready-made solvers. A word is one of these names, with other settings behind it if they differ.
SOLVERS: dict[str, Configurable] = {
    "euler": FixedStep(EULER, steps=4),
    "heun": FixedStep(HEUN, steps=4),
    "rk4": FixedStep(RK4, steps=3),
    "dopri5": Adaptive(DOPRI5),
    "dopri5-adjoint": Adjoint(Adaptive(DOPRI5)),
    "exponential": Exponential(steps=4),
    "exponential2": Exponential(steps=4, order=2),
    "semi-implicit": SemiImplicit(steps=6),
}


def find(word: str) -> Solver:
    """The solver that a word stands for.

    Args:
        word: A name of `SOLVERS` or `package.module:NAME`, then settings, with colons between: `rk4:8`,
            `exponential:4:2`, `dopri5:rtol=1e-5:max_steps=5000`.
    """
    if not isinstance(word, str):
        raise TypeError(f"solver must be a word such as 'rk4:8', got {word!r}")
    name, *rest = word.split(":")
    if name in SOLVERS:
        found: Any = SOLVERS[name]
    elif rest:
        found = as_solver(resolve(f"{name}:{rest.pop(0)}"))
    else:
        raise ValueError(
            f"solver must be one of {', '.join(map(repr, SOLVERS))}, with settings as in 'rk4:8', 'exponential:4:2' or "
            f"'dopri5:rtol=1e-5', or 'package.module:NAME' of your own, got {word!r}"
        )
    return _with_settings(found, rest, word) if rest else found


def _with_settings(solver: Any, texts: list[str], word: str) -> Solver:
    names = list(solver.setting_values()) if isinstance(solver, Configurable) else []
    values: dict[str, Any] = {}
    for place, text in enumerate(texts):
        name, equals, value = text.rpartition("=")
        name = name if equals else (names[place] if place < len(names) else "")
        if name not in names:
            allowed = (
                f"its settings are {', '.join(names)}, in this order or by name"
                if names
                else "it has no settings"
            )
            raise ValueError(f"solver {word!r} has no setting for {text!r}; {allowed}")
        values[name] = _number(value, word)
    try:
        changed: Solver = solver.with_settings(**values)
    except ValueError as error:
        raise ValueError(f"solver {word!r}: {error}") from None
    return changed


def _number(text: str, word: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"solver {word!r}: settings are numbers, got {text!r}")


def word_of(solver: Configurable) -> str:
    """The word that `find` turns back into this solver."""
    for name, ready in SOLVERS.items():
        if ready == solver:
            return name
    values = solver.setting_values()
    for name, ready in SOLVERS.items():
        alike = type(ready) is type(solver) and ready.settings == solver.settings
        if alike and ready.with_settings(**values) == solver:
            return ":".join([name, *_changes(ready.setting_values(), values)])
    raise ValueError(
        f"{solver!r} has no word; put it into a module of your own and name it as 'package.module:NAME'"
    )


def _changes(usual: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """The settings that differ: counts without their names as long as they are the first ones, the others with them."""
    words: list[str] = []
    left = [name for name in values if values[name] != usual[name]]
    for place, (name, value) in enumerate(values.items()):
        if not left:
            break
        if isinstance(value, int) and len(words) == place:
            words.append(str(value))
        elif name in left:
            words.append(f"{name}={value!r}")
        left = [other for other in left if other != name]
    return words


def as_solver(given: Any) -> Solver:
    """A solver, or the one that a word stands for; anything else is refused with the reason.

    Args:
        given: A word or a solver.
    """
    if isinstance(given, str):
        return find(given)
    if isinstance(given, Tableau):
        raise TypeError(
            f"{given.name} is a tableau, not a solver; give it steps: FixedStep({given.name.upper()}, 3)"
        )
    if isinstance(given, type) or not callable(given):
        raise TypeError(f"solver must be a solver such as FixedStep(RK4, 3) or its word, got {given!r}")
    solver: Solver = given
    return solver
