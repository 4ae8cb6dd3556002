"""Processes that end with the one that started them, however that one ends.

A process that is killed cannot end its children. On Linux the kernel does it for those that ask, whatever they are
doing at the time; elsewhere a child has to watch its parent itself.

This module stands outside the package `lapse` so that a fork server can import it before anything that takes long:
killed during its imports, a study would else leave a server behind until those are done.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# The environment of a fork server names the process whose end is to be its own.
STARTER = "LAPSE_STARTER"
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent ends; on systems other than Linux nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# A fork server runs no code of ours: all it does is to import what it is told to, this module first.
if STARTER in os.environ and "multiprocessing.forkserver" in sys.orig_argv[-1]:
    end_with_parent()
    if os.getppid() != int(os.environ[STARTER]):
        os._exit(1)  # the parent ended before the kernel was asked
