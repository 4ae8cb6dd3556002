"""The state-space encoder keeps the promises of every encoder: rows apart, the future unseen, one event at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from example_models import model_for, observations, sequences
from lapse.encoders import Observations, StateSpace
from lapse.encoders.state_space import _product
from lapse.kernels import native
from lapse.rows import Rows
from lapse.runs import RunConfig


def encoder(static: bool = False, layers: int = 2) -> StateSpace:
    torch.manual_seed(0)
    return StateSpace(3, 6, layers, missing=True, static_size=4 if static else 0, state_size=5)


@pytest.mark.parametrize("static", [False, True])
def test_one_event_at_a_time_gives_the_same(static: bool) -> None:
    given, model = observations([4, 4], static), encoder(static)
    features = model(given)
    padded = [given.rows.pad(part) for part in (given.values, given.observed, given.timespans)]
    state = model.start(padded[0][:, 0], given.static)
    for k in range(4):
        output, state = model.step(*(part[:, k] for part in padded), state)
        torch.testing.assert_close(output, given.rows.pad(features.steps)[:, k])
    torch.testing.assert_close(output, features.final)


def test_rows_do_not_meet_and_the_future_is_unseen() -> None:
    given, model = observations(), encoder()
    before = model(given).steps
    changed = replace(given, values=given.values.clone(), timespans=given.timespans.clone())
    changed.values[3:6], changed.timespans[3:6] = 9.0, 7.0  # the end of the first row, all of the second
    after = model(changed).steps
    torch.testing.assert_close(after[:3], before[:3], rtol=0, atol=0)
    torch.testing.assert_close(after[6:], before[6:], rtol=0, atol=0)
    assert not torch.isclose(after[3:6], before[3:6]).all(1).any()


def test_the_state_flows_between_events_and_may_do_so_in_pieces() -> None:
    given, model = observations(), encoder()
    row = torch.tensor([0, 1, 2, 2])
    torch.testing.assert_close(model.after(given, torch.zeros(4), row), model(given).final[row])
    moved = model.after(given, torch.tensor([1.0, 1.0, 1.0, 2.0]), row)
    assert not torch.allclose(moved[2], moved[3])
    one, two, three = (model.layers[0].decay(torch.tensor(time)) for time in (1.0, 2.0, 3.0))
    torch.testing.assert_close(_product(one, two), three)


def test_a_gap_of_years_leaves_numbers() -> None:
    given = observations()
    features = encoder()(replace(given, timespans=given.timespans * 1e12))
    assert features.steps.isfinite().all()


def test_gradients_reach_every_parameter() -> None:
    model = encoder(static=True)
    model(observations(static=True)).steps.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_it_is_a_model_like_any_other() -> None:
    data = sequences(missing=True)
    model = model_for(data, model="state-space", hidden_size=8, options={"state_size": 4, "dropout": 0.1})
    assert len(model.predict(data)) == len(data)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(model.predict(data)) == len(data)


@pytest.mark.skipif(native.library() is None, reason="no C++ compiler")
def test_the_whole_encoder_compiles_for_any_length() -> None:
    model = encoder()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def run(values, observed, timespans, lengths):
        rows = Rows.flat(lengths, len(values))
        return model(Observations(values, observed, timespans, rows)).steps

    for lengths in ([5, 1, 8], [2, 3]):
        given = observations(lengths)
        found = run(given.values, given.observed, given.timespans, torch.tensor(lengths))
        torch.testing.assert_close(found, model(given).steps)


def test_what_the_table_decides_and_what_only_layers_have_are_no_settings():
    config = RunConfig("mini-digits", "state-space")
    assert config.with_setting("state_size", 7).model_options == {"state_size": 7}
    for name in ("missing", "static_size", "bidirectional"):
        with pytest.raises(ValueError, match=f"there is no setting '{name}'"):
            config.with_setting(name, True)
