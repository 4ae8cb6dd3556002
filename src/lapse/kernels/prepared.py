"""A cell made ready for the fused loop: its program, the plans made of it, and where its tensors are found.

Beside the cells, not inside them: plans are pointers, which a copied or pickled cell must not take along.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from lapse.cells import Cell
from lapse.kernels import native
from lapse.kernels.program import Program
from lapse.kernels.steps import STEPS

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {"softplus": F.softplus, "exp": torch.exp}
OURS = ("lapse.cells", "torch.nn.modules")  # what a part's class must be of to be sure of what it does


class Prepared:
    """A cell's program for its settings and parts. It must not hold the cell itself, which is its key."""

    def __init__(self, cell: Cell) -> None:
        parts = list(cell.modules())
        self.settings = settings_of(cell)
        self.kinds = [(part, type(part)) for part in parts[1:]]
        self.children = [(part._modules, part._modules.copy()) for part in parts]
        self.hooks = [
            hooks
            for part in parts
            for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks)
        ]
        foreign = any(not type(part).__module__.startswith(OURS) for part in parts)
        program = None if foreign else STEPS[type(cell)](cell)
        self.program = program and program.finish()
        self.sizes = [] if program is None else program.tensor_sizes()
        self.places = [] if program is None else [_place(cell, name) for name, _ in program.tensors]
        self._plans: dict[torch.dtype, native.Plan] = {}

    def serves(self, cell: Cell) -> bool:
        """Whether the cell is still what this was made of."""
        return (
            settings_of(cell) == self.settings
            and all(now == then for now, then in self.children)
            and all(type(part) is kind for part, kind in self.kinds)
        )

    def tensors(self, cell: Cell) -> list[Tensor] | None:
        """The program's tensors; None if they are not what it expects, or a hook may change what the cell does."""
        if self.program is None or any(self.hooks):
            return None
        try:
            found = [key(cell) if place is None else place[key] for place, key in self.places]
        except (AttributeError, KeyError):  # a part was replaced by another kind
            return None
        fitting = all(t is not None and t.numel() == n for t, n in zip(found, self.sizes, strict=True))
        return found if fitting else None

    def plan(self, dtype: torch.dtype) -> native.Plan:
        assert self.program is not None
        if dtype not in self._plans:
            self._plans[dtype] = native.Plan(self.program, dtype)
        return self._plans[dtype]


def _place(cell: Cell, name: str) -> tuple[dict[str, Any] | None, Any]:
    """The dict and key where a module keeps a tensor; if it is computed instead, how to get it from the cell."""
    path, _, key = name.rpartition(".")
    part = dict(cell.named_modules()).get(path)
    for place in () if part is None else (part._parameters, part._buffers):
        if key in place:
            return place, key
    return None, operator.attrgetter(name)


_prepared: WeakKeyDictionary[Cell, Prepared] = WeakKeyDictionary()


def prepare(cell: Cell) -> Prepared:
    kept = _prepared.get(cell)
    if kept is None or not kept.serves(cell):
        kept = _prepared[cell] = Prepared(cell)
    return kept


def settings_of(cell: Cell) -> tuple[object, ...]:
    """What a program is made for beside the shapes: it is made anew when one of these has been changed."""
    return tuple([vars(cell).get(name) for name in ("solver", "ratio_on", "leak", "timescales")])


def transformed(tensors: tuple[Tensor, ...] | list[Tensor], program: Program) -> list[Tensor]:
    """As the operations take them: a rate is positive, a period is kept as its logarithm. Without gradients."""
    return [
        (TRANSFORMS[how](t) if how else t).contiguous()
        for t, (_, how) in zip(tensors, program.tensors, strict=True)
    ]
