"""The command `lapse`, also as `python -m lapse`."""

from __future__ import annotations

import sys

from lapse.extras import MissingExtra, extra

INTERRUPTED = 130  # as in `lapse.cli.endings`, which may not be there yet


def main() -> None:
    """Run the command line, or say which extra it needs; Ctrl-C before a command begins ends it in a word."""
    try:
        try:
            with extra("cli"):
                from lapse.cli import main as run
        except MissingExtra as error:
            sys.exit(f"lapse: {error}")
        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
