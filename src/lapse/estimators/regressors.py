"""Regression: one number, or several, per sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from lapse.estimators.base import IrregularEstimator
from lapse.estimators.trees import grow_numbers
from lapse.extras import extra
from lapse.sequences import Sequences
from lapse.sequences.arrays import real_numbers
from lapse.sequences.ragged import Array

with extra("estimators"):
    from sklearn.base import RegressorMixin
    from sklearn.metrics import r2_score


class IrregularRegressor(RegressorMixin, IrregularEstimator):  # type: ignore[misc]
    """One number, or several, per sequence; see `IrregularEstimator` for the arguments."""

    kind = "numbers"
    grow = staticmethod(grow_numbers)
    metrics = ("mse", "mae", "r2")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        # scikit-learn asks for R² over 0.5 on ten columns without any order, which are one series here.
        tags.regressor_tags.poor_score = True
        return tags

    def _encoded(self, data: Sequences, y: Array) -> Sequences:
        # Whole numbers are numbers here, and no classes that a split should have in equal shares. NaN is not known.
        return super()._encoded(data, real_numbers(y, "y"))

    def predict(self, X: Any) -> Array:
        """(S,), or (S, columns) where the target has several.

        Args:
            X: sequences in any of the accepted forms.
        """
        found = self.predictions(X)
        head: Any = self.ensemble_.head
        columns = [found[head.column_name(name)] for name in head.names]
        return columns[0] if len(columns) == 1 else np.column_stack(columns)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R²: the share of the variance that is explained.

        Args:
            X: sequences in any of the accepted forms.
            y: their targets; None to take those that X itself holds.
            sample_weight: (S,), how much each sequence counts.
        """
        data = self.sequences(X)
        truth = self._with_targets(data, None).targets if y is None else self._targets(y, len(data))
        return float(r2_score(truth, self.predict(data), sample_weight=sample_weight))
