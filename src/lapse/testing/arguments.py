"""Promises about arguments: what is wrong raises, and says what was expected and what came."""

from __future__ import annotations

from typing import Any

import torch

from lapse.recurrent import Hidden
from lapse.testing.subject import Make, as_given, assert_same, build, example, raises, states, without_mask


def check_wrong_arguments_raise(make: Make) -> None:
    """Shapes, types and values that cannot be right are refused with the reason."""
    layer, (input, timespans) = build(make), example()
    negative, infinite, missing = timespans.clone(), timespans.clone(), timespans.clone()
    negative[1, 2], infinite[1, 2], missing[1, 2] = -0.5, torch.inf, torch.nan
    unknown = input.clone()
    unknown[3, 1, 0] = torch.nan
    h_n = layer(input)[1]
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, r"\(5, 6\).*got \(5, 6, 1\).*squeeze\(-1\)", {"timespans": timespans.unsqueeze(-1)}),
        (ValueError, r"\(5, 6\).*got \(5, 5\)", {"timespans": timespans[:, :5]}),
        (TypeError, r"timespans must be a Tensor or a PackedSequence, got list", {"timespans": [1.0]}),
        (TypeError, r"input must be a Tensor or a PackedSequence, got list", {"input": [[1.0]]}),
        (ValueError, r"input must be finite.*got nan at row 3, step 1, feature 0", {"input": unknown}),
        (ValueError, r"not negative, got -0.5 at row 1, step 2", {"timespans": negative}),
        (ValueError, r"finite.*got inf at row 1, step 2", {"timespans": infinite}),
        (ValueError, r"finite.*got nan at row 1, step 2", {"timespans": missing}),
        (TypeError, r"timespans are torch.float32, expected torch.float64", {"timespans": timespans.float()}),
        (TypeError, r"input is torch.float32.*weights are torch.float64", {"input": input.float()}),
        (ValueError, r"input_size = 3 features.*\(5, 6, 2\)", {"input": input[..., :2]}),
        (ValueError, r"unbatched \(T, 3\), got \(3,\)", {"input": input[0, 0]}),
        (ValueError, r"input is empty: \(5, 0, 3\)", {"input": input[:, :0], "timespans": timespans[:, :0]}),
        (ValueError, r"input is empty: \(0, 6, 3\)", {"input": input[:0], "timespans": timespans[:0]}),
        (ValueError, r"from 1 to 6, got 0 in row 2", {"lengths": [4, 6, 0, 5, 6]}),
        (ValueError, r"from 1 to 6, got 7 in row 0", {"lengths": [7, 6, 1, 5, 6]}),
        (ValueError, r"lengths must have shape \(5,\), one per row, got \(2,\)", {"lengths": [4, 6]}),
        (TypeError, r"lengths must be whole numbers, got torch.float32", {"lengths": torch.ones(5)}),
        (ValueError, r"hx must hold \d tensors", {"hx": (*states(h_n), states(h_n)[0])}),
        (ValueError, r"gaps go by keyword", {"hx": (*states(h_n)[1:], None)}),
        (ValueError, r"state 'h' of hx must have shape \(1, 5, 4\)", {"hx": _with_fewer_rows(h_n)}),
        (TypeError, r"state 'h' of hx is torch.float32", {"hx": as_given(s.float() for s in states(h_n))}),
    ]
    for error, message, change in wrong:
        with raises(error, message):
            layer(**{"input": input, "timespans": timespans} | change)


def _with_fewer_rows(h_n: Hidden) -> Hidden:
    first, *others = states(h_n)
    return as_given((first[:, :2], *others))


def check_observed_is_for_cells_that_take_missing_features(make: Make) -> None:
    """A layer that takes missing features checks its mask; any other refuses one."""
    layer, (input, timespans) = build(without_mask(make)), example()
    mask = torch.ones_like(input, dtype=torch.bool)
    if not layer.takes_missing:
        with raises(ValueError, r"no notion of missing features.*use GRUD"):
            layer(input, timespans=timespans, observed=mask)
        return
    all_observed, _ = layer(input, timespans=timespans)
    assert_same(layer(input, timespans=timespans, observed=mask)[0], all_observed)
    with raises(ValueError, r"observed must have shape \(5, 6, 3\), one flag per feature"):
        layer(input, timespans=timespans, observed=mask[..., :2])
    with raises(ValueError, r"observed must be true or false.*got 2 at row 0, step 0, feature 0"):
        layer(input, timespans=timespans, observed=mask.int() * 2)
    with raises(TypeError, r"observed must be bool"):
        layer(input, timespans=timespans, observed=mask.float())


def check_what_a_missing_feature_holds_does_not_matter(make: Make) -> None:
    """A layer that takes missing features never looks at their values, NaN or not, in values and gradients."""
    layer, (input, timespans) = build(without_mask(make)), example()
    if not layer.takes_missing:
        return
    observed = input > -0.5
    results = []
    for filler in (0.0, torch.nan):
        filled = input.masked_fill(~observed, filler).requires_grad_()
        output, _ = layer(filled, timespans=timespans, observed=observed)
        (grad,) = torch.autograd.grad(output.square().sum(), filled)
        results.append((output, grad))
    assert_same(results[0], results[1])
