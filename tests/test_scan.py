"""The linear recurrence along rows: both ways of computing it against a loop, gradients, precision, rows apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapse.kernels import native, scan
from lapse.rows import Rows

LENGTHS = [[1], [5], [3, 1, 7, 2], [40, 1, 33]]


def loop(a: Tensor, b: Tensor, lengths: list[int]) -> Tensor:
    states = []
    for part_a, part_b in zip(a.split(lengths), b.split(lengths), strict=True):
        x = torch.zeros_like(b[0])
        for k in range(len(part_a)):
            x = part_a[k] * x + part_b[k]
            states.append(x)
    return torch.stack(states)


def scanned(a: Tensor, b: Tensor, rows: Rows) -> Tensor:
    return scan._complex(scan.scan(scan._planes(a), scan._planes(b), rows))


def numbers(
    lengths: list[int], channels: int = 35, dtype: torch.dtype = torch.complex128
) -> tuple[Tensor, Tensor]:
    """More channels than a slice of the library has."""
    generator = torch.Generator().manual_seed(0)
    shape = sum(lengths), channels
    size, angle = torch.rand(shape, generator=generator), 6.3 * torch.rand(shape, generator=generator)
    b = torch.randn(*shape, generator=generator, dtype=dtype)
    return torch.polar(size, angle).to(dtype), b


@pytest.fixture(params=["library", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C++ compiler")
    return str(request.param)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.complex64, 1e-5), (torch.complex128, 1e-13)])
def test_states_and_gradients_are_those_of_the_loop(
    way: str, lengths: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    a, b = (part.requires_grad_() for part in numbers(lengths, dtype=dtype))
    weights, results = torch.randn(b.shape), []
    for states in (scanned(a, b, Rows.flat(lengths)), loop(a, b, lengths)):
        loss = (states.real * weights + states.imag.square()).sum()
        results.append((states.detach(), *torch.autograd.grad(loss, (a, b), materialize_grads=True)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_the_order_of_numbers_in_memory_does_not_matter(way: str) -> None:
    a, b = (scan._planes(part) for part in numbers([3, 4]))
    rows, d_x = Rows.flat([3, 4]), torch.rand_like(a)
    found = []
    for turn in (lambda x: x, lambda x: x.t().contiguous().t()):
        given = [turn(part).requires_grad_() for part in (a, b)]
        x = scan.scan(*given, rows)
        found.append((x, *torch.autograd.grad(x, given, turn(d_x))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_do_not_meet(way: str) -> None:
    lengths = [4, 6]
    a, b = numbers(lengths)
    both = scanned(a, b, Rows.flat(lengths))
    b[:4] = torch.nan
    assert torch.equal(scanned(a, b, Rows.flat(lengths))[4:], both[4:])


def test_the_same_bits_with_any_number_of_threads() -> None:
    a, b = numbers([100, 3], dtype=torch.complex64)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(scanned(a, b, Rows.flat([100, 3])))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_long_row_in_float32_is_near_float64(way: str) -> None:
    """Slow decay over 16,384 steps: states sum over a thousand steps, the error stays within rounding of them."""
    a, b = numbers([16_384], channels=4)
    a = a / a.abs() * 0.999
    exact = scanned(a, b, Rows.flat([16_384]))
    ours = scanned(a.to(torch.complex64), b.to(torch.complex64), Rows.flat([16_384]))
    assert float((ours - exact).abs().max() / exact.abs().max()) < 1e-5


@pytest.mark.skipif(native.library() is None, reason="no C++ compiler")
def test_it_is_an_operator_that_torch_accepts() -> None:
    a, b = (scan._planes(part).requires_grad_() for part in numbers([3, 4], 5))
    rows = Rows.flat([3, 4])
    torch.library.opcheck(torch.ops.lapse.scan.default, (a, b, rows.lengths, rows.starts))


@pytest.mark.parametrize(
    "other", [torch.zeros(3, 3), torch.zeros(2, 4), torch.zeros(3, 4, dtype=torch.float64)]
)
def test_what_does_not_fit_is_refused(other: Tensor) -> None:
    with pytest.raises(ValueError, match="a and b must have one shape"):
        scan.scan(torch.zeros(3, 4), other, Rows.flat([3]))
