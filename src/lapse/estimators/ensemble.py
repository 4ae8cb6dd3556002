"""Several networks and boosted trees that answer together, with what they need to know of the table."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lapse
from lapse.arguments import check_kind
from lapse.estimators.preparation import Preparation, Prepared
from lapse.estimators.trees import Trees, from_arrays
from lapse.explain import Explanation, Importance, permutation_importance
from lapse.explain.integrated import STEPS
from lapse.heads import Head
from lapse.models import Predictions, SchemaWarning, SequenceModel, Stepper
from lapse.models.storage import digest_in
from lapse.sequences import Sequences
from lapse.sequences.storage import write_atomically
from lapse.stored_config import digest_of

FORMAT = "lapse.Ensemble/1"
CONFIG, CARD, TREES = "config.json", "card.md", "trees.safetensors"


@dataclass(frozen=True)
class Ensemble:
    """Networks that differ in their seed, and boosted trees; their raw outputs are averaged.

    How much the trees count was chosen on held-out sequences. Raw outputs of classes and labels are logits, so that an
    average of them is one of log odds.

    Args:
        preparation: how sequences are brought into the form of training.
        networks: at least one network.
        trees: boosted trees on summaries; None for networks alone.
        tree_share: how much the trees count beside all networks together, from 0 to 1.
        temperature: by what the averaged raw outputs of a head with probabilities are divided, so that the
            probabilities are right on average.
    """

    preparation: Preparation
    networks: Sequence[SequenceModel]
    trees: Trees | None = None
    tree_share: float = 0.5
    temperature: float = 1.0

    @property
    def head(self) -> Head:
        """What is asked."""
        return self.networks[0].head

    @property
    def parts(self) -> str:
        """What the ensemble consists of, in words."""
        config = self.networks[0].config
        count = len(self.networks)
        networks = f"{count} networks" if count > 1 else "a network"
        described = f"{networks} ({config.model}, {config.hidden_size} units)"
        if self.trees is None:
            return described
        return (
            f"{described}, {1 - self.tree_share:.0%}, and boosted trees on summaries, {self.tree_share:.0%}"
        )

    def predict(self, sequences: Sequences, *, batch_size: int = 512) -> Predictions:
        """Answers for any sequences, in their order and with their ids; targets are not looked at.

        Args:
            sequences: what to answer for; they are brought into the form of the training table first.
            batch_size: how many sequences are computed at a time; it has no effect on the answers.
        """
        check_kind("sequences", sequences, Sequences)
        asked = replace(sequences, targets=None, per_step=False, classes=None)
        output = self.outputs(self.preparation(asked), batch_size)
        ids = np.arange(len(asked)) if asked.ids is None else asked.ids
        if not self.head.per_step:
            return Predictions(ids, None, self.head.predict(output))
        return Predictions(np.repeat(ids, asked.lengths), asked.times, self.head.predict(output))

    def outputs(self, prepared: Prepared, batch_size: int = 512) -> Tensor:
        """Raw outputs of prepared sequences, one row per answer, in their order.

        Args:
            prepared: what `preparation` returned.
            batch_size: how many sequences are computed at a time.
        """
        with warnings.catch_warnings():
            # The table was compared with that of training already; what is derived of it needs no second warning.
            warnings.simplefilter("ignore", SchemaWarning)
            found = [network.outputs(prepared.sequences, batch_size=batch_size) for network in self.networks]
        mixed = torch.stack(found).double().mean(0)
        if self.trees is not None:
            mixed = torch.lerp(mixed, torch.from_numpy(self.trees.outputs(prepared.table)), self.tree_share)
        return mixed / self.temperature

    def explain(
        self, sequences: Sequences, answer: str | None = None, *, at: int = -1, steps: int = STEPS
    ) -> Explanation:
        """What each value, gap and static feature contributed to the answers for some sequences.

        Networks are explained by integrated gradients, trees by sampled Shapley values. What is due to a bin or to a
        summary is traced back to the events that it was made of.

        Args:
            sequences: what to explain the answers for.
            answer: the name of a class, a label or a number; None chooses, see `lapse.explain.integrated_gradients`.
            at: where there is one answer per event, the event whose answer is explained, counted from the end if
                negative.
            steps: in how many points the gradient of a network is taken at first.
        """
        from lapse.estimators.explaining import explain

        return explain(self, sequences, answer, at, steps)

    def importance(self, sequences: Sequences, **options: Any) -> Importance:
        """How much worse the answers get when a variable tells nothing any more.

        Args:
            sequences: sequences with targets, best those that were not learned from.
            options: further arguments of `lapse.explain.permutation_importance`.
        """
        restricted = self.preparation.schema.restricted(sequences)
        return permutation_importance(
            lambda s: self.outputs(self.preparation(s)), self.head, restricted, **options
        )

    def stepper(self) -> Stepper:
        """The ensemble for one event at a time, with its weights shared: for streams and export."""
        from lapse.estimators.step import EnsembleStep

        return EnsembleStep(self)

    def save(self, folder: str | Path, *, card: str | None = None) -> None:
        """Write the ensemble as a folder: `config.json`, `card.md`, `trees.safetensors`, and a folder per network.

        Args:
            folder: where to; files of an earlier ensemble in it are replaced.
            card: the text of `card.md`; None writes what the ensemble itself knows.
        """
        from safetensors.numpy import save as to_bytes

        folder = Path(folder)
        for name, network in zip(self._names(), self.networks, strict=True):
            network.save(folder / name)
        trees = b"" if self.trees is None else to_bytes(self.trees.arrays())
        contents = {
            "format": FORMAT,
            "lapse": lapse.__version__,
            "preparation": self.preparation.config(),
            "networks": self._names(),
            "network_digests": [digest_in(folder / name) for name in self._names()],
            "trees": hashlib.sha256(trees).hexdigest() if trees else None,
            "tree_share": self.tree_share,
            "temperature": self.temperature,
        }
        text = json.dumps(contents | {"digest": digest_of(contents)}, indent=2)
        if trees:
            write_atomically(folder / TREES, lambda file: file.write(trees))
        write_atomically(folder / CARD, lambda file: file.write((card or self.card()).encode()))
        write_atomically(folder / CONFIG, lambda file: file.write(text.encode()))

    def _names(self) -> list[str]:
        return [f"network-{k}" for k in range(len(self.networks))]

    def card(self) -> str:
        """A model card in Markdown, from what the ensemble itself knows."""
        columns = [c.name for c in (*self.preparation.schema.features, *self.preparation.schema.static)]
        return (
            f"# {self.head.sentence}\n\nMade with lapse {lapse.__version__}: {self.parts}.\n\n"
            f"Columns: {', '.join(columns)}.\n\nUnit of time: {self.preparation.schema.unit or 'unknown'}.\n"
        )

    @staticmethod
    def load(folder: str | Path) -> Ensemble:
        """The ensemble that `save` wrote. Nothing in the folder is run; what is damaged or unknown is refused.

        Args:
            folder: the folder.
        """
        folder = Path(folder)
        contents = _read_config(folder)
        return Ensemble(
            Preparation.from_config(contents["preparation"]),
            _read_networks(folder, contents),
            None if contents["trees"] is None else _read_trees(folder / TREES, contents["trees"]),
            float(contents["tree_share"]),
            float(contents["temperature"]),
        )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no model; expected a folder with {CONFIG}, which `lapse fit` writes"
        )
    try:
        contents: dict[str, Any] = json.loads(path.read_bytes())
        found = contents.get("format")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if found != FORMAT:
        raise ValueError(
            f"{path} says format {found!r}, and this version of lapse ({lapse.__version__}) reads {FORMAT!r} only; "
            "load it with the version of lapse that wrote it, or fit it again"
        )
    if contents.pop("digest", None) != digest_of(contents):
        raise ValueError(f"{path} is damaged or was edited: its digest is wrong; take it from a backup")
    return contents


def _read_networks(folder: Path, contents: dict[str, Any]) -> list[SequenceModel]:
    """The networks; ValueError if one is of another ensemble, as after a fit that was cut off while it was written."""
    folders = [folder / Path(name).name for name in contents["networks"]]
    networks = [SequenceModel.load(each) for each in folders]
    # Ensembles of earlier versions do not say.
    for each, digest in zip(folders, contents.get("network_digests", []), strict=False):
        if digest_in(each) != digest:
            raise ValueError(
                f"{each} belongs to another {CONFIG} than {folder / CONFIG}; fit the model again"
            )
    return networks


def _read_trees(path: Path, digest: str) -> Trees:
    from safetensors.numpy import load as from_bytes

    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path} is damaged, or belongs to another {CONFIG}: its digest is wrong")
    return from_arrays(from_bytes(content))
