"""Files that hold a table: CSV, Parquet, Arrow."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEPARATORS = ",;\t|"  # of a .csv file; the first of those that are equally frequent


def read_table(path: str | Path) -> Any:
    """The table in a file, as a pandas `DataFrame`; the end of the name says which kind of file it is.

    Args:
        path: a file that ends in .csv or .tsv (.gz, .bz2, .zip or .xz may follow), .parquet, .feather or .arrow.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    kinds = [suffix.lower() for suffix in path.suffixes]
    kind = next((kind for kind in reversed(kinds) if kind in READERS), None)
    if kind is None:
        raise ValueError(f"{path} is of no known kind; expected a name that ends in {', '.join(READERS)}")
    try:
        table = READERS[kind](path)
    except ImportError as error:
        raise ImportError(f"reading {kind} files needs pyarrow: pip install pyarrow") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not written in UTF-8: {error}; save it in UTF-8") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as {kind}: {error}") from error
    if not len(table):
        raise ValueError(f"{path} holds no rows")
    return table


def write_table(table: Any, path: str | Path) -> None:
    """Write a pandas `DataFrame` to a file whose name says of which kind it is to be, whole or not at all.

    Args:
        table: the table.
        path: a name that ends in .csv, .tsv, .parquet, .feather or .arrow.
    """
    from lapse.sequences.storage import write_atomically

    path = Path(path)
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path} is of no known kind; expected a name that ends in {', '.join(WRITERS)}")
    write_atomically(path, lambda file: WRITERS[path.suffix.lower()](table, file))


def _csv(path: Path) -> Any:
    """Values with commas between, or with whatever the first line has most of; then numbers may have decimal commas."""
    import pandas as pd

    # A character that no table holds leaves every line whole.
    lines = pd.read_csv(path, sep="\x1f", header=None, nrows=100, dtype=str, quoting=csv.QUOTE_NONE)[0]
    separator = max(SEPARATORS, key=lines.iloc[0].count)
    decimal_comma = rf"(^|[{separator}])-?\d+,\d+([{separator}]|$)"
    commas = separator != "," and any(re.search(decimal_comma, line) for line in lines[1:])
    return pd.read_csv(path, sep=separator, decimal="," if commas else ".")


def _tsv(path: Path) -> Any:
    import pandas as pd

    return pd.read_csv(path, sep="\t")


def _parquet(path: Path) -> Any:
    import pandas as pd

    return pd.read_parquet(path)


def _arrow(path: Path) -> Any:
    """Arrow's file format, or its stream format, which has no mark at the end."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            table = pa.ipc.open_stream(source).read_all()
        return table.to_pandas()


READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
    ".feather": _arrow,
    ".arrow": _arrow,
}
WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    ".csv": lambda table, file: table.to_csv(file, index=False),
    ".tsv": lambda table, file: table.to_csv(file, index=False, sep="\t"),
    ".parquet": lambda table, file: table.to_parquet(file, index=False),
    ".feather": lambda table, file: table.to_feather(file),
    ".arrow": lambda table, file: table.to_feather(file),
}
