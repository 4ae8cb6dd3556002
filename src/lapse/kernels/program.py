"""A cell's step as data for the fused loop: registers, parameters and a list of operations.

The operations are those of ``csrc/ops.h``, each with a hand-written backward; ``lapse.kernels.steps`` puts them
together, one function a cell. What is left to work out here is bookkeeping: which operation is the first to write
an adjoint in the backward pass (it stores) and which ones come after it (they add).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

BEFORE = 1 << 16  # a register as the previous step left it
NONE = -1

# The order is that of LAPSE_OPS in csrc/ops.h; the numbers are the operands whose adjoints the backward writes.
WRITES: dict[str, tuple[int, ...]] = {
    "Linear": (1, 2),
    "LSTM": (0, 1, 2, 3, 4),
    "Tanh": (),
    "Add": (1, 2),
    "Check": (),
    "Combine": (1, 2, 3, 4, 5, 6, 7, 8),
    "TanhSlope": (0, 1),
    "PlainSlope": (),
    "Damping": (),
    "TanhExponential": (0, 1, 3, 4),
    "TanhCorrection": (0, 1, 3, 4),
    "Reset": (0, 1),
    "GRUSlope": (0, 1, 2),
    "GRUExponential": (0, 1, 2),
    "Blend": (0, 1, 2),
    "Fade": (0, 1),
    "Tick": (1,),
    "Impute": (0, 1, 2, 3),
    "Decay": (0,),
    "MemoryDecay": (0, 1, 2, 3),
    "MemoryUpdate": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    "PhasedBlend": (1, 2, 3, 4),
    "TraceDecay": (0,),
    "TraceRead": (0, 1),
    "TraceStore": (0, 1, 2),
}
CODES = {name: code for code, name in enumerate(WRITES)}

Transform = Literal["", "softplus", "exp"]


@dataclass
class Op:
    """One operation: registers, parameters, numbers; ``groups`` where an operand is several registers side by side."""

    name: str
    registers: list[int]
    parameters: Sequence[int] = ()
    numbers: Sequence[float] = ()
    groups: dict[int, int] = field(default_factory=dict)
    silent: tuple[int, ...] = ()  # operands that this use of the operation does not differentiate
    add: list[bool] = field(default_factory=list)

    def spread(self, operand: int) -> list[int]:
        first = self.registers[operand]
        return [first + i for i in range(self.groups.get(operand, 1))]

    def written(self) -> list[int]:
        """The operands whose adjoints the backward writes."""
        return [
            i
            for i in WRITES[self.name]
            if i < len(self.registers) and self.registers[i] != NONE and i not in self.silent
        ]


@dataclass(frozen=True)
class Parameter:
    """``segments`` matrices of rows x columns, one below the other (columns = 0: vectors), inside a tensor."""

    tensor: int
    segments: int
    rows: int
    columns: int
    stride: int
    offset: int = 0


@dataclass(frozen=True)
class Port:
    """How a tensor of the caller is spread over registers."""

    register: int
    segments: int
    row_stride: int
    segment_stride: int
    unit_stride: int = 1


class Program:
    """The step of one cell, written by calling ``register``, ``vector``, ``matrix`` and ``emit``."""

    def __init__(self, input_size: int, input_segments: int = 1) -> None:
        self.registers: list[tuple[int, bool]] = []
        self.ops: list[Op] = []
        self.parameters: list[Parameter] = []
        self.tensors: list[tuple[str, Transform]] = []
        self.states: list[Port] = []
        self.unread: list[int] = []
        self.solver_steps = 0
        self.multiplications = 0  # a row's products in one step, to tell small calls from large ones
        self.input_register = self.register(input_size, input_segments)
        self.input = Port(self.input_register, input_segments, input_size * input_segments, input_size)

    def register(self, size: int, count: int = 1, *, saved: bool = True) -> int:
        """The first of ``count`` new registers; not ``saved`` if no backward looks at its value."""
        self.registers += [(size, saved)] * count
        return len(self.registers) - count

    def state(self, size: int) -> int:
        """A state of the cell; ``register | BEFORE`` is its value before the step. The first is the output."""
        register = self.register(size)
        self.states.append(Port(register, 1, size, 0))
        return register

    def interleaved_state(self, size: int, count: int) -> int:
        """A state (B, size · count) whose last axis is the one of ``count``: a register for each of those."""
        register = self.register(size, count)
        self.states.append(Port(register, count, size * count, 1, count))
        return register

    def tensor(self, name: str, transform: Transform = "") -> int:
        if (name, transform) not in self.tensors:
            self.tensors.append((name, transform))
        return self.tensors.index((name, transform))

    def vector(self, name: str, size: int, segments: int = 1, transform: Transform = "") -> int:
        self.parameters.append(Parameter(self.tensor(name, transform), segments, size, 0, 1))
        return len(self.parameters) - 1

    def matrix(
        self, name: str, rows: int, columns: int, *, segments: int = 1, stride: int = 0, offset: int = 0
    ) -> int:
        """Columns ``offset`` to ``offset + columns`` of a weight whose rows are ``stride`` long."""
        tensor = self.tensor(name)
        self.parameters.append(Parameter(tensor, segments, rows, columns, stride or columns, offset))
        return len(self.parameters) - 1

    def emit(
        self, name: str, *registers: int, silent: tuple[int, ...] = (), **options: Sequence[float]
    ) -> None:
        parameters = [int(p) for p in options.get("parameters", ())]
        self.ops.append(Op(name, list(registers), parameters, options.get("numbers", ()), silent=silent))

    def linear(self, y: int, x: int, weight: int, *, bias: int = NONE, base: int = NONE) -> None:
        """y = base + W x + b; ``base`` may be y itself, to add to what is there."""
        matrix = self.parameters[weight]
        groups = {0: matrix.segments, 2: matrix.segments}
        silent = (2,) if base == y else ()
        self.ops.append(Op("Linear", [y, x, base], [weight, bias], groups=groups, silent=silent))
        self.multiplications += matrix.segments * matrix.rows * matrix.columns

    def finish(self) -> Program:
        """Work out who stores and who adds in the backward pass."""
        states = [p.register + i for p in self.states for i in range(p.segments)]
        known = set(states)
        for op in reversed(self.ops):
            written = op.written()
            op.add = [False] * len(op.registers)
            for i in written:
                spread = op.spread(i)
                op.add[i] = spread[0] in known
                assert all((r in known) == op.add[i] for r in spread), f"{op.name}: a group in two minds"
                known.update(spread)
        self.unread = [s for s in states if s | BEFORE not in known]
        return self
