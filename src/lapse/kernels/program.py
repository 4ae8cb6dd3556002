"""A cell's step as data for the fused loop: registers, parameters and a list of operations.

The operations are those of `csrc/ops.h`, each with a hand-written backward pass; the `program` methods of the
cells put them together. What is left to work out here is bookkeeping: which operation is the first to write an
adjoint in the backward pass (it stores) and which ones come after it (they add), and what the tape must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

BEFORE = 1 << 30  # added to the number of a register: its value as the previous step left it
NONE = -1  # no register, or no parameter
MOST_SOURCES, MOST_SEGMENTS = 3, 8  # kMostSources and kMostSegments of csrc/plan.h


@dataclass(frozen=True)
class Kind:
    """What an operation does with its operands, which are numbered from 0.

    Args:
        makes: The operands that the operation computes; the others are its arguments.
        writes: The operands whose adjoints its backward pass writes.
        reads: The operands whose values its backward pass reads.
        replays: The operands that the backward pass can compute again from the others. That costs a few
            multiplications per unit, because the activations are there already, and so less than a place on the
            tape.
    """

    makes: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    replays: tuple[int, ...] = ()


# The order is that of LAPSE_OPS in csrc/ops.h.
KINDS: dict[str, Kind] = {
    "Linear": Kind(makes=(0,), writes=(1, 2, 3, 4), reads=(2, 3, 4)),
    "LSTM": Kind(makes=(5, 6), writes=(0, 1, 2, 3, 4), reads=(0, 1, 2, 3, 4, 7), replays=(6, 7)),
    "Tanh": Kind(makes=(0,), writes=(1,), reads=(0,)),
    "Add": Kind(makes=(0,), writes=(1, 2)),
    "Check": Kind(),
    "Combine": Kind(makes=(0,), writes=(1, 2, 3, 4, 5, 6, 7, 8), replays=(0,)),
    "Integrate": Kind(makes=(0,), writes=(1, 2, 3, 4, 5, 6, 7, 8), reads=(2, 3, 4, 5, 6, 7, 8), replays=(0,)),
    "TanhSlope": Kind(makes=(2,), writes=(0, 1), reads=(0, 1), replays=(2,)),
    "PlainSlope": Kind(reads=(0,)),
    "Damping": Kind(makes=(0, 1), reads=(0,), replays=(0, 1)),
    "TanhExponential": Kind(makes=(2,), writes=(0, 1, 3, 4), reads=(0, 1, 3, 4), replays=(2,)),
    "TanhCorrection": Kind(makes=(2,), writes=(0, 1, 3, 4), reads=(0, 3, 4), replays=(2,)),
    "Reset": Kind(makes=(2,), writes=(0, 1), reads=(0, 1), replays=(2,)),
    "GRUSlope": Kind(makes=(3,), writes=(0, 1, 2), reads=(0, 1, 2), replays=(3,)),
    "GRUExponential": Kind(makes=(3,), writes=(0, 1, 2), reads=(0, 1, 2)),
    "Blend": Kind(makes=(3,), writes=(0, 1, 2), reads=(0, 1, 2)),
    "Fade": Kind(makes=(2,), writes=(0, 1), reads=(0, 2)),
    "Tick": Kind(makes=(0,), writes=(1,), replays=(0,)),
    "Gap": Kind(makes=(0,), replays=(0,)),
    "Impute": Kind(makes=(4, 5, 6), writes=(0, 1, 2, 3), reads=(0, 1, 2, 3)),
    "Decay": Kind(makes=(1,), writes=(0,), reads=(1,)),
    "MemoryDecay": Kind(makes=(4, 5), writes=(0, 1, 2, 3), reads=(0, 1, 2, 3, 4)),
    "MemoryUpdate": Kind(
        makes=(9, 10, 11, 12, 13), writes=(0, 1, 2, 3, 4, 5, 6, 7, 8), reads=(0, 1, 2, 4, 5, 6, 7, 8, 10, 13)
    ),
    "Clock": Kind(makes=(0,), writes=(1,)),
    "Phase": Kind(makes=(0,), reads=(1,)),
    "PhasedBlend": Kind(makes=(5, 6), writes=(0, 1, 2, 3, 4), reads=(0, 1, 2, 3, 4)),
    "TraceDecay": Kind(makes=(1, 2), writes=(0,), reads=(1,), replays=(1, 2)),
    "TraceRead": Kind(makes=(2,), writes=(0, 1), reads=(0, 1)),
    "TraceStore": Kind(makes=(3, 4), writes=(0, 1, 2), reads=(0, 1, 2)),
}
CODES = {name: code for code, name in enumerate(KINDS)}

TRANSFORMS = ("", "softplus", "exp")  # the order is that of Transform in csrc/plan.h
Transform = Literal["", "softplus", "exp"]


@dataclass
class Op:
    """One operation.

    Args:
        name: One of `KINDS`.
        registers: Its operands; NONE where one is left out.
        parameters: The numbers of its parameters.
        numbers: Its constants.
        groups: By operand, how many registers side by side it stands for, if more than one.
        silent: The operands that this use of the operation does not differentiate.
        add: By operand, whether the backward pass adds to its adjoint or stores it; `Program.finish` decides
            that.
        replay: Whether the backward pass computes the results again; `Program.finish` decides that.
    """

    name: str
    registers: list[int]
    parameters: Sequence[int] = ()
    numbers: Sequence[float] = ()
    groups: dict[int, int] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    add: list[bool] = field(default_factory=list)
    replay: bool = False

    def spread(self, operand: int) -> list[int]:
        """The registers of an operand."""
        first = self.registers[operand]
        return [first + i for i in range(self.groups.get(operand, 1))]

    def present(self, operands: Iterable[int]) -> list[int]:
        """Those of the operands that this use of the operation has."""
        return [i for i in operands if i < len(self.registers) and self.registers[i] != NONE]

    def written(self) -> list[int]:
        """The operands whose adjoints the backward pass writes."""
        return [i for i in self.present(KINDS[self.name].writes) if i not in self.silent]

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
        saved: The registers that the tape holds.
        homes: For each register, the one whose place its adjoint takes: its own, or one that is no longer
            needed.
        unread: The states whose previous value no operation looks at.
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
        self.saved: set[int] = set()
        self.homes: list[int] = []
        self.unread: list[int] = []

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
            name: One of `KINDS`.
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

    def finish(self) -> Program:
        """Decide which operations store an adjoint and which add to it, and what the tape holds; the program itself."""
        states = [p.register + i for p in self.states for i in range(p.segments)]
        known = set(states)
        for op in reversed(self.ops):
            written = op.written()
            op.add = [False] * len(op.registers)
            for i in written:
                spread = op.spread(i)
                op.add[i] = spread[0] in known
                assert all((r in known) == op.add[i] for r in spread), (
                    f"{op.name}: some registers of an operand have an adjoint and some not"
                )
                known.update(spread)
            lost = op.values(KINDS[op.name].makes) - known if written else set()
            assert not lost, (
                f"{op.name} computes the registers {lost}, which nothing looks at, so that they have no adjoint"
            )
        self.unread = [s for s in states if s | BEFORE not in known]
        self._choose_saved(set(states))
        self._choose_homes(set(states) | set(self._inputs()))  # these are read and written by others
        return self

    def _inputs(self) -> range:
        return range(self.input_port.register, self.input_port.register + self.input_port.segments)

    def _choose_homes(self, fixed: set[int]) -> None:
        """Let adjoints share places, so that all of them stay in the cache.

        An adjoint is no longer needed once the backward pass has left the operation that computed its register.
        """
        self.homes = list(range(len(self.registers)))
        free: list[int] = []
        held: set[int] = set()
        for op in reversed(self.ops):
            for register in sorted(op.values(op.written()) - fixed - held):
                held.add(register)
                fitting = [home for home in free if self.registers[home] == self.registers[register]]
                if fitting:
                    self.homes[register] = fitting[0]
                    free.remove(fitting[0])
            made = op.values(KINDS[op.name].makes) & held
            free += sorted(self.homes[register] for register in made)

    def _choose_saved(self, states: set[int]) -> None:
        """Save what the backward pass reads, unless it can compute it again."""
        needed = set().union(*(op.values(KINDS[op.name].reads) for op in self.ops))
        if needed & set(self._inputs()):
            needed |= set(self._inputs())  # they are read together
        replayed: set[int] = set()
        for op in reversed(self.ops):
            made = KINDS[op.name].replays
            products = op.values(made) - states
            if products & needed:
                op.replay = True
                replayed |= products
                needed |= op.values(i for i in range(len(op.registers)) if i not in made)
        self.saved = states | (needed - replayed)
