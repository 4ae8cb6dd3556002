"""Every layer is held to every promise of the contract."""

from __future__ import annotations

import pytest

import contract

# Only where the state flows before the observation is absorbed.
SPLITTING = contract.check_a_gap_may_be_passed_in_pieces


@pytest.mark.parametrize("name", contract.LAYERS)
@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(name, check):
    if check is SPLITTING and name not in contract.FLOW_THEN_UPDATE:
        return  # a driven cell cannot know between two observations what the next will be
    check(contract.LAYERS[name])
