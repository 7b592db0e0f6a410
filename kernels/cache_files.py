"""What is kept from one start to the next: where, and how a file gets there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_homes() -> Iterator[Path]:
    """Folders for what is ours, the best first: systemd's, the one that is set, the user's. They need not be there."""
    for name in ("CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        if parent := os.environ.get(name):
            yield Path(parent.partition(":")[0]) / "fleetctl"
    try:
        yield Path.home() / ".cache" / "fleetctl"
    except RuntimeError:  # a user without a home, as systemd's DynamicUser makes them
        return


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file in place at once: who reads it meanwhile, or after a power loss, sees all of it or the one before.

    Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
