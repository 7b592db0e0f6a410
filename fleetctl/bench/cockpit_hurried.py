"""`python -m fleetctl.bench.cockpit_hurried URL SPEED`: the cockpit for which time passes so many times as fast.

It reads the controller as much more often, and its clock runs as much faster: what it keeps for an hour it lets go of
after a minute, at 60.
"""

from __future__ import annotations

import asyncio
import sys
import time

from fleetctl.client import ControllerClient
from fleetctl.tui.app import POLL_EVERY_S, Cockpit


def main(url: str, speed: float) -> None:
    """Show it until it is ended."""
    begun_at = time.time()

    def now() -> float:
        return begun_at + (time.time() - begun_at) * speed

    cockpit = Cockpit(
        lambda: ControllerClient(url, reuses_lists=True), by="bench", now=now, poll_every_s=POLL_EVERY_S / speed
    )
    asyncio.run(cockpit.run_async())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
