"""All providers as one: each node is its own provider's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.providers.provider import (
    AsksLeave,
    Capacity,
    CordonsHosts,
    EndTerms,
    HasProcesses,
    LogChunk,
    NodeProvider,
    NodeSetting,
    ObservedInstance,
    ProviderAct,
    capacity_of,
    end_for_restart,
    end_terms_of,
    settings_of,
)
from fleetctl.providers.spec import NodeSpec

LOCAL = "local"
KUBERNETES = "kubernetes"


class Providers:
    """Implements `NodeProvider` over others, by the provider that a node's spec names.

    A name belongs to the provider of its spec, from the first call that has one; one that nobody told of is local.
    Threading: as of any provider; a name's entry is one assignment.
    """

    def __init__(self, by_name: Mapping[str, NodeProvider]) -> None:
        """`by_name` has at least `local`."""
        self._by_name = dict(by_name)
        self._of_node: dict[str, str] = {}

    def learn(self, spec: NodeSpec) -> None:
        """Remember whose node it is."""
        self._of_node[spec.name] = spec.provider

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        """As its provider says."""
        provider = self._by_name.get(spec.provider)
        if provider is None:
            return f"this controller has no provider {spec.provider}"
        return provider.why_not(act, spec)

    def list_instances(self) -> Sequence[ObservedInstance]:
        """Of every provider."""
        return [one for provider in self._by_name.values() for one in provider.list_instances()]

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        """As its provider's."""
        self.learn(spec)
        return self._of(spec.name).attach(spec)

    def ensure_started(self, spec: NodeSpec) -> None:
        """As its provider's."""
        self.learn(spec)
        self._of(spec.name).ensure_started(spec)

    def stop(self, name: str, grace_s: float) -> None:
        """As its provider's."""
        self._of(name).stop(name, grace_s)

    def restart(self, name: str, grace_s: float) -> None:
        """As its provider's; where nobody else starts it again, it is stopped."""
        end_for_restart(self._of(name), name, grace_s)

    def check_end(self, name: str) -> None:
        """As its provider's; nothing where none has to be asked."""
        provider = self._of(name)
        if isinstance(provider, AsksLeave):
            provider.check_end(name)

    def end_terms(self) -> Mapping[str, EndTerms]:
        """Of every provider's nodes."""
        return {name: terms for one in self._by_name.values() for name, terms in end_terms_of(one).items()}

    def cordon_host(self, name: str, *, cordoned: bool) -> str:
        """As its provider's. Raises RefusedError where it places no nodes."""
        provider = self._of(name)
        if not isinstance(provider, CordonsHosts):
            raise RefusedError(f"{name}: its provider places no nodes on machines")
        return provider.cordon_host(name, cordoned=cordoned)

    def forget(self, name: str) -> None:
        """As its provider's; then nobody's."""
        self._of(name).forget(name)
        self._of_node.pop(name, None)

    def observe(self, name: str) -> ObservedInstance:
        """As its provider's."""
        return self._of(name).observe(name)

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        """As its provider's."""
        return self._of(name).read_logs(name, lines=lines, after=after)

    def capacity(self, spec: NodeSpec) -> Capacity:
        """As its provider knows; none of one that this controller does not have."""
        provider = self._by_name.get(spec.provider)
        return (
            Capacity(0, f"this controller has no provider {spec.provider}")
            if provider is None
            else capacity_of(provider, spec)
        )

    def settings_of(self, spec: NodeSpec) -> Mapping[str, NodeSetting] | None:
        """As its provider knows."""
        provider = self._by_name.get(spec.provider)
        return None if provider is None else settings_of(provider, spec)

    def process_ids(self, name: str) -> list[int]:
        """Of a node whose processes are here; empty for others."""
        provider = self._of(name)
        return provider.process_ids(name) if isinstance(provider, HasProcesses) else []

    def _of(self, name: str) -> NodeProvider:
        kind = self._of_node.get(name, LOCAL)
        provider = self._by_name.get(kind)
        if provider is None:
            raise BadInputError(
                f"{name} is a node of provider {kind}, which this controller does not have",
                remedy="start it with the settings that the node was found or started with",
            )
        return provider
