"""What several test files share."""

import multiprocessing
from typing import Any

import pytest


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that start in no time, since their server has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unbroken", "lapse.study.local", "lightning", "sklearn.datasets"])
    return context
