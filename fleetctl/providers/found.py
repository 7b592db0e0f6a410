"""Nodes that somebody else runs and that were found where they are: seen and routed to, never started or stopped."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.kit.errors import RefusedError
from fleetctl.providers.provider import Capacity, LogChunk, ObservedInstance, ProviderAct
from fleetctl.providers.spec import NodeSpec

FOUND = "found"
URL = "url"  # the fact that has a found node's address
METRICS_URL = "metrics_url"  # where its metrics are, when not at its engine's usual path
GROUP = "targets"  # of the settings that it is of
API_KEY = "api_key"  # name of the key that it wants, of `fleet.api_keys`
SOURCE = "source"  # the fact that says who named it

_WHY_NOT = {
    ProviderAct.START: "no provider can start another one",
    ProviderAct.STOP: "no provider can stop it",
    ProviderAct.RESTART: "no provider can restart it",
    ProviderAct.CORDON_HOST: "no provider places nodes on its machine",
    ProviderAct.LOGS: "its log lies where it runs, and no provider can read it",
}


class FoundNodes:
    """Implements `NodeProvider` for what discovery found: whoever is in the list is there, as far as anybody knows.

    Whether it answers is for its health to say. A node that is in no list any more is forgotten by discovery.
    """

    def __init__(self) -> None:
        self._specs: dict[str, NodeSpec] = {}

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """It was only found."""
        source = spec.facts.get(SOURCE)
        return _WHY_NOT[act] + (f" (it was found by {source})" if source else "")

    def capacity(self, spec: NodeSpec) -> Capacity:
        """None: nobody here can start one."""
        return Capacity(0, self.why_not(ProviderAct.START, spec))

    def list_instances(self) -> Sequence[ObservedInstance]:
        """What is in the list."""
        return [self.observe(name) for name in list(self._specs)]

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """Put it into the list, or what is known of it now into its place."""
        self._specs[spec.name] = spec
        return self.observe(spec.name)

    def ensure_started(self, spec: NodeSpec) -> None:
        """Nothing for one that is in the list. Raises RefusedError for another one."""
        if spec.name not in self._specs:
            raise RefusedError(f"{spec.name}: {self.why_not(ProviderAct.START, spec)}")

    def stop(self, name: str, grace_s: float) -> None:
        """Raises RefusedError while it is in the list."""
        if (spec := self._specs.get(name)) is not None:
            raise RefusedError(f"{name}: {self.why_not(ProviderAct.STOP, spec)}")

    def forget(self, name: str) -> None:
        """Take it out of the list."""
        self._specs.pop(name, None)

    def observe(self, name: str) -> ObservedInstance:
        """There, at its address, as long as it is in the list."""
        spec = self._specs.get(name)
        if spec is None:
            return ObservedInstance(name, running=False, sees_process=False)
        return ObservedInstance(name, running=True, url=spec.facts.get(URL), sees_process=False)

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """None are known."""
        return LogChunk((), "")
