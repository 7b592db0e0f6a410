"""The gateway's own metrics, one registry per process. Closed label sets: outcomes, reasons, the fleet's nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
PAUSE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 7.5, 10, 15, 30)
MOVE_REASONS = (
    "cut",
    "node_silent",
    "core_stuck",
    "core_dead",
    "node_stopping",
    "out_of_memory",
    "engine_error",
    "node_error",
)
LOST_REASONS = (
    "node_silent",
    "core_stuck",
    "core_dead",
    "node_lost",
    "poison",
    "node_error",
    "engine_error",
    "node_stopping",
    "aborted",
    "out_of_memory",
    "exported",
    "not_continued",
    "moved_too_often",
    "first_byte_limit",
    "stream_idle",
    "deadline_exceeded",
    "queue_timeout",
    "shutting_down",
    "interrupted",
    "worker_died",
    "overflow_failed",
    "internal",
)
CONNECTION_ENDS = ("full", "address_full", "half_open", "head_timeout", "slow_client", "bodies_full")
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

ROUTING_TABLE, COUNTERS = "routing table", "counters"
"""What a gateway stores, as `gateway_store_failures_total` names it."""


class LoopCounter(Collector):
    """A counter that only the event loop adds to: a dict's item, where the library's takes a lock and four calls."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def add(self, *labels: str, by: float = 1) -> None:
        """Count one more, or so many, of these labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def collect(self) -> Iterator[Metric]:
        """The family as it is now."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value)
        yield family


class GatewayMetrics:
    """Counters and gauges named `gateway_*`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.ended = LoopCounter(
            "gateway_requests",
            "Requests that ended, by terminal state and the node that had them last.",
            ["outcome", "node"],
            self.registry,
        )
        self.lost = Counter(
            "gateway_lost_requests_total",
            "Requests whose client did not get the answer that it was owed (outcomes failed and gave_up), by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.probes = Counter(
            "gateway_probes_total",
            "Questions for the health of nodes from which a waiting request heard nothing.",
            ["result"],
            registry=self.registry,
        )
        self.node_out = Gauge(
            "gateway_node_silent",
            "1 for a node that gets no requests because it does not answer probes or says that its core is stuck.",
            ["node"],
            registry=self.registry,
        )
        self.oldest_wait = Gauge(
            "gateway_oldest_wait_seconds",
            "Age of the oldest request at a node of which the client got nothing yet; 0 without one.",
            ["node"],
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
        self.stream_moves = Counter(
            "gateway_stream_moves_total",
            "Streams whose node ended without a word: moved to another one, or failed; by how it ended, and whether the"
            " other one goes on with its tokens (exact) or only behind its text (by_text).",
            ["reason", "how", "result"],
            registry=self.registry,
        )
        self.stream_pause = Histogram(
            "gateway_stream_pause_seconds",
            "Pause that a client saw when its stream moved, from the last event of one node to the first of the next.",
            buckets=PAUSE_BUCKETS,
            registry=self.registry,
        )
        self.retries = Counter(
            "gateway_retries_total",
            "Tries that ended before the first byte and went to another node, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.asked_again = Counter(
            "gateway_asked_again_total",
            "Requests whose like, to the last byte, ended without its answer within the last minute.",
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
        self.connections_ended = Counter(
            "gateway_connections_ended_total",
            "Client connections that a limit ended or refused, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.receiving_body_bytes = Gauge(
            "gateway_receiving_body_bytes",
            "Bytes of request bodies that came and were not taken up yet, over all connections.",
            registry=self.registry,
        )
        self.store_failures = Counter(
            "gateway_store_failures_total",
            "State that could not be written, by what it is: it is kept in memory only.",
            ["what"],
            registry=self.registry,
        )
        for what in (ROUTING_TABLE, COUNTERS):
            self.store_failures.labels(what)
        for reason in CONNECTION_ENDS:
            self.connections_ended.labels(reason)
        for result in ("moved", "failed"):
            self.handoffs.labels(result)
            for reason in MOVE_REASONS:
                for how in ("exact", "by_text"):
                    self.stream_moves.labels(reason, how, result)
        for result in ("answered", "failed"):
            self.probes.labels(result)
        for reason in LOST_REASONS:
            self.lost.labels(reason)

    def count_probe(self, answered: bool) -> None:
        """Count one probe of a node."""
        self.probes.labels("answered" if answered else "failed").inc()

    def count_connection(self, reason: str) -> None:
        """Count a client's connection that a limit ended."""
        self.connections_ended.labels(reason).inc()

    def set_gauges(
        self,
        *,
        inflight: Mapping[str, int],
        silent: Collection[str],
        oldest_waits_s: Mapping[str, float],
        table_version: int | None,
        table_age_s: float | None,
    ) -> None:
        """What is true now.

        `silent`: nodes that get no requests. Every node of the table is in `inflight`.
        """
        for gauge in (self.inflight, self.node_out, self.oldest_wait):
            gauge.clear()
        for node, count in inflight.items():
            self.inflight.labels(node).set(count)
            self.node_out.labels(node).set(node in silent)
            self.oldest_wait.labels(node).set(oldest_waits_s.get(node, 0.0))
        self.table_version.set(_or_nan(table_version))
        self.table_age.set(_or_nan(table_age_s))


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
