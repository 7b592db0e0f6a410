"""Libraries that others load only because they are there: kept out while a server starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_imports(*names: str) -> Iterator[None]:
    """Within, these modules cannot be imported unless they have been already.

    structlog and httpx load rich for a terminal's sake; without it they do the same in plain text, and a process that
    runs for months is 4 MB smaller.
    """
    hiding = [name for name in names if name not in sys.modules]
    for name in hiding:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's own mark for "not there"
    try:
        yield
    finally:
        for name in hiding:
            del sys.modules[name]
