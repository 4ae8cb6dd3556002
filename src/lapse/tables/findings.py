"""What is odd about a table before anything is trained on it: above all, what gives the target away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lapse.heads.metrics import auroc
from lapse.sequences import Sequences
from lapse.sequences.ragged import Array
from lapse.sequences.summaries import static_numbers, summarize

# One column alone that ranks the cases this well is more likely to be a consequence of the outcome than a sign of it.
GIVES_AWAY = 0.97
# How long somebody was followed should say little about the outcome (0.5 is nothing). Above the first figure it is
# worth a thought: sick people may just be seen more often. Above the second the outcome most likely ended it.
FOLLOW_UP, ENDED_BY_OUTCOME = 0.6, 0.75
FOLLOWS_LENGTH = (
    0.7  # rank correlation with the time of the last event above which a column is that length itself
)
FEWEST_CASES = 20  # below this a perfect ranking is easily chance
FEW_SEQUENCES = 100
RARE_CLASS = 0.05
DUPLICATES = 0.01
FEWEST_VALUES = 10  # below this many different values a number that stands apart may be one of few levels
STAND_IN = 0.005  # share of the observations above which a number that stands apart is no slip
MOST_CLASSES = 20  # whole numbers with more different values than this are numbers, not classes


class Finding(NamedTuple):
    """Something about the data that a reader should know.

    Attributes:
        grave: whether results would be worthless if it is what it looks like.
        text: what it is and what to do, in a sentence.
    """

    grave: bool
    text: str


def examine(s: Sequences) -> list[Finding]:
    """Everything that is odd about these sequences, the grave findings first.

    Args:
        s: all sequences that are to be learned from, with targets.
    """
    found = [*_giving_away(s), *_follow_up(s), *_sizes(s), *_doubles(s), *_columns(s)]
    return sorted(found, key=lambda finding: not finding.grave)


def _giving_away(s: Sequences) -> Iterator[Finding]:
    """Columns of which a single statistic nearly decides the target."""
    if s.targets is None or s.per_step or s.targets.ndim > 1:
        return
    table = summarize(s)
    best: dict[str, float] = {}
    for name, column in zip(table.names, table.values.T, strict=True):
        variable = name if name in s.static_features else name.rsplit(" ", 1)[0]
        present = ~np.isnan(column)
        figures = (
            strength(column[present], s.targets[present], words=variable in s.categories),
            strength(present.astype(float), s.targets),  # whether there is any value may be the answer too
        )
        best[variable] = max(best.get(variable, 0.0), *figures)
    for variable, figure in best.items():
        if figure >= GIVES_AWAY:
            yield Finding(
                True,
                f"column {variable!r} alone ranks the target almost perfectly ({figure:.2f} of 1): is it known "
                f"before the outcome? If not, leave it out: --ignore {variable!r}",
            )


def strength(column: Array, targets: Array, *, words: bool = False) -> float:
    """How well one column ranks the target: 0.5 not at all, 1 perfectly, in whichever direction.

    For classes it is the area under the ROC curve of the class that it separates best from all others; for numbers
    the absolute rank correlation, on the same scale.

    Args:
        column: (S,), without NaN.
        targets: (S,), NaN where not known.
        words: whether the column numbers categories, which are then ranked by their share of the class.
    """
    known = ~np.isnan(targets)
    column, targets = column[known], targets[known]
    labels = np.unique(targets)
    if len(labels) < 2 or len(np.unique(column)) < 2:
        return 0.5
    if len(labels) > MOST_CLASSES or (labels != np.rint(labels)).any():
        return 0.5 + 0.5 * abs(_rank_correlation(_by_category(column, targets) if words else column, targets))
    areas = []
    for label in labels:
        case = (targets == label).astype(float)
        if FEWEST_CASES <= case.sum() <= len(case) - FEWEST_CASES:
            areas.append(auroc(_by_category(column, case) if words else column, case))
    return max([0.5, *(max(area, 1 - area) for area in areas)])


def _by_category(column: Array, targets: Array) -> Array:
    """The mean target of each row's category."""
    _, category = np.unique(column, return_inverse=True)
    means: Array = np.bincount(category, targets) / np.bincount(category)
    return means[category]


def _rank_correlation(a: Array, b: Array) -> float:
    ranks: Array = np.stack([np.unique(x, return_inverse=True)[1] for x in (a, b)]).astype(float)
    return float(np.corrcoef(ranks)[0, 1])


def _follow_up(s: Sequences) -> Iterator[Finding]:
    """How long, and how often, somebody was seen: where this tells the outcome, the outcome may have ended it."""
    if s.targets is None or s.per_step or s.targets.ndim > 1:
        return
    first, last = s.times[s.offsets[:-1]], s.times[s.offsets[1:] - 1]
    lengths = {
        "the number of events of a sequence": s.lengths,
        "the time from its first to its last event": last - first,
    }
    if s.origin is None:  # the date of a last event says when somebody came, and not for how long
        lengths["the time of its last event"] = last
    strengths = {what: strength(np.asarray(column, float), s.targets) for what, column in lengths.items()}
    what = max(strengths, key=lambda name: strengths[name])
    if strengths[what] >= max(FOLLOW_UP, _by_chance(s.targets)):
        yield Finding(
            strengths[what] >= ENDED_BY_OUTCOME,
            f"{what} alone says something about the target ({strengths[what]:.2f} of 1, where 0.5 is nothing): did the "
            "outcome end the follow-up? Then cut all sequences at the time at which the prediction is to be made",
        )
    yield from _length_columns(s, last)


def _by_chance(targets: Array) -> float:
    """What `strength` hardly exceeds by chance: three standard deviations of an area under the ROC curve above 0.5."""
    known = targets[~np.isnan(targets)]
    counts = np.unique(known, return_counts=True)[1]
    cases = counts.min() if 1 < len(counts) <= MOST_CLASSES else len(known) / 2
    return 0.5 + 3 * float(np.sqrt(1 / (6 * max(cases, 1))))


def _length_columns(s: Sequences, last: Array) -> Iterator[Finding]:
    """Static columns that are never before the last event and grow with it: the length of the follow-up itself."""
    for name, column in zip(s.static_features, static_numbers(s).T, strict=True):
        known = ~np.isnan(column)
        if name in s.categories or known.sum() < FEWEST_CASES or (column[known] < last[known]).any():
            continue
        if _rank_correlation(column[known], last[known]) >= FOLLOWS_LENGTH:
            yield Finding(
                True,
                f"column {name!r} looks like the length of the follow-up, which is known only afterwards; leave it "
                f"out: --ignore {name!r}",
            )


def _sizes(s: Sequences) -> Iterator[Finding]:
    if len(s) < FEW_SEQUENCES:
        yield Finding(False, f"{len(s)} sequences are few: all figures will be uncertain")
    if (single := np.count_nonzero(s.lengths == 1)) > 0.5 * len(s):
        yield Finding(
            False, f"{single:,} of {len(s):,} sequences have a single event, and so no gaps to learn from"
        )
    if s.targets is None:
        return
    unknown = np.isnan(s.targets)
    if unknown.any():
        yield Finding(False, f"{np.count_nonzero(unknown):,} targets are not known; they take no part")
    labels, counts = np.unique(s.targets[~unknown], return_counts=True)
    if 1 < len(labels) <= MOST_CLASSES and counts.min() < RARE_CLASS * counts.sum():
        rare = labels[counts.argmin()]
        name = s.classes[int(rare)] if s.classes else f"{rare:g}"
        yield Finding(
            False,
            f"class {name!r} is rare ({counts.min():,} of {counts.sum():,}): look at AUPRC rather than accuracy",
        )


def _doubles(s: Sequences) -> Iterator[Finding]:
    same_time = np.zeros(s.num_events, bool)
    same_time[1:] = np.diff(s.times) == 0
    same_time[s.offsets[:-1]] = False
    same = same_time.copy()
    same[1:] &= (np.diff(s.values, axis=0) == 0).all(axis=1)
    if s.observed is not None:
        same[1:] &= (s.observed[1:] == s.observed[:-1]).all(axis=1)
    if (count := np.count_nonzero(same)) > 0:
        yield Finding(
            False,
            f"{count:,} events are exact copies of the one before: the same id, time and values; all are kept, so "
            "remove them if each happened once",
        )
    if (count := np.count_nonzero(same_time & ~same)) > DUPLICATES * s.num_events:
        yield Finding(False, f"{count:,} events are at the same time as the one before, with other values")


def _columns(s: Sequences) -> Iterator[Finding]:
    yield from _stand_ins(s)
    yield from _spellings(s)
    if s.observed is None:
        return
    rates = 1 - s.observed.mean(axis=0)
    rare = [name for name, rate in zip(s.features, rates, strict=True) if rate > 0.99]
    if rare:
        yield Finding(False, f"seldom observed (in under 1 % of events): {', '.join(rare)}")


def _spellings(s: Sequences) -> Iterator[Finding]:
    """Words of a column that are most likely the same one."""
    for name, words in s.categories.items():
        alike: dict[str, list[str]] = {}
        for word in words:
            alike.setdefault("".join(word.lower().split()), []).append(word)
        if doubled := [same for same in alike.values() if len(same) > 1]:
            listed = "; ".join(" and ".join(map(repr, same)) for same in doubled[:3])
            yield Finding(
                False,
                f"words of column {name!r} differ in capitals or spaces alone, and count as different: {listed}",
            )


def _stand_ins(s: Sequences) -> Iterator[Finding]:
    """Numbers such as -999 that most likely stand for "not observed"."""
    observed = np.ones(s.values.shape, bool) if s.observed is None else s.observed
    columns = {name: s.values[observed[:, k], k] for k, name in enumerate(s.features)}
    columns |= {
        name: column[~np.isnan(column)]
        for name, column in zip(s.static_features, static_numbers(s).T, strict=True)
    }
    for name, column in columns.items():
        for number in () if name in s.categories or not len(column) else (column.min(), column.max()):
            if stands_apart(column, number):
                yield Finding(
                    False,
                    f"column {name!r} is {number:g} in {np.count_nonzero(column == number):,} places, far from all its "
                    "other values: if that stands for a missing value, leave those cells empty",
                )


def stands_apart(column: Array, number: float) -> bool:
    """Whether a number occurs repeatedly and is further from all others than these are from each other.

    Args:
        column: (M,), without NaN.
        number: its least or largest number.
    """
    same = column == number
    others = column[~same]
    if same.sum() < max(FEWEST_VALUES, STAND_IN * len(column)) or not len(others):
        return False
    low, high = others.min(), others.max()
    apart = max(low - number, number - high) > high - low
    return bool(apart) and len(np.unique(others)) >= FEWEST_VALUES


def facts(s: Sequences) -> list[tuple[str, str]]:
    """Sizes, gaps, missing values and the balance of the target, as names and texts for a table.

    Args:
        s: the sequences.
    """
    lengths, unit = s.lengths, f" {s.unit}" if s.unit else ""
    rows = [
        ("sequences", f"{len(s):,}"),
        (
            "events",
            f"{s.num_events:,}; {lengths.min()} to {lengths.max()} per sequence, median {np.median(lengths):g}",
        ),
    ]
    if len(gaps := s.gaps):
        low, middle, high = np.quantile(gaps, (0.05, 0.5, 0.95))
        rows.append(("gaps", f"median {middle:.3g}{unit}; 90 % between {low:.3g} and {high:.3g}"))
    rows.append(("values", f"{_columns_of(s.num_features)}, {s.missing:.1%} not observed"))
    if s.static is not None:
        rows.append(("static", _columns_of(s.static.shape[1])))
    if s.targets is not None:
        rows.append(("target", balance(s)))
    return rows


def _columns_of(count: int) -> str:
    return f"{count} column{'' if count == 1 else 's'}"


def balance(s: Sequences) -> str:
    """The shares of the classes, or the spread of a number, in words.

    Args:
        s: sequences with targets.
    """
    targets: Any = s.targets
    known = targets[~np.isnan(targets)]
    labels, counts = np.unique(known, return_counts=True)
    if targets.ndim == 1 and (targets.dtype.kind == "i" or len(labels) <= 2):
        names = [str(s.classes[int(label)]) if s.classes else f"{label:g}" for label in labels]
        shares = [f"{name} {count / counts.sum():.1%}" for name, count in zip(names, counts, strict=True)]
        return ", ".join(shares[:10]) + (f", and {len(shares) - 10} more" if len(shares) > 10 else "")
    low, middle, high = np.quantile(known, (0.05, 0.5, 0.95))
    return f"numbers, median {middle:.4g}; 90 % between {low:.4g} and {high:.4g}"
