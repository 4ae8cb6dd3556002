"""Several labels at once, each given or not: multi-label classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lapse.heads import metrics as of
from lapse.heads.base import Summary, Targets
from lapse.heads.columns import ColumnHead, mean_over_known
from lapse.heads.metrics import Array, Metric
from lapse.sequences import Sequences


class Labels(ColumnHead):
    """K labels, each 0 or 1 (NaN: not known), from K logits; the loss is the binary cross entropy.

    Args:
        names: what each label is called, K words.
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names among "auroc", "auprc", "accuracy", "log_loss" and "brier", each averaged over labels;
            see `lapse.heads.metrics`.
    """

    available = (
        Metric("auroc", True, of.label_auroc, perfect=1.0),
        Metric("auprc", True, of.label_auprc, perfect=1.0),
        Metric("accuracy", True, of.label_accuracy, unit="%", decimals=2, perfect=100.0),
        Metric("log_loss", False, of.label_log_loss),
        Metric("brier", False, of.label_brier),
    )
    baseline_name = "each label's share"
    gives_probabilities = True

    label_weights: Tensor  # (2, K): how much a label counts that is not given, and one that is

    def __init__(
        self, names: Sequence[str] = ("target",), *, per_step: bool = False, metrics: Sequence[str] = ()
    ) -> None:
        super().__init__(names, per_step=per_step, metrics=metrics)
        # A function of the training data that only training needs, so it is not stored.
        self.register_buffer("label_weights", torch.ones(2, len(self.names)), persistent=False)

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def question(self) -> str:
        return f"which of {self.width} labels"

    @property
    def answer_names(self) -> tuple[str, ...]:
        return tuple(f"p_{name}" for name in self.names)

    def encode(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        values, known = super().encode(raw)
        strange = known & (values != 0) & (values != 1)
        if bool(strange.any()):
            raise ValueError(
                f"a target is {values[strange][0].item():g}, expected 0, 1 or NaN (not known) for each label; "
                "numbers need the head 'numbers', one of several classes the head 'classes'"
            )
        return values, known

    def errors(self, output: Tensor, targets: Targets) -> Tensor:
        return mean_over_known(_cross_entropy(output, targets), targets.known)

    def loss(self, output: Tensor, targets: Targets) -> Tensor:
        absent, given = self.label_weights
        weighted = _cross_entropy(output, targets) * torch.where(targets.values == 1, given, absent)
        return mean_over_known(weighted, targets.known) * targets.weights

    def answer(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def predict(self, output: Tensor) -> dict[str, Array]:
        """`p_NAME`, the probability of each label, and `prediction_NAME`, whether it is over one half."""
        probabilities = self.answer(output.double()).cpu().numpy()
        return dict(zip(self.answer_names, probabilities.T, strict=True)) | {
            self.column_name(name): probabilities[:, k] > 0.5 for k, name in enumerate(self.names)
        }

    def reading(self, output: Tensor, name: str) -> Tensor:
        """The probability of the label; its contrast is the log odds."""
        return super().reading(output, name).sigmoid()

    def balance(self, train: Sequences | None) -> None:
        """Weigh each label so that given and not given count the same in total; the mean weight is 1."""
        self.label_weights.fill_(1.0)
        if train is not None:
            share = self._shares(train)
            both = torch.stack([1 - share, share])
            self.label_weights.copy_(torch.where((share > 0) & (share < 1), 0.5 / both, 1.0))

    def trivial(self, train: Sequences) -> Tensor:
        """The log odds of each label's share of the training split."""
        return self._shares(train).clamp(1e-12, 1 - 1e-12).logit()

    def summary(self, parts: Mapping[str, Sequences]) -> Summary:
        shares = [self._shares(part) for part in parts.values()]
        rows = [(name, *(f"{share[k]:.1%}" for share in shares)) for k, name in enumerate(self.names)]
        what = "events" if self.per_step else "sequences"
        return Summary(f"Labels given (share of {what})", ("", *parts), rows)

    def _shares(self, sequences: Sequences) -> Tensor:
        return torch.stack([column.mean() for column in self.known_columns(sequences)])


def _cross_entropy(output: Tensor, targets: Targets) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, targets.values, reduction="none")
