"""The promises of a layer as checks that anyone can run on their own, as scikit-learn has them for estimators.

    lapse.testing.check_layer(MyLayer)      # raises with every promise that is not kept
    lapse.testing.check_cell(MyCell)

Which checks concern a cell, it says itself: `takes_missing`, `splits_gaps`, `tolerates_bfloat16`, `program` and
the like. In a test suite, one test per check tells more:

    @pytest.mark.parametrize("check", lapse.testing.layer_checks(MyLayer).values())
    def test_promise(check):
        check()

Beside these promises, `check_equations` compares a cell with a transcription of its equations in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lapse.recurrent import Cell
from lapse.testing import arguments, numbers, rows, stacks, time
from lapse.testing.choice import concerns
from lapse.testing.equations import Oracle as Oracle
from lapse.testing.equations import check_equations as check_equations
from lapse.testing.subject import Make as Make
from lapse.testing.subject import WithMissing, first_cell, layer_of

CHECKS: dict[str, Callable[[Make], None]] = {
    name.removeprefix("check_"): check
    for module in (rows, time, numbers, stacks, arguments)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


def layer_checks(make: Make) -> dict[str, Callable[[], None]]:
    """The checks that concern a layer, by name, to be called without arguments.

    A layer that takes missing features is checked twice, with and without some of them missing.

    Args:
        make: The class of the layer, or anything that makes one as `make(input_size, hidden_size, num_layers,
            **options)`.
    """
    layer = make(1, 1)
    chosen = {name: check for name, check in CHECKS.items() if concerns(check, first_cell(layer))}
    found: dict[str, Callable[[], None]] = {name: partial(check, make) for name, check in chosen.items()}
    if layer.takes_missing:
        masked = WithMissing(make)
        found |= {f"{name}, features missing": partial(check, masked) for name, check in chosen.items()}
    return found


def check_layer(make: Make) -> None:
    """Run every check that concerns a layer, and raise with all that fail.

    Args:
        make: The class of the layer, or anything that makes one as `make(input_size, hidden_size, num_layers,
            **options)`.
    """
    checks, failures = layer_checks(make), dict[str, Exception]()
    for name, check in checks.items():
        try:
            check()
        except Exception as error:  # a check may fail in any way that a layer can
            failures[name] = error
    if failures:
        told = "\n".join(f"- {name}: {_first_line(error)}" for name, error in failures.items())
        first = next(iter(failures.values()))
        raise AssertionError(f"{len(failures)} of {len(checks)} checks failed:\n{told}") from first


def check_cell(cell_type: Callable[..., Cell]) -> None:
    """Run every check on layers of one type of cell, and raise with all that fail.

    Args:
        cell_type: The class of the cell, or anything that makes one as `cell_type(input_size, hidden_size)`.
    """
    check_layer(layer_of(cell_type))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
