"""Loss surfaces along random, filter-normalised directions, and a number for how flat they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Direction = dict[str, Tensor]


@dataclass(frozen=True)
class Surface:
    """A loss over a plane through the weights: ``losses[i, j]`` is ``extents[i]`` across and ``extents[j]`` along.

    An extent of 1 changes every filter (the weights into one unit) by as much as it is long itself.
    """

    extents: Tensor  # (P,)
    losses: Tensor  # (P, P)

    @property
    def slopes(self) -> Tensor:
        """The length of the surface's gradient at every point, (P, P): loss per unit of relative change."""
        rows, columns = torch.gradient(self.losses, spacing=(self.extents, self.extents))
        return torch.hypot(rows, columns)

    @property
    def mean_slope(self) -> float:
        """Root mean square of the slopes: 0 is a plain, and the smaller the flatter."""
        return float(self.slopes.square().mean().sqrt())

    @property
    def relief(self) -> float:
        """The highest loss less the lowest."""
        return float(self.losses.max() - self.losses.min())


def filter_normalised(model: nn.Module, generator: torch.Generator | None = None) -> Direction:
    """A random direction in which every filter is as long as that of ``model``; vectors (biases, scales) stay put.

    Li et al. (2018), "Visualizing the loss landscape of neural nets": without it a network with larger weights would
    look flatter for no other reason.
    """
    direction = {}
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            direction[name] = torch.zeros_like(weight)
            continue
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        length = torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
        direction[name] = noise / length * torch.linalg.vector_norm(weight.detach(), dim=-1, keepdim=True)
    return direction


def loss_surface(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    extent: float = 1.0,
    points: int = 21,
    generator: torch.Generator | None = None,
) -> Surface:
    """The loss over a square of 2 · ``extent`` around the model's weights, which are left as they were.

    ``loss()`` is called ``points``² times with the weights moved; it must use the same data every time.
    """
    if points < 2 or not extent > 0:
        raise ValueError(f"points must be at least 2 and extent above 0, got {points} and {extent}")
    across, along = (filter_normalised(model, generator) for _ in range(2))
    extents = torch.linspace(-extent, extent, points, dtype=torch.float64)
    centre = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    losses = torch.empty(points, points, dtype=torch.float64)
    try:
        for i, a in enumerate(extents.tolist()):
            for j, b in enumerate(extents.tolist()):
                losses[i, j] = _loss_at(model, loss, centre, (a, across), (b, along))
    finally:
        _move(model, centre)
    return Surface(extents, losses)


@torch.no_grad()
def _loss_at(
    model: nn.Module, loss: Callable[[], Tensor], centre: Direction, *moves: tuple[float, Direction]
) -> float:
    place = {name: weight + sum(a * d[name] for a, d in moves) for name, weight in centre.items()}
    _move(model, place)
    return float(loss())


@torch.no_grad()
def _move(model: nn.Module, place: Direction) -> None:
    for name, weight in model.named_parameters():
        weight.copy_(place[name])
