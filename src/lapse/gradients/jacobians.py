"""State-to-state Jacobians: measured for any cell, and in the closed forms of the paper's two lemmas.

Lemma 1 is one explicit Euler step. Lemma 2 is one Runge–Kutta step, and the paper prints it with the stages K_i as
constants: dh'/dh = I + T Σ b_i J(K_i). The stages depend on h too, so that formula is not the derivative of the step
except for Euler; `runge_kutta_jacobian` differentiates through them, `held_stages_jacobian` is as printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapse.recurrent import Cell, State
from lapse.recurrent.fields import TanhField
from lapse.solvers import Tableau


def state_jacobian(
    cell: Cell,
    input: Tensor,
    state: State,
    timespan: Tensor,
    *,
    of: Sequence[str] | None = None,
    wrt: Sequence[str] | None = None,
) -> Tensor:
    """How the state after an observation depends on the state before it, (B, M, N), by automatic differentiation.

    ``of`` and ``wrt`` name the states to take, all by default: ``of=["c"], wrt=["c"]`` is the memory path of an LSTM.
    ``input`` is what ``cell.step`` takes, that is, ``cell.step_input(x, observed)``. Works for any cell under
    any solver but ``Adjoint``, whose backward pass is not the derivative of the steps taken.
    """
    targets, sources = _places(cell, of, "of"), _places(cell, wrt, "wrt")

    def step(*parts: Tensor) -> Tensor:
        before = list(state)
        for place, part in zip(sources, parts, strict=True):
            before[place] = part
        _, after = cell.step(input, tuple(before), timespan)
        # Rows do not see each other: the Jacobian of their sum holds every row's own, at a B-th of the cost.
        return torch.cat([after[place] for place in targets], -1).sum(0)

    chosen = tuple(state[place].detach() for place in sources)
    blocks = torch.func.jacrev(step, argnums=tuple(range(len(chosen))))(*chosen)  # (M, B, n) each
    return torch.cat(blocks, -1).transpose(0, 1).detach()


def _places(cell: Cell, names: Sequence[str] | None, argument: str) -> list[int]:
    if names is None:
        return list(range(len(cell.state_names)))
    unknown = [name for name in names if name not in cell.state_names]
    if unknown or not names:
        raise ValueError(
            f"{argument} must name states of {type(cell).__name__}, {list(cell.state_names)}, got {list(names)!r}"
        )
    return [cell.state_names.index(name) for name in names]


def jacobians_along(cell: Cell, input: Tensor, timespans: Tensor) -> list[Tensor]:
    """The Jacobians (N, N) along one sequence, (1, T, I) and (1, T), from its second observation on.

    Of the states that parameters act on: a clock's derivative is 1 and says nothing about what can be learned.
    """
    steps = list(zip(input.unbind(1), timespans.unbind(1), strict=True))
    x, gap = steps[0]
    _, state = cell.step(cell.step_input(x, None), cell.initial_state(1, dtype=x.dtype), gap)
    names = [name for name, part in zip(cell.state_names, state, strict=True) if part.requires_grad]
    jacobians = []
    for x, gap in steps[1:]:
        state, given = tuple(part.detach() for part in state), cell.step_input(x, None)
        jacobians.append(state_jacobian(cell, given, state, gap, of=names, wrt=names)[0])
        _, state = cell.step(given, state, gap)
    return jacobians


def field_jacobian(field: TanhField, h: Tensor, drive: Tensor) -> Tensor:
    """∂f/∂h − τ of the paper's right-hand sides from their weights: diag(s ⊙ (1 − tanh²)) R − diag(τ), (B, H, H)."""
    slope = field.scale * (1 - torch.tanh(drive + field.gates.recur(h)).square())
    jacobian = slope.unsqueeze(-1) * field.gates.weight_hh
    return (jacobian - torch.diag(field.damping)).detach()


def euler_jacobian(field: TanhField, h: Tensor, drive: Tensor, timespan: Tensor) -> Tensor:
    """Lemma 1: I + T ∂f/∂h − τ T I, for one explicit Euler step of length ``timespan`` (B,)."""
    return _identity(h) + timespan[:, None, None] * field_jacobian(field, h, drive)


def held_stages_jacobian(
    tableau: Tableau, field: TanhField, h: Tensor, drive: Tensor, timespan: Tensor
) -> Tensor:
    """Lemma 2 as printed: I + T Σ b_i ∂f/∂h(K_i) − τ T I, the stages K_i taken as constants."""
    points = _stage_points(tableau, field, h, drive, timespan)
    total = sum(w * field_jacobian(field, k, drive) for w, k in zip(tableau.b, points, strict=True))
    assert isinstance(total, Tensor)
    return _identity(h) + timespan[:, None, None] * total


def runge_kutta_jacobian(
    tableau: Tableau, field: TanhField, h: Tensor, drive: Tensor, timespan: Tensor
) -> Tensor:
    """Lemma 2 with the stages differentiated too: the Jacobian of the step that is really taken.

    D_i = J(K_i) (I + T Σ_j a_ij D_j),        dh'/dh = I + T Σ b_i D_i,        J = ∂f/∂h − τ
    """
    identity, span = _identity(h), timespan[:, None, None]
    points = _stage_points(tableau, field, h, drive, timespan)
    stages: list[Tensor] = []
    for weights, point in zip(tableau.a, points, strict=True):
        inner = identity + span * _weighted(weights, stages, identity)
        stages.append(field_jacobian(field, point, drive) @ inner)
    return identity + span * _weighted(tableau.b, stages, identity)


def _stage_points(
    tableau: Tableau, field: TanhField, h: Tensor, drive: Tensor, timespan: Tensor
) -> list[Tensor]:
    """K_1 … K_M: where one step looks at the field."""
    points: list[Tensor] = []
    slopes: list[Tensor] = []
    for weights in tableau.a:
        points.append(h + timespan[:, None] * _weighted(weights, slopes, h))
        slopes.append(field(points[-1], drive))
    return [point.detach() for point in points]


def _weighted(weights: Sequence[float], terms: Sequence[Tensor], like: Tensor) -> Tensor:
    total = torch.zeros_like(like)
    for weight, term in zip(weights, terms, strict=True):
        total = total + weight * term
    return total


def _identity(h: Tensor) -> Tensor:
    return torch.eye(h.shape[-1], dtype=h.dtype, device=h.device).expand(len(h), -1, -1)


@dataclass(frozen=True)
class LemmaGap:
    """How far the printed Lemma 2 is from the true Jacobian of one step: spectral norms, relative, per row."""

    method: str
    timespans: Tensor  # (B,)
    relative_error: Tensor  # (B,)


def lemma_gap(tableau: Tableau, field: TanhField, h: Tensor, drive: Tensor, timespans: Tensor) -> LemmaGap:
    """Both forms of Lemma 2 over one step of each row's span."""
    printed = held_stages_jacobian(tableau, field, h, drive, timespans)
    true = runge_kutta_jacobian(tableau, field, h, drive, timespans)
    error = torch.linalg.matrix_norm(printed - true, 2) / torch.linalg.matrix_norm(true, 2)
    return LemmaGap(tableau.name, timespans, error)


@dataclass(frozen=True)
class Verdict:
    """Definition 1 of the paper for a state-to-state Jacobian (..., N, N), unit by unit.

    A unit vanishes where |Σ_j ∂h'_i/∂h_j| < 1 − ε and explodes where it is above 1. The sum is signed, so large
    entries can cancel: ``spectral_norm``, which cannot, stands beside it.
    """

    row_sums: Tensor  # (..., N), with their sign
    spectral_norm: Tensor  # (...)
    epsilon: float

    @property
    def vanishing(self) -> Tensor:
        """The units that vanish, (..., N)."""
        return self.row_sums.abs() < 1 - self.epsilon

    @property
    def exploding(self) -> Tensor:
        """The units that explode, (..., N)."""
        return self.row_sums.abs() > 1


def judge(jacobian: Tensor, epsilon: float = 0.01) -> Verdict:
    """Definition 1 applied; ``epsilon`` is the paper's "some small ε", here a loss of 1 % a step by default."""
    if jacobian.dim() < 2 or jacobian.shape[-1] != jacobian.shape[-2]:
        raise ValueError(
            f"jacobian must be square, (..., N, N), got {tuple(jacobian.shape)}; take the same states for "
            "`of` and `wrt` of state_jacobian"
        )
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must lie between 0 and 1, got {epsilon}")
    return Verdict(jacobian.sum(-1), torch.linalg.matrix_norm(jacobian, 2), epsilon)


def log_product_norms(jacobians: Iterable[Tensor]) -> Tensor:
    """Natural logarithm of the spectral norm of J_1, J_2 J_1, …, J_L ⋯ J_1, shape (L, ...).

    In logarithms, with the product rescaled at every step: 256 factors of 0.01 are below what a float can hold.
    """
    logs: list[Tensor] = []
    product: Tensor | None = None
    scale: Tensor | None = None
    for jacobian in jacobians:
        product = jacobian if product is None else jacobian @ product
        norm = torch.linalg.matrix_norm(product, 2)
        scale = norm.log() if scale is None else scale + norm.log()
        product = product / norm.clamp_min(torch.finfo(norm.dtype).tiny)[..., None, None]
        logs.append(scale)
    if not logs:
        raise ValueError("there is no Jacobian to multiply; pass at least one")
    return torch.stack(logs)
