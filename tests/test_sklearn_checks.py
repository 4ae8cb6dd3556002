"""scikit-learn's own checks; those that cannot hold are in a table of the documentation, and must fail."""

import re
from pathlib import Path

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from example_estimators import QUICK
from lapse.estimators import IrregularClassifier, IrregularRegressor

PAGE = (Path(__file__).parents[1] / "docs" / "estimators.md").read_text()
NOT_HELD = dict(re.findall(r"^\| `(check_\w+)` \| (.+) \|$", PAGE, re.MULTILINE))
LEAST = QUICK | {"epochs": 1, "boosting": False, "refit": False}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [IrregularClassifier(**LEAST), IrregularRegressor(**LEAST)],
    expected_failed_checks=lambda estimator: NOT_HELD,
)
def test_a_check_of_scikit_learn(estimator, check):
    check(estimator)
