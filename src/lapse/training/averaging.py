"""Which weights are evaluated and kept: the last ones, or an average over many steps, which is often better."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

RECENT = 10  # an exponential average reaches back over about a tenth of the steps so far,
LEAST_SHARE = 1e-3  # but never over more than the last thousand
TAIL = 0.25  # share of all steps whose weights count the same in a stochastic weight average


def _ema(step: int, steps: int) -> float:
    return max(LEAST_SHARE, RECENT / (RECENT + step))


def _swa(step: int, steps: int) -> float:
    first = int((1 - TAIL) * steps)
    return 1.0 if step <= first else 1.0 / (step - first + 1)


# What share of the average the weights after a step get; a share of 1 forgets what was before.
SHARES = {"ema": _ema, "swa": _swa}


class LastWeights:
    """No average: the weights that are evaluated are those that the last step left."""

    def __init__(self) -> None:
        self.mean: dict[str, Tensor] = {}  # what is evaluated instead of the parameters of these names

    def update(self, step: int, steps: int) -> None:
        """Take in the weights after a step.

        Args:
            step: how many steps were made.
            steps: how many there are in all epochs.
        """

    def swap(self) -> None:
        """Give the model the weights that are evaluated, or after that its own weights back."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""


class AveragedWeights(LastWeights):
    """A running average of the parameters of a model.

    Args:
        kind: "ema" or "swa", see `lapse.training.TrainConfig`.
        model: the model; its buffers are not averaged.
    """

    def __init__(self, kind: str, model: nn.Module) -> None:
        self._share = SHARES[kind]
        self._model = model
        self.mean = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._live: dict[str, Tensor] = {}
        self._step = 0

    @torch.no_grad()
    def update(self, step: int, steps: int) -> None:
        if step == self._step:
            return  # batches are accumulated, and no step was made
        self._step = step
        for name, parameter in self._model.named_parameters():
            self.mean[name] = self.mean[name].to(parameter).lerp_(parameter, self._share(step, steps))

    @torch.no_grad()
    def swap(self) -> None:
        wanted = self._live or self.mean
        self._live = {} if self._live else {n: p.detach().clone() for n, p in self._model.named_parameters()}
        for name, parameter in self._model.named_parameters():
            parameter.copy_(wanted[name])

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean, "step": self._step}

    def load(self, state: dict[str, Any]) -> None:
        self.mean, self._step = dict(state["mean"]), state["step"]


def evaluated_weights(kind: str | None, model: nn.Module) -> LastWeights:
    """What `TrainConfig.average` asks for.

    Args:
        kind: "ema", "swa" or None.
        model: the model that is trained.
    """
    return LastWeights() if kind is None else AveragedWeights(kind, model)
