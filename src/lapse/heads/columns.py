"""What heads have in common whose targets are columns: one number, or several side by side, each may be unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from lapse.arguments import as_names, check_flag
from lapse.heads.base import Head, Summary
from lapse.heads.metrics import Array
from lapse.sequences import Sequences


class ColumnHead(Head):
    """A head whose targets are (M,) or (M, K) numbers; NaN means that a number is not known.

    Args:
        names: what each column is called, K words.
        per_step: whether there is one answer per event, or one per sequence.
        metrics: names from `available`; the first one chooses the best epoch.
    """

    def __init__(
        self, names: Sequence[str] = ("target",), *, per_step: bool = False, metrics: Sequence[str] = ()
    ) -> None:
        super().__init__(per_step=per_step, metrics=metrics)
        self.names = as_names("names", names)
        if not self.names:
            raise ValueError("expected the name of at least one column, got none")

    @classmethod
    def for_data(cls, train: Sequences, **options: Any) -> Self:
        """As many columns as the training targets have."""
        assert train.targets is not None, "targets are checked before a head is chosen"
        width = 1 if train.targets.ndim == 1 else train.targets.shape[1]
        numbered = ("target",) if width == 1 else tuple(f"target {k}" for k in range(width))
        names = train.target_names or numbered
        found: dict[str, Any] = {"names": names, "per_step": train.per_step}
        head = cls(**(found | options))
        head.targets_of(train)
        head.measure(train)
        return head

    def options(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    def encode(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        values = raw[:, None] if raw.dim() == 1 else raw
        if values.shape[1:] != (len(self.names),):
            raise ValueError(
                f"targets have shape {tuple(raw.shape)}, expected {len(self.names)} column(s) "
                f"({', '.join(self.names)}) per prediction"
            )
        values = values.float()
        if bool(values.isinf().any()):
            raise ValueError(
                "a target is infinite (or too large for float32), expected a finite number or NaN"
            )
        known = ~values.isnan()
        return values.nan_to_num(nan=0.0), known

    def known_columns(self, sequences: Sequences) -> list[Tensor]:
        """The known numbers of each column, in float64; a column without any raises ValueError."""
        targets = self.targets_of(sequences)
        columns = [
            values[known].double()
            for values, known in zip(targets.values.unbind(1), targets.known.unbind(1), strict=True)
        ]
        for name, column in zip(self.names, columns, strict=True):
            if not len(column):
                raise ValueError(f"no target of column {name!r} is known in these sequences; leave it out")
        return columns

    @property
    def contrasts(self) -> dict[str, Tensor]:
        """The raw output of each column; heads with more outputs than columns have those of the columns first."""
        return dict(zip(self.names, torch.eye(self.width), strict=False))

    def column_name(self, name: str) -> str:
        """What the prediction of a column is called: `prediction` if there is one, else `prediction_NAME`."""
        return "prediction" if len(self.names) == 1 else f"prediction_{name}"

    def answer_columns(self, output: Tensor) -> dict[str, Array]:
        """Every number of the answers to raw outputs (M, width), by its name."""
        values = self.answer(output.double()).flatten(1).cpu().numpy()
        return dict(zip(self.answer_names, values.T, strict=True))

    def summary(self, parts: Mapping[str, Sequences]) -> Summary:
        rows = []
        for part, sequences in parts.items():
            known = torch.cat(self.known_columns(sequences))
            figures = (known.mean(), known.std(correction=0), known.min(), known.max())
            counts = (f"{len(self.names)}", f"{len(known):,}")
            rows.append((part, *counts, *(f"{figure:.3g}" for figure in figures)))
        return Summary("Targets", ("", "columns", "known", "mean", "std", "least", "most"), rows)


def mean_over_known(errors: Tensor, known: Tensor) -> Tensor:
    """(M,): the mean of (M, K) over the columns that are known; 0 where none is."""
    return torch.where(known, errors, 0.0).sum(-1) / known.sum(-1).clamp(min=1)


class ScaledHead(ColumnHead):
    """Numbers that are learned in units of their own spread: mean 0 and standard deviation 1 in training.

    Args:
        names, per_step, metrics: see `ColumnHead`.
        scale: whether targets are shifted and scaled; False learns them as they are.
    """

    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        names: Sequence[str] = ("target",),
        *,
        per_step: bool = False,
        metrics: Sequence[str] = (),
        scale: bool = True,
    ) -> None:
        super().__init__(names, per_step=per_step, metrics=metrics)
        check_flag("scale", scale)
        self.scale = scale
        # Stored with the weights where they are measured; without scaling they are 0 and 1 for ever.
        self.register_buffer("target_mean", torch.zeros(len(self.names)), persistent=scale)
        self.register_buffer("target_scale", torch.ones(len(self.names)), persistent=scale)

    def options(self) -> dict[str, Any]:
        return super().options() | {"scale": self.scale}

    def measure(self, train: Sequences) -> None:
        columns = self.known_columns(train)
        if not self.scale:
            return
        means = torch.stack([column.mean() for column in columns])
        spreads = torch.stack([column.std(correction=0) for column in columns])
        # Rounding leaves a constant column a spread of a few units in the last place; dividing by it is noise.
        constant = spreads <= 1e-6 * means.abs()
        self.target_mean.copy_(means)
        self.target_scale.copy_(torch.where(constant, 1.0, spreads))

    def scaled(self, values: Tensor) -> Tensor:
        """Numbers (..., K) of the table in the units in which they are learned."""
        if values.shape[-1] != len(self.names):
            raise ValueError(f"got {values.shape[-1]} numbers for the {len(self.names)} columns {self.names}")
        return (values - self.target_mean) / self.target_scale

    def unscaled(self, output: Tensor) -> Tensor:
        """Learned numbers (M, K) or (M, K, Q) in the table's own units."""
        extra = (1,) * (output.dim() - 2)
        return output * self.target_scale.view(-1, *extra) + self.target_mean.view(-1, *extra)

    @property
    def contrasts(self) -> dict[str, Tensor]:
        """Each column in the table's own units."""
        scales = self.target_scale.cpu()
        return {name: weights * scales[k] for k, (name, weights) in enumerate(super().contrasts.items())}

    def reading(self, output: Tensor, name: str) -> Tensor:
        return super().reading(output, name) + self.target_mean[self.names.index(name)].to(output)

    def persistence(self, sequences: Sequences) -> Tensor | None:
        """Only where there is one answer per event and targets have the shape of the values."""
        same = sequences.targets is not None and sequences.values.shape == sequences.targets.shape
        return self.certain(torch.tensor(sequences.values)) if self.per_step and same else None

    def certain(self, values: Tensor) -> Tensor:
        return self.scaled(values)

    def point(self, output: Tensor) -> Tensor:
        """(M, K): one number per column, from raw outputs (M, width), in the table's own units."""
        return self.answer(output)
