"""An ensemble, one event at a time: its networks, the columns that they see beside the events, and its trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lapse.encoders import Named
from lapse.estimators.ensemble import Ensemble
from lapse.estimators.trees import Trees
from lapse.heads import Head
from lapse.models import Preprocessing, Schema, SequenceModel, Step, Stepper
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.sequences.summaries import LARGEST, PRESENT_GAP, SHAPE, column_names

SHAPE_STATES = ("first", "squares", "changes", "elapsed", "time", "time_squares", "products")


class EnsembleStep(Stepper):
    """An ensemble for one event of each sequence: `answer, state = step(values, timespan, state)`.

    The answers are those of `Ensemble.predict` for the events so far. The states are those of each network,
    `network0_layer0_h` and so on, and what the columns of the table keep of the past, `table_total` and so on, in
    float64.

    Args:
        ensemble: the ensemble; its networks must take events one at a time, and its events must not be in bins.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        _check(ensemble)
        self.ensemble = ensemble
        self.table: Table = (
            PresentTable(self.schema)
            if ensemble.head.per_step
            else SummaryTable(self.schema, ensemble.preparation.statistics)
        )
        self.members = nn.ModuleList(
            Member(network, self.table, self.schema.inputs) for network in ensemble.networks
        )
        self.trees = None if ensemble.trees is None else TreeSum(ensemble.trees)

    @property
    def preprocessing(self) -> Preprocessing:
        return self.ensemble.networks[0].preprocessing

    @property
    def head(self) -> Head:
        return self.ensemble.head

    @property
    def schema(self) -> Schema:
        return self.ensemble.preparation.schema

    @property
    def described(self) -> str:
        return self.ensemble.parts

    @property
    def seen_names(self) -> tuple[str, ...]:
        own = (f"{name}{inner}" for name, member in self._named() for inner in member.step.seen_names)
        return ("table", *own)

    def whole(self, sequences: Sequences) -> Tensor:
        return self.ensemble.outputs(self.ensemble.preparation(sequences))

    def start(self, batch_size: int) -> Named:
        values = self.preprocessing.scale.new_zeros(batch_size, len(self.schema.inputs))
        states = {name: torch.zeros_like(part) for name, part in self.table.start(values).items()}
        for name, member in self._named():
            states |= {f"{name}{inner}": part for inner, part in member.step.start(batch_size).items()}
            del states[f"{name}events"]
        return states | {"events": values[:, :1]}

    def advance(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None = None
    ) -> tuple[Named, Named]:
        events = state["events"]
        first = self.table.start(values)
        known = {name: torch.where(events == 0, part, state[name]) for name, part in first.items()}
        table, after = self.table.advance(values.double(), timespan.double(), known, static)
        seen = {"table": table}
        for name, member in self._named():
            own = {inner.removeprefix(name): s for inner, s in state.items() if inner.startswith(name)}
            fixed = member.static(table) if self.head.per_step else None
            found, new = member.step.advance(member.values(values), timespan, own | {"events": events}, fixed)
            seen |= {f"{name}{inner}": part for inner, part in found.items()}
            after |= {f"{name}{inner}": part for inner, part in new.items() if inner != "events"}
        return seen, after | {"events": events + 1}

    def outputs(self, seen: Named, static: Tensor | None = None) -> Tensor:
        found = []
        for name, member in self._named():
            own = {inner: seen[f"{name}{inner}"] for inner in member.step.seen_names}
            found.append(member.step.outputs(own, member.static(seen["table"])))
        mixed = torch.stack(found).double().mean(0)
        if self.trees is not None:
            mixed = torch.lerp(mixed, self.trees(seen["table"]), self.ensemble.tree_share)
        return mixed / self.ensemble.temperature

    def _named(self) -> list[tuple[str, Member]]:
        members = [member for member in self.members if isinstance(member, Member)]
        return [(f"network{k}_", member) for k, member in enumerate(members)]


class Table(nn.Module, ABC):
    """The columns that networks and trees see beside the events, (B, columns) in float64, NaN where not known.

    Attributes:
        names: what each column is called.
    """

    names: tuple[str, ...]

    @abstractmethod
    def start(self, values: Tensor) -> Named:
        """The states before the first event, for values of the shape of `values` (B, F)."""

    @abstractmethod
    def advance(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None
    ) -> tuple[Tensor, Named]:
        """The columns after one more event, and the new states; arguments as for `Stepper.forward`."""


class SummaryTable(Table):
    """The columns of `lapse.sequences.summaries.summarize`, for the events so far.

    Sums of squares and products are kept of differences from the means so far, by Welford's updates, so that they are
    right for values far from 0 too. Times are counted from the first observation of a feature.

    Args:
        schema: the form of the training table.
        statistics: which statistics of each feature.
    """

    def __init__(self, schema: Schema, statistics: Sequence[str]) -> None:
        super().__init__()
        self.statistics = statistics
        self.shaped = not set(SHAPE).isdisjoint(statistics)
        self.names = (*schema.static_inputs, *column_names(schema.inputs, statistics))

    def start(self, values: Tensor) -> Named:
        zeros = torch.zeros_like(values, dtype=torch.float64)
        infinite = torch.full_like(zeros, torch.inf)
        states = {"last": zeros, "total": zeros, "least": infinite, "largest": -infinite, "count": zeros}
        if self.shaped:
            states |= dict.fromkeys(SHAPE_STATES, zeros)
        return {f"table_{name}": state for name, state in states.items()}

    def advance(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None
    ) -> tuple[Tensor, Named]:
        old = {name.removeprefix("table_"): part for name, part in state.items()}
        new = {
            "last": values,
            "total": old["total"] + values,
            "least": torch.minimum(old["least"], values),
            "largest": torch.maximum(old["largest"], values),
            "count": old["count"] + 1,
        }
        if self.shaped:
            elapsed = torch.where(old["count"] == 0, 0.0, old["elapsed"] + timespan.unsqueeze(1))
            new |= self._shape(values, elapsed, old, new)
        seen = ~values.isnan()
        after = {name: torch.where(seen, part, old[name]) for name, part in new.items()}
        if self.shaped:
            after["elapsed"] = elapsed  # time goes on where nothing is observed, too
        columns = torch.stack([self._column(name, after) for name in self.statistics], -1)
        return _beside(static, columns.flatten(1)), {f"table_{name}": part for name, part in after.items()}

    @staticmethod
    def _shape(values: Tensor, elapsed: Tensor, old: Named, new: Named) -> Named:
        """The states of the shape after one more observation of every feature."""
        first, mean = old["count"] == 0, new["total"] / new["count"]
        from_time = elapsed - old["time"]
        time = old["time"] + from_time / new["count"]
        from_mean = torch.where(first, 0.0, values - old["total"] / old["count"].clamp(min=1))
        return {
            "first": torch.where(first, values, old["first"]),
            "squares": old["squares"] + from_mean * (values - mean),
            "changes": old["changes"] + torch.where(first, 0.0, (values - old["last"]).abs()),
            "elapsed": elapsed,
            "time": time,
            "time_squares": old["time_squares"] + from_time * (elapsed - time),
            "products": old["products"] + from_time * (values - mean),
        }

    @staticmethod
    def _column(statistic: str, sums: Named) -> Tensor:
        """(B, F), a statistic of `lapse.sequences.summaries.STATISTICS`."""
        count = sums["count"]
        if statistic == "log-count":
            return count.log1p()
        if statistic == "mean":
            found = sums["total"] / count.clamp(min=1)
        elif statistic == "deviation":
            found = (sums["squares"] / count.clamp(min=1)).clamp(min=0).sqrt()
        elif statistic == "change":
            found = (sums["changes"] / (count - 1).clamp(min=1)).clamp(max=LARGEST)
        elif statistic == "slope":
            spread = sums["time_squares"]
            slope = sums["products"] / torch.where(spread > 0, spread, 1.0)
            found = torch.where(spread > 0, slope, 0.0).clamp(-LARGEST, LARGEST)
        else:
            found = sums[statistic]
        return found.masked_fill(count == 0, torch.nan)


class PresentTable(Table):
    """The columns of `lapse.sequences.summaries.present`, for the latest event.

    Args:
        schema: the form of the training table.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.names = (*schema.static_inputs, *schema.inputs, PRESENT_GAP)

    def start(self, values: Tensor) -> Named:
        return {"table_latest": torch.full_like(values, torch.nan, dtype=torch.float64)}

    def advance(
        self, values: Tensor, timespan: Tensor, state: Named, static: Tensor | None
    ) -> tuple[Tensor, Named]:
        latest = torch.where(values.isnan(), state["table_latest"], values)
        return _beside(static, torch.cat([latest, timespan.unsqueeze(1)], -1)), {"table_latest": latest}


class Member(nn.Module):
    """A network of an ensemble, and which columns it takes: those that had any value where it was trained.

    Args:
        network: the network.
        table: the columns beside the events.
        features: the names of the features of an event.
    """

    value_places: Tensor
    static_places: Tensor

    def __init__(self, network: SequenceModel, table: Table, features: Sequence[str]) -> None:
        super().__init__()
        self.step = Step(network)
        places = {"value_places": (features, network.schema.inputs)}
        places["static_places"] = (table.names, network.schema.static_inputs)
        for name, (given, taken) in places.items():
            found = torch.tensor([given.index(column) for column in taken], dtype=torch.int64)
            self.register_buffer(name, found, persistent=False)

    def values(self, values: Tensor) -> Tensor:
        """The network's features of an event (B, F) of the table."""
        return values.index_select(1, self.value_places)

    def static(self, table: Tensor) -> Tensor | None:
        """The network's static features, from the columns (B, columns)."""
        return (
            table.index_select(1, self.static_places).to(self.step.dtype) if len(self.static_places) else None
        )


class TreeSum(nn.Module):
    """`Trees.outputs` in operations of torch: all trees go down one level at a time.

    Args:
        trees: the trees.
    """

    baseline: Tensor
    roots: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor
    share: Tensor

    def __init__(self, trees: Trees) -> None:
        super().__init__()
        count = len(trees.feature)
        first = np.repeat(trees.offsets[:-1], np.diff(trees.offsets))
        leaf = trees.feature < 0
        left = np.where(leaf, np.arange(count), first + trees.left)  # a leaf leads to itself
        right = np.where(leaf, np.arange(count), first + trees.right)
        arrays = {
            "baseline": trees.baseline,
            "roots": trees.offsets[:-1],
            "feature": np.maximum(trees.feature, 0),
            "threshold": trees.threshold,
            "left": left,
            "right": right,
            "missing_left": trees.missing_left,
            "share": np.eye(len(trees.baseline))[trees.column],  # (trees, width), 1 where a tree adds
        }
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(array)), persistent=False)
        self.depth = _depth(trees.offsets[:-1], left, right)

    def forward(self, table: Tensor) -> Tensor:
        """(M, width) raw outputs, from (M, columns) in float64, NaN where a value is missing."""
        node = self.roots.expand(table.shape[0], -1)  # (M, trees)
        for _ in range(self.depth):
            value = table.gather(1, self.feature[node])
            # Not by torch.where, which onnxruntime lacks for truth values. A comparison with NaN is false.
            to_left = (value <= self.threshold[node]) | (value.isnan() & self.missing_left[node])
            node = torch.where(to_left, self.left[node], self.right[node])
        return self.baseline + self.threshold[node] @ self.share


def _depth(roots: Array, left: Array, right: Array) -> int:
    """How many levels the deepest tree has below its root."""
    depth, level = 0, roots
    while (inner := level[left[level] != level]).size:
        depth, level = depth + 1, np.concatenate([left[inner], right[inner]])
    return depth


def _beside(static: Tensor | None, columns: Tensor) -> Tensor:
    return columns if static is None else torch.cat([static.to(columns.dtype), columns], -1)


def _check(ensemble: Ensemble) -> None:
    """Refuse what needs the whole sequence before its first answer."""
    if ensemble.preparation.bin is not None:
        raise ValueError(
            f"the model gathers events into bins of {ensemble.preparation.bin:g}, so it cannot take one event at a "
            "time; fit it again with bin=None"
        )
    for network in ensemble.networks:
        if "state" in network.config.static.split("+") and not ensemble.head.per_step:
            raise ValueError(
                "the networks of the model start from summaries of the whole sequence, so they cannot take one event "
                "at a time; fit it again without static='state'"
            )
