"""The command `lapse`, also as `python -m lapse`."""

from __future__ import annotations

import sys

from lapse.extras import MissingExtra, extra


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        with extra("cli"):
            from lapse.cli import main as run
    except MissingExtra as error:
        sys.exit(f"lapse: {error}")
    run()


if __name__ == "__main__":
    main()
