"""The same tensors and sequences in unusual forms: the same answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bad_inputs import FEATURES, NAN, ROWS, STEPS, TIMES, UNITS, VALUES, floats
from example_models import model_for, sequences
from lapse import Sequences
from lapse.models.registry import layers

SAME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as a part of a larger one": lambda t: torch.stack([t, torch.full_like(t, NAN)], -1)[..., 0],
    "with axes swapped in memory": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "in need of a gradient": lambda t: t.clone().requires_grad_(),
    "in memory that another owns": lambda t: torch.from_numpy(t.numpy().copy()),
    "negated as a view": lambda t: torch.view_as_complex(torch.stack([t, -t], -1)).conj().imag,
}


@pytest.mark.parametrize("form", SAME)
@pytest.mark.parametrize("name", layers())
def test_the_form_of_a_tensor_does_not_matter(name: str, form: str) -> None:
    x, gaps = floats(ROWS, STEPS, FEATURES), floats(ROWS, STEPS)
    layer = layers()[name](FEATURES, UNITS)
    expected, _ = layer(x, timespans=gaps)
    output, _ = layer(SAME[form](x), timespans=SAME[form](gaps))
    torch.testing.assert_close(output, expected)


def read_only(array: Any) -> Any:
    array = np.array(array)
    array.flags.writeable = False
    return array


# The same sequences in other forms, and what is documented of times in disorder or at one moment.
FORMS: dict[str, tuple[Any, Any]] = {
    "lists": ([v.tolist() for v in VALUES], [t.tolist() for t in TIMES]),
    "tensors": ([torch.tensor(v) for v in VALUES], [torch.tensor(t) for t in TIMES]),
    "objects": ([v.astype(object) for v in VALUES], [t.astype(object) for t in TIMES]),
    "numbers as words": ([v.astype(str) for v in VALUES], TIMES),
    "read-only": ([read_only(v) for v in VALUES], [read_only(t) for t in TIMES]),
    "every other one of twice as many": (
        [np.repeat(v, 2)[::2] for v in VALUES],
        [np.repeat(t, 2)[::2] for t in TIMES],
    ),
    "whole numbers": ([v.astype(int) for v in VALUES], [t.astype(np.int32) for t in TIMES]),
    "in disorder": ([v[::-1] for v in VALUES], [t[::-1] for t in TIMES]),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_sequences_does_not_matter(form: str) -> None:
    values, times = FORMS[form]
    s = Sequences.from_arrays(values, times)
    np.testing.assert_array_equal(s.values[:, 0], np.concatenate(VALUES))
    np.testing.assert_array_equal(s.times, np.concatenate(TIMES))


def test_events_at_one_moment_keep_their_order_with_a_gap_of_0() -> None:
    s = Sequences.from_arrays([[3.0, 1.0, 2.0]], [[0.0, 0.0, -1.0]])
    assert s.values[:, 0].tolist() == [2.0, 3.0, 1.0]
    assert s.timespans.tolist() == [0.0, 1.0, 0.0]


def test_pieces_of_one_sequence_may_share_its_id() -> None:
    s = Sequences.from_arrays(VALUES, TIMES, ids=["a", "a"], targets=[0, 1])
    assert list(model_for(s, model="lstm").predict(s).ids) == ["a", "a"]


def test_nothing_asked_is_nothing_answered() -> None:
    data = sequences(static=True, count=8)
    assert len(model_for(data, model="lstm").predict(data[[]])) == 0
