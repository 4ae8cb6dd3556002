"""What the estimators have in common: scikit-learn's way of calling, on sequences of any lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from lapse.arguments import check_count, check_flag, check_kind, check_number, check_share, is_number
from lapse.estimators import recipe
from lapse.estimators.ensemble import Ensemble
from lapse.estimators.fitting import Plan, check_divisible, fit_ensemble
from lapse.estimators.inputs import ACCEPTED, Columns, is_array, to_sequences
from lapse.explain import Explanation, Importance
from lapse.extras import extra
from lapse.heads import Head
from lapse.models import ModelConfig, Predictions
from lapse.sequences import Sequences
from lapse.sequences.arrays import as_float32, per_sequence_array, real_numbers, target_array
from lapse.sequences.ragged import Array
from lapse.training import TrainConfig

with extra("estimators"):
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted, validate_data


class IrregularEstimator(BaseEstimator):  # type: ignore[misc]
    """Networks and boosted trees for irregularly-sampled sequences, called as scikit-learn's estimators are.

    X may be a `lapse.Sequences`; a pandas, polars or pyarrow table, whose columns are named by `id`, `time`, `values`
    and `static`; a pandas table with (id, time) as its index; a list of (times, values) per sequence; or an array of
    regular series (sequences, times) or (sequences, channels, times). NaN means "not observed". To split, search or
    cross-validate, give a `Sequences` or a list: the rows of a table are events, and not sequences.

    Args:
        model: the layer or encoder, a name of `lapse.MODELS`.
        hidden_size: its number of units.
        num_layers: how many of it are stacked.
        members: how many networks, which differ in their seed, are averaged.
        boosting: whether boosted trees on summaries of each feature are averaged with the networks.
        summaries: whether each network also sees those summaries, by a regularised linear map.
        bin: the width of bins of time into which events are gathered for the networks: a number in the unit of the
            table; "auto" decides by the data; None for none.
        epochs: the largest number of epochs; "auto" decides by the number of sequences.
        batch_size: the number of sequences per batch; "auto" decides by their number.
        learning_rate: the largest learning rate of AdamW, which falls along a cosine.
        weight_decay: how strongly matrices of the network are drawn to zero.
        dropout: the probability of setting a pooled feature to 0 in training.
        hide: the probability of hiding an observation in training.
        settings: further fields of `lapse.models.ModelConfig`, which win over those above.
        validation: the share of the sequences that is held out inside `fit`, by id or group, for early stopping and for
            the calibration of probabilities.
        refit: whether networks and trees are trained again on all sequences, for the number of epochs that was best.
        class_weight: None; "balanced" to let rare classes count as much as common ones; for one class per sequence also
            a dictionary that says how much each class counts, 1 if it is not named.
        random_state: the seed of everything random.
        progress: whether to show the progress of training.
        id: the column of ids of a table; the first column if None.
        time: the column of times of a table; the second column if None.
        values: the columns of features of a table; all that have no other role if None.
        static: the columns of a table that do not change within a sequence.
        target: the column, or columns, of a table that hold the target, where `fit` is called without y.
        group: the column of a table that says which sequences must stay together.
        unit: the unit of time of a table, such as "h".

    Attributes:
        ensemble_: what was fitted, a `lapse.estimators.Ensemble`; `ensemble_.save(folder)` stores it.
        n_features_in_: where X is an array: its number of columns, or of channels if it has three dimensions. Another
            array must have as many; series of other lengths are padded with NaN, or come in another form.
    """

    # What a kind of answer is called in `lapse.heads`, how its trees are grown, and whether it is one per event.
    kind: ClassVar[str]
    grow: ClassVar[Any]  # a `lapse.estimators.trees.Grow`
    per_step: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        model: str = "gru-d",
        hidden_size: int = 32,
        num_layers: int = 1,
        *,
        members: int = 3,
        boosting: bool = True,
        summaries: bool = True,
        bin: float | str | None = "auto",
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float = 2e-3,
        weight_decay: float = 0.3,
        dropout: float = 0.5,
        hide: float = 0.3,
        settings: Mapping[str, Any] | None = None,
        validation: float = 0.15,
        refit: bool = True,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        random_state: int = 0,
        progress: bool = False,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
        static: Sequence[str] = (),
        target: str | Sequence[str] | None = None,
        group: str | None = None,
        unit: str | None = None,
    ) -> None:
        self.model = model
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.members = members
        self.boosting = boosting
        self.summaries = summaries
        self.bin = bin
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.hide = hide
        self.settings = settings
        self.validation = validation
        self.refit = refit
        self.class_weight = class_weight
        self.random_state = random_state
        self.progress = progress
        self.id = id
        self.time = time
        self.values = values
        self.static = static
        self.target = target
        self.group = group
        self.unit = unit

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Any:
        """Fit to sequences and their targets.

        Args:
            X: sequences in any of the forms above.
            y: one target per sequence, in their order (for a table: in the order of the sorted ids); None to take those
                that X itself holds.
            sample_weight: (S,), how much each sequence counts; None for all the same.
            groups: (S,), which sequences must stay on one side of the internal split; None to take those of X.
        """
        self._check()
        data = self._with_targets(self._read(X, reset=True), y)
        if groups is not None:
            data = replace(data, groups=per_sequence_array(groups, "groups"))
        check_divisible(data)
        data = self._weighted(data, sample_weight)
        self.ensemble_ = fit_ensemble(self._plan(data), data)
        return self

    def sequences(self, X: Any) -> Sequences:
        """X in any accepted form as `Sequences`, which can be split and indexed.

        Args:
            X: sequences in any of the forms above.
        """
        return self._read(X, reset=False)

    def _read(self, X: Any, *, reset: bool) -> Sequences:
        """X as `Sequences`; an array is held to the number of columns of the first one, unless `reset`."""
        if reset:
            self.__dict__.pop("n_features_in_", None)  # of an earlier array
        columns = Columns(
            self.id, self.time, self.values, self.static, self.target, self.group, self.unit, self.per_step
        )
        return to_sequences(self._checked_array(X, reset) if is_array(X) else X, columns)

    def _checked_array(self, X: Any, reset: bool) -> Array:
        try:
            array: Array = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan", allow_nd=True
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}\nX must be {ACCEPTED}") from error
        return array

    def predictions(self, X: Any) -> Predictions:
        """Everything that is predicted, with ids and names.

        Args:
            X: sequences in any of the forms above.
        """
        check_is_fitted(self, "ensemble_")
        return self.ensemble_.predict(self.sequences(X))

    def explain(self, X: Any, answer: str | None = None, *, at: int = -1) -> Explanation:
        """What each value, gap and static feature contributed to the answers; see `Ensemble.explain`.

        Args:
            X: sequences in any of the forms above.
            answer: the name of a class, a label or a number; None chooses.
            at: where there is one answer per event, the event whose answer is explained.
        """
        check_is_fitted(self, "ensemble_")
        return self.ensemble_.explain(self.sequences(X), answer, at=at)

    def importance(self, X: Any, y: Any = None, **options: Any) -> Importance:
        """How much worse the answers get when a variable tells nothing any more; see `Ensemble.importance`.

        Args:
            X: sequences in any of the forms above, best those that were not learned from.
            y: their targets; None to take those that X itself holds.
            options: further arguments of `lapse.explain.permutation_importance`.
        """
        check_is_fitted(self, "ensemble_")
        return self.ensemble_.importance(self._with_targets(self.sequences(X), y), **options)

    def save(self, folder: Any) -> None:
        """Write the fitted ensemble as a folder; `lapse.estimators.Ensemble.load` and `lapse predict` read it.

        Args:
            folder: where to.
        """
        check_is_fitted(self, "ensemble_")
        self.ensemble_.save(folder)

    ensemble_: Ensemble

    def _with_targets(self, data: Sequences, y: Any) -> Sequences:
        """The sequences with y as targets, or with their own."""
        if y is None:
            if data.targets is None:
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y is None; or name the column of a "
                    "table that holds it with target="
                )
            return data
        return self._encoded(data, self._targets(y, len(data)))

    def _targets(self, y: Any, count: int) -> Array:
        """y as an array: one row per sequence, or per event."""
        y = np.asarray(y) if hasattr(y, "__array__") else y
        if isinstance(y, str) or not hasattr(y, "__len__") or len(y) != count:
            found = f"{len(y)} targets" if hasattr(y, "__len__") and not isinstance(y, str) else repr(y)
            raise ValueError(f"y has {found} for {count} sequences; expected one for each")
        try:
            return np.concatenate(list(y)) if self.per_step else np.asarray(y)
        except ValueError as error:
            raise ValueError(f"y cannot be read as an array: {error}") from error

    def _check(self) -> None:
        """Refuse settings that could only fail, or mislead, after work was done."""
        check_count("members", self.members)
        check_count("random_state", self.random_state, 0)
        for name in ("boosting", "summaries", "refit", "progress"):
            check_flag(name, getattr(self, name))
        for name in ("epochs", "batch_size"):
            if getattr(self, name) != "auto":
                check_count(name, getattr(self, name))
        if self.bin is not None and self.bin != "auto":
            check_number("bin", self.bin, "a positive number, 'auto' or None", least=0.0)
        if not (is_number(self.validation) and 0 < self.validation < 1):
            raise ValueError(f"validation must be above 0 and below 1, got {self.validation!r}")
        check_share("dropout", self.dropout)
        if self.settings is not None:
            check_kind("settings", self.settings, Mapping)

    def _encoded(self, data: Sequences, y: Array) -> Sequences:
        """The sequences with targets (S, ...), or (N, ...) per event."""
        return replace(data, targets=target_array(y), per_step=self.per_step, classes=None)

    def _head(self, data: Sequences) -> Head:
        from lapse.heads import for_data

        head = for_data(data, self.kind, metrics=self.metrics)
        head.balance(data if self._balanced() else None)
        return head

    def _balanced(self) -> bool:
        """Whether classes are weighed by how often they occur."""
        if self.class_weight not in (None, "balanced"):
            raise ValueError(f"class_weight must be None or 'balanced', got {self.class_weight!r}")
        return self.class_weight is not None

    def _weighted(self, data: Sequences, sample_weight: Any) -> Sequences:
        """The sequences with how much each of them counts."""
        if sample_weight is None:
            return data
        return replace(data, weights=_checked_weights(sample_weight, len(data)))

    def _plan(self, data: Sequences) -> Plan:
        batch = recipe.batch_size(len(data)) if self.batch_size == "auto" else int(self.batch_size)
        epochs = recipe.epochs(len(data), batch) if self.epochs == "auto" else int(self.epochs)
        bin = recipe.bin_width(data) if self.bin == "auto" else self.bin
        return Plan(
            head=self._head(data),
            grow=type(self).grow if self.boosting else None,
            settings=self._settings(),
            training=TrainConfig(
                seed=int(self.random_state),
                epochs=epochs,
                batch_size=batch,
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                warmup=0.1,
                hide=self.hide,
                class_weights="balanced" if self._balanced() else None,
                patience=None,
            ),
            members=self.members,
            bin=None if bin is None else float(bin),
            summaries=self.summaries,
            validation=self.validation,
            refit=self.refit,
            progress=self.progress,
        )

    def _settings(self) -> dict[str, Any]:
        shared = {
            "model": self.model,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "scaling": "robust",
            "clip": 5.0,
            "state_dropout": self.dropout,
        }
        told = dict(self.settings or {})
        if unknown := sorted(set(told) - {field.name for field in fields(ModelConfig)}):
            raise ValueError(f"settings names {unknown[0]!r}, which is no field of ModelConfig")
        settings: dict[str, Any] = shared | self._whole_sequence() | told
        ModelConfig(**settings)  # refuses a wrong one before any work is done
        return settings

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    def _whole_sequence(self) -> dict[str, Any]:
        """What is different for one answer per sequence."""
        return {"pooling": "last+mean+max", "static": "table" if self.summaries else "head"}


def _checked_weights(sample_weight: Any, count: int) -> Array:
    """(S,) float32: one number per sequence, none negative or infinite, and at least one of them positive."""
    weights = as_float32(real_numbers(sample_weight, "sample_weight"))
    if weights.shape != (count,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}, expected one number for each of {count} sequences"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ValueError("sample_weight must be finite, not negative, and not zero for every sequence")
    return weights
