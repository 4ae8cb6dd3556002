"""What the backward pass of a program needs to know: which operation stores an adjoint, and what the tape holds.

All of it follows from what each operation does with its operands, which its C++ declares (`csrc/ops/operation.h`) and
the compiled library tells (`lapse.kernels.native.operations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lapse.kernels.program import BEFORE, Op, Program


@dataclass(frozen=True)
class Kind:
    """What the operations of one name do with their operands, which are numbered from 0.

    Args:
        code: The number by which the library knows it.
        count: How many operands there are.
        makes: The operands that the operation computes; the others are its arguments.
        writes: The operands whose adjoints its backward pass writes.
        reads: The operands whose values its backward pass reads.
        replays: The operands that the backward pass can compute again from the others. That costs a few
            multiplications per unit, because the activations are there already, and so less than a place on the
            tape.
        optional: The operands that may be left out.
    """

    code: int
    count: int
    makes: tuple[int, ...]
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    replays: tuple[int, ...]
    optional: tuple[int, ...]

    def check(self, op: Op) -> None:
        """Refuse a use of the operation with too few or too many operands: the library trusts them."""
        needed = set(range(self.count)) - set(self.optional)
        missing = needed.difference(op.present(needed))
        if missing or len(op.registers) > self.count:
            raise ValueError(
                f"{op.name} takes {self.count} operands, of which {list(self.optional)} may be left out, "
                f"got {list(op.registers)}"
            )


class Backward:
    """The bookkeeping of the backward pass of one program.

    Args:
        program: The program.
        kinds: What each operation does with its operands, by its name.

    Attributes:
        add: For each operation, by operand, whether the backward pass adds to the adjoint or is the first to
            store it.
        replay: For each operation, whether the backward pass computes its results again.
        saved: The registers that the tape holds.
        homes: For each register, the one whose place its adjoint takes: its own, or one that is no longer
            needed.
        unread: The states whose previous value no operation looks at.
    """

    def __init__(self, program: Program, kinds: Mapping[str, Kind]) -> None:
        for op in program.ops:
            kinds[op.name].check(op)
        self._program, self._kinds = program, kinds
        states = program.state_registers
        self.add: list[list[bool]] = []
        known = set(states)
        for op in reversed(program.ops):
            self.add.insert(0, self._shares(op, known))
        self.unread = [s for s in sorted(states) if s | BEFORE not in known]
        self.replay, self.saved = self._tape(states)
        # States and inputs are read and written by others too.
        self.homes = self._places(states | set(program.input_port.registers))

    def _written(self, op: Op) -> list[int]:
        """The operands whose adjoints the backward pass writes."""
        return [i for i in op.present(self._kinds[op.name].writes) if i not in op.silent]

    def _shares(self, op: Op, known: set[int]) -> list[bool]:
        """By operand, whether `known` has its adjoint already; those that are written here are added to it."""
        written, add = self._written(op), [False] * len(op.registers)
        for i in written:
            spread = op.spread(i)
            add[i] = spread[0] in known
            assert all((r in known) == add[i] for r in spread), (
                f"{op.name}: some registers of an operand have an adjoint and some not"
            )
            known.update(spread)
        lost = op.values(self._kinds[op.name].makes) - known if written else set()
        assert not lost, (
            f"{op.name} computes the registers {lost}, which nothing looks at, so that they have no adjoint"
        )
        return add

    def _tape(self, states: set[int]) -> tuple[list[bool], set[int]]:
        """Which operations to replay, and what to save: what the backward pass reads and cannot compute again."""
        ops, inputs = self._program.ops, set(self._program.input_port.registers)
        needed = set().union(*(op.values(self._kinds[op.name].reads) for op in ops))
        if needed & inputs:
            needed |= inputs  # they are read together
        replay, replayed = [False] * len(ops), set()
        for n, op in reversed(list(enumerate(ops))):
            made = self._kinds[op.name].replays
            products = op.values(made) - states
            if products & needed:
                replay[n] = True
                replayed |= products
                needed |= op.values(i for i in range(len(op.registers)) if i not in made)
        return replay, states | (needed - replayed)

    def _places(self, fixed: set[int]) -> list[int]:
        """Let adjoints share places, so that all of them stay in the cache.

        An adjoint is no longer needed once the backward pass has left the operation that computed its register.
        """
        sizes = self._program.registers
        homes = list(range(len(sizes)))
        free: list[int] = []
        held: set[int] = set()
        for op in reversed(self._program.ops):
            for register in sorted(op.values(self._written(op)) - fixed - held):
                held.add(register)
                fitting = [home for home in free if sizes[home] == sizes[register]]
                if fitting:
                    homes[register] = fitting[0]
                    free.remove(fitting[0])
            made = op.values(self._kinds[op.name].makes) & held
            free += sorted(homes[register] for register in made)
        return homes
