"""The command `lapse`, before anything that takes long.

This module stands outside the package `lapse` because a part of a package is imported only after the package itself,
and torch with it takes a second or two: in that time Ctrl-C would end in a traceback through what is being imported.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130  # 128 + SIGINT, as a shell has it


def main() -> None:
    """Import lapse and run its command line; until then Ctrl-C ends the process in a word."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # what is ignored, as for a job in the background, stays so
        signal.signal(signal.SIGINT, _stop)
    from lapse.__main__ import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _stop(*_: object) -> None:
    """End at once: nothing has begun, and an exception could be caught by a module that is being imported."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
