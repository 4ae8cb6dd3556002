"""A stack of recurrent cells as an encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lapse.encoders.encoder import Encoder, Features, Named, Observations, with_flags
from lapse.recurrent import RNN, Cell, Hidden


class RecurrentEncoder(Encoder):
    """Features are the outputs of a layer such as `lapse.ODELSTM` after each event.

    Where features may be missing, a layer that takes missing features is told which were observed; any other gets that
    as further inputs. Static features, if the encoder is given any, set the state before the first event by an affine
    map; which parts of the state, the cell says (`Cell.free_states`).

    Args:
        layer_type: the class of the layer.
        input_size: the number of features of an event.
        hidden_size: the number of units per layer of the stack.
        num_layers: how many layers are stacked.
        missing: whether features may be missing.
        static_size: the width of the static features that set the first state; 0 for none.
        options: further arguments of the layer.
    """

    def __init__(
        self,
        layer_type: type[RNN],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        missing: bool = False,
        static_size: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        width = 2 * input_size if missing and not layer_type.takes_missing else input_size
        self.layer = layer_type(width, hidden_size, num_layers, **options)
        free_size = len(self.layer.cells) * sum(self.layer.free_sizes.values())
        self.first_state = nn.Linear(static_size, free_size) if static_size else None
        self.causal = self.streams = not self.layer.bidirectional
        self.flows = self.layer.flows
        self.output_size = hidden_size * (2 if self.layer.bidirectional else 1)

    @property
    def stack(self) -> tuple[Cell, ...]:
        return tuple(self.layer.stack) if self.streams else ()

    def forward(self, observations: Observations) -> Features:
        output, h_n = self._run(observations)
        return Features(output, self._final(h_n))

    def after(self, observations: Observations, timespans: Tensor, row: Tensor) -> Tensor:
        if not self.flows:
            return super().after(observations, timespans, row)
        _, h_n = self._run(observations)
        asked = tuple(stack.index_select(1, row) for stack in (h_n if isinstance(h_n, tuple) else (h_n,)))
        return self.layer.flow(asked, timespans)

    def _run(self, observations: Observations) -> tuple[Tensor, Hidden]:
        told = self.layer.takes_missing
        found: tuple[Tensor, Hidden] = self.layer(
            observations.values if told else observations.inputs,
            self._first_states(observations.static),
            timespans=observations.timespans,
            rows=observations.rows,
            observed=observations.observed if told else None,
        )
        return found

    def set_input_mean(self, mean: Tensor) -> None:
        if self.layer.takes_missing:
            self.layer.set_input_mean(mean)

    def start(self, values: Tensor, static: Tensor | None) -> Named:
        """The states of each layer, `layer0_h` and so on."""
        hidden = self._first_states(static)
        if hidden is None:
            hidden = self.layer.initial_state(values.shape[0], device=values.device, dtype=values.dtype)
        stacks = hidden if isinstance(hidden, tuple) else (hidden,)
        return {
            name: stack[i, :, :size]
            for i, names in enumerate(self._layer_sizes())
            for stack, (name, size) in zip(stacks, names.items(), strict=True)
        }

    def step(
        self, values: Tensor, observed: Tensor | None, timespan: Tensor, state: Named
    ) -> tuple[Tensor, Named]:
        if not self.streams:
            raise NotImplementedError(self._no_stream())
        told = self.layer.takes_missing
        layers = self._layer_sizes()
        output, after = self.layer.step(
            values if told else with_flags(values, observed),
            [tuple(state[name] for name in names) for names in layers],
            timespan,
            observed if told else None,
        )
        named = {
            name: part
            for names, parts in zip(layers, after, strict=True)
            for name, part in zip(names, parts, strict=True)
        }
        return output, named

    def flow(self, state: Named, timespan: Tensor) -> Tensor:
        top = self._layer_sizes()[-1]
        return self.layer.flow(tuple(state[name].unsqueeze(0) for name in top), timespan)

    def _layer_sizes(self) -> list[dict[str, int]]:
        """The names of the states of each layer, with their widths."""
        return [
            {f"layer{i}_{name}": size for name, size in zip(cell.state_names, cell.state_sizes, strict=True)}
            for i, cell in enumerate(self.layer.stack)
        ]

    def _first_states(self, static: Tensor | None) -> Hidden | None:
        """The states before the first event, if static features set them."""
        if self.first_state is None:
            return None
        assert static is not None, "the width of the static features was checked"
        given: Tensor = self.first_state(static)  # (B, cells · all free states)
        given = given.view(given.shape[0], len(self.layer.cells), -1).transpose(0, 1)
        own = self.layer.initial_state(given.shape[1], device=given.device, dtype=given.dtype)
        states = dict(zip(self.layer.state_names, own if isinstance(own, tuple) else (own,), strict=True))
        free = self.layer.free_sizes
        states |= zip(free, given.split(list(free.values()), -1), strict=True)
        return tuple(states.values()) if len(states) > 1 else states["h"]

    def _final(self, h_n: Hidden) -> Tensor:
        """The top layer's output after the last event of each row, both directions side by side: (B, output_size)."""
        h = h_n[0] if isinstance(h_n, tuple) else h_n
        top = h[-2:] if self.layer.bidirectional else h[-1:]
        return top.transpose(0, 1).flatten(1)
