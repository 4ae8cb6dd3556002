"""lapse's estimators as aeon's: collections of series of unequal length with missing values.

Needs the extra `lapse[aeon]`. A collection of aeon has no time stamps, so that the times are 0, 1, 2, ...; where they
are known, `lapse.estimators` takes them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from lapse.extras import extra
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array

with extra("aeon"):
    from aeon.classification import BaseClassifier
    from aeon.regression import BaseRegressor
    from sklearn.base import clone

    from lapse.estimators import IrregularClassifier, IrregularEstimator, IrregularRegressor

TAGS: dict[str, Any] = {
    "X_inner_type": "np-list",
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:missing_values": True,
    "algorithm_type": "deeplearning",
}


class _Wrapped:
    """An estimator of lapse behind the methods that aeon's base classes call."""

    kind: ClassVar[type[IrregularEstimator]]

    def __init__(self, estimator: IrregularEstimator | None = None) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: Any, y: Any) -> Any:
        self.estimator_ = self.kind() if self.estimator is None else clone(self.estimator)
        self.estimator_.fit(_sequences(X), y)
        return self

    def _predict(self, X: Any) -> Array:
        found: Array = self.estimator_.predict(_sequences(X))
        return found

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Arguments with which aeon tests this class.

        Args:
            parameter_set: which set of arguments; there is one.
        """
        return [{"estimator": cls.kind(hidden_size=2, members=1, epochs=1, boosting=False, refit=False)}]


def _sequences(X: Any) -> Sequences:
    """A list of arrays (channels, times) as sequences."""
    return Sequences.from_arrays([series.T for series in X], [np.arange(series.shape[1]) for series in X])


class AeonClassifier(_Wrapped, BaseClassifier):  # type: ignore[misc]
    """A time series classifier for aeon.

    Args:
        estimator: how to learn, a `lapse.estimators.IrregularClassifier`; None for one with its defaults.
    """

    kind = IrregularClassifier
    _tags = TAGS

    def _predict_proba(self, X: Any) -> Array:
        found: Array = self.estimator_.predict_proba(_sequences(X))
        return found


class AeonRegressor(_Wrapped, BaseRegressor):  # type: ignore[misc]
    """A time series regressor for aeon.

    Args:
        estimator: how to learn, a `lapse.estimators.IrregularRegressor`; None for one with its defaults.
    """

    kind = IrregularRegressor
    _tags = TAGS
