"""What moved the answers of an ensemble: its networks by integrated gradients, its trees by Shapley values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lapse.estimators.preparation import Preparation, Prepared
from lapse.estimators.trees import Trees
from lapse.explain.explanation import (
    Amounts,
    Explanation,
    chosen_events,
    chosen_names,
    explained,
    without_targets,
)
from lapse.explain.integrated import attribute
from lapse.models import SchemaWarning, SequenceModel
from lapse.sequences import Sequences
from lapse.sequences.bins import trace_bins
from lapse.sequences.ragged import Array
from lapse.sequences.summaries import trace_present, trace_summaries

if TYPE_CHECKING:
    from lapse.estimators.ensemble import Ensemble

ORDERS = 8  # random orders of the columns over which Shapley values are averaged, each also taken backward


def explain(ensemble: Ensemble, sequences: Sequences, answer: str | None, at: int, steps: int) -> Explanation:
    """What each value, gap and static feature contributed to the answers of an ensemble; see `Ensemble.explain`."""
    asked = without_targets(sequences)
    preparation, head = ensemble.preparation, ensemble.head
    conformed = preparation.schema.conform(asked)
    prepared = preparation(conformed)
    events = chosen_events(head, conformed, at)
    outputs = ensemble.outputs(prepared)
    names = chosen_names(head, outputs if events is None else outputs[events], answer)
    weights = torch.stack([head.contrasts[name] for name in names])
    found = [_network(network, prepared, weights, events, steps) for network in ensemble.networks]
    amounts = _traced(preparation, conformed, _mixed(found, [1 / len(found)] * len(found)))
    if ensemble.trees is not None:
        of_trees = _trees(ensemble, prepared, conformed, weights, events)
        amounts = _mixed([amounts, of_trees], [1 - ensemble.tree_share, ensemble.tree_share])
    calibrated = _mixed([amounts], [1 / ensemble.temperature])
    return explained(head, preparation.schema, asked, names, events, calibrated)


def _mixed(parts: Sequence[Amounts], shares: Sequence[float]) -> Amounts:
    """A sum of amounts, each with its share; raw outputs are summed in the same way."""
    return Amounts(
        *(
            sum(share * field for share, field in zip(shares, fields, strict=True))
            for fields in zip(*parts, strict=True)
        )
    )


def _network(
    network: SequenceModel, prepared: Prepared, weights: Tensor, events: Array | None, steps: int
) -> Amounts:
    """The amounts of one network, for the columns of the prepared sequences."""
    given = prepared.sequences
    with warnings.catch_warnings():
        # A network does not have the columns that happened to be empty in its part of the training table.
        warnings.simplefilter("ignore", SchemaWarning)
        own = network.schema.conform(given)
    found = attribute(network, own, weights, events, steps)
    return found._replace(
        values=_by_name(found.values, own.features, given.features),
        static=_by_name(found.static, own.static_features, given.static_features),
        counts=np.zeros((len(given), given.num_features)),
    )


def _by_name(amounts: Array, names: tuple[str, ...], wanted: tuple[str, ...]) -> Array:
    """The amounts in the columns that are wanted; 0 for a column that there is no amount for."""
    placed = np.zeros((len(amounts), len(wanted)))
    placed[:, [wanted.index(name) for name in names]] = amounts
    return placed


def _traced(preparation: Preparation, conformed: Sequences, amounts: Amounts) -> Amounts:
    """Amounts for bins and summaries, traced back to the events."""
    if preparation.per_step:
        return amounts
    values, gaps = amounts.values, amounts.gaps
    if preparation.bin is not None:
        values, gaps = trace_bins(conformed, preparation.bin, values, gaps)
    static, of_summaries, counts = trace_summaries(conformed, amounts.static, preparation.statistics)
    return amounts._replace(values=values + of_summaries, gaps=gaps, static=static, counts=counts)


def _trees(
    ensemble: Ensemble, prepared: Prepared, conformed: Sequences, weights: Tensor, events: Array | None
) -> Amounts:
    """The amounts of the trees, for the columns of the conformed sequences."""
    assert ensemble.trees is not None
    table = prepared.table if events is None else prepared.table[events]
    typical = _typical(ensemble.networks[0], prepared.sequences, conformed, table, events)
    rows = zip(table, typical, weights.numpy(), strict=True)
    of_columns = np.stack([shapley_values(ensemble.trees, *row) for row in rows])
    if events is None:
        static, values, counts = trace_summaries(conformed, of_columns, ensemble.preparation.statistics)
        gaps = np.zeros(conformed.num_events)
    else:
        static, values, gaps = trace_present(conformed, events, of_columns)
        counts = np.zeros((len(conformed), conformed.num_features))
    ends = (torch.from_numpy(ensemble.trees.outputs(each)) for each in (table, typical))
    return Amounts(values, gaps, static, counts, *ends)


def _typical(
    network: SequenceModel, given: Sequences, conformed: Sequences, table: Array, events: Array | None
) -> Array:
    """(S, columns): typical values of the columns of the table, where they are known; else what the table has."""
    preprocessing, schema = network.preprocessing, network.schema
    static = dict(zip(schema.static_inputs, preprocessing.static_shift.tolist(), strict=True))
    middle = [static.get(name, np.nan) for name in given.static_features]
    typical = np.full(table.shape, np.nan)
    typical[:, : len(middle)] = middle
    if events is not None:
        values = dict(zip(schema.inputs, preprocessing.fill.tolist(), strict=True))
        typical[:, len(middle) : -1] = [values.get(name, np.nan) for name in given.features]
        inside = events > conformed.offsets[:-1]  # there is no gap before a first event that could be another
        typical[inside, -1] = float(preprocessing.time_unit)
    return np.where(np.isnan(table) | np.isnan(typical), table, typical)


def shapley_values(trees: Trees, row: Array, typical: Array, weights: Array, orders: int = ORDERS) -> Array:
    """(columns,): what each column of a row contributed to the weighted outputs of trees, by sampled Shapley values.

    Starting from the typical row, columns are set to their values one after the other, in random orders, each taken
    forward and backward. What the output changes by is the contribution of the column, averaged over the orders; for
    every order these add up to the whole difference.

    Args:
        trees: the trees.
        row: (columns,), the row to explain; NaN where a value is missing.
        typical: (columns,), the row to compare it with.
        weights: (width,), with which the outputs are summed.
        orders: how many random orders.
    """
    random = np.random.default_rng(0)
    differing = np.flatnonzero((row != typical) & ~(np.isnan(row) & np.isnan(typical)))
    found = np.zeros(len(row))
    for _ in range(orders if len(differing) else 0):
        order = random.permutation(differing)
        for columns in (order, order[::-1]):
            # Row k of the table has the first k columns of the order set.
            place = np.full(len(row), len(row))
            place[columns] = np.arange(len(columns))
            table = np.where(place < np.arange(len(columns) + 1)[:, None], row, typical)
            found[columns] += np.diff(trees.outputs(table) @ weights) / (2 * orders)
    return found
