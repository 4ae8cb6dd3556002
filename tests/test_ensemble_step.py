"""An ensemble one event at a time: the answers are those for the whole table."""

import warnings
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from example_models import sequences
from lapse import Sequences, export
from lapse.estimators import Ensemble, IrregularClassifier, IrregularLabeller
from lapse.estimators.step import EnsembleStep, SummaryTable, TreeSum
from lapse.estimators.trees import grow_classes
from lapse.heads import Classes, Targets
from lapse.models import ModelConfig, Schema, Stepper
from lapse.sequences.summaries import LEVELS, STATISTICS, summarize
from test_step import events

KINDS: dict[str, Any] = {
    "once": IrregularClassifier,
    "every": IrregularLabeller,
    "shape": IrregularClassifier,
}


@pytest.fixture(scope="module", params=KINDS)
def fitted(request: pytest.FixtureRequest) -> tuple[Ensemble, Sequences]:
    data = sequences(missing=True, static=True, per_step=request.param == "every", count=120)
    if request.param == "shape":
        (deviation,) = summarize(data, ("deviation",)).values[:, [2]].T
        data = replace(data, targets=(deviation > np.median(deviation)).astype(np.int64))
    estimator = KINDS[request.param](members=2, hidden_size=4, epochs=1, refit=False, bin=None)
    ensemble = estimator.fit(data).ensemble_
    assert ensemble.preparation.statistics == (STATISTICS if request.param == "shape" else LEVELS)
    return ensemble, data


@torch.no_grad()
def answers(step: Stepper, data: Sequences, row: int) -> torch.Tensor:
    state, found = step.start(1), []
    for values, timespan, static in events(data, row):
        answer, state = step(values, timespan, state, static)
        found.append(answer)
    return torch.cat(found)


def test_the_answers_are_those_for_the_whole_table(fitted: tuple[Ensemble, Sequences]) -> None:
    ensemble, data = fitted
    data = replace(data[:6], targets=None, per_step=False)
    step = ensemble.stepper()
    expected = ensemble.head.answer(step.whole(data)).float()
    found = [
        answers(step, data, row)[slice(None) if ensemble.head.per_step else slice(-1, None)]
        for row in range(6)
    ]
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("statistics", [LEVELS, STATISTICS], ids=["levels", "all"])
def test_every_statistic_is_that_of_the_events_so_far(statistics: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    values = random.normal(1e5, 1.0, (30, 3)).astype(
        np.float32
    )  # far from 0, where sums of squares lose their digits
    values[random.random(values.shape) < 0.5] = np.nan
    values[:20, 2] = np.nan
    values[20:, 2] = 7.3  # a constant has no deviation, change or slope, to the last digit
    times = np.cumsum(random.integers(0, 4, 30) / 8)  # in float32 too, and some of them equal
    times[1:3] = times[0]
    whole = Sequences.from_arrays([values], [times])
    table = SummaryTable(Schema.of(whole), statistics)
    state = table.start(torch.zeros(1, 3))
    for k, gap in enumerate(np.diff(times, prepend=times[0])):
        given = torch.from_numpy(values[k : k + 1]).double()
        found, state = table.advance(given, torch.tensor([gap]), state, None)
        so_far = summarize(Sequences.from_arrays([values[: k + 1]], [times[: k + 1]]), statistics)
        assert so_far.names == table.names
        np.testing.assert_allclose(found.numpy(), so_far.values, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(found.numpy() == 0, so_far.values == 0)


def test_trees_answer_as_their_arrays_do(fitted: tuple[Ensemble, Sequences]) -> None:
    trees = fitted[0].trees
    assert trees is not None
    assert (trees.feature >= 0).any()  # else nothing of this file would go down a tree
    table = np.random.default_rng(0).normal(80, 10, (50, int(trees.feature.max()) + 1))
    table[table > 90] = np.nan
    np.testing.assert_allclose(
        TreeSum(trees)(torch.from_numpy(table)).numpy(), trees.outputs(table), rtol=1e-12
    )


def test_trees_run_in_onnxruntime() -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(200, 3))
    labels = torch.from_numpy((table[:, 0] + table[:, 1] > 0).astype(np.int64))
    table[random.random(table.shape) < 0.2] = np.nan
    targets = Targets(labels, torch.ones_like(labels, dtype=torch.bool), torch.ones(len(labels)))
    trees = grow_classes(table, targets, Classes("ab"), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter about its own code
        program: Any = torch.onnx.export(
            TreeSum(trees), (torch.from_numpy(table),), dynamo=True, verbose=False
        )
    file = BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: table})
    np.testing.assert_allclose(found, trees.outputs(table), rtol=1e-12)


def test_bins_and_first_states_of_summaries_are_refused(fitted: tuple[Ensemble, Sequences]) -> None:
    ensemble, _ = fitted
    with pytest.raises(ValueError, match=r"bins of 2.*bin=None"):
        EnsembleStep(replace(ensemble, preparation=replace(ensemble.preparation, bin=2.0)))
    if not ensemble.head.per_step:
        network = ensemble.networks[0]
        config, network.config = network.config, ModelConfig(static="state+table")
        with pytest.raises(ValueError, match="without static='state'"):
            EnsembleStep(ensemble)
        network.config = config


def test_a_stored_ensemble_is_exported(fitted: tuple[Ensemble, Sequences], tmp_path: Any) -> None:
    fitted[0].save(tmp_path / "model")
    model = export.load(tmp_path / "model")
    assert export.save(model, tmp_path / "step.pt2", format="torch", form="step") <= export.TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("form", export.FORMS)
@pytest.mark.parametrize("format", export.FORMATS)
def test_every_export_of_an_ensemble_answers_the_same(
    fitted: tuple[Ensemble, Sequences], form: str, format: str, tmp_path: Any
) -> None:
    assert export.save(fitted[0], tmp_path / "file", format=format, form=form) <= export.TOLERANCE
