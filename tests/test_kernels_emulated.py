"""The kernels on aarch64, in an emulator. `make test-arm` runs all tests of the kernels there."""

from __future__ import annotations

from typing import Any

import pytest

from fuzz_kernels import CELLS, Case, check
from lapse.kernels import native


@pytest.fixture(autouse=True)
def emulated(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(native, "library", lambda: emulator)
    return emulator


def test_both_sides_agree_on_the_layout_of_arguments(emulated: Any) -> None:
    assert emulated.layout() == native.LAYOUT
    assert emulated.number("lapse_vector_bytes") == 16


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", sorted(CELLS))
def test_outputs_and_gradients_are_those_of_the_reference(cell: str, dtype: str, emulated: Any) -> None:
    before = emulated.requests
    check(
        Case(
            cell,
            seed=1,
            input_size=3,
            hidden_size=9,
            lengths=(3, 1, 4, 4, 2),
            room=1,
            dtype=dtype,
            threads=2,
            start=True,
            asked="input gaps start parameters",
        )
    )
    assert emulated.requests >= before + 3, "sizes, forward and backward"


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_one_observation_at_a_time(cell: str, emulated: Any) -> None:
    before = emulated.requests
    check(Case(cell, seed=1, input_size=3, hidden_size=9, lengths=(3, 3), layout="stream"))
    assert emulated.requests >= before + 4, "sizes and three steps"
