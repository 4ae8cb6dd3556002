"""One event at a time through a whole model: the answers are those of the batch model."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from example_models import model_for, sequences
from lapse import MODELS, Sequences
from lapse.encoders import Encoder
from lapse.heads import Classes, Gaussian, Labels, Numbers, Quantiles
from lapse.models import SequenceModel, Step
from lapse.models.registry import layers


def restless(data: Sequences, **settings: Any) -> SequenceModel:
    """A model whose every part has a say: a tabular model starts with a readout of zeros."""
    model = model_for(data, **settings)
    for parameter in model.parameters():
        if not bool(parameter.any()):
            nn.init.normal_(parameter, std=0.3)
    return model


def with_holes(values: Any, observed: Tensor | None) -> Any:
    return values if observed is None else values.masked_fill(~observed, torch.nan)


def events(data: Sequences, row: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Each event of a sequence as a call of `Step` takes it."""
    batch = data.batch([row])
    values, static = with_holes(batch.values, batch.observed), with_holes(batch.static, batch.static_observed)
    for t in range(len(values)):
        yield values[t : t + 1], batch.timespans[t : t + 1], static


@torch.no_grad()
def answers(step: Step, data: Sequences) -> Tensor:
    found = []
    for row in range(len(data)):
        state = step.start(1)
        given = []
        for values, timespan, static in events(data, row):
            answer, state = step(values, timespan, state, static)
            given.append(answer)
        found += given if step.model.head.per_step else given[-1:]
    return torch.cat(found)


def expected(model: SequenceModel, data: Sequences) -> Tensor:
    return model.head.answer(model.outputs(data)).flatten(1)


ONCE = {"pooling": "last+mean+max+attention", "summaries": True, "static": "state+head+table"}
EVERY = {"readout_input": True, "difference": True}


STEPPED = [name for name in MODELS if name != "mtan"]  # attention looks at all events at once


@pytest.mark.parametrize("name", STEPPED)
def test_answers_per_sequence_are_those_of_the_batch(name: str) -> None:
    data = sequences(missing=True, static=True)
    model = restless(data, model=name, num_layers=2, **ONCE)
    torch.testing.assert_close(answers(Step(model), data), expected(model, data), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", STEPPED)
def test_answers_per_event_are_those_of_the_batch(name: str) -> None:
    data = sequences(missing=True, per_step=True, numbers=True)
    model = model_for(data, model=name, **EVERY)
    torch.testing.assert_close(answers(Step(model), data), expected(model, data), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("form", [(n, f) for n, layer in layers().items() for f in layer.forms], ids="-".join)
def test_every_form_steps(form: tuple[str, str]) -> None:
    data = sequences()
    model = model_for(data, model=form[0], options={"form": form[1]})
    torch.testing.assert_close(answers(Step(model), data), expected(model, data), atol=1e-6, rtol=1e-5)


def test_a_sequence_begins_where_events_is_zero_whatever_else_the_state_holds() -> None:
    data = sequences(missing=True, static=True)
    step = Step(restless(data, model="gru-d", **ONCE))
    values, timespan, static = next(events(data, 0))
    fresh, _ = step(values, timespan, step.start(1), static)
    used = {name: torch.full_like(part, 3.0) for name, part in step.start(1).items()}
    continued, _ = step(values, timespan, used, static)
    begun, _ = step(values, timespan, used | {"events": torch.zeros(1, 1)}, static)
    assert torch.equal(begun, fresh)
    assert not torch.allclose(continued, fresh)


def test_rows_of_a_batch_have_no_effect_on_each_other() -> None:
    data = sequences(missing=True)
    step = Step(model_for(data, model="ode-lstm"))
    first, second = (next(events(data, row)) for row in (0, 1))
    _, later = step(*first[:2], step.start(1))
    together = {name: torch.cat([later[name], part]) for name, part in step.start(1).items()}
    values, timespan = (torch.cat(pair) for pair in zip(first[:2], second[:2], strict=True))
    both, _ = step(values, timespan, together)
    torch.testing.assert_close(both[:1], step(*first[:2], later)[0])
    torch.testing.assert_close(both[1:], step(*second[:2], step.start(1))[0])


def test_the_states_have_names_and_widths() -> None:
    data = sequences(missing=True)
    step = Step(model_for(data, model="gru-d", pooling="last+mean"))
    sizes = {
        "layer0_h": 4,
        "layer0_last": 2,
        "layer0_since": 2,
        "pool1_total": 4,
        "pool1_count": 1,
        "events": 1,
    }
    assert step.state_sizes == sizes
    assert {name: tuple(part.shape) for name, part in step.start(3).items()} == {
        name: (3, size) for name, size in sizes.items()
    }


def test_a_model_that_reads_backward_is_refused() -> None:
    data = sequences()
    model = model_for(data, options={"bidirectional": True})
    with pytest.raises(ValueError, match="reads forward only"):
        Step(model)
    x = torch.zeros(1, 2)
    with pytest.raises(NotImplementedError, match="one event at a time"):
        model.encoder.step(x, None, torch.zeros(1), {})


def test_an_encoder_without_steps_says_so() -> None:
    class Whole(Encoder):
        def forward(self, observations: Any) -> Any:
            return observations

    x = torch.zeros(1, 2)
    for call in (lambda: Whole().start(x, None), lambda: Whole().step(x, None, torch.zeros(1), {})):
        with pytest.raises(NotImplementedError, match="Whole reads a sequence as a whole"):
            call()


@pytest.mark.parametrize(
    "head",
    [Classes("abc"), Labels(["a", "b"]), Numbers(("x", "y")), Gaussian(("x", "y")), Quantiles(("x", "y"))],
    ids=lambda head: type(head).__name__,
)
def test_the_names_of_an_answer_are_those_of_the_predictions(head: Any) -> None:
    output = torch.randn(3, head.width)
    answer, predicted = head.answer(output.double()).flatten(1), head.predict(output)
    assert answer.shape[1] == len(head.answer_names)
    for column, name in zip(answer.T, head.answer_names, strict=True):
        assert predicted[name].tolist() == column.tolist()
