"""What moved an answer: contributions that add up, to the events that they belong to; and what matters in a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from example_estimators import QUICK, means
from example_models import model_for, sequences
from lapse import MODELS, Sequences
from lapse.estimators import IrregularClassifier, IrregularLabeller, IrregularRegressor
from lapse.estimators.explaining import shapley_values
from lapse.estimators.trees import Trees
from lapse.examples import pbc2
from lapse.explain import integrated_gradients, permutation_importance
from lapse.explain.explanation import GAPS
from lapse.heads import Classes, Gaussian, Labels, Numbers, Quantiles
from lapse.sequences.bins import trace_bins
from lapse.sequences.summaries import SHAPE, STATISTICS, present, summarize, trace_present, trace_summaries


def adds_up(explanation, tolerance=0.01):
    """Contributions are the difference of the outputs; returns it."""
    change = explanation.change
    assert np.abs(explanation.error).max() <= tolerance * max(1.0, np.abs(change).max())
    return change


@pytest.mark.parametrize("name", MODELS)
def test_contributions_add_up_to_the_difference_of_the_outputs(name):
    data = sequences(missing=True, static=True)
    model = model_for(data, model=name, static="head", clip=5.0)
    found = integrated_gradients(model, data)
    assert np.abs(adds_up(found)).max() > 0
    assert np.abs(found.gaps).max() > 0
    outputs = model.outputs(data).double()
    np.testing.assert_allclose(found.outputs, outputs, atol=1e-5)
    assert found.values[~data.observed].tolist() == [0.0] * int((~data.observed).sum())
    assert found.static[1] == 0  # it is not known
    assert found.gaps[data.offsets[:-1]].tolist() == [0.0] * len(data)


@pytest.mark.parametrize(
    "settings", [{"pooling": "last+mean+max+attention"}, {"static": "table"}, {"scaling": "none"}]
)
def test_they_add_up_for_every_part_of_a_model(settings):
    data = sequences(missing=True, static=True)
    adds_up(integrated_gradients(model_for(data, model="gru-d", **settings), data))


def numbers(columns):
    data = sequences(numbers=True)
    return replace(data, targets=data.targets[:, :columns], target_names=("a", "b")[:columns])


@pytest.mark.parametrize(
    ("head", "data", "name"),
    [
        (Classes("xy"), sequences(), "y"),
        (Classes("xyz", labels=[0, 1, 2]), sequences(), None),
        (Labels(["a", "b"]), replace(sequences(), targets=np.eye(6)[:, :2].astype(np.float32)), "a"),
        (Numbers(("a", "b")), numbers(2), "a"),
        (Gaussian(("a", "b")), numbers(2), "a"),
        (Quantiles(("a", "b"), levels=(0.1, 0.4, 0.9)), numbers(2), "a"),
    ],
)
def test_every_head_says_what_is_explained(head, data, name):
    model = model_for(data, head=head)
    found = integrated_gradients(model, data)
    change = adds_up(found)
    answer, baseline = found.told(0)
    if head.gives_probabilities:
        probability = head.answer(found.outputs)[0]
        assert answer == pytest.approx(float(probability[list(head.contrasts).index(found.names[0])]))
        if head.width == 2 and isinstance(head, Classes | Labels):
            logit = np.log(answer / (1 - answer)) - np.log(baseline / (1 - baseline))
            assert logit == pytest.approx(change[0], abs=1e-5)
    else:
        assert answer - baseline == pytest.approx(change[0], rel=1e-4)
        assert answer == pytest.approx(
            next(iter(model.predict(data).columns.values()))[0], rel=1e-4
        ) or isinstance(head, Quantiles)
    if name is not None:
        assert set(found.names) == {name}
    else:
        assert list(found.names) == [head.names[k] for k in found.outputs.argmax(1)]


def test_another_answer_can_be_asked_for_and_a_wrong_one_is_named():
    data = sequences()
    model = model_for(data)
    second, first = integrated_gradients(model, data), integrated_gradients(model, data, "0")
    np.testing.assert_allclose(second.values, -first.values, atol=1e-6)
    with pytest.raises(ValueError, match="no answer '7' to explain; expected one of 0, 1"):
        integrated_gradients(model, data, "7")


def test_an_answer_at_an_event_owes_nothing_to_later_events():
    data = sequences(per_step=True, missing=True)
    data = data[data.lengths > 3]
    model = model_for(data, model="gru-d")
    found = integrated_gradients(model, data, at=1)
    adds_up(found)
    later = np.concatenate([np.arange(length) > 1 for length in data.lengths])
    assert np.abs(found.values[later]).max() == 0
    assert np.abs(found.gaps[later]).max() == 0
    assert np.abs(found.values[~later]).max() > 0
    np.testing.assert_allclose(found.outputs, model.outputs(data)[data.offsets[:-1] + 1], atol=1e-5)
    with pytest.raises(ValueError, match="at=99 is not an event of every sequence"):
        integrated_gradients(model, data, at=99)


def test_one_sequence_alone_is_explained_as_among_others():
    data = sequences(missing=True, static=True)
    model = model_for(data, model="ode-lstm")
    together, alone = integrated_gradients(model, data), integrated_gradients(model, data[2])
    events = slice(data.offsets[2], data.offsets[3])
    np.testing.assert_allclose(together.values[events], alone.values, atol=1e-5)
    np.testing.assert_allclose(together.totals()[2], alone.totals()[0], atol=1e-5)


def test_amounts_for_summaries_go_to_the_events_that_have_them():
    nan = np.nan
    s = Sequences.from_arrays(
        [[[3.0, nan], [1.0, nan], [nan, nan], [2.0, nan]], [[5.0, 7.0]]],
        [[0, 1, 2, 3], [0]],
        static=[[1.0], [2.0]],
    )
    assert summarize(s).names[1:6] == tuple(
        f"feature 0 {word}" for word in ("last", "mean", "least", "largest", "log-count")
    )
    amounts = np.zeros((2, 11))
    amounts[0] = [0.5, 10, 3, 100, 1000, 7, 0, 0, 0, 0, 9]
    static, values, counts = trace_summaries(s, amounts)
    assert static[:, 0].tolist() == [0.5, 0]
    assert values[:, 0].tolist() == [1 + 1000, 1 + 100, 0, 1 + 10, 0]
    assert values[:, 1].tolist() == [0] * 5
    assert counts.tolist() == [[7, 9], [0, 0]]


def test_amounts_for_a_shape_go_to_the_events_that_make_it():
    nan = np.nan
    s = Sequences.from_arrays(
        [[[nan, 4.0], [3.0, 4.0], [1.0, nan], [nan, 4.0], [5.0, nan]], [[nan, 7.0]]],
        [[0, 1, 2, 3, 5], [0]],
    )
    amounts = np.zeros((2, 2, len(STATISTICS)))

    def traced(statistic, sequence, feature):
        amounts[:] = 0.0
        amounts[sequence, feature, STATISTICS.index(statistic)] = 48.0
        return trace_summaries(s, amounts.reshape(2, -1), STATISTICS)[1]

    expected = {  # of 3, 1, 5 at times 1, 2, 5
        "deviation": [0, 0, 24, 0, 24, 0],
        "change": [0, 8, 24, 0, 16, 0],  # 2, 2 + 4 and 4 of 12
        "first": [0, 48, 0, 0, 0, 0],
    }
    for statistic, values in expected.items():
        np.testing.assert_allclose(traced(statistic, 0, 0)[:, 0], values, atol=1e-12)
    distances = np.abs(np.array([1, 2, 5]) - 8 / 3)
    np.testing.assert_allclose(traced("slope", 0, 0)[[1, 2, 4], 0], 48 * distances / distances.sum())
    for statistic in ("deviation", "change"):  # of equal values, none has more part in it than another
        np.testing.assert_allclose(traced(statistic, 0, 1)[:, 1], [16, 16, 0, 16, 0, 0])
    for statistic in SHAPE:  # a single one has all of it, and what was not observed has nothing
        assert traced(statistic, 1, 1)[5, 1] == 48
        assert not traced(statistic, 1, 0).any()


def test_amounts_for_bins_and_for_the_present_go_back_too():
    s = Sequences.from_arrays([[[1.0], [3.0], [np.nan], [5.0]]], [[0.1, 0.2, 0.3, 1.5]])
    values, gaps = trace_bins(s, 1.0, np.array([[6.0], [2.0]]), np.array([4.0, 8.0]))
    assert values[:, 0].tolist() == [3.0, 3.0, 0.0, 2.0]
    assert gaps.tolist() == [4.0, 0.0, 0.0, 8.0]
    assert present(s).values[2, 0] == 3.0
    static, latest, before = trace_present(s, np.array([2]), np.array([[11.0, 13.0]]))
    assert static.shape == (1, 0)
    assert latest[:, 0].tolist() == [0.0, 11.0, 0.0, 0.0]
    assert before.tolist() == [0.0, 0.0, 13.0, 0.0]


def test_shapley_values_of_a_single_split():
    trees = Trees(
        baseline=np.zeros(1), column=np.array([0]), offsets=np.array([0, 3]), feature=np.array([1, -1, -1]),
        threshold=np.array([0.5, -2.0, 3.0]), left=np.array([1, 0, 0]), right=np.array([2, 0, 0]),
        missing_left=np.zeros(3, bool),
    )  # fmt: skip
    found = shapley_values(trees, np.array([9.0, 1.0, np.nan]), np.array([0.0, 0.0, np.nan]), np.ones(1))
    assert found.tolist() == [0.0, 5.0, 0.0]


@pytest.fixture(scope="module")
def fitted():
    """A classifier of a real table with words, missing values and static features, with bins and trees."""
    static = ["drug", "age", "sex"]
    settings = {"static": static, "members": 2, "hidden_size": 4, "epochs": 2, "bin": 0.5}
    model = IrregularClassifier(id="id", time="year", target="died", **settings)
    return model.fit(pbc2())


def test_contributions_of_an_ensemble_add_up_with_trees_bins_words_and_temperature(fitted):
    data = fitted.sequences(pbc2())[:12]
    found = fitted.explain(data)
    change = adds_up(found)
    assert fitted.ensemble_.tree_share > 0
    np.testing.assert_allclose(
        [found.told(i)[0] for i in range(12)], fitted.predict_proba(data)[:, 1], atol=1e-5
    )
    assert change.std() > 0
    assert found.variables == (*data.features, "drug", "age", "sex", GAPS)
    frame = found.frame()
    assert frame["contribution"].sum() == pytest.approx(found.totals().sum())
    assert {"Yes", "No"} <= set(frame.loc[frame["variable"] == "ascites", "value"])
    assert found.sentence(0).startswith(f"id {data.ids[0]}: probability of died = True is ")


def test_a_table_without_an_optional_column_is_explained_too(fitted):
    with pytest.warns(UserWarning, match="'serChol' is missing"):
        found = fitted.explain(pbc2().drop(columns="serChol").head(20))
    assert np.abs(found.values[:, found.sequences.features.index("serChol")]).max() == 0


def test_per_event_answers_of_an_ensemble_add_up():
    data, _ = means(count=40)
    labels = (np.nan_to_num(data.values[:, 0]) > 0).astype(np.int64)
    data = replace(data, targets=labels, per_step=True)
    found = IrregularLabeller(**QUICK).fit(data).explain(data[:5])
    adds_up(found)
    assert np.abs(found.totals()).mean(0).argmax() == 0


def test_what_decides_is_what_is_found():
    data, centre = means(count=150)
    model = IrregularRegressor(**QUICK | {"epochs": 10}).fit(data, centre)
    found = model.explain(data[:30])
    adds_up(found)
    totals = np.abs(found.totals()).mean(0)
    assert totals[0] > 3 * totals[1:].max()
    importance = model.importance(data, centre, repeats=2, metric="r2")
    assert importance.frame()["variable"].iloc[0] == "feature 0"
    assert importance.worse[0].mean() > 0.5
    assert np.abs(importance.worse[1:]).max() < 0.3
    with pytest.raises(ValueError, match="metric must be one of 'mse', 'mae', 'r2', got 'auc'"):
        model.importance(data, centre, metric="auc")


def test_shuffling_keeps_what_is_missing_and_when_sequences_begin():
    data = replace(sequences(missing=True, static=True, count=30), targets=np.arange(30) % 2)
    seen = []

    def outputs(s):
        seen.append(s)
        return torch.zeros(len(s), 2)

    found = permutation_importance(outputs, Classes("ab"), data, repeats=1, most=20)
    assert found.variables == ("feature 0", "feature 1", "static 0", GAPS)
    assert found.worse.tolist() == [[0.0]] * 4
    plain, first, second, static, gaps = seen
    assert len(plain) == found.sequences == 20
    assert (first.values[:, 0] != plain.values[:, 0]).any()
    np.testing.assert_array_equal(np.sort(first.values[:, 0]), np.sort(plain.values[:, 0]))
    np.testing.assert_array_equal(first.values[~plain.observed], plain.values[~plain.observed])
    np.testing.assert_array_equal(second.values[:, 0], plain.values[:, 0])
    np.testing.assert_array_equal(np.sort(static.static[:, 0]), np.sort(plain.static[:, 0]))
    np.testing.assert_allclose(gaps.times[gaps.offsets[:-1]], plain.times[plain.offsets[:-1]])
    np.testing.assert_allclose(np.sort(gaps.gaps), np.sort(plain.gaps), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_pictures_are_written_and_the_same_each_time(fitted, tmp_path, kind):
    found = fitted.explain(fitted.sequences(pbc2())[:2])
    for name in ("first", "second"):
        found.save(tmp_path / f"{name}.{kind}", 1)
    assert (tmp_path / f"first.{kind}").read_bytes() == (tmp_path / f"second.{kind}").read_bytes()
    with pytest.raises(ValueError, match=r"expected a name that ends in .svg, .png, .pdf"):
        found.save(tmp_path / "picture.doc")


def test_a_picture_has_a_row_and_a_bar_per_variable(fitted):
    found = fitted.explain(fitted.sequences(pbc2())[:1])
    left, right = found.figure(0).axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert len(names) == len(right.patches) <= 12
    assert set(names) <= set(found.variables)
    widths = [abs(bar.get_width()) for bar in right.patches]
    assert widths == sorted(widths, reverse=True)


def test_a_picture_of_gaps_alone_and_of_importance(tmp_path):
    data = Sequences.from_arrays(
        [np.zeros((4, 1))] * 8,
        [np.cumsum(np.arange(1, 5) * k) for k in range(1, 9)],
        targets=np.arange(8) % 2,
        features=[r"a name with $\x$"],  # no mathematics
    )
    model = model_for(data)
    integrated_gradients(model, data).save(tmp_path / "gaps.svg", 3)
    permutation_importance(model.outputs, model.head, data, repeats=2).save(tmp_path / "table.svg")
    assert (tmp_path / "gaps.svg").stat().st_size > 1000
    assert (tmp_path / "table.svg").stat().st_size > 1000


def test_dates_stand_along_the_axis(tmp_path):
    data = sequences()
    dated = replace(data, origin="2024-05-01T10:00")
    axes = integrated_gradients(model_for(dated), dated).figure(0).axes[0]
    assert axes.xaxis.get_major_formatter()(2.0, 0) == "2024-05-01\n12:00"


def test_bad_arguments_are_refused_in_words():
    data = sequences()
    model = model_for(data)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        integrated_gradients(model, data, steps=0)
    with pytest.raises(ValueError, match="repeats must be a whole number"):
        permutation_importance(model.outputs, model.head, data, repeats=0)
    with pytest.raises(ValueError, match="no sequences whose answers could be explained"):
        integrated_gradients(model, data[:0])
