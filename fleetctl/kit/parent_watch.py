"""A process that has no reason to live without the one that started it."""

from __future__ import annotations

import os
import threading
import time

LOOK_EVERY_S = 1.0


def end_with_parent() -> None:
    """From now on this process ends within a second of its parent, however that ends and whatever its own loop does."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
