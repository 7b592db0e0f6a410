"""Which requests are turned away by order of the controller: a pure look at the orders in force."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetctl.gateway.admission.tenant import Tenant
from fleetctl.priority_class import PriorityClass
from fleetctl.traffic_rule import ShedSpec, TrafficRule

_HASHES = 2**32
MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class ShedOrder:
    """One order. Sheds `share` of the requests of classes less important than `below`, of `tenants` (empty: of all).

    Times in Unix seconds.
    """

    id: str
    below: PriorityClass
    expires_at: float
    share: float = 1.0
    tenants: frozenset[str] = frozenset()

    def sheds(self, tenant: Tenant, request_id: str) -> bool:
        """Whether it turns this request away. The same id gets the same answer at every gateway."""
        if tenant.priority.rank <= self.below.rank or (self.tenants and tenant.name not in self.tenants):
            return False
        return self.share >= 1.0 or zlib.crc32(request_id.encode()) < self.share * _HASHES


def shed_orders(rules: Iterable[TrafficRule]) -> tuple[ShedOrder, ...]:
    """The orders to shed among the traffic rules of a routing table."""
    return tuple(
        ShedOrder(
            rule.id,
            rule.spec.below,
            math.inf if rule.expires_at is None else rule.expires_at,
            1.0 if rule.spec.share is None else rule.spec.share,
            frozenset(rule.spec.tenants),
        )
        for rule in rules
        if isinstance(rule.spec, ShedSpec)
    )


def shed_by(orders: Sequence[ShedOrder], tenant: Tenant, request_id: str, now: float) -> ShedOrder | None:
    """The order that turns the request away; None: it goes on. An order that has expired turns nobody away."""
    for order in orders:
        if now < order.expires_at and order.sheds(tenant, request_id):
            return order
    return None


def shed_retry_after_s(order: ShedOrder, now: float) -> int:
    """Seconds after which to come again: when the order ends, at most a minute."""
    return int(max(1.0, min(MAX_RETRY_AFTER_S, order.expires_at - now)))
