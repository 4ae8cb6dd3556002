"""Heads: every figure against values worked out by hand, scikit-learn's and torch's own."""

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor
from torch.nn import functional as F

from lapse import Sequences, heads
from lapse.heads import (
    HEADS,
    Classes,
    Gaussian,
    Head,
    Labels,
    NonFiniteError,
    Numbers,
    Quantiles,
    metrics,
)

RANDOM = np.random.default_rng(0)


def sequences(targets: Any, per_step: bool = False, count: int = 0) -> Sequences:
    """Sequences of two events each; `targets` has one row per sequence, or one per event."""
    targets = np.asarray(targets)
    count = len(targets) // 2 if per_step else len(targets)
    values = [np.ones((2, 1)) for _ in range(count)]
    times = [np.arange(2.0) for _ in range(count)]
    if per_step:
        targets = targets.reshape(count, 2, *targets.shape[1:])
    return Sequences.from_arrays(values, times, targets=targets, per_step=per_step)


def scored(head: Head, output: Any, targets: Any) -> dict[str, float]:
    return head.score(torch.as_tensor(output, dtype=torch.float32), sequences(targets))


# Metrics against scikit-learn


def probabilities(cases: int, classes: int) -> np.ndarray:
    # Rounded, so that some scores are tied.
    return np.round(RANDOM.dirichlet(np.ones(classes), cases), 2)


def test_metrics_of_two_classes_are_those_of_scikit_learn() -> None:
    p, y = probabilities(200, 2), RANDOM.integers(0, 2, 200)
    assert metrics.class_auroc(p, y) == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    assert metrics.class_auprc(p, y) == pytest.approx(sk.average_precision_score(y, p[:, 1]))
    assert metrics.accuracy(p, y) == pytest.approx(100 * sk.accuracy_score(y, p.argmax(1)))
    assert metrics.brier(p, y) == pytest.approx(2 * sk.brier_score_loss(y, p[:, 1]))


def test_metrics_of_four_classes_are_those_of_scikit_learn() -> None:
    p = RANDOM.dirichlet(np.ones(4), 300)
    y = RANDOM.integers(0, 4, 300)
    assert metrics.class_auroc(p, y) == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    each = [sk.average_precision_score(y == k, p[:, k]) for k in range(4)]
    assert metrics.class_auprc(p, y) == pytest.approx(np.mean(each))
    assert metrics.log_loss(p, y) == pytest.approx(sk.log_loss(y, p))


def test_metrics_of_labels_are_those_of_scikit_learn() -> None:
    p, y = RANDOM.random((100, 3)), RANDOM.integers(0, 2, (100, 3)).astype(float)
    assert metrics.label_auroc(p, y) == pytest.approx(sk.roc_auc_score(y, p))
    assert metrics.label_auprc(p, y) == pytest.approx(sk.average_precision_score(y, p))
    assert metrics.label_log_loss(p, y) == pytest.approx(sk.log_loss(y.ravel(), p.ravel()))
    assert metrics.label_brier(p, y) == pytest.approx(sk.brier_score_loss(y.ravel(), p.ravel()))
    assert metrics.label_accuracy(p, y) == pytest.approx(100 * np.mean((p > 0.5) == (y == 1)))


def test_metrics_of_numbers_are_those_of_scikit_learn() -> None:
    p, y = RANDOM.random((50, 3)), RANDOM.random((50, 3))
    assert metrics.mse(p, y) == pytest.approx(sk.mean_squared_error(y, p))
    assert metrics.mae(p, y) == pytest.approx(sk.mean_absolute_error(y, p))
    assert metrics.r2(p, y) == pytest.approx(sk.r2_score(y, p))
    expected = np.mean([sk.mean_pinball_loss(y, p, alpha=level) for level in (0.2, 0.7)])
    both = np.stack([p, p], -1)
    assert metrics.pinball(both, y, np.array([0.2, 0.7])) == pytest.approx(expected)
    assert metrics.coverage(np.array([[0.0], [0.0]]), np.array([[1.0], [1.0]]), np.array([[0.5], [2]])) == 50


def test_what_is_not_known_takes_no_part() -> None:
    y = np.array([[1.0, np.nan], [0.0, 2.0], [np.nan, 4.0]])
    p = np.zeros((3, 2))
    assert metrics.mse(p, y) == pytest.approx((1 + 0 + 4 + 16) / 4)
    assert metrics.mae(p, y) == pytest.approx(7 / 4)
    assert metrics.coverage(p - 1, p + 1, y) == 50
    labels = np.array([[1.0, np.nan], [0.0, 1.0], [np.nan, 0.0]])
    half = np.full((3, 2), 0.5)
    assert metrics.label_log_loss(half, labels) == pytest.approx(math.log(2))
    assert metrics.label_auroc(half, labels) == 0.5


def test_a_figure_that_is_not_defined_is_nan() -> None:
    one_class = np.zeros(3, int)
    assert math.isnan(metrics.class_auroc(probabilities(3, 2), one_class))
    assert math.isnan(metrics.class_auprc(probabilities(3, 2), one_class))
    assert math.isnan(metrics.r2(np.zeros((3, 1)), np.ones((3, 1))))
    # Of three classes one never happens: it is left out of the mean.
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    assert metrics.class_auroc(p, np.array([0, 1])) == 1.0


# Classes


def test_loss_and_accuracy_of_classes() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 3.0]])
    figures = scored(Classes("abc"), logits, [0, 1])
    assert figures["loss"] == pytest.approx(float(F.cross_entropy(logits, torch.tensor([0, 1]))))
    assert figures["accuracy"] == 50


@pytest.mark.parametrize(
    "targets", [[1, 2, 2, 1], [0.0, 1.0, 1.0, 0.0], [-100, 7, 7, -100], [False, True, True, False]]
)
def test_labels_become_classes_by_value(targets: list[Any]) -> None:
    head = heads.for_data(sequences(targets))
    assert isinstance(head, Classes)
    assert head.width == 2
    right = torch.tensor([[9.0, 0], [0, 9], [0, 9], [9, 0]])
    assert head.score(right, sequences(targets))["accuracy"] == 100
    assert list(head.predict(right)["prediction"]) == [float(target) for target in targets]


def test_words_are_kept_as_names() -> None:
    import pandas as pd

    table = pd.DataFrame({"id": [0, 1, 2], "time": 0.0, "x": 1.0, "state": ["sick", "well", "sick"]})
    data = Sequences.from_frame(table, id="id", time="time", values="x", target="state")
    head = heads.for_data(data)
    columns = head.predict(torch.tensor([[math.log(3.0), 0.0]]))
    assert columns["prediction"].tolist() == ["sick"]
    assert columns["p_sick"] == pytest.approx([0.75])
    assert list(columns) == ["prediction", "p_sick", "p_well"]


def test_a_label_that_was_not_in_training_is_named() -> None:
    head = heads.for_data(sequences([1, 2]))
    with pytest.raises(ValueError, match="a target is 3, which is not one of the labels 1, 2"):
        head.targets_of(sequences([1, 3]))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0.5, 1.0], "a target is 0.5, expected whole numbers or words"),
        ([1, 1], r"hold 1 class \(1\), expected at least two"),
        ([[0.0, 1.0], [1.0, 1.0]], "have several columns"),
    ],
)
def test_targets_that_are_no_classes_are_refused(targets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classes.for_data(sequences(targets))


def test_rare_classes_may_count_as_much_as_common_ones() -> None:
    head, data = Classes("ab"), sequences([0, 0, 0, 1])
    output = torch.randn(4, 2)
    head.balance(data)
    targets = head.targets_of(data)
    loss = head.loss(output, targets).sum() / targets.weights.sum()
    weights = torch.tensor([4 / (2 * 3), 4 / 2])
    torch.testing.assert_close(loss, F.cross_entropy(output, torch.tensor([0, 0, 0, 1]), weights))
    # What is reported stays unweighted.
    assert head.score(output, data)["loss"] == pytest.approx(
        float(F.cross_entropy(output, torch.tensor([0, 0, 0, 1])))
    )


# Labels


def test_loss_of_labels_leaves_out_what_is_not_known() -> None:
    head, data = Labels(("a", "b")), sequences([[1.0, np.nan], [0.0, 1.0]])
    output = torch.tensor([[0.5, 9.0], [-1.0, 2.0]])
    each = F.binary_cross_entropy_with_logits(output, torch.tensor([[1.0, 0], [0, 1]]), reduction="none")
    expected = (each[0, 0] + (each[1, 0] + each[1, 1]) / 2) / 2
    assert head.score(output, data)["loss"] == pytest.approx(float(expected))
    columns = head.predict(output)
    assert columns["prediction_a"].tolist() == [True, False]
    assert columns["p_b"] == pytest.approx(torch.sigmoid(output[:, 1]).numpy())


def test_labels_other_than_0_and_1_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a target is 2, expected 0, 1 or NaN"):
        Labels.for_data(sequences([[0.0, 2.0], [1.0, 1.0]]))


def test_rare_labels_may_count_as_much_as_common_ones() -> None:
    head, data = Labels(), sequences([[1.0], [0.0], [0.0], [0.0]])
    head.balance(data)
    targets = head.targets_of(data)
    loss = head.loss(torch.zeros(4, 1), targets)
    torch.testing.assert_close(loss, math.log(2) * torch.tensor([2.0, 2 / 3, 2 / 3, 2 / 3]))


# Numbers


@pytest.mark.parametrize(
    ("loss", "torch_loss"), [("squared", F.mse_loss), ("absolute", F.l1_loss), ("huber", F.huber_loss)]
)
def test_losses_of_numbers_are_torchs_own(loss: str, torch_loss: Callable[..., Tensor]) -> None:
    targets = RANDOM.normal(0, 3, (20, 2)).astype(np.float32)
    output = torch.randn(20, 2)
    head = Numbers(("a", "b"), loss=loss, scale=False)
    expected = float(torch_loss(output, torch.tensor(targets)))
    assert head.score(output, sequences(targets))["loss"] == pytest.approx(expected)


def test_one_column_needs_no_second_axis() -> None:
    head = heads.for_data(sequences([1.5, 2.5, 3.5, 4.5]))
    assert head.width == 1
    targets = head.targets_of(sequences([1.5, 2.5]))
    assert targets.values.shape == (2, 1)
    assert head.errors(torch.zeros(2, 1), targets).shape == (2,)


def test_numbers_are_learned_in_units_of_their_spread() -> None:
    data = sequences([100.0, 140.5, 180.0, 60.0])
    head = heads.for_data(data)
    mean, spread = data.targets.mean(), data.targets.std()  # type: ignore[union-attr]
    learned = (data.targets - mean) / spread  # type: ignore[operator]
    exact = head.score(torch.tensor(learned)[:, None], data)
    assert exact["loss"] == pytest.approx(0, abs=1e-10)
    assert exact["mse"] == pytest.approx(0, abs=1e-6)
    assert head.score(torch.zeros(4, 1), data) == pytest.approx({"loss": 1, "mse": spread**2}, rel=1e-5)
    assert head.predict(torch.ones(1, 1))["prediction"] == pytest.approx([mean + spread], rel=1e-6)


def test_a_constant_target_is_only_shifted() -> None:
    head = heads.for_data(sequences([7.25] * 5), "numbers")
    assert head.predict(torch.tensor([[0.5]]))["prediction"].tolist() == [7.75]


def test_several_columns_each_with_what_is_known_of_it() -> None:
    data = sequences([[1.0, np.nan], [3.0, 10.0], [np.nan, 30.0]])
    head = heads.for_data(data)
    assert isinstance(head, Numbers)
    assert head.target_mean.tolist() == [2, 20]
    assert head.target_scale.tolist() == [1, 10]
    errors = head.errors(torch.zeros(3, 2), head.targets_of(data))
    assert errors.tolist() == [1, 1, 1]
    assert set(head.predict(torch.zeros(1, 2))) == {"prediction_target 0", "prediction_target 1"}


def test_a_column_of_which_nothing_is_known_is_named() -> None:
    with pytest.raises(ValueError, match="no target of column 'target 1' is known"):
        heads.for_data(sequences([[1.5, np.nan], [2.5, np.nan]]))


@pytest.mark.parametrize("targets", [[[1.0, 2.0]], [[[1.0]]]])
def test_the_number_of_columns_is_checked(targets: Any) -> None:
    with pytest.raises(ValueError, match=r"expected 1 column\(s\) \(target\) per prediction"):
        Numbers().targets_of(sequences(targets))


# Gaussian and quantiles


def test_gaussian_loss_is_the_negative_log_likelihood() -> None:
    data = sequences([3.0, 5.5, 9.0])
    head = Gaussian.for_data(data, metrics=("nll", "mse", "mae", "r2", "coverage_error"))
    output = torch.tensor([[0.1, -0.3], [0.0, 0.2], [0.9, 0.0]])
    columns = head.predict(output)
    normal = torch.distributions.Normal(
        torch.tensor(columns["prediction"]), torch.tensor(columns["prediction_std"])
    )
    expected = float(-normal.log_prob(torch.tensor(data.targets)).mean())
    figures = head.score(output, data)
    assert figures["nll"] == pytest.approx(expected, rel=1e-5)
    # The loss is that of the scaled target.
    assert figures["loss"] == pytest.approx(expected - math.log(float(head.target_scale)), rel=1e-4)
    assert figures["mse"] == pytest.approx(np.mean((columns["prediction"] - data.targets) ** 2))
    assert figures["mae"] == pytest.approx(np.mean(np.abs(columns["prediction"] - data.targets)))
    assert figures["coverage_error"] == pytest.approx(90 - 100 * 2 / 3)  # the second of three lies outside


def test_gaussian_loss_has_a_floor() -> None:
    head, data = Gaussian(scale=False), sequences([0.5])
    figures = head.score(torch.tensor([[0.5, -1e6]]), data)
    assert figures["loss"] == pytest.approx(-math.log(1e3) + 0.5 * math.log(2 * math.pi), rel=1e-4)


def test_quantile_loss_and_order() -> None:
    data = sequences([0.0, 1.0, 2.5])
    head = Quantiles(levels=(0.1, 0.5, 0.8), scale=False, metrics=("pinball", "mae", "coverage_error"))
    output = torch.tensor([[2.0, 1.0, 0.0]] * 3)  # they cross, and are sorted when predicted
    figures = head.score(output, data)
    ordered = np.array([0.0, 1.0, 2.0])
    expected = np.mean(
        [
            sk.mean_pinball_loss(data.targets, np.full(3, q), alpha=a)
            for q, a in zip(ordered, head.levels, strict=True)
        ]
    )
    assert figures["pinball"] == pytest.approx(expected)
    assert figures["mae"] == pytest.approx((1 + 0 + 1.5) / 3)
    assert figures["coverage_error"] == pytest.approx(70 - 100 * 2 / 3)
    assert {name: float(column[0]) for name, column in head.predict(output).items()} == {
        "prediction_q0.1": 0,
        "prediction_q0.5": 1,
        "prediction_q0.8": 2,
    }
    straight = head.score(output.flip(1), data)
    assert straight["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("levels", [(), (0.5, 0.1), (0.0, 0.5), (0.5, 1.0)])
def test_levels_increase_between_0_and_1(levels: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="levels must increase and lie between 0 and 1"):
        Quantiles(levels=levels)


# What every head promises

EXAMPLES: dict[str, Any] = {
    "classes": RANDOM.integers(0, 4, 40),
    "labels": RANDOM.integers(0, 2, (40, 3)).astype(float),
    "numbers": RANDOM.normal(50, 9, (40, 2)),
    "gaussian": RANDOM.normal(50, 9, (40, 2)),
    "quantiles": RANDOM.normal(50, 9, (40, 2)),
}


@pytest.fixture(params=HEADS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def example(kind: str, per_step: bool = False, missing: bool = False) -> tuple[Head, Sequences]:
    targets = EXAMPLES[kind].astype(float)
    if missing:
        targets[::3] = np.nan
    data = sequences(targets, per_step)
    return heads.for_data(data, kind), data


@pytest.mark.parametrize("per_step", [False, True])
def test_a_head_is_built_again_from_its_config(kind: str, per_step: bool) -> None:
    head, data = example(kind, per_step)
    stored = json.loads(json.dumps(head.config()))
    assert stored["kind"] == kind
    again = heads.from_config(stored)
    assert again.config() == head.config()
    again.load_state_dict(head.state_dict())
    output = torch.randn(40, head.width)
    assert again.score(output, data) == head.score(output, data)
    assert pickle.loads(pickle.dumps(head)).score(output, data) == head.score(output, data)
    assert head.sentence.endswith("per event" if per_step else "per sequence")


def test_all_metrics_and_the_baseline_of_every_head(kind: str) -> None:
    head, data = example(kind, missing=True)
    every = heads.for_data(data, kind, metrics=[metric.name for metric in head.available])
    figures = every.baseline(data, data)
    assert set(figures) == {"loss", *(metric.name for metric in head.available)}
    assert all(math.isfinite(figure) for figure in figures.values())
    # No other constant is better on the data that it was taken from.
    for _ in range(20):
        other = every.trivial(data) + 0.3 * torch.randn(every.width)
        assert every.score(other.float().expand(40, -1), data)["loss"] > figures["loss"] - 1e-6


def test_targets_that_are_not_known_have_no_loss_and_no_gradient(kind: str) -> None:
    head, data = example(kind, missing=True)
    targets = head.targets_of(data)
    output = torch.randn(40, head.width, requires_grad=True)
    loss = head.loss(output, targets)
    loss.sum().backward()
    unknown = np.arange(40) % 3 == 0
    assert output.grad is not None
    assert not loss[unknown].any()
    assert not output.grad[unknown].any()
    assert output.grad[~unknown].any(1).all()
    kept = data[~unknown]
    assert head.score(output.detach()[~unknown], kept) == pytest.approx(head.score(output.detach(), data))


def test_a_batch_gives_the_targets_of_its_events(kind: str) -> None:
    targets = EXAMPLES[kind][:6]
    data = Sequences.from_arrays(
        [np.ones((n, 1)) for n in (1, 3, 2)],
        [np.arange(float(n)) for n in (1, 3, 2)],
        targets=np.split(targets, [1, 4]),
        per_step=True,
    )
    head = heads.for_data(sequences(EXAMPLES[kind], per_step=True), kind)
    batch = data.batch([0, 1, 2])
    found = head.targets(batch)
    assert torch.equal(found.values, head.targets_of(data).values)


def test_predictions_that_are_not_finite_are_not_scored(kind: str) -> None:
    head, data = example(kind)
    output = torch.randn(40, head.width)
    output[3] = torch.nan
    with pytest.raises(NonFiniteError, match="1 of 40 predictions are NaN or infinite"):
        head.score(output, data)


def test_targets_must_be_where_the_model_answers(kind: str) -> None:
    head, _ = example(kind)
    _, steps = example(kind, per_step=True)
    with pytest.raises(
        ValueError, match="the targets are one per event, but the model answers once per sequence"
    ):
        head.targets_of(steps)


def test_no_rows_have_no_loss(kind: str) -> None:
    head, data = example(kind)
    targets = head.targets(data.batch([]))
    assert head.loss(torch.zeros(0, head.width), targets).shape == (0,)


def test_without_any_target_there_is_nothing_to_score(kind: str) -> None:
    head, data = example(kind)
    bare = Sequences(data.values, data.times, data.offsets)
    with pytest.raises(ValueError, match="carry no targets"):
        head.targets_of(bare)
    with pytest.raises(ValueError, match="carry no targets"):
        head.targets(bare.batch([0]))
    with pytest.raises(ValueError, match="nothing to score"):
        head.scores().values()
    unknown = Sequences(
        data.values, data.times, data.offsets, targets=np.full_like(EXAMPLES[kind], np.nan, float)
    )
    with pytest.raises(ValueError, match="no target of these sequences is known"):
        head.targets_of(unknown)


def test_a_summary_tells_of_every_part(kind: str) -> None:
    head, data = example(kind)
    summary = head.summary({"train": data, "test": data})
    assert all(len(row) == len(summary.columns) for row in summary.rows)
    assert "train" in " ".join([*summary.columns, *(row[0] for row in summary.rows)])


def test_a_metric_that_a_head_does_not_have_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="has no metric 'f1'; its metrics are"):
        HEADS[kind](("a", "b"), metrics=("f1",))


def test_only_classes_have_weights() -> None:
    with pytest.raises(ValueError, match="class weights need classes or labels"):
        Numbers().balance(sequences([0.5, 1.5]))


def test_persistence_repeats_the_values() -> None:
    data = sequences([[1.5], [2.5], [1.5], [2.5]], per_step=True)
    for cls in (Numbers, Gaussian, Quantiles):
        head = cls.for_data(data)
        repeated = head.persistence(data)
        assert repeated is not None
        assert next(iter(head.predict(repeated).values())) == pytest.approx([1.0] * 4)
    assert Numbers().persistence(data) is None  # it answers once per sequence
    assert Classes("ab").persistence(data) is None


# By name


class Toy(Numbers):
    """A head outside lapse."""


def test_heads_are_found_by_name_or_reference() -> None:
    assert heads.find("classes") is Classes
    assert heads.find("test_heads:Toy") is Toy
    toy = Toy(("a",), per_step=True)
    assert toy.config()["kind"] == "test_heads:Toy"
    assert type(heads.from_config(toy.config())) is Toy
    for name, message in {
        "class": "head must be one of classes.*got 'class'",
        "nowhere.at.all:Toy": "cannot import 'nowhere.at.all'",
        "test_heads:Toys": "has no 'Toys'",
        "json:dumps": "expected a class derived from lapse.heads.base.Head",
    }.items():
        with pytest.raises(ValueError, match=message):
            heads.find(name)


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        ([1, 2, 3], "classes"),
        ([0.0, 1.0, 1.0], "classes"),
        ([0.0, 1.5], "numbers"),
        ([[0.0, 1.0], [1.0, 1.0]], "labels"),
        ([[0.0, 1.0], [1.0, 2.0]], "numbers"),
    ],
)
def test_the_kind_of_answer_follows_from_the_targets(targets: Any, kind: str) -> None:
    assert type(heads.for_data(sequences(targets))) is HEADS[kind]


def test_without_targets_no_head_is_chosen() -> None:
    with pytest.raises(ValueError, match="carry no targets"):
        heads.for_data(Sequences.from_arrays([[1.0]], [[0.0]]))
