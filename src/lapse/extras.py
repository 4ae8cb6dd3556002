"""Optional dependencies: where one is absent, the error names the extra that brings it.

The core of lapse (layers, cells, solvers, `Sequences`, a stored model's predictions) needs torch, numpy, safetensors
and narwhals. What else a part needs is imported where it is used, inside `with extra("...")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtra(ImportError):
    """A part of lapse was used whose dependencies are not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports inside the block belong to the extra `name` of the package, which an ImportError then tells to install.

    Args:
        name: an extra of pyproject.toml, such as "train" or "cli".
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        raise MissingExtra(
            f"{error}. This part of lapse needs more than its core; install it with: pip install 'lapse[{name}]'",
            name=error.name,
        ) from error
