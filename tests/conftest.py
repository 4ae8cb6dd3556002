"""What several test files share."""

import multiprocessing
import os
from collections.abc import Iterator
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--emulated", action="store_true", help="run the kernels of another processor in an emulator"
    )


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The compiled library of another processor, in an emulator."""
    import emulated

    if absent := emulated.missing():
        pytest.skip(f"not found: {absent}")
    started = emulated.Emulated(emulated.cross_compiled(), tmp_path_factory.mktemp("emulated"))
    yield started
    started.close()


@pytest.fixture(autouse=True, scope="session")
def kernels_in_the_emulator(request: pytest.FixtureRequest) -> None:
    """With --emulated, every test takes the emulated library for the one of this processor."""
    if not request.config.getoption("--emulated"):
        return
    import emulated
    from lapse.kernels import native

    if absent := emulated.missing():
        pytest.exit(f"--emulated: not found: {absent}", returncode=1)
    started = request.getfixturevalue("emulator")
    native.library = lambda: started  # type: ignore[assignment]


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that start in no time, since their server has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unbroken", "lapse.study.local", "lightning", "sklearn.datasets"])
    return context
