"""A cell made ready for the fused loop: its program, the plans made of it, and where its tensors are found.

Beside the cells, not inside them: plans are pointers, which a copied or pickled cell must not take along. A cell can be
changed at any time, so every call looks whether its parts are still the ones that the program was written for.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from lapse.kernels import native
from lapse.kernels.builder import Builder, NotCovered
from lapse.kernels.contract import CellLike
from lapse.kernels.program import Program


class Prepared:
    """A cell's program for its settings and parts, which it holds weakly: the cell is its key, and may hang on them."""

    def __init__(self, cell: CellLike) -> None:
        named = dict(cell.named_modules())  # the cell itself comes first
        index = {name: i for i, name in enumerate(named)}
        self.setting_names = _setting_names(cell)
        self.settings = self._settings_of(cell)
        self.parts = [
            (index[name.rpartition(".")[0]], name.rpartition(".")[2], weakref.ref(part), type(part))
            for name, part in named.items()
            if name
        ]
        self.children = [len(part._modules) for part in named.values()]
        # A part of another class, be it one of ours, may do anything.
        usual = {name: type(part) for name, part in named.items()} == _kinds(type(cell))
        self.program = program = written(cell) if usual else None
        self.shapes = [] if program is None else program.tensor_shapes()
        names = [] if program is None else program.tensors
        self.places = [_place(named, name) for name in names]
        buffers = dict(cell.named_buffers())
        self.buffers = [i for i, name in enumerate(names) if name in buffers]
        self.plain = [-1] * len(named)  # how many attributes each part had when it was last seen to be plain
        self._plans: dict[torch.dtype, native.Plan] = {}

    def _settings_of(self, cell: CellLike) -> tuple[object, ...]:
        own = vars(cell)
        return tuple([own.get(name) for name in self.setting_names])

    def parts_of(self, cell: CellLike) -> list[nn.Module] | None:
        """The cell and its parts; None if they are not what this was made of."""
        if self._settings_of(cell) != self.settings:
            return None
        parts: list[Any] = [cell]
        for parent, name, then, kind in self.parts:
            part = parts[parent]._modules.get(name)
            kept: bool = then() is part
            if part is None or not kept or part.__class__ is not kind:
                return None
            parts.append(part)
        same = all(len(part._modules) == count for part, count in zip(parts, self.children, strict=True))
        return parts if same else None

    def tensors(self, parts: list[nn.Module]) -> list[Tensor] | None:
        """The program's tensors; None if they are not what it expects, or the parts may do something else."""
        if self.program is None or self.altered(parts):
            return None
        try:
            found = [get(parts[i]) for i, get in self.places]
            fitting = all(t.shape in shapes for t, shapes in zip(found, self.shapes, strict=True))
            # The operations have no gradient for what is not learned.
            fitting = fitting and not any(found[i].requires_grad for i in self.buffers)
        except (AttributeError, KeyError, TypeError):  # one is missing, or None
            return None
        return found if fitting else None

    def altered(self, parts: list[nn.Module]) -> bool:
        """Whether hooks or functions of their own may make the parts do something else than their classes say."""
        if _has_any_global_hook():
            return True
        for i, part in enumerate(parts):
            own: dict[str, Any] = vars(part)
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"]:
                return True
            # Attributes are looked at one by one only when there are more or fewer of them.
            if own["_backward_pre_hooks"] or (len(own) != self.plain[i] and not _plain(part)):
                return True
            self.plain[i] = len(own)
        return False

    def plan(self, dtype: torch.dtype) -> native.Plan:
        assert self.program is not None
        if dtype not in self._plans:
            self._plans[dtype] = native.Plan(self.program, dtype)
        return self._plans[dtype]


def _plain(part: nn.Module) -> bool:
    """Whether no function of its own stands in for one of its class."""
    kind: Any = type(part)
    return vars(part).keys().isdisjoint(_methods(kind))


@functools.cache
def _methods(kind: type[nn.Module]) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name)))


def _setting_names(cell: CellLike) -> tuple[str, ...]:
    """The attributes of a cell that its program may depend on: it is written anew when one of them has changed."""
    return tuple(
        name
        for name, value in vars(cell).items()
        if name != "training"
        and name[0] != "_"
        and isinstance(value, Hashable)
        and not isinstance(value, Tensor)
    )


@functools.cache
def _kinds(cell_type: Callable[[int, int], CellLike]) -> dict[str, type[nn.Module]]:
    """The classes of a cell's parts, as its constructor makes them."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        return {name: type(part) for name, part in cell_type(1, 1).named_modules()}


def _place(named: dict[str, nn.Module], name: str) -> tuple[int, Callable[[Any], Any]]:
    """Which part keeps a tensor, and how to get it from there; if it is computed, from the cell."""
    path, _, key = name.rpartition(".")
    index, part = list(named).index(path), named[path]
    if key in part._parameters:
        return index, lambda part: part._parameters[key]
    if key in part._buffers:
        return index, lambda part: part._buffers[key]
    return 0, operator.attrgetter(name)


_prepared: WeakKeyDictionary[CellLike, Prepared] = WeakKeyDictionary()


def prepare(cell: CellLike) -> tuple[Prepared, list[nn.Module]]:
    """What was made of a cell, made anew if it has changed, and the cell's parts."""
    kept = _prepared.get(cell)
    parts = None if kept is None else kept.parts_of(cell)
    if kept is None or parts is None:
        kept = _prepared[cell] = Prepared(cell)
        parts = list(cell.modules())
    return kept, parts


def has_program(cell: CellLike) -> bool:
    """Whether the cell's very class has a program: a subclass that inherits one may compute something else."""
    return "program" in vars(type(cell))


def written(cell: Any) -> Program | None:
    """The program of a cell; None if it has none, or if the operations do not cover it."""
    if not has_program(cell):
        return None
    builder = Builder()
    try:
        cell.program(builder)
    except NotCovered:
        return None
    return builder.finish()
