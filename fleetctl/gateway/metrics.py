"""The gateway's own metrics, one registry per process. Closed label sets: outcomes, reasons, the fleet's nodes."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayMetrics:
    """Counters and gauges named `gateway_*`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ended: dict[tuple[str, str], Counter] = {}
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "gateway_requests_total",
            "Requests that ended, by terminal state and the node that had them last.",
            ["outcome", "node"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "gateway_ttft_seconds",
            "From a streamed request's arrival to its first event sent to the client.",
            buckets=TTFT_BUCKETS,
            registry=self.registry,
        )
        self.inflight = Gauge(
            "gateway_inflight_requests", "Requests now held by a node.", ["node"], registry=self.registry
        )
        self.handoffs = Counter(
            "gateway_handoffs_total",
            "Hand-offs of drained nodes: moved, or failed when no node could continue.",
            ["result"],
            registry=self.registry,
        )
        self.retries = Counter(
            "gateway_retries_total",
            "Tries that ended before the first byte and went to another node, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.table_version = Gauge(
            "gateway_table_version", "Version of the routing table in use; NaN without a table.", registry=self.registry
        )
        self.table_age = Gauge(
            "gateway_table_age_seconds",
            "Since the controller last confirmed the routing table; NaN without a table.",
            registry=self.registry,
        )
        for result in ("moved", "failed"):
            self.handoffs.labels(result)

    def count_ended(self, outcome: str, node: str) -> None:
        """Count an ended request. Label look-ups take a lock, so the few children are kept."""
        child = self._ended.get((outcome, node))
        if child is None:
            child = self._ended[outcome, node] = self.requests.labels(outcome, node)
        child.inc()

    def exposition(self, *, inflight: Mapping[str, int], table_version: int | None, table_age_s: float | None) -> bytes:
        """The Prometheus text. Gauges are what is true now: they are given, not kept up on the way of each request."""
        self.inflight.clear()
        for node, count in inflight.items():
            self.inflight.labels(node).set(count)
        self.table_version.set(_or_nan(table_version))
        self.table_age.set(_or_nan(table_age_s))
        return generate_latest(self.registry)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
