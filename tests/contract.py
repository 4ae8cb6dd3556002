"""The contract of a layer, one check a promise. A new layer joins LAYERS and is held to all of it."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import lapse
from lapse.recurrent import GRUDCell, PhasedLSTMCell

Make = Callable[..., lapse.RNN]


class GRUDWithMissing(lapse.GRUD):
    """GRU-D that takes small values for missing ones, so that every check also meets a mask with zeros in it."""

    def forward(self, input: Any, hx: Any = None, *, observed: Any = None, **arguments: Any) -> Any:
        if observed is None and isinstance(input, Tensor):
            observed = ~(input <= -0.5)
        elif observed is None and isinstance(input, PackedSequence):
            observed = input._replace(data=~(input.data <= -0.5))
        return super().forward(input, hx, observed=observed, **arguments)


LAYERS: dict[str, Make] = {
    **lapse.MODELS,
    "gru-d with missing": GRUDWithMissing,
    "ode-lstm driven": partial(lapse.ODELSTM, form="driven"),
    "ode-rnn jump": partial(lapse.ODERNN, form="jump"),
}

INPUT, HIDDEN, STEPS = 3, 4, 6


def splits_gaps(make: Make) -> bool:
    return bool(make(1, 1).cells[0].splits_gaps)


LENGTHS = [4, 6, 1, 5, 6]


def build(make: Make, *, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> lapse.RNN:
    torch.manual_seed(seed)
    layer = make(INPUT, HIDDEN, dtype=dtype, **options)
    with torch.no_grad():
        # Away from symmetric starts (zero biases), so that no term can hide.
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return layer


def example(
    rows: int = len(LENGTHS), steps: int = STEPS, *, seed: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    input = torch.randn(rows, steps, INPUT, generator=generator, dtype=torch.float64)
    timespans = torch.rand(rows, steps, generator=generator, dtype=torch.float64) * 2
    timespans[:, 0] = 0.0
    return input.to(dtype), timespans.to(dtype)


def states(h_n: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return h_n if isinstance(h_n, tuple) else (h_n,)


def assert_same(got: Any, expected: Any, **tolerance: float) -> None:
    torch.testing.assert_close(got, expected, **({"rtol": 1e-9, "atol": 1e-11} | tolerance))


def check_batch_of_one_equals_its_row(make: Make) -> None:
    layer, (input, timespans) = build(make), example()
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        alone, h_alone = layer(input[row : row + 1, :length], timespans=timespans[row : row + 1, :length])
        assert_same(output[row, :length], alone[0])
        for together, single in zip(states(h_n), states(h_alone), strict=True):
            assert_same(together[:, row], single[:, 0])


def check_permuting_rows_permutes_results(make: Make) -> None:
    layer, (input, timespans) = build(make, bidirectional=True), example()
    order = torch.tensor([3, 0, 4, 2, 1])
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    permuted, h_permuted = layer(
        input[order], timespans=timespans[order], lengths=[LENGTHS[i] for i in order]
    )
    assert_same(permuted, output[order])
    for a, b in zip(states(h_permuted), states(h_n), strict=True):
        assert_same(a, b[:, order])


def check_padding_content_changes_nothing(make: Make) -> None:
    layer = build(make, num_layers=2, bidirectional=True)
    padding = torch.arange(STEPS) >= torch.tensor(LENGTHS).unsqueeze(1)  # (B, T)
    results = []
    for filler in (0.0, 1e30, torch.nan):
        input, timespans = example()
        input[padding] = filler
        timespans[padding] = filler
        input.requires_grad_()
        timespans.requires_grad_()
        output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
        assert bool((output[padding] == 0).all())
        loss = output.square().sum() + sum(s.square().sum() for s in states(h_n))
        grads = torch.autograd.grad(loss, [input, timespans, *layer.parameters()], allow_unused=True)
        assert bool((grads[0][padding] == 0).all())
        assert bool((grads[1][padding] == 0).all())
        results.append((output, *states(h_n), *[g for g in grads if g is not None]))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def check_steps_past_the_end_are_not_computed(make: Make) -> None:
    layer, (input, timespans) = build(make), example()
    seen: list[int] = []
    cell = layer.cells[0]
    step = cell.step

    def counting(x: Tensor, state: tuple[Tensor, ...], timespan: Tensor) -> Any:
        seen.append(len(x))
        return step(x, state, timespan)

    cell.step = counting  # type: ignore[method-assign]
    with lapse.backend("reference"):
        layer(input, timespans=timespans, lengths=LENGTHS)
    assert seen == [5, 4, 4, 4, 3, 2]


def check_a_split_sequence_with_its_state_equals_the_whole(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2), example()
    whole, h_whole = layer(input, timespans=timespans)
    for cut in range(1, STEPS):
        first, h = layer(input[:, :cut], timespans=timespans[:, :cut])
        second, h = layer(input[:, cut:], h, timespans=timespans[:, cut:])
        assert_same(torch.cat([first, second], 1), whole)
        for a, b in zip(states(h), states(h_whole), strict=True):
            assert_same(a, b)


def check_packed_lengths_and_ragged_loops_agree(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2, bidirectional=True), example()
    padded, h_padded = layer(input, timespans=timespans, lengths=LENGTHS)
    pack = partial(pack_padded_sequence, lengths=LENGTHS, batch_first=True, enforce_sorted=False)
    also_padded, _ = layer(input, timespans=pack(timespans), lengths=LENGTHS)
    assert_same(also_padded, padded)
    for gaps in (pack(timespans), timespans):
        packed, h_packed = layer(pack(input), timespans=gaps)
        assert isinstance(packed, PackedSequence)
        unpacked, lengths = pad_packed_sequence(packed, batch_first=True)
        assert lengths.tolist() == LENGTHS
        assert_same(unpacked, padded)
        for a, b in zip(states(h_packed), states(h_padded), strict=True):
            assert_same(a, b)
    for row, length in enumerate(LENGTHS):
        loop, _ = layer(input[row, :length], timespans=timespans[row, :length])  # unbatched
        assert_same(loop, padded[row, :length])


def check_a_gap_may_be_passed_in_pieces(make: Make) -> None:
    layer, (input, timespans) = build(make), example()
    # Fine steps, so that a solver's own error is not mistaken for a broken promise.
    if hasattr(layer.cells[0], "solver"):
        layer.cells[0].solver = lapse.FixedStep(lapse.RK4, steps=200)
    cell = layer.cells[0]
    state = cell.initial_state(len(input), dtype=input.dtype)
    _, state = cell.step(cell.step_input(input[:, 0], None), state, timespans[:, 0])
    x, gap = cell.step_input(input[:, 1], None), timespans[:, 1]
    whole, whole_state = cell.step(x, state, gap)
    _, passed = cell.flow(state, 0.3 * gap)
    pieces, pieces_state = cell.step(x, passed, 0.7 * gap)
    assert_same(pieces, whole, rtol=1e-7, atol=1e-9)
    for a, b in zip(pieces_state, whole_state, strict=True):
        assert_same(a, b, rtol=1e-7, atol=1e-9)


def check_flow_over_no_time_keeps_the_output(make: Make) -> None:
    layer, (input, timespans) = build(make), example()
    cell = layer.cells[0]
    state = cell.initial_state(len(input), dtype=input.dtype)
    for t in range(3):
        output, state = cell.step(cell.step_input(input[:, t], None), state, timespans[:, t])
        assert torch.equal(output, state[0])
    if isinstance(cell, GRUDCell):
        cell.hidden_decay.bias.data.fill_(
            -1.0
        )  # a positive bias decays even over no time (Che et al., Eq. 11)
    still, _ = cell.flow(state, torch.zeros(len(input), dtype=input.dtype))
    assert_same(still, output)


def check_the_future_is_invisible(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2), example()
    output, _ = layer(input, timespans=timespans)
    for t in range(1, STEPS):
        other, gaps = input.clone(), timespans.clone()
        other[:, t:] += 1.0
        gaps[:, t:] += 1.0
        changed, _ = layer(other, timespans=gaps)
        assert torch.equal(changed[:, :t], output[:, :t])
        assert not torch.allclose(changed[:, t:], output[:, t:])


def check_gradients(make: Make) -> None:
    layer, (input, timespans) = build(make), example(rows=2, steps=3)
    input.requires_grad_()
    timespans += 0.05  # max(0, ·) and the clocks have kinks at 0
    timespans.requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, gaps: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        swapped = dict(zip(names, weights, strict=True))
        output, h_n = torch.func.functional_call(layer, swapped, (x,), {"timespans": gaps, "lengths": [3, 2]})
        return (output, *states(h_n))

    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    with lapse.backend("reference"):
        assert torch.autograd.gradcheck(run, (input, timespans, *weights), atol=1e-6)


def check_state_dict_and_deepcopy_round_trip(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2), example()
    output, _ = layer(input, timespans=timespans)
    restored = build(make, num_layers=2, seed=9)
    restored.load_state_dict(layer.state_dict())
    assert torch.equal(restored(input, timespans=timespans)[0], output)
    assert torch.equal(copy.deepcopy(layer)(input, timespans=timespans)[0], output)


def check_same_seed_same_result(make: Make) -> None:
    input, timespans = example()
    outputs = [build(make, seed=seed)(input, timespans=timespans)[0] for seed in (5, 5, 6)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def check_wrong_arguments_raise(make: Make) -> None:
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
        (ValueError, r"state 'h' of hx must have shape \(1, 5, 4\)", {"hx": _replace_first(h_n, 2)}),
        (TypeError, r"state 'h' of hx is torch.float32", {"hx": _as_given(s.float() for s in states(h_n))}),
    ]
    for error, message, change in wrong:
        with pytest.raises(error, match=message):
            layer(**{"input": input, "timespans": timespans} | change)


def _as_given(stacks: Any) -> Any:
    stacks = tuple(stacks)
    return stacks if len(stacks) > 1 else stacks[0]


def _replace_first(h_n: Any, rows: int) -> Any:
    first, *others = states(h_n)
    return _as_given((first[:, :rows], *others))


def check_observed_is_for_gru_d_alone(make: Make) -> None:
    layer, (input, timespans) = build(make), example()
    mask = torch.ones_like(input, dtype=torch.bool)
    if layer.takes_missing:
        all_observed, _ = lapse.GRUD.forward(layer, input, timespans=timespans)
        assert_same(layer(input, timespans=timespans, observed=mask)[0], all_observed)
        with pytest.raises(ValueError, match=r"observed must have shape \(5, 6, 3\), one flag per feature"):
            layer(input, timespans=timespans, observed=mask[..., :2])
        with pytest.raises(
            ValueError, match=r"observed must be true or false.*got 2 at row 0, step 0, feature 0"
        ):
            layer(input, timespans=timespans, observed=mask.int() * 2)
        with pytest.raises(TypeError, match=r"observed must be bool"):
            layer(input, timespans=timespans, observed=mask.float())
    else:
        with pytest.raises(ValueError, match=r"no notion of missing features.*use GRUD"):
            layer(input, timespans=timespans, observed=mask)


def check_any_gap_gives_finite_results(make: Make) -> None:
    """With the default solver, in float32, for gaps of 0, 1e-12, 1 and 1e6 mixed in every order of a batch."""
    torch.manual_seed(0)
    layer = make(INPUT, 16)
    gaps = torch.tensor(list(itertools.permutations([0.0, 1e-12, 1.0, 1e6])))  # (24, 4)
    input = torch.randn(len(gaps), 4, INPUT, requires_grad=True)
    gaps.requires_grad_()
    output, h_n = layer(input, timespans=gaps)
    loss = output.sum() + sum(s.sum() for s in states(h_n))
    grads = torch.autograd.grad(loss, [input, gaps, *layer.parameters()], allow_unused=True)
    for tensor in (output, *states(h_n), *(g for g in grads if g is not None)):
        assert bool(torch.isfinite(tensor).all())


def check_no_gaps_means_ones(make: Make) -> None:
    layer, (input, _) = build(make), example()
    assert torch.equal(layer(input)[0], layer(input, timespans=torch.ones(input.shape[:2]).to(input))[0])


def check_time_major_input(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2), example()
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    layer.batch_first = False
    turned, h_turned = layer(input.transpose(0, 1), timespans=timespans.T, lengths=LENGTHS)
    assert_same(turned.transpose(0, 1), output)
    assert_same(states(h_turned), states(h_n))


def check_unbatched_state(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2), example()
    whole, _ = layer(input[0], timespans=timespans[0])
    first, h = layer(input[0, :2], timespans=timespans[0, :2])
    assert all(s.dim() == 2 for s in states(h))
    second, _ = layer(input[0, 2:], h, timespans=timespans[0, 2:])
    assert_same(torch.cat([first, second]), whole)


def check_bidirectional_reverses_valid_steps_and_their_gaps(make: Make) -> None:
    layer, (input, timespans) = build(make, bidirectional=True), example()
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    backward = build(make)
    backward.cells[0].load_state_dict(layer.cells[1].state_dict())
    for row, length in enumerate(LENGTHS):
        gaps = torch.cat([torch.zeros(1).to(timespans), timespans[row, 1:length].flip(0)])
        alone, h_alone = backward(input[row, :length].flip(0), timespans=gaps)
        assert_same(output[row, :length, HIDDEN:], alone.flip(0))
        for a, b in zip(states(h_n), states(h_alone), strict=True):
            assert_same(a[1, row], b[0])


def check_two_layers_are_one_above_the_other(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2), example()
    lower, upper = build(make), build(partial(_resized, make))
    lower.cells[0].load_state_dict(layer.cells[0].state_dict())
    upper.cells[0].load_state_dict(layer.cells[1].state_dict())
    middle, _ = lower(input, timespans=timespans)
    assert_same(upper(middle, timespans=timespans)[0], layer(input, timespans=timespans)[0])


def _resized(make: Make, _: int, hidden_size: int, **options: Any) -> lapse.RNN:
    if make is GRUDWithMissing:
        make = lapse.GRUD  # above the first layer nothing is missing
    return make(hidden_size, hidden_size, **options)


def check_dropout_acts_between_layers_in_training_only(make: Make) -> None:
    layer, (input, timespans) = build(make, num_layers=2, dropout=0.9), example()
    assert not torch.equal(layer(input, timespans=timespans)[0], layer(input, timespans=timespans)[0])
    layer.eval()
    layer.dropout, expected = 0.0, layer(input, timespans=timespans)[0]
    assert torch.equal(layer(input, timespans=timespans)[0], expected)


def check_bfloat16_and_float32_follow_float64(make: Make) -> None:
    reference, (input, timespans) = build(make), example()
    expected, _ = reference(input, timespans=timespans)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        layer = copy.deepcopy(reference).to(dtype)
        if isinstance(layer.cells[0], PhasedLSTMCell) and dtype == torch.bfloat16:
            tolerance = 2.0  # gaps and periods in 8 bits open the gates at other times: finite is all that can be asked
        output, _ = layer(input.to(dtype), timespans=timespans.to(dtype))
        assert output.dtype == dtype
        assert_same(output.double(), expected, rtol=0.0, atol=tolerance)


def check_function_transforms(make: Make) -> None:
    """torch.func: a Jacobian and a vmap over rows agree with plain autograd and plain batching."""
    layer, (input, timespans) = build(make), example(rows=3, steps=3)

    def one(x: Tensor, gaps: Tensor) -> Tensor:
        output: Tensor = layer(x, timespans=gaps)[0]
        return output

    batched, _ = layer(input, timespans=timespans)
    assert_same(torch.func.vmap(one)(input, timespans), batched)
    jacobian = torch.func.jacrev(one)(input[0], timespans[0])
    with lapse.backend("reference"):
        expected = torch.autograd.functional.jacobian(lambda x: one(x, timespans[0]), input[0])
    assert_same(jacobian, expected)
    rows = torch.func.vmap(torch.func.jacrev(one))(input, timespans)
    assert_same(rows[0], expected)


def check_graph_capture(make: Make) -> None:
    """torch.compile traces the whole layer into one graph, and its results are the eager ones."""
    layer, (input, timespans) = build(make), example(rows=2, steps=2)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert_same(compiled(input, timespans=timespans)[0], layer(input, timespans=timespans)[0])
    with warnings.catch_warnings():
        # The loop over ragged rows is not part of the graph; torch wonders about what comes out of it.
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        ragged, _ = torch.compile(layer, backend="eager")(input, timespans=timespans, lengths=[2, 1])
    assert_same(ragged, layer(input, timespans=timespans, lengths=[2, 1])[0])


def check_autocast(make: Make) -> None:
    """Where `nn.LSTM` runs under autocast, so does the layer, in the precision of its weights."""
    layer, (input, timespans) = build(make, num_layers=2, dtype=torch.float32), example(dtype=torch.float32)
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    for backend in ("auto", "reference"):
        with lapse.backend(backend), torch.autocast("cpu", dtype=torch.bfloat16):
            again, _ = layer(input, timespans=timespans, lengths=LENGTHS)
            # What comes from a layer below is in half precision.
            states_below = tuple(s.detach().bfloat16() for s in states(h_n))
            half, _ = layer(input.bfloat16(), _as_given(states_below), timespans=timespans, lengths=LENGTHS)
        assert_same(again, output, rtol=1e-4, atol=1e-5)
        assert half.dtype == torch.float32
        half.sum().backward()


def check_tracing_is_refused(make: Make) -> None:
    """A traced loop would be silently wrong at another length."""
    layer, (input, _) = build(make), example()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"torch\.jit\.trace would record the loop over exactly"):
            torch.jit.trace(layer, (input,))


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
