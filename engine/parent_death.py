"""A process of a node ends with the one that started it, and leaves the terminal's signals to that one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import structlog

log = structlog.get_logger()

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies (on Linux); SIGINT and SIGTERM are ignored from now on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            log.warning("process.parent_not_followed", reason=os.strerror(ctypes.get_errno()))
