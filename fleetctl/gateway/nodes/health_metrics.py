"""What the gateway's judgement of nodes tells: ejections, trials, failing open, and retries that the budget refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from fleetctl.gateway.nodes.ejection import Ejection


class HealthMetrics:
    """Counters and gauges of node health, in the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.node_ejected = Gauge(
            "gateway_node_ejected",
            "1 for a node that gets no requests because it fails more, or is far slower, than its peers.",
            ["node", "reason"],
            registry=registry,
        )
        self.node_on_trial = Gauge(
            "gateway_node_on_trial", "1 for a node that gets few requests after an outage.", ["node"], registry=registry
        )
        self.ejections = Counter("gateway_ejections_total", "Ejections of nodes.", ["reason"], registry=registry)
        self.fail_open = Gauge(
            "gateway_fail_open",
            "1 for a model of which the controller sees no node well: requests go to any of them.",
            ["model"],
            registry=registry,
        )
        self.retries_refused = Counter(
            "gateway_retry_budget_exhausted_total",
            "Tries of another node that were left out because too many requests had one lately.",
            registry=registry,
        )
        self.poison = Counter(
            "gateway_poison_requests_total",
            "Requests that ended two nodes and got no third, and later ones with the same body.",
            ["result"],
            registry=registry,
        )
        for reason in Ejection:
            self.ejections.labels(reason.value)
        for result in ("found", "refused"):
            self.poison.labels(result)

    def set_gauges(
        self, *, ejected: Mapping[str, Ejection], on_trial: Collection[str], fail_open: Mapping[str, bool]
    ) -> None:
        """What is true now. `fail_open`: every model of the table."""
        for gauge in (self.node_ejected, self.node_on_trial, self.fail_open):
            gauge.clear()
        for node, why in ejected.items():
            self.node_ejected.labels(node, why.value).set(1)
        for node in on_trial:
            self.node_on_trial.labels(node).set(1)
        for model, is_open in fail_open.items():
            self.fail_open.labels(model).set(is_open)
