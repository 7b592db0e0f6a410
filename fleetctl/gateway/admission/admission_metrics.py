"""Admission's metrics, made from its counts when somebody scrapes: the way of a request pays for no label.

Tenant names come from the tenants file only; beyond `MAX_TENANT_LABELS` they share the label `other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleetctl.gateway.admission.admission import Admission
from fleetctl.gateway.admission.tenant_account import TenantAccount
from fleetctl.priority_class import PriorityClass

MAX_TENANT_LABELS = 200
OTHER = "other"
WAIT_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class AdmissionMetrics(Collector):
    """`gateway_tenant_*`, `gateway_queue_*`, and whether the tenants file was read."""

    def __init__(self, admission: Admission, registry: CollectorRegistry) -> None:
        self._admission = admission
        waits = Histogram(
            "gateway_queue_wait_seconds",
            "Waits at the gateway for a node with a free seat, of those that had to wait, by class.",
            ["class"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        children = {priority: waits.labels(priority.value) for priority in PriorityClass}
        admission.queue_waits_s = lambda priority, wait_s: children[priority].observe(wait_s)
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        yield from self._tenants()
        yield from self._queue()
        yield from self._files()

    def _tenants(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "gateway_tenant_requests",
            "Requests by tenant: admitted, or the limit that refused them.",
            labels=["tenant", "result"],
        )
        tokens = CounterMetricFamily(
            "gateway_tenant_tokens", "Tokens that ended requests used, by tenant.", labels=["tenant", "kind"]
        )
        running = GaugeMetricFamily(
            "gateway_tenant_running_requests", "Requests admitted and not ended, by tenant.", labels=["tenant"]
        )
        for name, accounts in _by_label(self._admission.accounts).items():
            results: dict[str, int] = {}
            for account in accounts:
                for result, count in account.counts.items():
                    results[str(result)] = results.get(str(result), 0) + count
            for result, count in results.items():
                requests.add_metric([name, result], count)
            for position, kind in enumerate(("input", "output")):
                tokens.add_metric([name, kind], sum(account.tokens[position] for account in accounts))
            running.add_metric([name], sum(account.running for account in accounts))
        yield from (requests, tokens, running)

    def _queue(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "gateway_queue_requests", "Requests that wait at the gateway for a node with a free seat.", labels=["class"]
        )
        for priority, count in self._admission.queue.counts().items():
            waiting.add_metric([priority.value], count)
        oldest = max((lane[4] for lane in self._admission.queue.lanes()), default=0.0)
        yield waiting
        yield GaugeMetricFamily(
            "gateway_queue_oldest_wait_seconds", "Age of the oldest of them; 0 without one.", oldest
        )

    def _files(self) -> Iterator[Metric]:
        admission = self._admission
        keys = CounterMetricFamily(
            "gateway_unauthenticated_requests",
            "Requests answered 401: without a key (missing), or with one that nobody has (unknown).",
            labels=["reason"],
        )
        keys.add_metric(["missing"], admission.num_without_key)
        keys.add_metric(["unknown"], admission.num_unknown_keys)
        reloads = CounterMetricFamily(
            "gateway_tenants_reloads", "Reads of a changed tenants file: loaded, or failed.", labels=["result"]
        )
        for result, count in admission.num_reloads.items():
            reloads.add_metric([result], count)
        yield from (keys, reloads)
        yield GaugeMetricFamily(
            "gateway_tenants_reload_failed",
            "1 while the tenants file can't be used as it is and the one before is in force.",
            float(admission.reload_has_failed),
        )
        shedding = GaugeMetricFamily(
            "gateway_shed_orders",
            "Orders in force that turn requests of classes below this one away.",
            labels=["below"],
        )
        now = admission.now()
        for priority in PriorityClass:
            orders = [one for one in admission.orders if one.below is priority and now < one.expires_at]
            shedding.add_metric([priority.value], len(orders))
        yield shedding


def _by_label(accounts: dict[str, TenantAccount]) -> dict[str, list[TenantAccount]]:
    """The accounts by their label: of the first names their own, of the rest one for all."""
    found: dict[str, list[TenantAccount]] = {}
    for number, name in enumerate(sorted(accounts)):
        found.setdefault(name if number < MAX_TENANT_LABELS else OTHER, []).append(accounts[name])
    return found
