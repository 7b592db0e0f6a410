"""One controller per state folder on this machine; across machines the fencing epoch decides."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleetctl.kit.errors import BadInputError


@contextmanager
def hold_state_lock(state_dir: Path) -> Iterator[None]:
    """Hold `<state_dir>/controller.lock`; the kernel frees it when the process dies, however it dies.

    Raises BadInputError when another controller holds it or the folder can't be used.
    """
    path = state_dir / "controller.lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadInputError(
            f"{state_dir}: {error.strerror or error}", remedy="choose another folder with --state-dir"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(
                f"{state_dir}: another controller runs on this state",
                remedy="stop it (fleetctl down), or choose another folder with --state-dir",
            ) from None
        yield
    finally:
        os.close(lock)
