"""Follows the log of the node that is shown, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from textual.worker import Worker

from fleetctl.kit.errors import FleetctlError
from fleetctl.tui.cockpit_client import CockpitClient
from fleetctl.tui.node_pane import NodePane

LOG_LINES = 200


class LogFollower:
    """One log at a time. `begin`: runs what it is given until that ends or is cancelled."""

    def __init__(
        self, controller: CockpitClient, pane: NodePane, begin: Callable[[Coroutine[Any, Any, None]], Worker[None]]
    ) -> None:
        self._controller = controller
        self._pane = pane
        self._begin = begin
        self._worker: Worker[None] | None = None
        self._name: str | None = None

    def follow(self, name: str | None) -> None:
        """This node's, in place of the one before; one that had ended is read on. None: nobody's."""
        if name == self._name:
            return
        self._name = name
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None
        if name is not None:
            self._worker = self._begin(self._show(name))

    async def _show(self, name: str) -> None:
        self._pane.begin_log(name)
        try:
            async for line in self._controller.follow_node_logs(name, LOG_LINES):
                self._pane.add_log(line)
        except FleetctlError as error:
            self._pane.end_log(f"{error.message}; r tries again")
        else:
            self._pane.end_log("the controller ended it; r reads on")
        self._name = None
