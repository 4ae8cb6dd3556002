"""A cell's step as data for the fused loop: registers, parameters and a list of operations.

The operations are those of `csrc/ops`, each with a hand-written backward pass; the `program` methods of the cells
put them together. A program says what a cell computes and nothing about how it is differentiated, which
`lapse.kernels.backward` works out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

BEFORE = 1 << 30  # added to the number of a register: its value as the previous step left it
NONE = -1  # no register, or no parameter
# kMostSources, kMostSegments and kMostScales of csrc; `lapse.kernels.native` compares them when it loads the library.
MOST_SOURCES, MOST_SEGMENTS, MOST_SCALES = 3, 8, 32


TRANSFORMS = ("", "softplus", "exp")  # the order is that of Transform in csrc/plan.h
Transform = Literal["", "softplus", "exp"]


@dataclass(frozen=True)
class Op:
    """One operation.

    Args:
        name: The name of its struct in `csrc/ops`.
        registers: Its operands; NONE where one is left out.
        parameters: The numbers of its parameters.
        numbers: Its constants.
        groups: By operand, how many registers side by side it stands for, if more than one.
        silent: The operands that this use of the operation does not differentiate.
    """

    name: str
    registers: Sequence[int]
    parameters: Sequence[int] = ()
    numbers: Sequence[float] = ()
    groups: Mapping[int, int] = field(default_factory=dict)
    silent: tuple[int, ...] = ()

    def spread(self, operand: int) -> list[int]:
        """The registers of an operand."""
        first = self.registers[operand]
        return [first + i for i in range(self.groups.get(operand, 1))]

    def present(self, operands: Iterable[int]) -> list[int]:
        """Those of the operands that this use of the operation has."""
        return [i for i in operands if i < len(self.registers) and self.registers[i] != NONE]

    def values(self, operands: Iterable[int]) -> set[int]:
        """The registers of these operands, without those of the previous step."""
        return {r for i in self.present(operands) for r in self.spread(i) if not r & BEFORE}


@dataclass(frozen=True)
class Parameter:
    """Matrices or vectors of one size, one below the other, inside a tensor of the cell.

    Args:
        tensor: The number of the tensor.
        segments: How many matrices or vectors there are.
        rows: The number of rows of each.
        columns: The number of columns of each; 0 for vectors.
        stride: The length of a row of the tensor.
        offset: The column of the tensor at which they begin.
        transform: The function that is applied to a vector before operations take it: a rate is kept as the
            argument of softplus, so that it is positive, and a period as its logarithm.
    """

    tensor: int
    segments: int
    rows: int
    columns: int
    stride: int
    offset: int = 0
    transform: Transform = ""


@dataclass(frozen=True)
class Port:
    """How a tensor of the caller is spread over registers.

    Args:
        register: The first register.
        segments: The number of registers.
        row_stride: The distance from one row of the tensor to the next.
        segment_stride: The distance from the first element of one register to that of the next.
        unit_stride: The distance from one element of a register to the next.
    """

    register: int
    segments: int
    row_stride: int
    segment_stride: int
    unit_stride: int = 1

    @property
    def registers(self) -> range:
        """The registers themselves."""
        return range(self.register, self.register + self.segments)


class Program:
    """The step of one cell, written by calling `input`, `state`, `register`, `vector`, `matrix` and `emit`.

    Attributes:
        registers: The size of each register.
        ops: The operations, in order.
        parameters: What operations take of the cell's tensors.
        tensors: The names of those tensors, as attributes of the cell.
        input_port: How the input is spread over registers.
        states: How the states are, in the cell's order.
        solver_steps: The number of sub-steps that a failed solve is reported with.
        multiplications: The number of products in one step of one row, to tell small calls from large ones.
    """

    input_port: Port

    def __init__(self) -> None:
        self.registers: list[int] = []
        self.ops: list[Op] = []
        self.parameters: list[Parameter] = []
        self.tensors: list[str] = []
        self.states: list[Port] = []
        self.solver_steps = 0
        self.multiplications = 0

    def input(self, size: int, segments: int = 1) -> int:
        """The first of the registers that the input is spread over.

        Args:
            size: The number of units of each register.
            segments: The number of registers; the input has size · segments columns.
        """
        register = self.register(size, segments)
        self.input_port = Port(register, segments, size * segments, size)
        return register

    def register(self, size: int, count: int = 1) -> int:
        """The first of `count` new registers of `size` units."""
        self.registers += [size] * count
        return len(self.registers) - count

    def size(self, register: int) -> int:
        """How many units a register has."""
        return self.registers[register & ~BEFORE]

    def state(self, size: int) -> int:
        """The register of a state of `size` units; `register | BEFORE` is its value before the step.

        States are declared in the cell's order, so that the first one is the output.
        """
        register = self.register(size)
        self.states.append(Port(register, 1, size, 0))
        return register

    def interleaved_state(self, size: int, count: int) -> int:
        """The first of `count` registers for a state (B, size · count) in which the numbers of a unit lie together."""
        register = self.register(size, count)
        self.states.append(Port(register, count, size * count, 1, count))
        return register

    def tensor(self, name: str) -> int:
        """The number of a tensor of the cell, by its name as an attribute."""
        if name not in self.tensors:
            self.tensors.append(name)
        return self.tensors.index(name)

    def vector(self, name: str, size: int, segments: int = 1, transform: Transform = "") -> int:
        """The number of a parameter that is a vector, or several side by side.

        Args:
            name: The name of the tensor as an attribute of the cell.
            size: The length of each vector.
            segments: The number of vectors.
            transform: The function that is applied before operations take it.
        """
        self.parameters.append(Parameter(self.tensor(name), segments, size, 0, 1, transform=transform))
        return len(self.parameters) - 1

    def matrix(
        self, name: str, rows: int, columns: int, *, segments: int = 1, stride: int = 0, offset: int = 0
    ) -> int:
        """The number of a parameter that is a matrix, or several one below the other.

        Args:
            name: The name of the tensor as an attribute of the cell.
            rows: The number of rows of each matrix.
            columns: The number of columns of each matrix.
            segments: The number of matrices.
            stride: The length of a row of the tensor, if it has more columns than these.
            offset: The first of these columns.
        """
        tensor = self.tensor(name)
        self.parameters.append(Parameter(tensor, segments, rows, columns, stride or columns, offset))
        return len(self.parameters) - 1

    def emit(
        self,
        name: str,
        *registers: int,
        parameters: Sequence[int] = (),
        numbers: Sequence[float] = (),
        groups: Mapping[int, int] | None = None,
        silent: tuple[int, ...] = (),
    ) -> None:
        """Add an operation.

        Args:
            name: The name of its struct in `csrc/ops`.
            registers: Its operands; `register | BEFORE` is a state before the step.
            parameters: Its parameters, as `vector` and `matrix` number them.
            numbers: Its constants.
            groups: By operand, how many registers side by side it stands for, if more than one.
            silent: The operands that this use of the operation does not differentiate.
        """
        self.ops.append(Op(name, list(registers), list(parameters), numbers, dict(groups or {}), silent))

    def linear(self, y: int, *terms: tuple[int, int], bias: int = NONE, base: int = NONE) -> None:
        """Add the operation y = base + b + Σ W x.

        Args:
            y: The first register of the result.
            terms: Pairs of a register x and a matrix W; all matrices have the same rows and segments.
            bias: The vector b.
            base: The first of the registers to which it is added.
        """
        matrices = [self.parameters[weight] for _, weight in terms]
        segments = matrices[0].segments
        assert len(terms) <= MOST_SOURCES, "too many terms for one Linear"
        assert segments <= MOST_SEGMENTS, "too many maps side by side for one Linear"
        registers = [y, base, *(x for x, _ in terms)]
        self.ops.append(
            Op("Linear", registers, [bias, *(w for _, w in terms)], groups={0: segments, 1: segments})
        )
        self.multiplications += sum(m.segments * m.rows * m.columns for m in matrices)

    def tensor_shapes(self) -> list[tuple[tuple[int, ...], ...]]:
        """The shapes that each of `tensors` may have."""
        shapes: list[tuple[tuple[int, ...], ...]] = [()] * len(self.tensors)
        for p in self.parameters:
            rows = p.segments * p.rows
            shapes[p.tensor] = ((rows, p.stride), (rows,)) if p.stride == 1 else ((rows, p.stride),)
        return shapes

    @property
    def state_registers(self) -> set[int]:
        """The registers of all states."""
        return {r for port in self.states for r in port.registers}
