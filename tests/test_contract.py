"""Every layer is held to every promise of the contract."""

from __future__ import annotations

import pytest

import contract

# A driven cell cannot know between two observations what the next will be: its gaps come in one piece.
PROMISES = [
    pytest.param(check, name, id=f"{check.__name__.removeprefix('check_')}-{name}")
    for check in contract.CHECKS
    for name in contract.LAYERS
    if check is not contract.check_a_gap_may_be_passed_in_pieces
    or contract.splits_gaps(contract.LAYERS[name])
]


@pytest.mark.parametrize(("check", "name"), PROMISES)
def test_contract(check, name):
    check(contract.LAYERS[name])
