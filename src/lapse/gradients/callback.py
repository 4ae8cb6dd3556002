"""A Lightning callback that watches the error flow while a model trains."""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lapse.gradients.flow import Behaviour, ErrorFlow, StateRecorder
from lapse.gradients.theorems import forget_bias_for, has_lstm_gates
from lapse.recurrent import Cell


class ErrorFlowWarning(UserWarning):
    """The gradient vanishes or explodes on its way back through time."""


class ErrorFlowCallback(Callback):
    """Logs how much of the loss's gradient reaches the first step, and warns when it vanishes or explodes.

    Every ``every_n_steps`` training steps, on the batch and the loss of that step, whatever they look like: the batch
    is run by the reference loop and its states are differentiated once more, so that such a step takes two to three
    times as long. Logged are ``error_flow/last`` and ``error_flow/first``, the median rows' |dL/ds| at their ends,
    ``error_flow/ratio`` of the two and ``error_flow/factor``, the ratio as a factor per step. The warning
    (`ErrorFlowWarning`) comes once for each of the two troubles and says what to change.

    ```python
    Trainer(callbacks=[ErrorFlowCallback(every_n_steps=100)])
    ```

    Args:
        every_n_steps: how many training steps lie between two measurements.
        vanishing: the ratio of the first step's gradient to the last step's below which the gradient vanishes.
        exploding: the ratio above which it explodes.
    """

    def __init__(self, every_n_steps: int = 100, *, vanishing: float = 1e-4, exploding: float = 1e4) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}")
        if not 0 < vanishing < 1 < exploding:
            raise ValueError(
                f"vanishing must lie between 0 and 1 and exploding above 1, got {vanishing} and {exploding}"
            )
        self.every_n_steps = every_n_steps
        self.vanishing, self.exploding = vanishing, exploding
        self._recorder: StateRecorder | None = None
        self._warned: set[Behaviour] = set()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every_n_steps == 0:
            self._recorder = StateRecorder(pl_module)
            self._recorder.__enter__()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        recorder = self._close()
        if recorder is None or not recorder.called:
            return
        flow = recorder.error_flow(loss, retain_graph=True)
        lags = flow.by_lag()
        first = (flow.ratio * lags[:, 0]).nanmedian()
        pl_module.log_dict(
            {
                "error_flow/last": lags[:, 0].nanmedian(),
                "error_flow/first": first,
                "error_flow/ratio": flow.ratio.nanmedian(),
                "error_flow/factor": flow.factor.nanmedian(),
            },
            on_step=True,
            on_epoch=False,
        )
        self._warn(trainer, pl_module, flow)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._close()  # a training step that returned no loss

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        self._close()

    def _close(self) -> StateRecorder | None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.__exit__(None, None, None)
        return recorder

    def _warn(self, trainer: Trainer, pl_module: LightningModule, flow: ErrorFlow) -> None:
        behaviour = flow.behaviour(self.vanishing, self.exploding)
        if behaviour == "steady" or behaviour in self._warned or not trainer.is_global_zero:
            return
        self._warned.add(behaviour)
        message = (
            f"the gradient {behaviour} on its way back through {int(flow.lengths.max())} steps: "
            f"{flow.ratio.nanmedian():.2g} of it arrives at the first, a factor of {flow.factor.nanmedian():.3g} "
            f"a step (training step {trainer.global_step}). {advice(pl_module, flow, behaviour)}"
        )
        warnings.warn(message, ErrorFlowWarning, stacklevel=2)


def advice(model: nn.Module, flow: ErrorFlow, behaviour: Behaviour) -> str:
    """What to change about ``model`` when its gradient vanishes or explodes; nothing when it is steady."""
    if behaviour == "steady":
        return ""
    if behaviour == "explodes":
        return (
            "Clip the gradient (Trainer(gradient_clip_val=1.0)); count time in a larger unit (divide timespans by "
            "their median), which shortens every solve; or take a damped model (CTRNN, ODELSTM) instead of ODERNN."
        )
    lag = int(flow.lengths.max())
    bias = forget_bias_for(max(lag - 1, 1))
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    if any(has_lstm_gates(cell) for cell in cells):
        first = f"Start the forget gate higher: forget_bias={bias:.1f} keeps a tenth over {lag} steps"
    else:
        names = ", ".join(sorted({type(cell).__name__.removesuffix("Cell") for cell in cells}))
        first = (
            f"{names} has no memory that time leaves alone: try lapse.ODELSTM(..., forget_bias={bias:.1f})"
        )
    return (
        f"{first}; count time in a larger unit (divide timespans by their median), so that decay acts less per step; "
        "or give the loss more to say earlier (labels at more steps, shorter sequences)."
    )
