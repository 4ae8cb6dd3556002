"""The programs of cells for the fused loop, the plans that are made of them, and where their tensors are found.

They are kept beside the cells and not inside them: plans are pointers, which a copied or pickled cell must not take
along. A cell can be changed at any time, so every call looks. It follows new weights, settings and parts of the same
class. It leaves the cell to the reference where hooks are attached, where a weight is computed by torch's utilities or
has another shape, where a part is of another class, and where a function that `step` calls was replaced, on an object
or on a class.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lapse.kernels import native
from lapse.kernels.builder import Builder, NotCovered
from lapse.kernels.contract import CellLike
from lapse.kernels.functions import Functions
from lapse.kernels.program import Program
from lapse.torch_private import has_global_hooks


class CellProgram:
    """The program of one cell, written for its settings and parts.

    It holds the parts weakly, because it is kept under the cell, and a part may refer to the cell.

    Args:
        cell: The cell.

    Attributes:
        program: The program; None if the operations do not cover the cell.
        setting_names: The settings of the cell and its parts, by their names as attributes of the cell.
    """

    def __init__(self, cell: CellLike) -> None:
        named = dict(cell.named_modules())  # the cell itself comes first
        index = {name: i for i, name in enumerate(named)}
        settings = {path: _setting_names(part) for path, part in named.items()}
        self.setting_names = [f"{path}.{name}".lstrip(".") for path in named for name in settings[path]]
        readers = [(index[path], operator.itemgetter(*names)) for path, names in settings.items() if names]
        parts = list(named.values())
        self._settings = [(i, read, read(vars(parts[i]))) for i, read in readers]
        self._children = len(named[""]._modules)
        self._parts = [
            (
                index[name.rpartition(".")[0]],
                name.rpartition(".")[2],
                weakref.ref(part),
                type(part),
                len(part._modules),
            )
            for name, part in named.items()
            if name
        ]
        kinds = [type(part) for part in named.values()]
        own = vars(named[""])
        called = [type(value) for name, value in own.items() if _is_plain(name, value) and callable(value)]
        self._functions = Functions([*kinds, *called])
        self._names = [self._functions.names[kind] for kind in kinds]
        # A part of another class, be it one of ours, may do anything.
        usual = {name: type(part) for name, part in named.items()} == _kinds(type(cell))
        self.program = program = written(cell) if usual else None
        self._shapes = [] if program is None else program.tensor_shapes()
        names = [] if program is None else program.tensors
        self._places = [_place(named, name) for name in names]
        buffers = dict(cell.named_buffers())
        self._buffers = [i for i, name in enumerate(names) if name in buffers]
        self._plans: dict[torch.dtype, native.Plan] = {}

    def parts_of(self, cell: CellLike) -> list[nn.Module] | None:
        """The cell and its parts; None if they are not what this was made of."""
        parts: list[Any] = [cell]
        if len(parts[0]._modules) != self._children:
            return None
        for parent, name, known, kind, children in self._parts:
            part = parts[parent]._modules.get(name)
            if (
                part is None
                or known() is not part
                or part.__class__ is not kind
                or len(part._modules) != children
            ):
                return None
            parts.append(part)
        try:
            for i, read, then in self._settings:
                if read(vars(parts[i])) != then:
                    return None
        except KeyError:  # one is gone
            return None
        return parts

    def tensors(self, parts: list[nn.Module]) -> list[Tensor] | None:
        """The program's tensors; None if they are not what it expects, or the parts may do something else."""
        if self.program is None or self.altered(parts):
            return None
        try:
            found = [get(parts[i]) for i, get in self._places]
            fitting = all(t.shape in shapes for t, shapes in zip(found, self._shapes, strict=True))
            # The operations have no gradient for what is not learned.
            fitting = fitting and not any(found[i].requires_grad for i in self._buffers)
        except (AttributeError, KeyError, TypeError):  # one is missing, or None
            return None
        return found if fitting else None

    def altered(self, parts: list[nn.Module]) -> bool:
        """Whether hooks or other functions may make the parts do something else than the program says."""
        if has_global_hooks() or not self._functions.unchanged():
            return True
        for part, names in zip(parts, self._names, strict=True):
            own: dict[str, Any] = vars(part)
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"]:
                return True
            if own["_backward_pre_hooks"] or not own.keys().isdisjoint(names):
                return True
        return False

    def plan(self, dtype: torch.dtype) -> native.Plan:
        """The program as the library takes it, for one number type."""
        assert self.program is not None
        if dtype not in self._plans:
            self._plans[dtype] = native.Plan(self.program, dtype)
        return self._plans[dtype]


def _setting_names(part: nn.Module) -> list[str]:
    """The settings of a cell or a part.

    These are all attributes with plain values, such as numbers, words and solvers, because a program may depend on any
    of them; of torch's own modules it takes the tensors only. One that is changed in place, such as a list, is not
    followed.
    """
    if type(part).__module__.startswith("torch."):
        return []
    return [name for name, value in vars(part).items() if name != "training" and _is_plain(name, value)]


def _is_plain(name: str, value: object) -> bool:
    return name[0] != "_" and isinstance(value, Hashable) and not isinstance(value, Tensor)


@functools.cache
def _kinds(cell_type: Callable[[int, int], CellLike]) -> dict[str, type[nn.Module]]:
    """The classes of a cell's parts, as its constructor makes them.

    A graph is captured by the thread that asks for it, and what that thread does goes into the graph. So the cell is
    made in another one.
    """

    def made() -> dict[str, type[nn.Module]]:
        with torch.random.fork_rng(devices=[]):
            return {name: type(part) for name, part in cell_type(1, 1).named_modules()}

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(made).result()


def _place(named: dict[str, nn.Module], name: str) -> tuple[int, Callable[[Any], Any]]:
    """Which part keeps a tensor, and how to get it from there; if it is computed, from the cell."""
    path, _, key = name.rpartition(".")
    index, part = list(named).index(path), named[path]
    if key in part._parameters:
        return index, lambda part: part._parameters[key]
    if key in part._buffers:
        return index, lambda part: part._buffers[key]
    return 0, operator.attrgetter(name)


_programs: WeakKeyDictionary[CellLike, CellProgram] = WeakKeyDictionary()


def program_of(cell: CellLike) -> tuple[CellProgram, list[nn.Module]]:
    """The program of a cell, written anew if the cell has changed, and the cell's parts."""
    kept = _programs.get(cell)
    parts = None if kept is None else kept.parts_of(cell)
    if kept is None or parts is None:
        kept = _programs[cell] = CellProgram(cell)
        parts = list(cell.modules())
    return kept, parts


def has_program(cell: object) -> bool:
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
    return builder
