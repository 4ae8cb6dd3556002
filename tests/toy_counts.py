"""A head and a task outside lapse, each complete in this file: how many events are still to come."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapse import Sequences, Task
from lapse.heads import Metric, Summary, Targets
from lapse.heads.columns import ColumnHead, mean_over_known
from lapse.heads.metrics import mae
from lapse.tasks import Splits


def deviance(rates: np.ndarray, counts: np.ndarray) -> float:
    """Twice the log likelihood ratio against a model that knows every count."""
    ratio = np.where(counts > 0, counts, 1) / rates
    return float(np.nanmean(2 * (counts * np.log(ratio) - counts + rates)))


class Counts(ColumnHead):
    """Counts, from the logarithm of their rate; the loss is that of Poisson."""

    available = (Metric("deviance", False, deviance), Metric("mae", False, mae))
    baseline_name = "mean count"

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def question(self) -> str:
        return "a count"

    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        loss = torch.nn.functional.poisson_nll_loss(output, targets.values.to(output), reduction="none")
        return mean_over_known(loss, targets.known)

    def answer(self, output: Tensor) -> Tensor:
        return output.exp()

    def predict(self, output: Tensor) -> dict[str, np.ndarray]:
        return {"prediction": output.double().exp().cpu().numpy()[:, 0]}

    def trivial(self, train: Sequences) -> Tensor:
        return torch.stack([column.mean() for column in self.known_columns(train)]).log()

    def summary(self, parts: Mapping[str, Sequences]) -> Summary:
        rows = [(name, f"{float(self.known_columns(part)[0].mean()):.2f}") for name, part in parts.items()]
        return Summary("Counts", ("", "mean"), rows)


def load(data_dir: Any = None, *, size: int = 60) -> Splits:
    random = np.random.default_rng(0)

    def part() -> Sequences:
        rates = random.uniform(1, 9, size)
        values = [np.full((4, 1), rate) for rate in rates]
        return Sequences.from_arrays(values, [np.arange(4.0)] * size, targets=random.poisson(rates))

    return Splits(part(), part(), part())


TASK = Task(
    name="counts",
    summary="how many events are still to come",
    loader=load,
    head=Counts,
    input_size=1,
    time_unit="one second",
    source="generated",
    licence="CC0",
    differences="not in the paper",
    standardize=True,
)
