"""A layer to put where `nn.LSTM` stands: it takes gaps, ragged lengths and, if its cell does, missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lapse.arguments import check_choice, check_count, check_flag, check_share
from lapse.kernels import unroll
from lapse.kernels.reference import compute_weights
from lapse.recurrent.cell import Cell, State
from lapse.recurrent.checks import check_device, check_timespans, check_values
from lapse.recurrent.layouts import Given, layout_of
from lapse.rows import Rows
from lapse.torch_private import is_tracing

Hidden = Tensor | tuple[Tensor, ...]


class LayerOptions(TypedDict, total=False):
    """The options of every layer beside its sizes, as those of `nn.LSTM`."""

    batch_first: bool
    dropout: float
    bidirectional: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


class RNN(nn.Module):
    """A stack of recurrent cells over irregularly-sampled sequences, called like `nn.LSTM`.

    `output, h_n = layer(input, hx, timespans=..., lengths=...)`. A cell with several states has tuples for `hx`
    and `h_n`, in the order of `layer.state_names`: `(h_n, c_n)` for the LSTMs. See `forward` for what they are.

    The layers of the library are subclasses that bring their cell. What the rest of the library knows about
    such a layer are class attributes, all of them optional:

    - `label`: its name in tables and figures; the name of the class if there is none.
    - `look`: its colours and dash in figures; chosen by its name if there is none.
    - `forms`: its cells by the name of the form, where there is a choice.
    - `takes_missing`: whether it is told which features were observed.
    - `paper_options`: the options that the `paper` preset gives it.
    - `past_options`: what the absence of an option in a stored config means, where its default has changed since.
    - `shared_options`: the options of every layer that a run may set, with their defaults.

    Args:
        input_size: The number of features of an observation.
        hidden_size: The number of hidden units.
        num_layers: The number of layers, one above the other.
        cell: What to stack: `cell(input_size, hidden_size)` makes a `lapse.Cell`.
        batch_first: Tensors are (B, T, ...) if true, the default here, and (T, B, ...) as in torch otherwise.
        dropout: The probability of zeroing an output between two layers of the stack, in training.
        bidirectional: Whether a second stack reads every row from its last valid step to its first.
        device: Where the weights live.
        dtype: The number type of the weights.
    """

    forms: ClassVar[Mapping[str, type[Cell]]] = {}
    paper_options: ClassVar[Mapping[str, Any]] = {}
    past_options: ClassVar[Mapping[str, Any]] = {}
    shared_options: ClassVar[Mapping[str, Any]] = {"dropout": 0.0, "bidirectional": False}
    takes_missing: bool = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        cell: Callable[[int, int], Cell],
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
        ):
            check_count(name, size)
        check_share("dropout", dropout)
        check_flag("batch_first", batch_first)
        check_flag("bidirectional", bidirectional)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        directions = 2 if bidirectional else 1
        widths = [input_size] + [hidden_size * directions] * (num_layers - 1)
        self.cells = nn.ModuleList(cell(width, hidden_size) for width in widths for _ in range(directions))
        self.takes_missing = self._cell(0).takes_missing
        self.to(device=device, dtype=dtype)

    @property
    def stack(self) -> list[Cell]:
        """The cells from the bottom to the top; where sequences are read in both directions, two per layer."""
        return [self._cell(i) for i in range(len(self.cells))]

    @property
    def state_names(self) -> tuple[str, ...]:
        """What the tensors of `h_n` are, in order."""
        return self._cell(0).state_names

    @property
    def free_sizes(self) -> dict[str, int]:
        """The width of each state that may be set before the first observation; see `Cell.free_states`."""
        cell = self._cell(0)
        sizes = dict(zip(cell.state_names, cell.state_sizes, strict=True))
        return {name: sizes[name] for name in cell.free_states}

    def initial_state(
        self, batch_size: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Hidden:
        """The states before the first observation, as `hx` takes them: (num_layers · directions, B, size).

        Args:
            batch_size: The number of sequences.
            device: Where the states are made.
            dtype: Their type.
        """
        stacks = self._stacked([c.initial_state(batch_size, device=device, dtype=dtype) for c in self.stack])
        return stacks[0] if len(stacks) == 1 else tuple(stacks)

    def step(
        self, input: Tensor, states: Sequence[State], timespan: Tensor, observed: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Take one observation: the output of the top layer, and the new state of every layer.

        This is `forward` for one event at a time, in plain PyTorch and without checks; the outputs are the same. A
        layer that reads sequences in both directions has no such step.

        Args:
            input: (B, input_size), one observation per row.
            states: The state of each layer after the previous observation, in the order of `state_names`.
            timespan: (B,), the time since the previous observation.
            observed: (B, input_size), which features were measured, for a layer that takes missing features.
        """
        after: list[State] = []
        for cell, state in zip(self.stack, states, strict=True):
            compute_weights(cell)
            input, state = cell.step(cell.step_input(input, observed), state, timespan)
            observed = None  # only the first layer sees the features themselves
            after.append(state)
        return input, after

    def set_input_mean(self, mean: Tensor) -> None:
        """Tell the cells of the first layer the mean of each feature, which is what a missing one may be taken for.

        Args:
            mean: The means over the training data, (input_size,).
        """
        if tuple(mean.shape) != (self.input_size,):
            raise ValueError(f"input_mean must have shape ({self.input_size},), got {tuple(mean.shape)}")
        for i in range(2 if self.bidirectional else 1):
            self._cell(i).set_input_mean(mean)

    @property
    def flows(self) -> bool:
        """Whether `flow` says what the layer would answer between two observations; see `Cell.splits_gaps`."""
        return self._cell(0).splits_gaps and not self.bidirectional

    def flow(self, hx: Hidden, timespans: Tensor) -> Tensor:
        """The output of the top layer, (B, hidden_size), when time has passed and no observation has come.

        Between observations nothing reaches the top layer from those below it, so its state alone moves on.

        Args:
            hx: The states after the last observation, as `forward` returns them.
            timespans: (B,), the time since the last observation, non-negative and finite.
        """
        if not self.flows:
            raise ValueError(
                f"{type(self).__name__} cannot be asked between observations: its cell is driven by the observation "
                "at the end of a gap, or a second stack reads backward; use a layer whose cell splits gaps"
            )
        cell = self._cell(len(self.cells) - 1)
        stacks = (hx,) if isinstance(hx, Tensor) else hx
        state = tuple(stack[-1, :, :size] for stack, size in zip(stacks, cell.state_sizes, strict=True))
        compute_weights(cell)
        return cell.flow(state, timespans)[0]

    def forward(
        self,
        input: Given,
        hx: Hidden | None = None,
        *,
        timespans: Given | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        observed: Given | None = None,
        rows: Rows | None = None,
    ) -> tuple[Given, Hidden]:
        """The outputs of the top layer at every step, and the state of every layer after each row's last step.

        The values of the arguments are checked where they can be read; under `vmap` and `torch.compile` they
        are trusted. Under `torch.autocast` the layer runs in the precision of its weights.

        Args:
            input: (B, T, input_size), unbatched (T, input_size), a `PackedSequence`, or with `rows` the steps of all
                rows in one axis, (M, input_size).
            hx: The states to start from, each (num_layers · directions, B, size); the cells' own if not given.
            timespans: (B, T), the gap before each observation, non-negative and finite; ones if not given.
            lengths: (B,), from 1 to T. Steps past a row's length are not computed, leave no trace in states or
                gradients whatever they hold, and come back as zeros.
            observed: (B, T, input_size), which features were measured, for a layer that takes missing features.
            rows: Where the steps of ragged rows lie in flat tensors without padding, for example
                `lapse.Rows.flat(lengths)`; `timespans` and `observed` are then flat too, (M,) and (M, input_size).

        Returns:
            The output (B, T, hidden_size · directions), in the form of the input, and the states, each
            (num_layers · directions, B, size).
        """
        _refuse_tracing()
        if _autocast(input):
            return self._without_autocast(input, hx, timespans, lengths, observed, rows)
        self._check_input(input, lengths, rows)
        layout = layout_of(input, lengths, rows, batch_first=self.batch_first)
        self._check_shape("timespans", timespans, layout.axes)
        self._check_shape("observed", observed, (*layout.axes, self.input_size))
        rows, data = layout.rows, layout.data
        if timespans is None:
            spans = data.new_ones(rows.size)
        else:
            spans = layout.flat(timespans, "timespans")
            check_timespans(rows, spans, data)
        mask = None if observed is None else self._read_mask(layout.flat(observed, "observed"), data)
        check_values(rows, data, mask)
        given = self._read_states(hx, rows.batch_size, data, layout.unbatched)
        output, states = self._run(rows, data, spans, mask, given)
        return layout.restore(output), self._write_states(states, layout.unbatched)

    def _without_autocast(
        self,
        input: Given,
        hx: Hidden | None,
        timespans: Given | None,
        lengths: Tensor | Sequence[int] | None,
        observed: Given | None,
        rows: Rows | None,
    ) -> tuple[Given, Hidden]:
        """The same call in the precision of the weights: sums over a long sequence would be lost in half of it."""

        def own(value: Any) -> Any:
            if isinstance(value, PackedSequence):
                return value._replace(data=own(value.data))
            if isinstance(value, tuple):
                return tuple(own(part) for part in value)
            return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

        weight = _first_weight(self.cells)
        dtype = None if weight is None else weight.dtype
        given = {"timespans": own(timespans), "lengths": lengths, "observed": own(observed), "rows": rows}
        with torch.autocast(_device_type(input), enabled=False):
            return self.forward(own(input), own(hx), **given)

    def _run(
        self, rows: Rows, data: Tensor, spans: Tensor, observed: Tensor | None, given: list[State | None]
    ) -> tuple[Tensor, list[State]]:
        ways = [(rows, spans)]
        if self.bidirectional:
            ways.append((rows.reversed(), rows.gaps_after(spans)))
        final: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for walked, gaps in ways:
                cell = self._cell(len(final))
                x = cell.step_input(data, observed)
                output, state = unroll(cell, x, given[len(final)], gaps, walked)
                outputs.append(output)
                final.append(state)
            data, observed = torch.cat(outputs, -1) if self.bidirectional else outputs[0], None
            if self.dropout and layer < self.num_layers - 1:
                data = F.dropout(data, self.dropout, self.training)
        return data, final

    def _cell(self, index: int) -> Cell:
        cell = self.cells[index]
        if not isinstance(cell, Cell):
            raise TypeError(f"cell must make a lapse.Cell, got {type(cell).__name__}")
        return cell

    def _read_states(
        self, hx: Hidden | None, count: int, like: Tensor, unbatched: bool
    ) -> list[State | None]:
        """One state per cell; None, the cell's own initial state, if none was given."""
        if hx is None:
            return [None] * len(self.cells)
        stacks = tuple(hx) if isinstance(hx, Sequence) else (hx,)
        self._check_states(stacks, count, like, unbatched)
        stacks = tuple(s.unsqueeze(1) if unbatched else s for s in stacks)
        return [
            tuple(stack[i, :, :size] for stack, size in zip(stacks, c.state_sizes, strict=True))
            for i, c in enumerate(self.stack)
        ]

    def _write_states(self, states: list[State], unbatched: bool) -> Hidden:
        """The states of all cells as a caller gets them."""
        stacks = self._stacked(states)
        if unbatched:
            stacks = [stack.squeeze(1) for stack in stacks]
        return stacks[0] if len(stacks) == 1 else tuple(stacks)

    def _stacked(self, states: list[State]) -> list[Tensor]:
        """Stacked over layers as torch does; a state narrower than its widest sibling is padded with zeros."""
        if len(states) == 1:
            return [part.unsqueeze(0) for part in states[0]]
        return [
            torch.stack([F.pad(part, (0, width - part.shape[-1])) for part in parts])
            for parts, width in zip(zip(*states, strict=True), self._state_widths(), strict=True)
        ]

    def _state_widths(self) -> list[int]:
        sizes = [cell.state_sizes for cell in self.stack]
        return [max(of_one) for of_one in zip(*sizes, strict=True)]

    def _check_input(self, input: object, lengths: Tensor | Sequence[int] | None, rows: Rows | None) -> None:
        if isinstance(input, PackedSequence):
            if lengths is not None or rows is not None:
                raise ValueError("a PackedSequence knows its lengths; pass `lengths` with padded input only")
            if input.data.dim() != 2:
                raise ValueError(
                    f"the data of a PackedSequence must be (N, {self.input_size}), got {tuple(input.data.shape)}"
                )
            data, form = input.data, "(N, input_size)"
        elif isinstance(input, Tensor) and rows is not None:
            if lengths is not None:
                raise ValueError("`rows` know their lengths; pass `lengths` with padded input only")
            if input.dim() != 2 or input.shape[0] != rows.size:
                raise ValueError(
                    f"input must be ({rows.size}, {self.input_size}), one place per step as `rows` say, got "
                    f"{tuple(input.shape)}"
                )
            data, form = input, "(M, input_size)"
        elif isinstance(input, Tensor):
            if input.dim() not in (2, 3):
                axes = "(B, T" if self.batch_first else "(T, B"
                raise ValueError(
                    f"input must be {axes}, {self.input_size}) or unbatched (T, {self.input_size}), got "
                    f"{tuple(input.shape)}"
                )
            data, form = input, "(..., input_size)"
        else:
            raise TypeError(f"input must be a Tensor or a PackedSequence, got {type(input).__name__}")
        if data.shape[-1] != self.input_size:
            raise ValueError(
                f"input must have input_size = {self.input_size} features {form}, got {tuple(data.shape)}"
            )
        if data.numel() == 0:
            raise ValueError(f"input is empty: {tuple(data.shape)}; leave out batches without rows or steps")
        weight = _first_weight(self.cells)
        if weight is None:
            return
        if weight.dtype != data.dtype:
            raise TypeError(
                f"input is {data.dtype} and the layer's weights are {weight.dtype}; convert one, for example "
                f"input.to({weight.dtype})"
            )
        if weight.device != data.device:
            raise ValueError(
                f"input is on {data.device} and the layer's weights are on {weight.device}; move one, for example "
                f"input.to({str(weight.device)!r})"
            )

    def _check_shape(self, name: str, given: object, expected: tuple[int, ...]) -> None:
        """Refuse what came beside the input in another shape; what is packed is looked at when it is read."""
        if given is None or isinstance(given, PackedSequence):
            return
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a Tensor or a PackedSequence, got {type(given).__name__}")
        if tuple(given.shape) == expected:
            return
        hint = f"; drop its last axis: {name}.squeeze(-1)" if tuple(given.shape) == (*expected, 1) else ""
        what = "one gap per observation" if name == "timespans" else "one flag per feature"
        raise ValueError(f"{name} must have shape {expected}, {what}, got {tuple(given.shape)}{hint}")

    def _read_mask(self, mask: Tensor, like: Tensor) -> Tensor:
        if not self.takes_missing:
            raise ValueError(
                f"{type(self).__name__} has no notion of missing features, so it takes no `observed`; "
                "use GRUD, or fill the missing values and pass the mask as additional input features"
            )
        if mask.is_complex() or (mask.is_floating_point() and mask.dtype != like.dtype):
            raise TypeError(f"observed must be bool, integer or {like.dtype}, got {mask.dtype}")
        check_device("observed", mask, like)
        if mask.shape != like.shape:
            raise ValueError(
                f"packed observed must hold one flag per feature, {tuple(like.shape)}, got {tuple(mask.shape)}"
            )
        return mask

    def _check_states(self, stacks: tuple[Tensor, ...], count: int, like: Tensor, unbatched: bool) -> None:
        names, widths = self.state_names, self._state_widths()
        if len(stacks) != len(names) or not all(isinstance(stack, Tensor) for stack in stacks):
            kinds = ", ".join(type(stack).__name__ for stack in stacks)
            raise ValueError(
                f"hx must hold {len(names)} tensors, the states {names}, got ({kinds}); "
                "gaps go by keyword: timespans=..."
            )
        for name, width, stack in zip(names, widths, stacks, strict=True):
            batch = () if unbatched else (count,)
            expected = (len(self.cells), *batch, width)
            if tuple(stack.shape) != expected:
                raise ValueError(f"state {name!r} of hx must have shape {expected}, got {tuple(stack.shape)}")
            if stack.dtype != like.dtype or stack.device != like.device:
                raise TypeError(
                    f"state {name!r} of hx is {stack.dtype} on {stack.device}, expected {like.dtype} on "
                    f"{like.device} like the input"
                )

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        if self.num_layers != 1:
            parts.append(f"num_layers={self.num_layers}")
        parts += [
            f"{name}={value}"
            for name, value, default in (
                ("batch_first", self.batch_first, True),
                ("dropout", self.dropout, 0.0),
                ("bidirectional", self.bidirectional, False),
            )
            if value != default
        ]
        return ", ".join(parts)


def _refuse_tracing() -> None:
    if is_tracing():
        raise RuntimeError(
            "torch.jit.trace would record the loop over exactly these steps and be silently wrong for any other "
            "length; use torch.export or torch.compile instead"
        )


def _autocast(input: Tensor | PackedSequence) -> bool:
    """Whether autocast is at work where the input is; it knows nothing of the meta device."""
    device = _device_type(input)
    return device != "meta" and torch.is_autocast_enabled(device)


def _device_type(input: Tensor | PackedSequence) -> str:
    data = input.data if isinstance(input, PackedSequence) else input
    return data.device.type if isinstance(data, Tensor) else "cpu"


def _first_weight(module: nn.Module) -> nn.Parameter | None:
    """The first parameter, if there is one; `parameters()` takes far longer to find it."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    found = (_first_weight(part) for part in module._modules.values() if part is not None)
    return next((parameter for parameter in found if parameter is not None), None)


def choose_form(forms: Mapping[str, type[Cell]], name: str) -> Callable[..., Cell]:
    """The cell of a form by its name."""
    check_choice("form", name, forms)
    return forms[name]
