"""A short, seeded part of `make torture`: a fault of every kind, and nothing is lost."""

from __future__ import annotations

import random
import sys

import pytest

from torture import FAULTS, Torture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def torture(tmp_path_factory: pytest.TempPathFactory) -> Torture:
    return Torture(tmp_path_factory.mktemp("torture"), random.Random(0))


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("kill", 2),
        ("full disk", 1),
        ("flipped bits", 3),
        ("stream", 2),
        pytest.param("two writers", 1, marks=pytest.mark.slow),
        pytest.param("read-only", 1, marks=pytest.mark.slow),
        pytest.param("compile race", 1, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost(torture: Torture, kind: str, times: int) -> None:
    assert kind in FAULTS
    for _ in range(times):
        torture.attempt(kind)
    assert torture.lost == []
