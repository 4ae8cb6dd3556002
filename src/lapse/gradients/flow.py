"""Error flow: how much of a loss's gradient arrives at each earlier state of a recurrent network.

`error_flow` is the short way. `StateRecorder` is what it is made of, for a loss that is computed in a
way of its own (a training loop, several layers, a loss at every step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lapse.kernels import backend
from lapse.recurrent import RNN, Cell, State
from lapse.recurrent.layouts import layout_of
from lapse.rows import Rows

Behaviour = Literal["vanishes", "explodes", "steady"]


@dataclass(frozen=True)
class ErrorFlow:
    """|dL/ds_t| of every state over time: Euclidean norms (B, T), NaN past a row's length.

    ``norms`` is keyed by place: ``"cells.0.c"`` is the memory of a layer's first cell. The derivative is taken with
    the other states of the same step held, so that the squares add up to the gradient of the whole state, ``total``.
    ``reverse`` names the states of cells that read backward in time: they are no part of the total, because a strong
    signal at one end of theirs would hide a weak one at that end of the others.
    """

    norms: dict[str, Tensor]
    lengths: Tensor  # (B,)
    reverse: frozenset[str] = frozenset()

    @property
    def total(self) -> Tensor:
        """The norm of the gradient of all states that run forward in time together, (B, T)."""
        # hypot, not a sum of squares: those of 1e-200 are 0.
        total, *others = (norm for name, norm in self.norms.items() if name not in self.reverse)
        for norm in others:
            total = torch.hypot(total, norm)
        return total

    def by_lag(self, name: str | None = None) -> Tensor:
        """The flow counted back from each row's last step: column k is k steps before it, (B, T)."""
        norm = self.total if name is None else self.norms[name]
        back = self.lengths.unsqueeze(1) - 1 - torch.arange(norm.shape[1])
        return norm.gather(1, back.clamp_min(0)).masked_fill(back < 0, math.nan)

    @property
    def ratio(self) -> Tensor:
        """What arrives at each row's first step for one that leaves its last, (B,)."""
        lags = self.by_lag()
        return lags.gather(1, self.lengths.unsqueeze(1) - 1).squeeze(1) / lags[:, 0]

    @property
    def factor(self) -> Tensor:
        """(B,), the ratio as a factor per step, which can be compared with the 0.731 of the paper."""
        exponent: Tensor = 1 / (self.lengths - 1).clamp_min(1)
        return self.ratio ** exponent.to(self.ratio.dtype)

    def behaviour(self, vanishing: float = 1e-4, exploding: float = 1e4) -> Behaviour:
        """What the median row's flow does between its last and its first step.

        The defaults: a share below 1e-4 of the gradient is lost in the noise of a mini-batch, and one above 1e4
        leaves no digits of float32 for the near steps.
        """
        valid = torch.arange(self.total.shape[1]) < self.lengths.unsqueeze(1)
        if not bool(torch.isfinite(self.total[valid]).all()):
            return "explodes"
        ratio = float(self.ratio.nanmedian())
        if ratio < vanishing:
            return "vanishes"
        return "explodes" if ratio > exploding else "steady"


class StateRecorder:
    """Keeps the state after every step of every lapse layer inside ``model``, for as long as the block runs.

        with StateRecorder(model) as recorder:
            loss = criterion(model(x, timespans=gaps), target)
        flow = recorder.error_flow(loss)

    Layers take the reference loop meanwhile: a fused kernel does not show its states. Of a layer that is called
    several times the last call counts.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, RNN)]
        if not layers:
            raise ValueError(f"{type(model).__name__} holds no lapse layer, so there is no state to record")
        self._layers = layers
        self._records = {layer: [_Record(cell) for cell in layer.cells] for _, layer in layers}
        self._rows: dict[RNN, Rows] = {}
        self._stack = ExitStack()

    def __enter__(self) -> StateRecorder:
        self._stack.enter_context(backend("reference"))
        for _, layer in self._layers:
            before = layer.register_forward_pre_hook(self._begin)
            after = layer.register_forward_hook(self._end, with_kwargs=True)
            self._stack.callback(before.remove)
            self._stack.callback(after.remove)
            for record in self._records[layer]:
                self._stack.enter_context(record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _begin(self, layer: RNN, args: Any) -> None:
        for record in self._records[layer]:
            record.states.clear()

    def _end(self, layer: RNN, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        input = args[0] if args else kwargs["input"]
        lengths, rows = kwargs.get("lengths"), kwargs.get("rows")
        self._rows[layer] = layout_of(input, lengths, rows, batch_first=layer.batch_first).rows

    @property
    def called(self) -> bool:
        """Whether a layer ran: a process without rows in a distributed step has nothing to differentiate."""
        return bool(self._rows)

    def projection(self, generator: torch.Generator | None = None) -> Tensor:
        """The last output of every row against a random unit vector, summed: a loss whose flow starts at 1."""
        _, layer = self._called()[-1]
        last, records = _last(self._rows[layer]), self._records[layer]
        total = torch.zeros(())
        for record in records[-2 if layer.bidirectional else -1 :]:
            walked = torch.cat([state[0] for state in record.states])
            output = walked.index_select(0, last.to(walked.device))
            unit = nn.functional.normalize(torch.randn(output.shape, generator=generator), dim=-1)
            total = total + (output * unit.to(output)).sum().to("cpu")
        return total

    def error_flow(self, loss: Tensor, *, retain_graph: bool = False) -> ErrorFlow:
        """The gradient of ``loss`` at every recorded state; gradients of the weights are left as they are."""
        named = {
            f"{name}.cells.{i}.{state}".removeprefix("."): (layer, bool(layer.bidirectional and i % 2), steps)
            for name, layer in self._called()
            for i, record in enumerate(self._records[layer])
            for state, steps in record.by_state().items()
        }
        if not named or not loss.requires_grad:
            raise ValueError(
                "no recorded state depends on a parameter that requires a gradient; leave torch.no_grad() and "
                "unfreeze the model with model.requires_grad_()"
            )
        flat = [step for _, _, steps in named.values() for step in steps]
        grads = iter(torch.autograd.grad(loss, flat, retain_graph=retain_graph, allow_unused=True))
        norms = {}
        for key, (layer, reverse, steps) in named.items():
            walked = torch.cat([_norm(next(grads), step) for step in steps])
            rows = self._rows[layer]
            norms[key] = _padded(rows.reversed() if reverse else rows, walked)
        rows = self._rows[self._called()[-1][1]]
        backward = frozenset(key for key, (_, reverse, _) in named.items() if reverse)
        return ErrorFlow(norms, rows.lengths, backward)

    def _called(self) -> list[tuple[str, RNN]]:
        called = [(name, layer) for name, layer in self._layers if layer in self._rows]
        if not called:
            raise ValueError(
                "no lapse layer was called while the recorder ran; call the model inside its block"
            )
        return called


class _Record:
    """The states of one cell, seen by standing in for its ``step``."""

    def __init__(self, cell: nn.Module) -> None:
        assert isinstance(cell, Cell)
        self.cell = cell
        self.states: list[State] = []

    def __enter__(self) -> None:
        step = self.cell.step

        def recorded(input: Tensor, state: State, timespan: Tensor) -> tuple[Tensor, State]:
            _, state = step(input, state, timespan)
            # Aliases: the gradient at one must not hold what reaches it through another state of the same step.
            state = tuple(part.view_as(part) for part in state)
            self.states.append(state)
            return state[0], state

        self.cell.__dict__["step"] = recorded

    def __exit__(self, *_: object) -> None:
        del self.cell.__dict__["step"]

    def by_state(self) -> dict[str, list[Tensor]]:
        """The steps of each state, for those that some parameter acts on: a clock has no error flow."""
        steps = zip(self.cell.state_names, zip(*self.states, strict=True), strict=False)
        return {name: list(parts) for name, parts in steps if all(part.requires_grad for part in parts)}


def error_flow(
    model: nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> ErrorFlow:
    """|dL/dh_t| over time, for any lapse layer or a model that holds some, trained or not.

    ```python
    flow = error_flow(lapse.ODELSTM(4, 64), {"input": x, "timespans": gaps, "lengths": lengths})
    flow.by_lag()[:, 100]  # what is left after 100 steps, one number per row
    ```

    Args:
        model: a layer of lapse, or a module that holds some.
        batch: what `model` is called with: a mapping of keyword arguments, a tuple of positional ones, or the input.
        loss: from the model's output to a scalar. Without one, the product of the last output of each row with a
            random unit vector is taken, so that the flow starts at 1.
        generator: where the random unit vectors come from.
    """
    with StateRecorder(model) as recorder:
        output = _call(model, batch)
        value = recorder.projection(generator) if loss is None else loss(output)
    if value.numel() != 1:
        raise ValueError(f"loss must give one number, got shape {tuple(value.shape)}; reduce it with .mean()")
    return recorder.error_flow(value)


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple) and not isinstance(batch, PackedSequence):
        return model(*batch)
    return model(batch)


def _norm(grad: Tensor | None, like: Tensor) -> Tensor:
    return like.new_zeros(len(like)) if grad is None else torch.linalg.vector_norm(grad.detach(), dim=-1)


def _last(rows: Rows) -> Tensor:
    """(B,) where the last step of each row comes in what is walked, rows as they are walked."""
    row, step = rows.walk
    last = torch.empty_like(rows.lengths)
    ends = (step == rows.lengths[row] - 1).nonzero().squeeze(1)
    last[row[ends]] = ends
    return rows.sort((last,))[0]


def _padded(rows: Rows, walked: Tensor) -> Tensor:
    """What was walked (N,) as (B, T) on the CPU, NaN where there is no step."""
    row, step = rows.walk
    padded = torch.full((len(rows), rows.room or rows.steps), math.nan, dtype=walked.dtype)
    return padded.index_put((row, rows.step_of(row, step)), walked.cpu())
