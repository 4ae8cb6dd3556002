"""aeon's own checks of lapse.aeon, on the versions of `make test-peers`."""

import numpy as np
import pytest

pytest.importorskip("aeon", reason="`make test-peers` runs this in an environment of its own")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of aeon and what it imports

from aeon.testing.estimator_checking import check_estimator  # noqa: E402

from example_estimators import QUICK  # noqa: E402
from lapse.aeon import AeonClassifier, AeonRegressor  # noqa: E402
from lapse.estimators import IrregularRegressor  # noqa: E402


@pytest.mark.parametrize("kind", [AeonClassifier, AeonRegressor])
def test_aeons_own_checks(kind: type) -> None:
    results = check_estimator(kind)
    assert results
    assert {name: found for name, found in results.items() if found != "PASSED"} == {}


def test_unequal_length_and_missing_values() -> None:
    levels = np.arange(30.0)
    X = [np.full((2, 3 + i % 4), level) for i, level in enumerate(levels)]
    for series in X:
        series[1, 1] = np.nan
    fitted = AeonRegressor(IrregularRegressor(**QUICK)).fit(X, levels)
    assert np.corrcoef(fitted.predict(X), levels)[0, 1] > 0.9
