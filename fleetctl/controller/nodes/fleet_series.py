"""What the controller itself knows of nodes, as series that rules and trees ask. Not known: no sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from alerts.labels import LabelSet
from alerts.sample import to_ms
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.gateways import GATEWAY_JOB, Gateways, address_of
from fleetctl.kit.clock import Clock
from fleetctl.providers.spec import NodeSpec

PROCESS_UP = "fleet_node_process_up"
"""1: the provider sees its process run; 0: it is wanted, was started, and its process ended."""
EXIT_STATUS = "fleet_node_exit_status"
"""While its process is gone: exit code, or minus the signal that ended it."""
OUTPUT_OK = "fleet_node_output_ok"
"""The last deep check: 1 passed, 0 failed."""

LABELS = ("node", "pool", "model", "engine", "zone", "revision")
_HELP = {
    PROCESS_UP: "1: the node's process runs; 0: it should and has ended.",
    EXIT_STATUS: "How the node's process ended: exit code, or minus the signal.",
    OUTPUT_OK: "The node's last deep check: 1 passed, 0 failed.",
}

_Of = NodeSpec | str | tuple[tuple[str, str], ...]
"""Whose series it is: a node's, a gateway's (its URL), or the controller's own, of these labels."""


class FleetSeries(Collector):
    """Writes the fleet's own series; one ends when its node is gone or the value is not known."""

    def __init__(
        self,
        fleet: Fleet,
        gateways: Gateways,
        deep_checks: DeepChecks,
        store: SeriesStore,
        clock: Clock,
        *,
        stale_after_s: float,
        own: Sequence[Gauge],
    ) -> None:
        """A node not looked at for `stale_after_s` has no samples. `own`: the controller's gauges that rules ask; NaN
        has none either."""
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._own = own
        self._fleet = fleet
        self._gateways = gateways
        self._deep_checks = deep_checks
        self._store = store
        self._appender = store.appender()
        self._keys: list[tuple[str, _Of]] = []
        self._labels: tuple[LabelSet, ...] = ()  # of these keys: made anew only when they change

    async def record(self) -> None:
        """One sample of each, now."""
        now = self._clock.now()
        found: list[tuple[str, _Of, float]] = [*self.samples(), *self._gateways.values()]
        own = [sample for gauge in self._own for family in gauge.collect() for sample in family.samples]
        found += [(one.name, tuple(one.labels.items()), one.value) for one in own if not math.isnan(one.value)]
        keys = [(name, of) for name, of, _ in found]
        if keys != self._keys:
            self._keys = keys
            self._labels = tuple(LabelSet.of({"__name__": name, **_labels_of(of)}) for name, of in keys)
        self._appender.set_series(self._labels, lambda: self._labels)
        self._store.append_column(self._appender, to_ms(now), np.array([value for _, _, value in found]))

    def samples(self) -> Iterator[tuple[str, NodeSpec, float]]:
        """Metric, node and value as they are now."""
        now = self._clock.now()
        for state in self._fleet.nodes.values():
            if state.row.wanted and now - self._fleet.seen_at(state.name) <= self._stale_after_s:
                for name, value in self._values(state, now):
                    yield name, state.row.spec, value

    def collect(self) -> Iterator[Metric]:
        """The same for whoever scrapes the controller: a Prometheus that evaluates our rules itself."""
        families = {name: GaugeMetricFamily(name, text, labels=LABELS) for name, text in _HELP.items()}
        for name, spec, value in self.samples():
            families[name].add_metric(list(node_labels(spec).values()), value)
        yield from families.values()

    def _values(self, state: NodeState, now: float) -> Iterator[tuple[str, float]]:
        if state.process_up is not None:
            yield PROCESS_UP, float(state.process_up)
        if state.process_up is False and state.exit_status is not None:
            yield EXIT_STATUS, float(state.exit_status)
        check = self._deep_checks.last(state.name)
        is_right = check.known(now, self._deep_checks.max_age_s) if check is not None else None
        if is_right is not None:
            yield OUTPUT_OK, float(is_right)


def _labels_of(of: _Of) -> dict[str, str]:
    if isinstance(of, tuple):
        return dict(of)
    return gateway_labels(of) if isinstance(of, str) else node_labels(of)


def node_labels(spec: NodeSpec) -> dict[str, str]:
    """The labels that a node's canonical series have."""
    return {
        "node": spec.name,
        "pool": spec.pool,
        "model": spec.model,
        "engine": spec.engine,
        "zone": spec.zone,
        "revision": spec.revision,
    }


def gateway_labels(url: str) -> dict[str, str]:
    """The labels that a scrape of this gateway has."""
    return {"job": GATEWAY_JOB, "instance": address_of(url)}
