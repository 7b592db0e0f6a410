"""The gateway that `fleetctl up` started on this machine: seen, stopped and started again from its own record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fleetctl.providers.process import ProcessTable
from fleetctl.providers.provider import ObservedInstance

GATEWAY = "gateway"  # its name in the table of processes


class LocalGateway:
    """One process of the run folder. Threading: synchronous, called from worker threads.

    Raises FleetctlError from each method when the table can't be used.
    """

    def __init__(self, root: Path, may_act: Callable[[], None] = lambda: None) -> None:
        """`may_act` is called right before it is started or stopped, and raises a FleetctlError when it must not be."""
        self._may_act = may_act
        self._table = ProcessTable(root)

    def observe(self) -> ObservedInstance | None:
        """The process as it is now; None: none was ever started here."""
        if not self._table.spec(GATEWAY):
            return None
        view = self._table.observe(GATEWAY)
        return ObservedInstance(GATEWAY, view.running, view.instance, view.url, view.exit_status)

    def start(self) -> bool:
        """Start it as it was started last. False: it runs already. Raises FleetctlError without a record of it."""
        self._may_act()
        return self._table.start_again(GATEWAY)

    def stop(self, grace_s: float) -> bool:
        """SIGTERM, and SIGKILL after `grace_s`. False: it did not run."""
        self._may_act()
        return self._table.stop(GATEWAY, grace_s)
