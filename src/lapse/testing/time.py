"""Promises about time: the future is invisible, a sequence may be split, and gaps act as they say."""

from __future__ import annotations

import itertools

import torch

from lapse.solvers import RK4, FixedStep
from lapse.testing.choice import needs
from lapse.testing.subject import (
    HIDDEN,
    INPUT,
    LENGTHS,
    STEPS,
    Make,
    assert_same,
    build,
    example,
    first_cell,
    states,
)


def check_the_future_is_invisible(make: Make) -> None:
    """An output depends on no later value and no later gap; and it does depend on those up to it."""
    layer, (input, timespans) = build(make, num_layers=2), example()
    output, _ = layer(input, timespans=timespans)
    for t in range(1, STEPS):
        other, gaps = input.clone(), timespans.clone()
        other[:, t:] += 1.0
        gaps[:, t:] += 1.0
        changed, _ = layer(other, timespans=gaps)
        assert torch.equal(changed[:, :t], output[:, :t]), f"outputs before step {t} depend on it"
        assert not torch.allclose(changed[:, t:], output[:, t:]), (
            f"outputs from step {t} on do not depend on it"
        )


def check_a_split_sequence_with_its_state_equals_the_whole(make: Make) -> None:
    """The state is all that the second part needs to know of the first."""
    layer, (input, timespans) = build(make, num_layers=2), example()
    whole, h_whole = layer(input, timespans=timespans)
    for cut in range(1, STEPS):
        first, h = layer(input[:, :cut], timespans=timespans[:, :cut])
        second, h = layer(input[:, cut:], h, timespans=timespans[:, cut:])
        assert_same(torch.cat([first, second], 1), whole)
        for a, b in zip(states(h), states(h_whole), strict=True):
            assert_same(a, b)


@needs("splits_gaps")
def check_a_gap_may_be_passed_in_pieces(make: Make) -> None:
    """`flow` over a part of a gap and a step after the rest of it are a step after the whole."""
    layer, (input, timespans) = build(make), example()
    cell = first_cell(layer)
    if hasattr(cell, "solver"):
        # Fine steps, so that a solver's own error is not mistaken for a broken promise.
        cell.solver = FixedStep(RK4, steps=200)
    state = cell.initial_state(len(input), dtype=input.dtype)
    _, state = cell.step(cell.step_input(input[:, 0], None), state, timespans[:, 0])
    x, gap = cell.step_input(input[:, 1], None), timespans[:, 1]
    whole, whole_state = cell.step(x, state, gap)
    _, passed = cell.flow(state, 0.3 * gap)
    pieces, pieces_state = cell.step(x, passed, 0.7 * gap)
    assert_same(pieces, whole, rtol=1e-7, atol=1e-9)
    for a, b in zip(pieces_state, whole_state, strict=True):
        assert_same(a, b, rtol=1e-7, atol=1e-9)


def check_the_output_is_the_first_state(make: Make) -> None:
    """After a step, h is the output."""
    layer, (input, timespans) = build(make), example()
    cell = first_cell(layer)
    state = cell.initial_state(len(input), dtype=input.dtype)
    assert [s.shape[1] for s in state] == list(cell.state_sizes), "initial_state does not fit state_sizes"
    for t in range(3):
        output, state = cell.step(cell.step_input(input[:, t], None), state, timespans[:, t])
        assert torch.equal(output, state[0]), "the output of a step is not the first state"


@needs("flow_starts_at_output")
def check_flow_over_no_time_keeps_the_output(make: Make) -> None:
    """Asked at the very time of an observation, the cell answers with its output."""
    layer, (input, timespans) = build(make), example()
    cell = first_cell(layer)
    state = cell.initial_state(len(input), dtype=input.dtype)
    for t in range(3):
        output, state = cell.step(cell.step_input(input[:, t], None), state, timespans[:, t])
    still, _ = cell.flow(state, torch.zeros(len(input), dtype=input.dtype))
    assert_same(still, output)


def check_no_gaps_means_ones(make: Make) -> None:
    """Without `timespans` every gap is 1."""
    layer, (input, _) = build(make), example()
    ones = torch.ones(input.shape[:2]).to(input)
    assert torch.equal(layer(input)[0], layer(input, timespans=ones)[0]), "the default gap is not 1"


def check_any_gap_gives_finite_results(make: Make) -> None:
    """In float32, for gaps of 0, 1e-12, 1 and 1e6 mixed in every order of a batch: values and gradients."""
    torch.manual_seed(0)
    layer = make(INPUT, 16)
    gaps = torch.tensor(list(itertools.permutations([0.0, 1e-12, 1.0, 1e6])))  # (24, 4)
    input = torch.randn(len(gaps), 4, INPUT, requires_grad=True)
    gaps.requires_grad_()
    output, h_n = layer(input, timespans=gaps)
    loss = output.sum() + sum(s.sum() for s in states(h_n))
    grads = torch.autograd.grad(loss, [input, gaps, *layer.parameters()], allow_unused=True)
    for tensor in (output, *states(h_n), *(g for g in grads if g is not None)):
        assert bool(torch.isfinite(tensor).all()), "a gap gives a value or a gradient that is not finite"


def check_bidirectional_reverses_valid_steps_and_their_gaps(make: Make) -> None:
    """The second direction is a layer of its own on every row turned around, with the same gaps between events."""
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
