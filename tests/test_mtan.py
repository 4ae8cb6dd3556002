"""Multi-time attention against its formula, and the promises of every encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from example_models import LENGTHS, model_for, observations, sequences
from lapse.encoders import MTAN, Observations
from lapse.rows import Rows


def encoder(form: str = "causal", static: bool = False) -> MTAN:
    torch.manual_seed(0)
    size = 4 if static else 0
    return MTAN(3, 6, missing=True, static_size=size, form=form, embedding_size=8, heads=2, references=4)  # type: ignore[arg-type]


def test_the_attention_is_the_papers_formula() -> None:
    """Shukla & Marlin (2021), Eqs. 2 to 4, one number at a time."""
    model, given = encoder().double(), observations([6])
    times, values, observed = (part.double() for part in (given.times, given.values, given.observed))
    asked = torch.tensor([[0.5, 7.0]], dtype=torch.float64)
    sees = torch.ones(1, 2, 6, dtype=torch.bool)
    found = model.attention(
        model.embedding(asked), model.embedding(times[None]), values[None], observed[None], sees
    )[0].detach()
    weights = {name: w.detach().numpy() for name, w in model.named_parameters()}

    def embedded(t: float) -> np.ndarray:
        angle = weights["embedding.rate"] * t + weights["embedding.phase"]
        return np.concatenate([angle[:1], np.sin(angle[1:])])

    for i, t in enumerate(asked[0].tolist()):
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            query = (weights["attention.query.weight"] @ embedded(t) + weights["attention.query.bias"])[part]
            for d in range(3):
                total = mean = 0.0
                for k in range(6):
                    if observed[k, d]:
                        own = embedded(float(times[k]))
                        key = (weights["attention.key.weight"] @ own + weights["attention.key.bias"])[part]
                        weight = np.exp(query @ key / 2)
                        total, mean = total + weight, mean + weight * float(values[k, d])
                assert float(found[i, 3 * head + d]) == pytest.approx(mean / total, rel=1e-9)


def test_rows_do_not_meet_and_the_future_is_unseen() -> None:
    given, model = observations(), encoder()
    before = model(given).steps
    changed = replace(given, values=given.values.clone(), timespans=given.timespans.clone())
    changed.values[3:6], changed.timespans[3:6] = 9.0, 7.0  # the end of the first row, all of the second
    after = model(changed).steps
    torch.testing.assert_close(after[:3], before[:3])
    torch.testing.assert_close(after[6:], before[6:])
    assert not torch.isclose(after[4:6], before[4:6]).all(1).any()


@pytest.mark.parametrize("form", MTAN.forms)
def test_a_sequence_alone_has_the_features_that_it_has_in_company(form: str) -> None:
    model = encoder(form, static=True)
    together = observations(static=True)
    parts = [part.split(LENGTHS) for part in (together.values, together.observed, together.timespans)]
    for i, length in enumerate(LENGTHS):
        alone = Observations(*(part[i] for part in parts), Rows.flat([length]), together.static[i : i + 1])
        torch.testing.assert_close(model(alone).final[0], model(together).final[i])


@pytest.mark.parametrize("form", MTAN.forms)
def test_what_a_missing_value_holds_does_not_matter_and_nothing_observed_is_no_nan(form: str) -> None:
    given, model = observations(), encoder(form)
    changed = replace(given, values=torch.where(given.observed == 1, given.values, 99.0))
    torch.testing.assert_close(model(changed).final, model(given).final)
    empty = model(replace(given, observed=torch.zeros_like(given.observed)))
    assert empty.final.isfinite().all()


def test_the_reference_form_answers_about_whole_sequences() -> None:
    model = encoder("reference")
    assert not model.causal
    assert model(observations()).steps is None
    with pytest.raises(ValueError, match="form must be one of causal, reference, got 'other'"):
        encoder("other")
    with pytest.raises(ValueError, match="embedding_size must be a multiple of heads = 3, got 32"):
        MTAN(2, 3, heads=3)


@pytest.mark.parametrize("form", MTAN.forms)
def test_it_is_a_model_like_any_other(form: str) -> None:
    data = sequences(missing=True)
    model = model_for(data, model="mtan", hidden_size=8, options={"form": form, "references": 5})
    assert len(model.predict(data)) == len(data)
    model(data.batch(np.arange(len(data)))).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
