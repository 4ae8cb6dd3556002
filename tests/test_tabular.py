"""The linear map of well-made columns."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from example_sequences import ragged
from lapse.heads import Classes, Numbers, Targets
from lapse.models import SequenceModel
from lapse.models.tabular import Columns, TabularReadout


def table(rows=400, seed=0):
    random = np.random.default_rng(seed)
    found = np.column_stack(
        [random.normal(5, 2, rows), random.lognormal(3, 1.5, rows), random.normal(size=rows)]
    )
    found[random.random(found.shape) < 0.2] = np.nan
    return found


def numbers(array):
    return torch.from_numpy(np.nan_to_num(array)).float(), torch.from_numpy(~np.isnan(array))


def test_columns_are_centred_scaled_and_without_tails():
    columns = Columns(3)
    columns.measure(table())
    found = columns(*numbers(table())).numpy()
    assert found.shape == (400, 12)
    assert np.abs(found[:, :3]).max() < 4.5  # the long tail of the second column too
    np.testing.assert_allclose(found[:, :6].mean(0), 0, atol=0.05)


def test_a_unit_of_measurement_changes_nothing():
    known, other = table(), table() * 1000
    a, b = Columns(3), Columns(3)
    a.measure(known)
    b.measure(other)
    torch.testing.assert_close(a(*numbers(known)), b(*numbers(other)), rtol=1e-3, atol=1e-3)


def test_what_is_missing_is_the_mean_and_a_flag():
    columns = Columns(3)
    columns.measure(table())
    wild = torch.full((1, 3), 1e30)
    found = columns(wild, torch.zeros(1, 3, dtype=torch.bool))
    assert (found[0, :3] == 0).all()
    assert (found[0, 3:6] < 0).all()


def test_the_solution_is_that_of_logistic_regression():
    known, random = table(), np.random.default_rng(1)
    labels = (np.nan_to_num(known[:, 0] - 5) + random.normal(size=400) > 0).astype(int)
    head, readout = Classes("ab"), TabularReadout(3, 2, ridge=60.0)
    everything = torch.ones(400, dtype=torch.bool)
    readout.solve(known, head, Targets(torch.as_tensor(labels), everything, everything.float()))
    with torch.no_grad():
        columns = readout.columns(*numbers(known)).numpy()
    # Two logits share a weight between them, so that each is half of it and the penalty counts half.
    rival = LogisticRegression(C=1 / 30, max_iter=1000, tol=1e-8).fit(columns, labels)
    ours = head.answer(readout.outputs(known)).numpy()
    np.testing.assert_allclose(ours, rival.predict_proba(columns), atol=2e-3)


def test_the_solution_is_that_of_ridge_regression():
    known = table()
    targets = torch.as_tensor(np.nan_to_num(known[:, :1] - 5), dtype=torch.float32)
    head, readout = Numbers(scale=False), TabularReadout(3, 1, ridge=20.0)
    readout.solve(known, head, Targets(targets, torch.ones(400, 1, dtype=torch.bool), torch.ones(400)))
    with torch.no_grad():
        columns = readout.columns(*numbers(known)).numpy()
    rival = Ridge(alpha=10.0).fit(columns, targets.numpy())
    np.testing.assert_allclose(
        readout.outputs(known).numpy(), rival.predict(columns).reshape(-1, 1), atol=5e-3
    )


def test_a_model_starts_from_the_table_and_decays_only_its_network():
    train = ragged([3, 5, 2, 6] * 10, missing=0.3)
    model = SequenceModel.for_data(train, static="table", pooling="last+mean")
    assert model.penalty > 0
    own = {id(p) for p in model.tabular.parameters()}
    assert own.isdisjoint(id(p) for p in model.decayed_parameters())
    linear = model.tabular.outputs(train.static)
    torch.testing.assert_close(model.outputs(train), linear, rtol=1e-4, atol=1e-5)
