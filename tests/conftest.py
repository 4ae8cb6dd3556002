"""What several test files share."""

import multiprocessing
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine anything may take long; that is no fault of what is tested.
settings.register_profile("lapse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lapse")


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that start in no time, since their server has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unbroken", "lapse.study.local", "lightning", "sklearn.datasets"])
    return context
