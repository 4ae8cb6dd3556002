"""Random calls of the layers, by the fused path and by the reference: `make fuzz-kernels SECONDS=60`.

A case is drawn from a seed: a cell, a solver, sizes, lengths, a layout, a number type, threads, gaps, what is given and
what gradients are asked for. Both paths must agree in outputs, final states and gradients, or fail alike. How far they
may differ is measured for every case: by how much the reference itself moves when its arguments are rounded another
way, or when it is computed in float64. A failing case is made smaller as long as it fails, and printed as a test.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import lapse
from lapse import kernels, recurrent, solvers
from lapse.kernels import passes, traced
from lapse.recurrent import RNN, Cell
from lapse.threads import threads

CELLS: dict[str, type[Cell]] = {
    name: kind
    for name, kind in vars(recurrent).items()
    if isinstance(kind, type) and issubclass(kind, Cell) and "program" in vars(kind)
}
GAPS: dict[str, Callable[[Tensor], Tensor]] = {  # of numbers drawn evenly from 0 to 1
    "usual": lambda u: 1.5 * u * (u > 0.1),
    "none": torch.zeros_like,
    "short": lambda u: 10 ** (-9 + 6 * u),
    "long": lambda u: 10 ** (4 * u),
    "any": lambda u: 10 ** (-8 + 12 * u) * (u > 0.1),
}
# By how much more than rounding moves the reference the two paths may differ: their sums have other orders, and
# elementary functions in float32 err by up to 2e-7.
ALLOWANCE = 50.0
MORE_ROUNDINGS = 16  # of a case that seems to differ
FLOOR = {torch.float32: 3e-5, torch.float64: 1e-11}  # of the largest value of each tensor


@dataclass(frozen=True)
class Case:
    """One call; the defaults are the simplest."""

    cell: str
    seed: int
    solver: str = ""  # an expression; empty: the cell's own
    input_size: int = 1
    hidden_size: int = 1
    num_layers: int = 1
    bidirectional: bool = False
    lengths: tuple[int, ...] = (1,)
    room: int = 0  # steps of padding behind the longest row
    layout: str = "rows first"  # or "steps first", "packed", "packed with padded gaps", "unbatched", "stream"
    strided: bool = False  # whether tensors are parts of larger ones
    dtype: str = "float64"
    threads: int = 1
    every: int = 0
    gaps: str = "usual"
    weights: float = 0.1  # how far they are moved from their start
    inputs: float = 1.0
    start: bool = False  # whether an initial state is given
    missing: float = 0.0
    asked: str = "parameters"  # of "input", "gaps", "start", "parameters" and "some parameters"
    looked_at: str = "output states"
    operator: bool = False  # whether the fused path is `lapse::unroll`, as in a compiled graph


class Difference(AssertionError):
    """The two paths do not agree."""


def draw(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    cell = r.choice(sorted(CELLS))
    layout = r.choice(
        [
            "rows first",
            "rows first",
            "steps first",
            "packed",
            "packed with padded gaps",
            "unbatched",
            "stream",
        ]
    )
    rows = 1 if layout == "unbatched" else r.choice([1, 2, 3, 4, 7, 20, 65, 70, 140])
    longest = r.choice([1, 2, 3, 6, 12]) if rows > 20 else r.choice([1, 2, 3, 9, 30])
    ragged = r.random() < 0.7
    lengths = tuple(r.randint(1, longest) if ragged else longest for _ in range(rows))
    missing = r.choice([0.0, 0.4, 1.0]) if CELLS[cell].takes_missing else 0.0
    asked = [name for name in ("input", "gaps", "start") if r.random() < 0.5]
    asked += r.choice([["parameters"], ["parameters"], ["some parameters"], []])
    return Case(
        cell=cell,
        seed=seed,
        solver=_draw_solver(r, CELLS[cell](1, 1)),
        input_size=r.choice([1, 2, 3, 5, 8, 17]),
        hidden_size=r.choice([1, 2, 3, 5, 8, 15, 16, 17, 33]),
        num_layers=r.choice([1, 1, 1, 2]),
        bidirectional=r.random() < 0.2,
        lengths=(longest,) * rows if layout == "stream" else lengths,
        room=r.choice([0, 0, 3]),
        layout=layout,
        strided=r.random() < 0.2,
        dtype=r.choice(["float32", "float64"]),
        threads=r.choice([1, 1, 2, 3]),
        every=r.choice([0, 0, 0, 1, 2, 5, 100]),
        gaps=r.choice(sorted(GAPS)),
        weights=r.choice([0.0, 0.1, 0.5]),
        inputs=r.choice([0.1, 1.0, 10.0]),
        start=r.random() < 0.5,
        missing=missing,
        asked=" ".join(asked),
        looked_at=r.choice(["output", "states", "output states"]),
        operator=r.random() < 0.3,
    )


def _draw_solver(r: random.Random, cell: Any) -> str:
    if not hasattr(cell, "solver") or r.random() < 0.2:
        return ""
    steps = r.choice([1, 1, 2, 3, 5])
    if isinstance(cell, recurrent.LTCCell):  # whose synapses have operations for its own kind of step alone
        return f"SemiImplicit({steps})"
    if hasattr(cell.field, "semilinear") and r.random() < 0.4:
        order = r.choice([1, 2]) if isinstance(cell.field, recurrent.fields.TanhField) else 1
        return f"Exponential({steps}, order={order})"
    if r.random() < 0.7:
        return f"FixedStep({r.choice(['EULER', 'HEUN', 'RK4', 'DOPRI5'])}, {steps})"
    stages = r.randint(1, 7)
    a = tuple(tuple(r.choice([0.0, 0.25, 0.5]) for _ in range(i)) for i in range(stages))
    # A stage that looks at no other is one that the reference has no notion of.
    a = tuple(row if not row or any(row) else (*row[:-1], 0.5) for row in a)
    b = [r.choice([0, 1, 2]) for _ in range(stages)]
    b[-1] += not any(b)
    return f"FixedStep(Tableau('drawn', 1, a={a}, b={tuple(w / sum(b) for w in b)}), {steps})"


class Trial:
    """A case made ready: the layer and its arguments, which may be rounded another way."""

    def __init__(self, case: Case) -> None:
        self.case, self.dtype = case, getattr(torch, case.dtype)
        self.generator = torch.Generator().manual_seed(case.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            options = {"solver": eval(case.solver, vars(solvers))} if case.solver else {}
            self.layer = RNN(
                case.input_size, case.hidden_size, case.num_layers,
                cell=lambda i, h: CELLS[case.cell](i, h, **options), dtype=self.dtype,
                bidirectional=case.bidirectional, batch_first=case.layout != "steps first",
            )  # fmt: skip
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter += case.weights * self._normal(*parameter.shape)
        parameters = list(self.layer.parameters())
        if "some parameters" in case.asked:
            for parameter in parameters[::2]:
                parameter.requires_grad_(False)
        else:
            self.layer.requires_grad_("parameters" in case.asked)
        rows, steps = len(case.lengths), max(case.lengths) + case.room
        self.x = case.inputs * self._normal(rows, steps, case.input_size)
        self.gaps = GAPS[case.gaps](
            torch.rand(rows, steps, generator=self.generator, dtype=torch.float64)
        ).to(self.dtype)
        self.observed = torch.rand(self.x.shape, generator=self.generator) >= case.missing
        for row, length in enumerate(case.lengths):
            self.x[row, length:], self.gaps[row, length:] = torch.nan, torch.nan
        self.start = [
            0.5 * torch.rand(s.shape, generator=self.generator, dtype=self.dtype) for s in self._states()
        ]

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def _states(self) -> tuple[Tensor, ...]:
        states = self.layer.initial_state(len(self.case.lengths), dtype=self.dtype)
        return states if isinstance(states, tuple) else (states,)

    def rounded(self, way: int = 0) -> Trial:
        """The same with every number moved by about a rounding, in one of many ways."""
        other = Trial(self.case)
        other.generator.manual_seed(way)
        with torch.no_grad():
            for tensor in (*other.layer.parameters(), other.x, other.gaps, *other.start):
                noise = other._normal(*tensor.shape)
                tensor.mul_(1 + torch.finfo(self.dtype).eps * noise)
        return other

    def exact(self) -> Trial:
        """The same in float64."""
        self.dtype = torch.float64
        self.layer.to(self.dtype)
        self.x, self.gaps, self.start = self.x.double(), self.gaps.double(), [s.double() for s in self.start]
        return self

    def run(self, backend: str) -> dict[str, Tensor]:
        """Everything that the call gives, by name, or what it raised."""
        case = self.case
        leaves = {"input": self.x, "gaps": self.gaps}
        leaves |= {f"start {i}": s for i, s in enumerate(self.start)} if case.start else {}
        leaves = {name: t.clone().requires_grad_(name.split()[0] in case.asked) for name, t in leaves.items()}
        with (
            lapse.backend(backend),
            _recompute(case.every),
            _through_operator() if case.operator else nullcontext(),
            threads(case.threads if backend == "fused" else 1),
        ):  # type: ignore[arg-type]
            outputs = self._stream(leaves) if case.layout == "stream" else self._layer(leaves)
            sources = {name: t for name, t in leaves.items() if t.requires_grad}
            sources |= {n: p for n, p in self.layer.named_parameters() if p.requires_grad}
            pulls = torch.Generator().manual_seed(case.seed)
            loss = sum(
                (o * torch.randn(o.shape, generator=pulls, dtype=torch.float64)).sum()
                for o in outputs.values()
            )
            if not sources or not isinstance(loss, Tensor) or not loss.requires_grad:
                return {name: o.detach() for name, o in outputs.items()}
            grads = torch.autograd.grad(
                loss, list(sources.values()), allow_unused=True, materialize_grads=True
            )
        found = {name: o.detach() for name, o in outputs.items()}
        return found | {f"gradient of {name}": g for name, g in zip(sources, grads, strict=True)}

    def _layer(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        x, gaps, observed, hx = self._given(leaves)
        padded = self.case.layout in ("rows first", "steps first")
        lengths = list(self.case.lengths) if padded or self.case.layout == "unbatched" else None
        output, states = self.layer(x, hx, timespans=gaps, observed=observed, lengths=lengths)
        output = output.data if isinstance(output, PackedSequence) else output
        states = states if isinstance(states, tuple) else (states,)
        found = {"output": output} if "output" in self.case.looked_at else {}
        return found | (
            {f"state {i}": s for i, s in enumerate(states)} if "states" in self.case.looked_at else {}
        )

    def _given(self, leaves: dict[str, Tensor]) -> tuple[Any, Any, Any, Any]:
        case, layout = self.case, self.case.layout
        x, gaps = (_strided(leaves[name]) if case.strided else leaves[name] for name in ("input", "gaps"))
        observed = self.observed if case.missing else None
        hx = tuple(leaves[f"start {i}"] for i in range(len(self.start))) if case.start else None
        if layout == "unbatched":
            hx = None if hx is None else tuple(s[:, 0] for s in hx)
            return x[0], gaps[0], None if observed is None else observed[0], hx
        if layout == "steps first":
            return (
                x.transpose(0, 1),
                gaps.transpose(0, 1),
                None if observed is None else observed.transpose(0, 1),
                hx,
            )
        if layout == "rows first":
            return x, gaps, observed, hx

        def pack(values: Tensor) -> PackedSequence:
            return pack_padded_sequence(values, list(case.lengths), batch_first=True, enforce_sorted=False)

        longest = max(case.lengths)
        gaps = pack(gaps) if layout == "packed" else gaps[:, :longest]
        return pack(x), gaps, None if observed is None else pack(observed), hx

    def _stream(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """The first cell alone, one observation at a time, without gradients."""
        cell: Any = self.layer.cells[0]
        state = (
            tuple(s[0].contiguous() for s in self.start)
            if self.case.start
            else cell.initial_state(len(self.x), dtype=self.dtype)
        )
        x = cell.step_input(self.x, self.observed if self.case.missing else None)
        with torch.no_grad():
            for t in range(max(self.case.lengths)):
                output, state = kernels.step(
                    cell,
                    x[:, t].contiguous(),
                    tuple(s[:, :n].contiguous() for s, n in zip(state, cell.state_sizes, strict=True)),
                    self.gaps[:, t].contiguous(),
                )
        return {"output": output} | {f"state {i}": s for i, s in enumerate(state)}


def _strided(values: Tensor) -> Tensor:
    """The same numbers as every other one of twice as many."""
    return torch.stack([values, torch.full_like(values, torch.nan)], -1)[..., 0]


def _recompute(every: int) -> Any:
    return kernels.recompute(every=every) if every else nullcontext()


@contextmanager
def _through_operator() -> Iterator[None]:
    direct = kernels.KERNELS
    kernels.KERNELS = (traced.unroll,)
    try:
        yield
    finally:
        kernels.KERNELS = direct


@contextmanager
def hard_conditions() -> Iterator[None]:
    """Calls of any size use all threads, and borrowed memory holds NaN from its last use."""
    small, borrow = passes.SMALL_CALL, passes.borrow
    passes.SMALL_CALL, passes.borrow = -1, lambda size, dtype: borrow(size, dtype).fill_(torch.nan)
    try:
        yield
    finally:
        passes.SMALL_CALL, passes.borrow = small, borrow


def check(case: Case) -> None:
    """Raise a `Difference` if the two paths do not agree on a case."""
    with hard_conditions():
        expected, actual = _outcome(Trial(case), "reference"), _outcome(Trial(case), "fused")
        moved = [_outcome(Trial(case).rounded(), "reference"), _outcome(Trial(case).exact(), "reference")]
        if isinstance(expected, str) or isinstance(actual, str):
            # Next to where numbers end, a rounding decides whether a solve fails, and where first. Where both fail and
            # float64 does not, the state has grown to the end of float32, and sums round differently in the two paths.
            both_grown = (
                isinstance(actual, str) and isinstance(expected, str) and not isinstance(moved[1], str)
            )
            if expected != actual and moved[0] == expected and not both_grown:
                raise Difference(f"reference: {_short(expected)}; fused: {_short(actual)}")
            return
        try:
            _compare_all(case, actual, expected, moved)
        except Difference:
            # Where gradients explode, one rounding moves them little and another a thousandfold.
            moved += [_outcome(Trial(case).rounded(way), "reference") for way in range(1, MORE_ROUNDINGS)]
            _compare_all(case, actual, expected, moved)


def _compare_all(
    case: Case,
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    moved: list[dict[str, Tensor] | str],
) -> None:
    others = [other for other in moved if not isinstance(other, str)]
    for name, value in expected.items():
        _compare(case, name, actual[name], value, [other[name] for other in others])


def _outcome(trial: Trial, backend: str) -> dict[str, Tensor] | str:
    try:
        return trial.run(backend)
    except lapse.SolverError as error:
        return str(error)


def _short(outcome: dict[str, Tensor] | str) -> str:
    return outcome if isinstance(outcome, str) else "no failure"


def _compare(case: Case, name: str, actual: Tensor, expected: Tensor, others: list[Tensor]) -> None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise Difference(f"{name}: {actual.shape}, {actual.dtype} for {expected.shape}, {expected.dtype}")
    if len(others) < 2 or not all(bool(t.isfinite().all()) for t in (expected, *others)):
        return
    scale = float(expected.abs().max())
    # Where everything is saturated, derivatives are what is left of differences of numbers near 1.
    floor = FLOOR[expected.dtype] * (scale + 0.1 * max(1.0, case.inputs))
    bound = floor + ALLOWANCE * max(float((other - expected).abs().max()) for other in others)
    error = float((actual - expected).abs().max())
    if not error <= bound:
        raise Difference(f"{name}: off by {error:.3g} of {scale:.3g}, where {bound:.3g} is allowed")


SIMPLER: list[dict[str, Any]] = [
    {"num_layers": 1}, {"bidirectional": False}, {"layout": "rows first"}, {"strided": False}, {"room": 0},
    {"operator": False},
    {"threads": 1}, {"every": 0}, {"start": False}, {"missing": 0.0}, {"solver": ""}, {"gaps": "usual"},
    {"weights": 0.1}, {"inputs": 1.0}, {"asked": "parameters"}, {"looked_at": "output states"}, {"input_size": 1},
    {"hidden_size": 1}, {"hidden_size": 2}, {"dtype": "float64"}, {"lengths": (1,)}, {"lengths": (2,)},
]  # fmt: skip


def smaller(case: Case) -> Case:
    """The case with all that can be left out while it still fails."""
    halves = [
        {"lengths": case.lengths[: len(case.lengths) // 2] or (1,)},
        {"lengths": case.lengths[len(case.lengths) // 2 :]},
    ]
    shorter = [{"lengths": tuple(max(1, n // 2) for n in case.lengths)}]
    for change in (*SIMPLER, *halves, *shorter):
        candidate = dataclasses.replace(case, **change)
        if _size(candidate) < _size(case) and failure(candidate):
            return smaller(candidate)
    return case


def _size(case: Case) -> int:
    unusual = sum(getattr(case, f.name) != f.default for f in dataclasses.fields(Case))
    return unusual + case.input_size + case.hidden_size + sum(case.lengths)


def failure(case: Case) -> str:
    """Why a case fails; empty if it does not."""
    try:
        check(case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def as_test(case: Case) -> str:
    fields = dataclasses.fields(Case)
    words = [f"{f.name}={getattr(case, f.name)!r}" for f in fields if getattr(case, f.name) != f.default]
    return f"def test_case_{case.seed}() -> None:\n    check(Case({', '.join(words)}))\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="how long to go on; 60 without --cases")
    parser.add_argument("--cases", type=int, default=10**9, help="how many cases at most")
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of the first case; the next ones follow"
    )
    options = parser.parse_args()
    enough = options.seconds or (math.inf if options.cases < 10**9 else 60.0)
    end, failed, seed = time.monotonic() + enough, 0, options.seed
    while time.monotonic() < end and seed < options.seed + options.cases:
        case = draw(seed)
        if reason := failure(case):
            failed += 1
            small = smaller(case)
            print(f"# seed {seed}: {reason}\n# smaller: {failure(small)}\n{as_test(small)}", flush=True)
        seed += 1
    print(f"tried {seed - options.seed}, failed {failed} (seeds {options.seed} to {seed - 1})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
