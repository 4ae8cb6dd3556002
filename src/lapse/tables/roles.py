"""What each column of a table is: told by the user, or guessed from names and contents and then shown."""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lapse.arguments import check_kind
from lapse.sequences import Sequences
from lapse.sequences.columns import MOST_CATEGORIES
from lapse.sequences.storage import write_atomically
from lapse.sequences.units import NANOSECONDS
from lapse.stored_config import digest_of

# Names of columns, in the order in which they are believed. They are compared by their letters and digits alone.
ID_NAMES = (
    "id", "stay", "stay_id", "patient", "patient_id", "subject", "subject_id", "case", "recordid", "sequence",
    "machine", "unit", "device", "user", "customer", "session", "who",
)  # fmt: skip
ID_WORDS = ("id", "serial")  # a name that ends in one of them is believed if no other name does
TIME_NAMES = (
    "time", "timestamp", "datetime", "charttime", "date", "hour", "hours", "minute", "minutes", "second", "seconds",
    "day", "days", "week", "month", "year", "t", "at",
)  # fmt: skip
TARGET_NAMES = ("target", "label", "outcome", "y", "class", "died", "death")
VARIABLE_NAMES = ("variable", "name", "parameter", "item", "measurement", "label", "feature", "signal")
VALUE_NAMES = ("value", "values", "measure", "reading", "result")
UNITS_BY_NAME = {
    "second": "s", "seconds": "s", "minute": "min", "minutes": "min", "hour": "h", "hours": "h", "day": "D",
    "days": "D", "week": "W", "weeks": "W",
}  # fmt: skip
BRACKETED = re.compile(r"[(\[]([^)\]]*)[)\]]")  # "(mm/s)" in "Vib (mm/s)"


FIRST_ROWS = 20_000  # in which most columns that change within a sequence do so


class RolesError(ValueError):
    """The roles of the columns cannot be told, or do not fit the table."""


@dataclass(frozen=True)
class Roles:
    """What each column is.

    Args:
        id: the column that says to which sequence a row belongs.
        time: the column of times.
        values: the features of an event; of a long table, the names of its variables, or nothing for all of them.
        target: the columns to predict; none for a table that is only to be predicted.
        static: columns that do not change within a sequence.
        variable: of a long table, the column that names what was measured; None for a wide table.
        value: of a long table, the column of measurements.
        group: the column that says which sequences must stay together in a split.
        unit: the unit of time; None if nobody said.
        per_step: whether every row has a target of its own.
        unused: columns that take no part, with the reason for each.
    """

    id: str
    time: str
    values: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    variable: str | None = None
    value: str | None = None
    group: str | None = None
    unit: str | None = None
    per_step: bool = False
    unused: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> list[tuple[str, str]]:
        """The roles and their columns, as names and texts for a table."""
        told = {
            "id": self.id,
            "time": self.time + (f" ({self.unit})" if self.unit else " (unit unknown)"),
            "target": ", ".join(self.target) + (", one per event" if self.per_step else ""),
            "features": f"{self.value} of each {self.variable}" if self.variable else ", ".join(self.values),
            "static features": ", ".join(self.static),
            "group": self.group or "",
            "not used": "; ".join(f"{name} ({why})" for name, why in self.unused.items()),
        }
        return [(role, text) for role, text in told.items() if text]

    def save(self, path: Path) -> None:
        """Write the roles as JSON, so that other tables of the same kind are read in the same way.

        Args:
            path: the file.
        """
        values = asdict(self)
        text = json.dumps(values | {"digest": digest_of(values)}, indent=2)
        write_atomically(path, lambda file: file.write(text.encode()))

    @staticmethod
    def load(path: Path) -> Roles:
        """The roles that `save` wrote.

        Args:
            path: the file.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"there is no {path}, which `lapse fit` writes: the model was not fitted to a file"
            )
        try:
            stored: dict[str, Any] = json.loads(path.read_bytes())
            if stored.pop("digest", None) != digest_of(stored):
                raise ValueError("its digest is wrong")
            lists = {name: tuple(names) for name, names in stored.items() if isinstance(names, list)}
            return Roles(**stored | lists)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged, or holds no roles of columns: {error}") from error

    def sequences(self, table: Any) -> Sequences:
        """The table as `Sequences`; the target may be absent from a table that is only to be predicted.

        Args:
            table: a pandas table with these columns.
        """
        _check_names(table, {"id": self.id, "time": self.time})
        table = with_dates(table, self.time)
        target = self.target if set(self.target) <= set(table.columns) else ()
        shared: dict[str, Any] = {
            "id": self.id,
            "time": self.time,
            "static": [name for name in self.static if name in table.columns],
            "group": self.group,
            "unit": self.unit,
        }
        if self.variable is None:
            # A column that is not there is the schema's to name, which knows whether the model can do without it.
            values = [name for name in self.values if name in table.columns]
            several = target[0] if len(target) == 1 else target
            return Sequences.from_frame(
                table,
                values=values,
                target=several or None,
                per_step=self.per_step and bool(target),
                **shared,
            )
        wanted: dict[str, Any] = {"variable": self.variable, "value": self.value}
        return Sequences.from_long(table, target=target[0] if target else None, **wanted, **shared)


def guess(table: Any, told: Mapping[str, Any] | None = None, *, need_target: bool = True) -> Roles:
    """The roles of the columns of a table.

    Names that are common for a role are believed first; then contents: an id repeats, a static column has one value
    per id, a target that changes within an id is one per step. Columns of free text, row numbers and columns
    without any value take no part.

    Args:
        table: a pandas table.
        told: roles that are known, as fields of `Roles`; they are checked against the table and never overruled.
            "ignore" names columns that are to take no part.
        need_target: whether a table without a target is an error.
    """
    import pandas as pd

    check_kind("table", table, pd.DataFrame, "read it with lapse.tables.read_table")
    told = {name: value for name, value in (told or {}).items() if value}
    _check_names(table, told)
    ignored = tuple(told.pop("ignore", ()))
    if both := sorted(set(ignored) & _told_names(told)):
        raise RolesError(
            f"column {both[0]!r} is to be ignored, and was given a role as well; expected one of both"
        )
    names = [str(name) for name in table.columns]
    rest = _Rest(table, [name for name in names if name not in {*_told_names(told), *ignored}])
    id = told.get("id") or rest.id()
    time = told.get("time") or rest.time()
    variable, value = _long(rest, told)
    target = told.get("target") or rest.target(need_target)
    rest.check()
    per_step = bool(told.get("per_step")) or any(changes_within(table, id, name) for name in target)
    unused = rest.unusable()
    fixed = [name for name in rest.names if not changes_within(table, id, name)]
    static = told.get("static") or (tuple(fixed) if _repeats(table, id) else ())
    values = told.get("values") or (() if variable else tuple(n for n in rest.names if n not in static))
    if not values and not variable:
        raise RolesError(
            f"no column is left for the values of events; the table has {names}, of which id, time, target and "
            "static columns took all; name some with --values"
        )
    left = {name: "not named" for name in rest.names if name not in static + values}
    left |= dict.fromkeys(ignored, "ignored")
    unit = told.get("unit") or _unit(table, id, time)
    return Roles(
        id, time, values, target, static, variable, value, told.get("group"), unit, per_step, unused | left
    )


class _Rest:
    """The columns that have no role yet."""

    def __init__(self, table: Any, names: list[str]) -> None:
        self.table, self.names = table, names
        self.asked: list[str] = []  # roles that no column has the name for

    def take(self, name: str) -> str:
        self.names.remove(name)
        return name

    def named(self, role: str, known: Sequence[str]) -> str:
        found = self.find(known)
        if found is None:
            self.asked.append(role)
            return ""
        return self.take(found)

    def check(self) -> None:
        """Ask for all roles at once that no column has the name for."""
        if not self.asked:
            return
        roles = ", and which the ".join(self.asked)
        options = " and ".join(f"--{role}" for role in self.asked)
        raise RolesError(
            f"which column is the {roles}? None of {list(self.table.columns)} has a usual name; tell with {options}"
        )

    def find(self, known: Sequence[str]) -> str | None:
        squeezed = {"".join(_words(name)): name for name in self.names}
        return next((found for name in known if (found := squeezed.get("".join(_words(name))))), None)

    def id(self) -> str:
        if self.find(ID_NAMES) is None:
            ending = [name for name in self.names if _words(name)[-1:] in ([word] for word in ID_WORDS)]
            if len(ending) == 1:
                return self.take(ending[0])
        return self.named("id", ID_NAMES)

    def time(self) -> str:
        if self.find(TIME_NAMES) is None:
            dates = [name for name in self.names if _holds_dates(self.table[name])]
            if len(dates) == 1:
                return self.take(dates[0])
        return self.named("time", TIME_NAMES)

    def target(self, needed: bool) -> tuple[str, ...]:
        found = self.find(TARGET_NAMES)
        if found is not None:
            return (self.take(found),)
        return (self.named("target", TARGET_NAMES),) if needed else ()

    def unusable(self) -> dict[str, str]:
        """Take out the columns that a model cannot use, with the reason for each."""
        found = {name: why for name in self.names if (why := _useless(self.table[name]))}
        self.names = [name for name in self.names if name not in found]
        return found


def _words(name: str) -> list[str]:
    """The words of a column's name in small letters, without what is in brackets: "Patient-ID" has two."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", BRACKETED.sub(" ", name))
    return re.findall(r"\w+", apart.replace("_", " ").lower())


def _long(rest: _Rest, told: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The columns of a long table: told, or the only two that are left and have the usual names."""
    if told.get("variable") or told.get("value") or told.get("long"):
        variable = told.get("variable") or rest.named("variable", VARIABLE_NAMES)
        return variable, told.get("value") or rest.named("value", VALUE_NAMES)
    variable_name, value_name = rest.find(VARIABLE_NAMES), rest.find(VALUE_NAMES)
    if told.get("values") or variable_name is None or value_name is None:
        return None, None
    words = rest.table[variable_name].dtype.kind not in "iufb"
    return (rest.take(variable_name), rest.take(value_name)) if words else (None, None)


def _told_names(told: Mapping[str, Any]) -> set[str]:
    columns = [value for name, value in told.items() if name not in ("unit", "per_step", "long")]
    return {name for value in columns for name in ((value,) if isinstance(value, str) else value)}


def _check_names(table: Any, told: Mapping[str, Any]) -> None:
    names = [str(name) for name in table.columns]
    for name in sorted(_told_names(told) - set(names)):
        near = difflib.get_close_matches(name, names, n=1)
        guess = f"did you mean {near[0]!r}? Its" if near else "its"
        raise RolesError(f"the table has no column {name!r}; {guess} columns are {names}")
    if told.get("unit") and told["unit"] not in NANOSECONDS:
        raise RolesError(f"the unit of time must be one of {', '.join(NANOSECONDS)}, got {told['unit']!r}")


def changes_within(table: Any, id: str, name: str) -> bool:
    """Whether a column has more than one value within any sequence; a missing value counts as one."""
    return any(_changes(part[id], part[name]) for part in (table.head(FIRST_ROWS), table))


def _changes(ids: Any, column: Any) -> bool:
    import pandas as pd

    sequence, codes = (pd.factorize(each)[0] for each in (ids, column))
    first = np.zeros(len(sequence), np.int64)  # the first row of each sequence
    first[sequence[::-1]] = np.arange(len(sequence))[::-1]
    return bool((codes != codes[first[sequence]]).any())


def _repeats(table: Any, id: str) -> bool:
    return bool(table[id].duplicated().any())


def _useless(column: Any) -> str | None:
    """Why a column cannot be a feature; None if it can."""
    import pandas as pd

    if column.isna().all():
        return "no value in it"
    if not column.isna().any() and (column == column.iloc[0]).all():
        return "always the same"
    if column.dtype.kind in "iu" and column.iloc[0] in (0, 1) and (column.diff()[1:] == 1).all():
        return "numbers the rows"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "a second column of dates"
    if column.dtype.kind not in "iufb" and column.nunique() > MOST_CATEGORIES and not _mostly_numbers(column):
        return f"free text: {column.nunique():,} different words"
    return None


def _mostly_numbers(column: Any) -> bool:
    """Whether most of what a column of text holds are numbers: the few words among them are mistakes to be named."""
    import pandas as pd

    return bool(pd.to_numeric(column.dropna(), errors="coerce").notna().mean() > 0.5)


def with_dates(table: Any, time: str) -> Any:
    """The table with its column of times as dates, if it holds dates as text, as every CSV file does.

    Args:
        table: a pandas table.
        time: the name of the column.
    """
    import pandas as pd

    column = table[time]
    if not _is_text(column) or not pd.to_numeric(column, errors="coerce").isna().all():
        return table
    dates = _dates(column)
    if dates is None:
        raise RolesError(
            f"column {time!r} holds {column.iloc[0]!r}, expected numbers, or dates such as 2024-05-01 13:45 or "
            "01.05.2024 13:45; in 05/01/2024 nobody can tell the day from the month"
        )
    return table.assign(**{time: dates})


def _holds_dates(column: Any) -> bool:
    """Whether a column holds dates, as such or as text; the first few texts are looked at before all of them."""
    import pandas as pd

    if not _is_text(column):
        return bool(pd.api.types.is_datetime64_any_dtype(column))
    known = column.dropna()
    return len(known) > 0 and all(_dates(part) is not None for part in (known.iloc[:5], known))


def _is_text(column: Any) -> bool:
    import pandas as pd

    return column.dtype.kind not in "iufbmM" and not isinstance(column.dtype, pd.DatetimeTZDtype)


def _dates(column: Any) -> Any:
    """A column of text as dates: year first with hyphens, or day first with dots; None if it holds anything else."""
    import pandas as pd

    words = column.astype(str)
    if pd.to_numeric(column, errors="coerce").notna().any():
        return None  # a whole number would be taken for a year
    dotted = words.str.match(r"\d{1,2}\.\d{1,2}\.\d{4}").any()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the format had to be guessed
            return pd.to_datetime(column, **({"dayfirst": True} if dotted else {"format": "ISO8601"}))
    except (ValueError, TypeError):
        return None


def _unit(table: Any, id: str, time: str) -> str | None:
    """The unit that the name of a column of numbers says; of dates, the longest in which the median gap is over 1."""
    column = with_dates(table, time)[time]
    if column.dtype.kind in "iufb":
        return _unit_in(time)
    ordered = table.assign(**{time: column})[[id, time]].sort_values([id, time])
    gaps = ordered[time].groupby(ordered[id]).diff().dt.total_seconds()
    median = float(np.nanmedian(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
    fitting = [unit for unit, size in NANOSECONDS.items() if size <= median * 1e9]
    return fitting[-1] if fitting else "ns"


def _unit_in(name: str) -> str | None:
    """The unit that a name says: "hours", "time (h)"."""
    bracketed = [word.strip() for word in BRACKETED.findall(name)]
    words = [word for word in (*bracketed, "".join(_words(name))) if word]
    units = (word if word in NANOSECONDS else UNITS_BY_NAME.get(word.lower()) for word in words)
    return next((unit for unit in units if unit), None)
