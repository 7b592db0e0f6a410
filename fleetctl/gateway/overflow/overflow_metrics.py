"""What went out of the house, counted. Endpoints come from the settings: closed label sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

RESULTS = ("served", "refused", "failed", "client_gone", "no_budget", "budget_unknown", "not_expressible", "no_key")


class OverflowMetrics:
    """Counters and gauges `gateway_overflow_*`."""

    def __init__(self, registry: CollectorRegistry, endpoints: Iterable[str]) -> None:
        self.requests = Counter(
            "gateway_overflow_requests_total",
            "Requests that a rule of overflow fitted, by what became of them.",
            ["endpoint", "result"],
            registry=registry,
        )
        self.tokens = Counter(
            "gateway_overflow_tokens_total",
            "Tokens that endpoints counted, by kind: input, output, or unsettled (reserved, never told).",
            ["endpoint", "kind"],
            registry=registry,
        )
        self.cost = Counter(
            "gateway_overflow_cost_total",
            "What requests that went out cost, in the unit of the settings' prices.",
            ["endpoint"],
            registry=registry,
        )
        self.left = Gauge(
            "gateway_overflow_budget_left_ratio",
            "Share of the budget that is left, of tokens or money whichever is less; NaN while it is unknown.",
            ["endpoint", "window"],
            registry=registry,
        )
        for endpoint in endpoints:
            self.cost.labels(endpoint)
            for result in RESULTS:
                self.requests.labels(endpoint, result)
            for kind in ("input", "output", "unsettled"):
                self.tokens.labels(endpoint, kind)
            self.set_left(endpoint, {"hour": float("nan"), "day": float("nan")})

    def set_left(self, endpoint: str, ratios: Mapping[str, float]) -> None:
        """What is left of the endpoint's budget now."""
        for window, ratio in ratios.items():
            self.left.labels(endpoint, window).set(ratio)
