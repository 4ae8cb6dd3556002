"""A program as text and back: this is how it travels through a compiled or exported graph."""

from __future__ import annotations

import functools
import json
from dataclasses import astuple

from lapse.kernels.program import Op, Parameter, Port, Program


def write(program: Program) -> str:
    """A program as text."""
    parts = {
        "registers": program.registers,
        "input": astuple(program.input_port),
        "states": [astuple(port) for port in program.states],
        "tensors": program.tensors,
        "parameters": [astuple(parameter) for parameter in program.parameters],
        "ops": [_op_to_json(op) for op in program.ops],
        "solver_steps": program.solver_steps,
        "multiplications": program.multiplications,
    }
    return json.dumps(parts, separators=(",", ":"))


@functools.lru_cache(maxsize=256)
def read(text: str) -> Program:
    """The program that `write` wrote."""
    parts = json.loads(text)
    program = Program()
    program.registers, program.tensors = parts["registers"], parts["tensors"]
    program.input_port = Port(*parts["input"])
    program.states = [Port(*port) for port in parts["states"]]
    program.parameters = [Parameter(*parameter) for parameter in parts["parameters"]]
    program.ops = [_op_from_json(*op) for op in parts["ops"]]
    program.solver_steps, program.multiplications = parts["solver_steps"], parts["multiplications"]
    return program


def _op_to_json(op: Op) -> tuple[object, ...]:
    return op.name, op.registers, op.parameters, op.numbers, list(op.groups.items()), op.silent


def _op_from_json(
    name: str,
    registers: list[int],
    parameters: list[int],
    numbers: list[float],
    groups: list[tuple[int, int]],
    silent: list[int],
) -> Op:
    return Op(name, registers, parameters, numbers, dict(groups), tuple(silent))
