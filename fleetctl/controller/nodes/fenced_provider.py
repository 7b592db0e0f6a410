"""A provider that acts only while it may: what one controller has taken over, another one must not start or stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleetctl.kit.errors import RefusedError
from fleetctl.providers.provider import (
    AsksLeave,
    Capacity,
    CordonsHosts,
    EndTerms,
    LogChunk,
    NodeProvider,
    ObservedInstance,
    ProviderAct,
    capacity_of,
    end_for_restart,
    end_terms_of,
)
from fleetctl.providers.spec import NodeSpec


class FencedProvider:
    """Implements `NodeProvider`: `may_act` is called right before whatever changes something, in the same thread."""

    def __init__(self, inner: NodeProvider, may_act: Callable[[], None]) -> None:
        """`may_act` raises a FleetctlError when this controller does not know that it leads."""
        self._inner = inner
        self._may_act = may_act

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """As the provider's."""
        return self._inner.why_not(act, spec)

    def list_instances(self) -> Sequence[ObservedInstance]:
        """As the provider's."""
        return self._inner.list_instances()

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """As the provider's."""
        return self._inner.attach(spec)

    def ensure_started(self, spec: NodeSpec) -> None:
        """As the provider's, while it may."""
        self._may_act()
        self._inner.ensure_started(spec)

    def stop(self, name: str, grace_s: float) -> None:
        """As the provider's, while it may."""
        self._may_act()
        self._inner.stop(name, grace_s)

    def restart(self, name: str, grace_s: float) -> None:
        """As the provider's, while it may."""
        self._may_act()
        end_for_restart(self._inner, name, grace_s)

    def check_end(self, name: str) -> None:
        """As the provider's."""
        if isinstance(self._inner, AsksLeave):
            self._inner.check_end(name)

    def end_terms(self) -> Mapping[str, EndTerms]:
        """As the provider's."""
        return end_terms_of(self._inner)

    def cordon_host(self, name: str, *, cordoned: bool) -> str:
        """As the provider's, while it may."""
        self._may_act()
        if not isinstance(self._inner, CordonsHosts):
            raise RefusedError(f"{name}: its provider places no nodes on machines")
        return self._inner.cordon_host(name, cordoned=cordoned)

    def forget(self, name: str) -> None:
        """As the provider's, while it may."""
        self._may_act()
        self._inner.forget(name)

    def observe(self, name: str) -> ObservedInstance:
        """As the provider's."""
        return self._inner.observe(name)

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """As the provider's."""
        return self._inner.read_logs(name, lines=lines, after=after)

    def capacity(self, spec: NodeSpec) -> Capacity:
        """As the provider's."""
        return capacity_of(self._inner, spec)
