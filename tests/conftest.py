"""What several test files share."""

import multiprocessing
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine anything may take long; that is no fault of what is tested.
settings.register_profile("lapse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lapse")


@pytest.fixture(autouse=True, scope="session")
def threads_that_can_be_watched() -> None:
    """ThreadSanitizer knows nothing of the locks in an OpenMP runtime, so under it the kernels start plain threads."""
    if "tsan" in os.environ.get("LD_PRELOAD", ""):
        from lapse.kernels import native

        native.parallel = lambda: 0


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that start in no time, since their server has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unbroken", "lapse.study.local", "lightning", "sklearn.datasets"])
    return context
