"""lapse's estimators as sktime's: panels with real time stamps, series of unequal length, missing values.

Needs the extra `lapse[sktime]`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lapse.extras import extra
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array

with extra("sktime"):
    import pandas as pd
    from sklearn.base import clone
    from sktime.classification.base import BaseClassifier
    from sktime.regression.base import BaseRegressor

    from lapse.estimators import IrregularClassifier, IrregularEstimator, IrregularRegressor

TAGS: dict[str, Any] = {
    "authors": ["lapse"],
    "maintainers": ["lapse"],
    "X_inner_mtype": "pd-multiindex",
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:missing_values": True,
    "capability:categorical_in_X": False,
}


class _Wrapped:
    """An estimator of lapse behind the methods that sktime's base classes call."""

    kind: ClassVar[type[IrregularEstimator]]

    def __init__(self, estimator: IrregularEstimator | None = None) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: Any, y: Any) -> Any:
        self.estimator_ = self.kind() if self.estimator is None else clone(self.estimator)
        self.estimator_.fit(self._sequences(X), y)
        return self

    def _predict(self, X: Any) -> Array:
        found: Array = self.estimator_.predict(self._sequences(X))
        return found

    def _sequences(self, X: Any) -> Sequences:
        """A panel, whose index is (instance, time), as sequences in the order in which the instances come."""
        table = X.set_axis([str(name) for name in X.columns], axis=1).reset_index(drop=True)
        features = list(table.columns)
        times = X.index.get_level_values(1)
        table.insert(0, "instance", pd.factorize(X.index.get_level_values(0))[0])
        table.insert(1, "time", times.to_timestamp() if isinstance(times, pd.PeriodIndex) else times)
        dated = isinstance(times, pd.PeriodIndex | pd.DatetimeIndex)
        # Any unit will do for dates, since models count time in gaps of the training data.
        unit = self.estimator_.unit or ("s" if dated else None)
        return Sequences.from_frame(table, id="instance", time="time", values=features, unit=unit)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Arguments with which sktime tests this class.

        Args:
            parameter_set: which set of arguments; there is one.
        """
        return [
            {"estimator": cls.kind(hidden_size=2, members=1, epochs=1, boosting=False, refit=False)},
            {"estimator": cls.kind("ode-lstm", hidden_size=2, members=1, epochs=1, summaries=False)},
        ]


class SktimeClassifier(_Wrapped, BaseClassifier):  # type: ignore[misc]
    """A time series classifier for sktime that uses the time stamps of a panel as they are.

    Args:
        estimator: how to learn, a `lapse.estimators.IrregularClassifier`; None for one with its defaults.

    Example:
        >>> from lapse.estimators import IrregularClassifier
        >>> from lapse.sktime import SktimeClassifier
        >>> model = SktimeClassifier(IrregularClassifier(hidden_size=16, unit="h"))
    """

    kind = IrregularClassifier
    _tags = TAGS | {"capability:predict_proba": True}

    def _predict_proba(self, X: Any) -> Array:
        found: Array = self.estimator_.predict_proba(self._sequences(X))
        return found


class SktimeRegressor(_Wrapped, BaseRegressor):  # type: ignore[misc]
    """A time series regressor for sktime that uses the time stamps of a panel as they are.

    Args:
        estimator: how to learn, a `lapse.estimators.IrregularRegressor`; None for one with its defaults.

    Example:
        >>> from lapse.estimators import IrregularRegressor
        >>> from lapse.sktime import SktimeRegressor
        >>> model = SktimeRegressor(IrregularRegressor(hidden_size=16, unit="h"))
    """

    kind = IrregularRegressor
    _tags = TAGS
