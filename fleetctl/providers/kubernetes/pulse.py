"""Whether the API answers at all: asked now and then, because a server that hangs is as silent as one without news."""

from __future__ import annotations

import threading
import time

from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.kubernetes.cluster import Cluster


class Pulse:
    """Threading: any thread reads; one of its own asks."""

    def __init__(self, cluster: Cluster, namespace: str, every_s: float) -> None:
        """Asks for a pod of the namespace from now on."""
        self.answered_at = float("-inf")  # time.monotonic() of the newest answer's question
        self.error: FleetctlError | None = None
        self._cluster, self._namespace, self._every_s = cluster, namespace, every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop asking; returns once its thread ended."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            asked_at = time.monotonic()
            try:
                self._cluster.answers("pods", self._namespace)
            except FleetctlError as error:
                self.error = error
            else:
                self.answered_at, self.error = asked_at, None
