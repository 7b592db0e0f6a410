"""What the controller itself knows of nodes, as series that rules and trees ask. Not known: no sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from alerts.labels import LabelSet
from alerts.promql import evaluate, parse
from alerts.sample import to_ms
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.changes import Change, Changes
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.gateways import GATEWAY_JOB, Gateways, address_of
from fleetctl.controller.nodes.node_row import RouteIntent
from fleetctl.kit.clock import Clock
from fleetctl.providers.provider import Sign
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase

PROCESS_UP = "fleet_node_process_up"
"""1: the provider sees its process run; 0: it is wanted, was started, and its process ended."""
EXIT_STATUS = "fleet_node_exit_status"
"""While its process is gone: exit code, or minus the signal that ended it."""
COMES_BACK = "fleet_node_comes_back"
"""While its process is gone: 1, who runs it starts it again by itself; 0, nobody does unasked."""
OUTPUT_OK = "fleet_node_output_ok"
"""The last deep check: 1 passed, 0 failed."""
PHASE = "fleet_node_phase"
"""1 for the phase that the node is in and the reason for it, a word of `REASONS`; others have no sample."""
MACHINE_PROBLEMS = "fleet_machine_problems"
"""1 for each problem that its platform tells of the machine under the node, with the kind that it is of; where it tells
of none one sample, 0, without either."""
REASONS_TOLD = "fleet_provider_reasons"
"""The same of what the platform says is wrong with the node itself: reasons and events of its pod."""
FAILURE_RATIO = "fleet_failure_low_ratio"
"""How many times the fleet's rate a node's host, or its SKU, is known to fail at least (docs/failures.md)."""
CHANGE = "fleet_change_timestamp_seconds"
"""Unix time of the last change of a kind; of a node, of a pool (no label node), or of the fleet (neither)."""
REASONS = frozenset({"loading", "warming_up", "asleep", "draining", "core_dead", "core_stuck", "wrong_output"})
"""What nodes say of themselves. Beside them: start_failed (its process ended before it was ever ready),
process_ended, no_answer, other; "" where the phase says all."""
LIMITS_EVERY_S = 5.0
_LIMITS = parse("llm:limit")

LABELS = ("node", "pool", "model", "engine", "zone", "revision")
_HELP = {
    PROCESS_UP: "1: the node's process runs; 0: it should and has ended.",
    EXIT_STATUS: "How the node's process ended: exit code, or minus the signal.",
    COMES_BACK: "Of a process that ended: 1, who runs it starts it again by itself; 0, nobody does unasked.",
    OUTPUT_OK: "The node's last deep check: 1 passed, 0 failed.",
    PHASE: "1 for the phase that the node is in, and the reason for it.",
    MACHINE_PROBLEMS: "1 for each problem of the machine under the node; 0 without problem and kind: none is told.",
    REASONS_TOLD: "1 for each thing that who runs the node says is wrong with it; 0 without reason and kind: none.",
    FAILURE_RATIO: "How many times the fleet's rate the node's host or SKU is known to fail at least.",
    CHANGE: "Unix time of the last change of a kind: of a node, a pool or the fleet.",
}
_MORE_LABELS = {
    PHASE: ("phase", "reason"),
    MACHINE_PROBLEMS: ("problem", "kind"),
    REASONS_TOLD: ("reason", "kind"),
    FAILURE_RATIO: ("by",),
    CHANGE: ("kind",),
}

_Pairs = tuple[tuple[str, str], ...]
_Of = NodeSpec | str | _Pairs
"""Whose series it is: a node's, a gateway's (its URL), or of these labels."""


class FleetSample(NamedTuple):
    """One value of one series. `more`: labels beside those of whose it is."""

    name: str
    of: _Of
    value: float
    more: _Pairs = ()


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
        changes: Changes | None = None,
    ) -> None:
        """A node not looked at for `stale_after_s` has no samples. `own`: the controller's gauges that rules ask; NaN
        has none either. `changes`: None, when nobody keeps them."""
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._own = own
        self._fleet = fleet
        self._gateways = gateways
        self._deep_checks = deep_checks
        self._store = store
        self._changes = changes
        self.more: Callable[[], Iterable[FleetSample]] = lambda: ()
        """What others know of nodes: given once they are there."""
        self._limits_read_at = -math.inf
        self._appender = store.appender()
        self._keys: list[tuple[str, _Of, _Pairs]] = []
        self._labels: tuple[LabelSet, ...] = ()  # of these keys: made anew only when they change

    async def record(self) -> None:
        """One sample of each, now."""
        now = self._clock.now()
        self._observe_changes(now)
        found = [*self.samples(), *(FleetSample(*one) for one in self._gateways.values())]
        own = [sample for gauge in self._own for family in gauge.collect() for sample in family.samples]
        found += [
            FleetSample(one.name, tuple(one.labels.items()), one.value) for one in own if not math.isnan(one.value)
        ]
        keys = [(one.name, one.of, one.more) for one in found]
        if keys != self._keys:
            self._keys = keys
            self._labels = tuple(
                LabelSet.of({"__name__": name, **_labels_of(of), **dict(more)}) for name, of, more in keys
            )
        self._appender.set_series(self._labels, lambda: self._labels)
        self._store.append_column(self._appender, to_ms(now), np.array([one.value for one in found]))

    def samples(self) -> Iterator[FleetSample]:
        """Values of nodes and of changes as they are now."""
        now = self._clock.now()
        for state in self._fleet.nodes.values():
            if state.row.wanted and now - self._fleet.seen_at(state.name) <= self._stale_after_s:
                yield from self._values(state, now)
        yield from self.more()
        if self._changes is not None:
            for change in self._changes.changes(now):
                yield _change_sample(change, self._changes.spec_of(change.node))

    def collect(self) -> Iterator[Metric]:
        """The same for whoever scrapes the controller: a Prometheus that evaluates our rules itself."""
        families = {
            name: GaugeMetricFamily(name, text, labels=[*LABELS, *_MORE_LABELS.get(name, ())])
            for name, text in _HELP.items()
        }
        for sample in self.samples():
            labels = {**_labels_of(sample.of), **dict(sample.more)}
            family = families[sample.name]
            family.add_metric(
                [labels.get(name, "") for name in (*LABELS, *_MORE_LABELS.get(sample.name, ()))], sample.value
            )
        yield from families.values()

    def _observe_changes(self, now: float) -> None:
        """Nodes at each turn; their limits, which come with scrapes, less often."""
        if self._changes is None:
            return
        self._changes.observe_nodes(self._fleet.nodes.values(), now)
        if now - self._limits_read_at < LIMITS_EVERY_S:
            return
        self._limits_read_at = now
        limits: dict[str, dict[str, float]] = {}
        for sample in evaluate(_LIMITS, self._store, now):
            if "node" in sample.labels and "limit" in sample.labels:
                limits.setdefault(sample.labels["node"], {})[sample.labels["limit"]] = sample.value
        self._changes.observe_limits(limits, now)

    def _values(self, state: NodeState, now: float) -> Iterator[FleetSample]:
        spec = state.row.spec
        if state.process_up is not None:
            yield FleetSample(PROCESS_UP, spec, float(state.process_up))
        if state.process_up is False and state.exit_status is not None:
            yield FleetSample(EXIT_STATUS, spec, float(state.exit_status))
        if state.process_up is False and state.comes_back is not None:
            yield FleetSample(COMES_BACK, spec, float(state.comes_back))
        if (is_right := self._deep_checks.is_right(state.name, now)) is not None:
            yield FleetSample(OUTPUT_OK, spec, float(is_right))
        yield FleetSample(PHASE, spec, 1.0, (("phase", state.phase.value), ("reason", reason_word(state))))
        yield from _signs(MACHINE_PROBLEMS, spec, "problem", state.machine_problems)
        if not state.row.is_restarting:  # what ends then ends by our own order
            yield from _signs(REASONS_TOLD, spec, "reason", state.reasons)


def _signs(name: str, spec: NodeSpec, word: str, signs: Sequence[Sign] | None) -> Iterator[FleetSample]:
    """Not told: no sample at all."""
    if signs is None:
        return
    for key in dict.fromkeys((one.word, one.kind.value) for one in signs):
        yield FleetSample(name, spec, 1.0, ((word, key[0]), ("kind", key[1])))
    if not signs:
        yield FleetSample(name, spec, 0.0)


def reason_word(state: NodeState) -> str:
    """Why the node is in its phase, in one word: what rules and questions can compare."""
    if state.process_up is False:
        return "process_ended" if state.was_ready or state.row.route is not RouteIntent.NONE else "start_failed"
    if state.reason in REASONS:
        return state.reason
    match state.phase:
        case NodePhase.UNREACHABLE:
            return "no_answer"
        case NodePhase.DRAINING:
            return "draining"
        case NodePhase.NOT_READY:
            return "other"
        case _:
            return ""


def _change_sample(change: Change, spec: NodeSpec | None) -> FleetSample:
    kind = (("kind", change.kind.value),)
    if spec is not None:
        return FleetSample(CHANGE, spec, change.at, kind)
    names = {"node": change.node, "pool": change.pool}
    return FleetSample(CHANGE, tuple((name, value) for name, value in names.items() if value), change.at, kind)


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
