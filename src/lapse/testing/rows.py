"""Promises about rows: who shares a batch, what lies in the padding and how the rows are laid out has no effect."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lapse.kernels import backend
from lapse.testing.subject import LENGTHS, STEPS, Make, assert_same, build, example, first_cell, states


def check_batch_of_one_equals_its_row(make: Make) -> None:
    """A sequence alone gives what it gives among others."""
    layer, (input, timespans) = build(make), example()
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        alone, h_alone = layer(input[row : row + 1, :length], timespans=timespans[row : row + 1, :length])
        assert_same(output[row, :length], alone[0])
        for together, single in zip(states(h_n), states(h_alone), strict=True):
            assert_same(together[:, row], single[:, 0])


def check_permuting_rows_permutes_results(make: Make) -> None:
    """The order of the rows has no effect on any of them."""
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
    """Zeros, huge numbers and NaN in the padding give the same outputs, states and gradients, to the bit."""
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
        assert bool((output[padding] == 0).all()), "outputs in the padding are not zero"
        loss = output.square().sum() + sum(s.square().sum() for s in states(h_n))
        grads = torch.autograd.grad(loss, [input, timespans, *layer.parameters()], allow_unused=True)
        assert bool((grads[0][padding] == 0).all()), "the padding of the input has a gradient"
        assert bool((grads[1][padding] == 0).all()), "the padding of the gaps has a gradient"
        results.append((output, *states(h_n), *[g for g in grads if g is not None]))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b), "what lies in the padding changes the results"


def check_steps_past_the_end_are_not_computed(make: Make) -> None:
    """The cell sees only rows that have not ended."""
    layer, (input, timespans) = build(make), example()
    seen: list[int] = []
    cell = first_cell(layer)
    step = cell.step

    def counting(x: Tensor, state: tuple[Tensor, ...], timespan: Tensor) -> Any:
        seen.append(len(x))
        return step(x, state, timespan)

    cell.step = counting
    with backend("reference"):
        layer(input, timespans=timespans, lengths=LENGTHS)
    assert seen == [5, 4, 4, 4, 3, 2], f"rows computed per step: {seen}"


def check_packed_lengths_and_ragged_loops_agree(make: Make) -> None:
    """A `PackedSequence`, `lengths` and a loop over single rows give the same."""
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


def check_time_major_input(make: Make) -> None:
    """`batch_first=False` is the same with the first two axes exchanged."""
    layer, (input, timespans) = build(make, num_layers=2), example()
    output, h_n = layer(input, timespans=timespans, lengths=LENGTHS)
    layer.batch_first = False
    turned, h_turned = layer(input.transpose(0, 1), timespans=timespans.T, lengths=LENGTHS)
    assert_same(turned.transpose(0, 1), output)
    assert_same(states(h_turned), states(h_n))


def check_unbatched_state(make: Make) -> None:
    """An input without a batch axis has states without one, which can be given back."""
    layer, (input, timespans) = build(make, num_layers=2), example()
    whole, _ = layer(input[0], timespans=timespans[0])
    first, h = layer(input[0, :2], timespans=timespans[0, :2])
    assert all(s.dim() == 2 for s in states(h)), "the states of an unbatched input have a batch axis"
    second, _ = layer(input[0, 2:], h, timespans=timespans[0, 2:])
    assert_same(torch.cat([first, second]), whole)
