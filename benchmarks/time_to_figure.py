"""Seconds of training until validation first passes the paper's figure, for our ODE-LSTM and two rivals in plain torch.

    python benchmarks/time_to_figure.py walker person --limit 1200

The rivals are the authors' ODE-LSTM (the arithmetic of their PyTorch code: an LSTMCell, then three sub-steps of Euler's
method) and the CfC of ncps with its mixed memory. Each takes the place of the encoder in the same model and is trained
by the same `fit` with the same settings, data and seed, one after the other. The settings are those of a run of ours
that the repository keeps. Only the encoder differs, so what is compared is its speed and the number of epochs it needs.
It prints the seconds of the processor, for which other work on the machine does not count, and those of the clock, with
as many threads as are asked for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from lapse.encoders import Encoder, Features, Observations
from lapse.heads.metrics import Metric
from lapse.models import SequenceModel
from lapse.runs import RunConfig, build_model
from lapse.tasks import Splits, Task, find
from lapse.training import fit
from lapse.training.learner import Learner

FIGURES = {
    "walker": 0.883,
    "person": 84.15,
    "mnist-event": 95.73,
    "xor-event": 98.89,
}  # the ODE-LSTM's in the paper
# The runs whose settings are used: under `results`, the folder of all seeds.
RUNS = {
    "walker": "successors/walker/ode-lstm/default-ee8f0a22",
    "person": "successors/person/ode-lstm/default-a271e4fd",
    "mnist-event": "successors/mnist-event/ode-lstm/default-4198f2eb",
    "xor-event": "successors/xor-event/ode-lstm/default-ac24e252",
}
RESULTS = Path(__file__).parents[1] / "results"


class PaddedEncoder(Encoder):
    """An encoder that walks over padded rows, as code in plain torch does."""

    def __init__(self, input_size: int, hidden_size: int, missing: bool = False, **_: Any) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size * (2 if missing else 1), hidden_size

    def walk(self, x: Tensor, spans: Tensor) -> Tensor:
        """(B, T, D) of padded inputs (B, T, I) and gaps (B, T)."""
        raise NotImplementedError

    def forward(self, observations: Observations) -> Features:
        rows = observations.rows
        steps = rows.unpad(self.walk(rows.pad(observations.inputs), rows.pad(observations.timespans)))
        return Features(steps, steps[rows.lengths.cumsum(0) - 1])


class AuthorsODELSTM(PaddedEncoder):
    """The authors' ODE-LSTM."""

    def __init__(self, input_size: int, hidden_size: int, **options: Any) -> None:
        super().__init__(input_size, hidden_size, **options)
        self.cell = nn.LSTMCell(self.input_size, hidden_size)
        self.field = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, hidden_size)
        )

    def walk(self, x: Tensor, spans: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.output_size)
        outputs = []
        for step, span in zip(x.unbind(1), spans.unbind(1), strict=True):
            h, c = self.cell(step, (h, c))
            for _ in range(3):
                h = h + span.unsqueeze(-1) / 3 * self.field(h)
            outputs.append(h)
        return torch.stack(outputs, 1)


class NcpsCfC(PaddedEncoder):
    """The CfC of ncps with its mixed memory."""

    def __init__(self, input_size: int, hidden_size: int, **options: Any) -> None:
        from ncps.torch import CfC

        super().__init__(input_size, hidden_size, **options)
        self.layer = CfC(self.input_size, hidden_size, mixed_memory=True)

    def walk(self, x: Tensor, spans: Tensor) -> Tensor:
        # It squeezes the gaps of each step, so that one gap per unit is what fits.
        outputs: Tensor = self.layer(x, timespans=spans.unsqueeze(-1).expand(-1, -1, self.output_size))[0]
        return outputs


class Until(L.Callback):
    """Ends a training after the first epoch whose validation figure passes the one that is asked for.

    Args:
        metric: what the figure is.
        figure: the figure.
        limit: the seconds after which it ends in any case.
    """

    def __init__(self, metric: Metric, figure: float, limit: float) -> None:
        self.metric, self.figure, self.limit = metric, figure, limit
        self.sign = 1 if metric.maximize else -1
        self.begin, self.began = time.process_time(), time.perf_counter()
        self.figures = list[float]()

    def on_train_epoch_end(self, trainer: L.Trainer, learner: L.LightningModule) -> None:
        assert isinstance(learner, Learner)
        self.figures.append(learner.scores.values()[self.metric.name])
        self.seconds, self.clock = time.process_time() - self.begin, time.perf_counter() - self.began
        trainer.should_stop = self.reached or self.seconds > self.limit

    @property
    def reached(self) -> bool:
        return self.sign * self.figures[-1] >= self.sign * self.figure

    def told(self) -> str:
        best = max(self.figures, key=lambda figure: self.sign * figure)
        end = "" if self.reached else ", not reached"
        took = f"{self.seconds:7.0f} s of the processor, {self.clock:5.0f} s of the clock"
        return f"{took}, {len(self.figures):3} epochs, validation {best:.4g}{end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=FIGURES)
    parser.add_argument("--limit", type=float, default=1200, help="processor seconds per training")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.tasks:
        task = find(name)
        config = RunConfig.from_dict(json.loads((RESULTS / f"{RUNS[name]}-seed0/config.json").read_text()))
        splits = task.load(None, **config.task_options)
        for rival in (None, AuthorsODELSTM, NcpsCfC):
            told = train(config, task, splits, rival, given.limit)
            print(f"{name:12} {rival.__name__ if rival else 'ours':16}", told, flush=True)


def train(
    config: RunConfig, task: Task, splits: Splits, rival: type[PaddedEncoder] | None, limit: float
) -> str:
    """Seconds and epochs until validation passed the figure, as text."""
    torch.manual_seed(config.train.seed)
    model = build_model(config, task, splits)
    assert isinstance(model, SequenceModel), "each of these tasks is answered by one model of sequences"
    if rival is not None:
        encoder: Any = model.encoder
        model.encoder = rival(
            splits.train.values.shape[-1], encoder.output_size, missing=model.schema.missing
        )
    until = Until(task.metrics[0], FIGURES[task.name], limit)
    fit(model, splits.train, splits.validation, config.train, progress=False, callbacks=[until])
    return until.told()


if __name__ == "__main__":
    main()
