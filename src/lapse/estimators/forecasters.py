"""Forecasts: the values of features at any time, from the events before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from lapse import heads
from lapse.estimators import recipe
from lapse.estimators.fitting import split
from lapse.estimators.inputs import Columns, to_sequences
from lapse.extras import extra
from lapse.heads import Head
from lapse.models import Forecaster, Predictions
from lapse.models.forecaster import asked_about
from lapse.sequences import Cuts, Sequences
from lapse.sequences.bins import width_in_unit
from lapse.sequences.ragged import Array
from lapse.training import TrainConfig, fit

with extra("estimators"):
    from sklearn.base import BaseEstimator
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_is_fitted

HEAD_METRICS = {
    "numbers": ("mse", "mae", "r2"),
    "gaussian": ("nll", "mse", "mae", "coverage_error"),
    "quantiles": ("pinball", "mae", "coverage_error"),
}


class IrregularForecaster(BaseEstimator):  # type: ignore[misc]
    """The values of features at any time, learned by cutting sequences at random events and asking about later ones.

    There is no y: what is forecast are features of X itself. X may come in every form that `IrregularEstimator` takes.

    Args:
        model: the layer or encoder, a name of `lapse.MODELS`. The state of one whose cell splits gaps flows to the time
            that is asked about.
        hidden_size: its number of units.
        num_layers: how many of it are stacked.
        targets: the features that are forecast; None for all that hold numbers.
        answer: "quantiles", "gaussian" (mean and standard deviation) or "numbers".
        levels: the probabilities of the quantiles.
        horizon: the longest time ahead that is learned: a number in the unit of the table, or with a unit, "6h"; None
            for as far as the sequences go.
        cuts: how many cuts per sequence are learned from, at most.
        queries: how many later events are asked about per cut, at most.
        epochs: the number of epochs, of which the best is kept; "auto" decides by the number of cuts.
        batch_size: the number of cuts per batch.
        learning_rate: the largest learning rate of AdamW, which falls along a cosine.
        weight_decay: how strongly matrices of the network are drawn to zero.
        dropout: the probability of setting a feature of the state to 0 in training.
        settings: further fields of `lapse.models.ModelConfig`, which win over those above.
        validation: the share of the sequences that is held out inside `fit`, by id or group, to choose the best epoch
            and to calibrate quantiles and standard deviations.
        random_state: the seed of everything random.
        progress: whether to show the progress of training.
        id: the column of ids of a table; the first column if None.
        time: the column of times of a table; the second column if None.
        values: the columns of features of a table; all that have no other role if None.
        static: the columns of a table that do not change within a sequence.
        group: the column of a table that says which sequences must stay together.
        unit: the unit of time of a table, such as "h".

    Attributes:
        forecaster_: what was fitted, a `lapse.Forecaster`; `forecaster_.save(folder)` stores it.
        train_: the cuts that were learned from.
    """

    def __init__(
        self,
        model: str = "gru-d",
        hidden_size: int = 64,
        num_layers: int = 1,
        *,
        targets: str | Sequence[str] | None = None,
        answer: str = "quantiles",
        levels: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        horizon: float | str | None = None,
        cuts: int = 4,
        queries: int = 12,
        epochs: int | str = "auto",
        batch_size: int = 128,
        learning_rate: float = 5e-3,
        weight_decay: float = 0.01,
        dropout: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        validation: float = 0.15,
        random_state: int = 0,
        progress: bool = False,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
        static: Sequence[str] = (),
        group: str | None = None,
        unit: str | None = None,
    ) -> None:
        self.model = model
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.targets = targets
        self.answer = answer
        self.levels = levels
        self.horizon = horizon
        self.cuts = cuts
        self.queries = queries
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.settings = settings
        self.validation = validation
        self.random_state = random_state
        self.progress = progress
        self.id = id
        self.time = time
        self.values = values
        self.static = static
        self.group = group
        self.unit = unit

    forecaster_: Forecaster
    train_: Cuts

    def fit(self, X: Any, y: None = None) -> IrregularForecaster:
        """Learn from sequences.

        Args:
            X: sequences in any of the accepted forms.
            y: not used; it is there because scikit-learn passes it.
        """
        data, seed = self.sequences(X), int(self.random_state)
        inside, outside = split(data, self.validation, seed)
        self.train_, held_out = self.cut(data[inside]), self.cut(data[outside])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Forecaster.for_data(self.train_, self._head(), **self._settings())
        fit(model, self.train_, held_out, self._training(), progress=self.progress, label="forecaster")
        model.calibrate(held_out)
        self.forecaster_ = model
        return self

    def sequences(self, X: Any) -> Sequences:
        """X in any accepted form as `Sequences`, without targets.

        Args:
            X: sequences in any of the accepted forms.
        """
        columns = Columns(
            self.id, self.time, self.values, self.static, group=self.group, unit=self.unit, per_step=False
        )
        found = to_sequences(X, columns)
        return replace(found, targets=None, per_step=False, classes=None, target_names=())

    def cut(self, data: Sequences) -> Cuts:
        """Random cuts of sequences as `fit` draws them, with what is to be forecast as targets.

        Args:
            data: the sequences.
        """
        horizon = None if self.horizon is None else width_in_unit(data, self.horizon)
        return Cuts.random(
            data,
            self.targets,
            count=self.cuts,
            queries=self.queries,
            horizon=horizon,
            seed=int(self.random_state),
        )

    def predictions(
        self, X: Any, times: Sequence[ArrayLike] | ArrayLike | None = None, *, ahead: ArrayLike | None = None
    ) -> Predictions:
        """Everything that is predicted, one row per query, with ids, times and names.

        Args:
            X: sequences in any of the accepted forms.
            times: when: one list of times per sequence, or one list for all. Each answer is made of the events up to
                its time.
            ahead: instead, how long after the last event of each sequence.
        """
        check_is_fitted(self, "forecaster_")
        return self.forecaster_.predict(self.sequences(X), times, ahead=ahead)

    def predict(
        self, X: Any, times: Sequence[ArrayLike] | ArrayLike | None = None, *, ahead: ArrayLike | None = None
    ) -> Array:
        """(Q,), or (Q, K) for several features: the number, the mean, or the quantile nearest to one half.

        Args:
            X: sequences in any of the accepted forms.
            times: when, as in `predictions`.
            ahead: instead, how long after the last event of each sequence.
        """
        points = self._points(self._asked(X, times, ahead))
        return points[:, 0] if points.shape[1] == 1 else points

    def quantiles(
        self, X: Any, times: Sequence[ArrayLike] | ArrayLike | None = None, *, ahead: ArrayLike | None = None
    ) -> Array:
        """(Q, levels), or (Q, K, levels) for several features; only where the answer is quantiles.

        Args:
            X: sequences in any of the accepted forms.
            times: when, as in `predictions`.
            ahead: instead, how long after the last event of each sequence.
        """
        if self.answer != "quantiles":
            raise ValueError(f"this forecaster answers with {self.answer}; make one with answer='quantiles'")
        cuts = self._asked(X, times, ahead)
        output = self.forecaster_.outputs(cuts).double()
        found: Array = self.forecaster_.head.answer(output).cpu().numpy()
        return found[:, 0] if found.shape[1] == 1 else found

    def score(self, X: Any, y: None = None) -> float:
        """R² over random cuts of X, averaged over the features that are forecast.

        Args:
            X: sequences in any of the accepted forms.
            y: not used.
        """
        check_is_fitted(self, "forecaster_")
        cuts = self.cut(self.sequences(X))
        truth, points = cuts.queries.targets, self._points(cuts)
        assert truth is not None
        known = ~np.isnan(truth)
        columns = [k for k in range(truth.shape[1]) if known[:, k].any()]
        return float(np.mean([r2_score(truth[known[:, k], k], points[known[:, k], k]) for k in columns]))

    def save(self, folder: Any) -> None:
        """Write the fitted forecaster as a folder; `lapse.Forecaster.load` and `lapse predict` read it.

        Args:
            folder: where to.
        """
        check_is_fitted(self, "forecaster_")
        self.forecaster_.save(folder)

    def _asked(self, X: Any, times: Any, ahead: Any) -> Cuts:
        check_is_fitted(self, "forecaster_")
        return asked_about(self.sequences(X), times, ahead)

    def _points(self, cuts: Cuts) -> Array:
        """(Q, K) one number per feature and query."""
        head: Any = self.forecaster_.head
        points: Array = head.point(self.forecaster_.outputs(cuts).double()).cpu().numpy()
        return points

    def _head(self) -> Head:
        if self.answer not in HEAD_METRICS:
            raise ValueError(f"answer must be one of {', '.join(HEAD_METRICS)}, got {self.answer!r}")
        levels = {"levels": tuple(self.levels)} if self.answer == "quantiles" else {}
        return heads.for_data(self.train_.queries, self.answer, metrics=HEAD_METRICS[self.answer], **levels)

    def _training(self) -> TrainConfig:
        epochs = recipe.epochs(len(self.train_), self.batch_size) if self.epochs == "auto" else self.epochs
        return TrainConfig(
            seed=int(self.random_state),
            epochs=int(epochs),
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=None,
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
        return shared | dict(self.settings or {})
