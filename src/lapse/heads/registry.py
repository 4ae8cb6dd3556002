"""The heads by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lapse.arguments import check_kind
from lapse.heads.base import Head
from lapse.heads.classes import Classes
from lapse.heads.gaussian import Gaussian
from lapse.heads.labels import Labels
from lapse.heads.numbers import Numbers
from lapse.heads.quantiles import Quantiles
from lapse.references import known, resolve_class
from lapse.sequences import Sequences

HEADS: dict[str, type[Head]] = {
    "classes": Classes,
    "labels": Labels,
    "numbers": Numbers,
    "gaussian": Gaussian,
    "quantiles": Quantiles,
}


def find(kind: str) -> type[Head]:
    """The class of a head, by one of the names in `HEADS` or as `package.module:Class`."""
    own: type[Head] | None = known(kind, HEADS, "head", "package.module:Class")
    found: type[Head] = own or resolve_class(kind, Head)
    return found


def from_config(config: Mapping[str, Any]) -> Head:
    """The head whose `config` method returned these values; what it had measured comes with the model's weights."""
    options = dict(config)
    return find(options.pop("kind"))(**options)


def for_data(train: Sequences, kind: str | None = None, **options: Any) -> Head:
    """The head that fits the targets of `train`, measured on them.

    Args:
        train: the training sequences.
        kind: a name as `find` takes it; None chooses: words, integers and a column of 0 and 1 are classes,
            several columns of 0 and 1 are labels, everything else is numbers.
        options: arguments of the head's constructor, such as `metrics`.
    """
    check_kind("train", train, Sequences, "make it with Sequences.from_frame or Sequences.from_arrays")
    if train.targets is None:
        raise ValueError("these sequences carry no targets: give `target=` when they are built")
    return find(_kind_of(train) if kind is None else kind).for_data(train, **options)


def _kind_of(train: Sequences) -> str:
    assert train.targets is not None
    zeros_and_ones = bool(np.isin(train.targets[~np.isnan(train.targets)], (0, 1)).all())
    if train.targets.ndim > 1 and train.targets.shape[1] > 1:
        return "labels" if zeros_and_ones else "numbers"
    return "classes" if train.targets.dtype.kind == "i" or zeros_and_ones else "numbers"
