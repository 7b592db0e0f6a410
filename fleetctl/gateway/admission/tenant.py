"""Who may use the fleet, and how much of it: tenants and the book of their keys, as the tenants file says."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from fleetctl.kit.api_key import digest_of
from fleetctl.priority_class import PriorityClass

ANONYMOUS = "anonymous"
"""The one tenant of a gateway without a tenants file."""
INDEX_BYTES = 4  # of a digest, for finding it: few enough that the time of the look-up tells nothing of a key


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may use over all gateways together. None: no limit of that kind."""

    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    requests_per_min: int | None = None
    concurrency: int | None = None  # requests admitted and not ended, those that wait in the queue too
    max_output_tokens: int | None = None  # of one request
    burst_s: float = 60.0  # so many seconds' worth of a rate may come at once after a pause

    @property
    def are_shared(self) -> bool:
        """Whether any of them holds over several requests, wherever they come in."""
        rates = (self.input_tokens_per_min, self.output_tokens_per_min, self.requests_per_min)
        return self.concurrency is not None or any(rate is not None for rate in rates)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `weight`: its share of the queue beside others of its class. `models`: patterns; empty: all."""

    name: str
    priority: PriorityClass = PriorityClass.STANDARD
    weight: float = 1.0
    models: tuple[str, ...] = ()
    limits: TenantLimits = field(default_factory=TenantLimits)

    def may_use(self, model: str | None) -> bool:
        """Whether it may use the model. A request that names none goes to any model, so it needs all of them."""
        if not self.models:
            return True
        return any(fnmatchcase(model or "", pattern) if model else pattern == "*" for pattern in self.models)


class TenantBook:
    """All tenants by name, and whose each key is. `names_by_digest`: SHA-256 of a key to the name of its tenant."""

    __slots__ = ("_keys", "names_by_digest", "tenants")

    def __init__(self, tenants: Mapping[str, Tenant], names_by_digest: Mapping[bytes, str]) -> None:
        self.tenants = tenants
        self.names_by_digest = names_by_digest
        self._keys: dict[bytes, list[tuple[bytes, Tenant]]] = {}
        for digest, name in names_by_digest.items():
            self._keys.setdefault(digest[:INDEX_BYTES], []).append((digest, tenants[name]))

    def tenant_of(self, key: bytes) -> Tenant | None:
        """The tenant whose key this is: found by the first bytes of the digest, the rest compared in constant time."""
        digest = digest_of(key)
        for known, tenant in self._keys.get(digest[:INDEX_BYTES], ()):
            if hmac.compare_digest(known, digest):
                return tenant
        return None
