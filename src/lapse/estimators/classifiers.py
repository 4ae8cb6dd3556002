"""Classifiers: one of several classes per sequence or per event, or several labels at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from lapse.arguments import check_number
from lapse.estimators.base import IrregularEstimator
from lapse.estimators.trees import grow_classes, grow_labels
from lapse.extras import extra
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array

with extra("estimators"):
    from sklearn.base import ClassifierMixin
    from sklearn.metrics import accuracy_score
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d


class _OneClass(ClassifierMixin, IrregularEstimator):  # type: ignore[misc]
    """One of several classes, per sequence or per event."""

    kind = "classes"
    grow = staticmethod(grow_classes)
    metrics = ("log_loss", "auroc", "auprc", "accuracy", "brier")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Any:
        super().fit(X, y, sample_weight, groups)
        self.classes_ = np.array(self.ensemble_.head.names)
        return self

    def _encoded(self, data: Sequences, y: Array) -> Sequences:
        classes, codes = np.unique(y, return_inverse=True)
        return replace(super()._encoded(data, codes.astype(np.int64)), classes=tuple(classes.tolist()))

    def _targets(self, y: Any, count: int) -> Array:
        classes = super()._targets(y, count)
        if classes.dtype.kind in "fc" and not (np.isreal(classes) & np.isfinite(classes)).all():
            raise ValueError("y has classes that are NaN, infinite or complex; leave out what is not known")
        check_classification_targets(classes)
        return cast(Array, column_or_1d(classes, warn=True))

    def _probabilities(self, X: Any) -> Array:
        found = self.predictions(X)
        return np.column_stack([found[f"p_{name}"] for name in self.classes_.tolist()])

    def _labels(self, data: Sequences) -> Array:
        """The classes that sequences hold as their targets."""
        head = self.ensemble_.head
        labels: Array = self.classes_[head.targets_of(head.conform(data)).values.numpy()]
        return labels


class IrregularClassifier(_OneClass):
    """One of several classes per sequence; see `IrregularEstimator` for the arguments.

    Attributes:
        classes_: the classes, in the order of the columns of `predict_proba`.
    """

    def _balanced(self) -> bool:
        return not isinstance(self.class_weight, Mapping) and super()._balanced()

    def _weighted(self, data: Sequences, sample_weight: Any) -> Sequences:
        weighted = super()._weighted(data, sample_weight)
        if not isinstance(self.class_weight, Mapping):
            return weighted
        head: Any = self._head(data)
        factors = _class_weights(self.class_weight, head.names)
        given = np.ones(len(data)) if weighted.weights is None else weighted.weights
        classes = head.targets_of(data).values.numpy()
        return super()._weighted(data, given * factors[classes])

    def predict(self, X: Any) -> Array:
        """(S,), the most probable class of each sequence.

        Args:
            X: sequences in any of the accepted forms.
        """
        return self.predictions(X)["prediction"]

    def predict_proba(self, X: Any) -> Array:
        """(S, classes), the probability of each class.

        Args:
            X: sequences in any of the accepted forms.
        """
        return self._probabilities(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of sequences whose class is predicted.

        Args:
            X: sequences in any of the accepted forms.
            y: their classes; None to take those that X itself holds.
            sample_weight: (S,), how much each sequence counts.
        """
        data = self.sequences(X)
        truth = self._labels(self._with_targets(data, None)) if y is None else self._targets(y, len(data))
        return float(accuracy_score(truth, self.predict(data), sample_weight=sample_weight))


def _class_weights(told: Mapping[Any, float], names: Sequence[Any]) -> Array:
    """One number per class; a part of the data may lack classes that are named, as long as it has no others."""
    for weight in told.values():
        check_number("class_weight", weight, "a positive number per class", least=0.0)
    unknown = [name for name in told if name not in names]
    if unknown and not set(names) <= set(told):
        raise ValueError(f"class_weight names {unknown[0]!r}, which is not one of the classes {list(names)}")
    return np.array([told.get(name, 1.0) for name in names])


class IrregularLabeller(_OneClass):
    """One of several classes per event, which depends on nothing that comes later; see `IrregularEstimator`.

    Targets are one array per sequence with one class per event, or come with X.

    Attributes:
        classes_: the classes, in the order of the columns of `predict_proba`.
    """

    per_step = True

    def predict(self, X: Any) -> list[Array]:
        """One array per sequence, with the most probable class at each event.

        Args:
            X: sequences in any of the accepted forms.
        """
        data = self.sequences(X)
        return np.split(self.predictions(data)["prediction"], data.offsets[1:-1])

    def predict_proba(self, X: Any) -> list[Array]:
        """One array (events, classes) per sequence, with the probability of each class at each event.

        Args:
            X: sequences in any of the accepted forms.
        """
        data = self.sequences(X)
        return np.split(self._probabilities(data), data.offsets[1:-1])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of events whose class is predicted.

        Args:
            X: sequences in any of the accepted forms.
            y: one array of classes per sequence; None to take those that X itself holds.
            sample_weight: (S,), how much the events of each sequence count.
        """
        data = self.sequences(X)
        truth = self._labels(self._with_targets(data, None)) if y is None else self._targets(y, len(data))
        weights = None if sample_weight is None else np.repeat(sample_weight, data.lengths)
        return float(accuracy_score(truth, self.predictions(data)["prediction"], sample_weight=weights))

    def _whole_sequence(self) -> dict[str, Any]:
        return {}


class IrregularMultiLabelClassifier(ClassifierMixin, IrregularEstimator):  # type: ignore[misc]
    """Several labels per sequence, each given or not; see `IrregularEstimator` for the arguments.

    Targets are (S, labels) of 0 and 1, and NaN where it is not known whether a label is given.
    """

    kind = "labels"
    grow = staticmethod(grow_labels)
    metrics = ("log_loss", "auroc", "auprc", "accuracy", "brier")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def predict(self, X: Any) -> Array:
        """(S, labels) of 0 and 1: whether each label is more probable than not.

        Args:
            X: sequences in any of the accepted forms.
        """
        return (self.predict_proba(X) > 0.5).astype(np.int64)

    def predict_proba(self, X: Any) -> Array:
        """(S, labels), the probability of each label.

        Args:
            X: sequences in any of the accepted forms.
        """
        found, head = self.predictions(X), cast(Any, self.ensemble_.head)
        return np.column_stack([found[f"p_{name}"] for name in head.names])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of sequences of which every label is predicted.

        Args:
            X: sequences in any of the accepted forms.
            y: (S, labels); None to take those that X itself holds.
            sample_weight: (S,), how much each sequence counts.
        """
        data = self.sequences(X)
        truth = self._with_targets(data, None).targets if y is None else self._targets(y, len(data))
        return float(accuracy_score(truth, self.predict(data), sample_weight=sample_weight))
