"""What is exported: one step of a model, or whole sequences; with the names and shapes of all that goes in and out."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph
from torch.utils._pytree import tree_map

import lapse
from lapse.export.sequence import WholeSequence
from lapse.models import Stepper

# Sizes of 0 and 1 are special to torch, so that a graph is captured with others; it then holds for any.
ROWS, STEPS = 2, 3


@dataclass(frozen=True)
class Form:
    """A module that can be captured as a graph.

    Args:
        module: what is captured.
        arguments: the names of the module's arguments, each with an example; states are a dictionary in it.
        axes: the names of the first axes of each argument, which may have any size; (B, ...) or (B, T, ...).
        outputs: the names of the results, states included, in their order.
        facts: what a reader of the file must know, as plain values.
    """

    module: nn.Module
    arguments: dict[str, Any]
    axes: dict[str, tuple[str, ...]]
    outputs: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all tensors that go in, in their order."""
        return tuple(
            inner
            for name, part in self.arguments.items()
            for inner in (part if isinstance(part, dict) else (name,))
        )

    @property
    def metadata(self) -> dict[str, str]:
        """The facts as text, as a file holds them."""
        plain = {
            name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in self.facts.items()
        }
        return {f"lapse.{name}": text for name, text in plain.items()}

    @property
    def dynamic(self) -> dict[str, Any]:
        """The names of the axes of any size, by argument and axis."""

        def named(part: Any, axes: dict[int, str]) -> Any:
            return dict.fromkeys(part, axes) if isinstance(part, dict) else axes

        return {name: named(part, dict(enumerate(self.axes[name]))) for name, part in self.arguments.items()}

    @cached_property
    def program(self) -> ExportedProgram:
        """The module as a program of torch that needs no code of lapse."""
        dims = {name: Dim(name) for axes in self.axes.values() for name in axes}
        dynamic = tree_map(lambda name: dims[name], self.dynamic)
        # Weights that could be trained would make the loop keep what a backward pass needs.
        module = deepcopy(self.module).requires_grad_(False)
        program = torch.export.export(module, (), self.arguments, dynamic_shapes=dynamic)
        for graph in program.graph_module.modules():
            for node in getattr(graph, "graph", Graph()).nodes:
                node.meta.pop("stack_trace", None)  # paths of this machine, which are nobody's business
        return program


def check_solvers(step: Stepper) -> None:
    """Refuse a solver that chooses its steps by the data: a graph holds the same operations for all data.

    Args:
        step: one event of the whole model.
    """
    for part in step.modules():
        solver = getattr(part, "solver", None)
        if not getattr(solver, "fixed_work", True):
            raise ValueError(
                f"{type(part).__name__} is solved by {solver}, which chooses its steps by the data and has no fixed "
                "graph; give the model a solver with a fixed number of steps, such as 'rk4:8'"
            )


def step_form(step: Stepper) -> Form:
    """One event of each sequence: values, time span and states in, answer and new states out.

    Args:
        step: one event of the whole model.
    """
    check_solvers(step)
    values, state = _example(step, ROWS), step.start(ROWS)
    arguments = {"values": values, "timespan": values[:, 0], "state": state} | _static(step)
    facts = _facts(step) | {"form": "step", "states": step.state_sizes}
    outputs = ("answer", *(f"next_{name}" for name in state))
    return Form(step, arguments, dict.fromkeys(arguments, ("batch",)), outputs, facts)


def sequence_form(step: Stepper) -> Form:
    """Whole sequences: padded values, time spans and lengths in, answers out.

    Args:
        step: one event of the whole model.
    """
    check_solvers(step)
    values = _example(step, ROWS, STEPS)
    lengths = torch.full((ROWS,), STEPS)
    arguments = {"values": values, "timespans": values[:, :, 0], "lengths": lengths} | _static(step)
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(arguments, ("batch",))
    axes |= dict.fromkeys(("values", "timespans"), ("batch", "length"))
    return Form(WholeSequence(step), arguments, axes, ("answer",), _facts(step) | {"form": "sequence"})


FORMS: dict[str, Callable[[Stepper], Form]] = {"step": step_form, "sequence": sequence_form}


def _example(step: Stepper, *axes: int) -> Tensor:
    return torch.zeros(*axes, len(step.schema.inputs), dtype=step.dtype)


def _static(step: Stepper) -> dict[str, Any]:
    names = step.schema.static_inputs
    return {"static": torch.zeros(ROWS, len(names), dtype=step.dtype)} if names else {}


def _facts(step: Stepper) -> dict[str, Any]:
    head = step.head
    return {
        "version": lapse.__version__,
        "model": step.described,
        "question": head.sentence,
        "values": list(step.schema.inputs),
        "static": list(step.schema.static_inputs),
        "answer": list(head.answer_names),
        "unit": step.schema.unit,
        "schema": step.schema.config(),
        "head": head.config(),
    }
