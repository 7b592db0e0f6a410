"""The record of failures: looks at every node, stores what fails where, and says who fails more than their share."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

import structlog

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.controller.database import StorageLostError
from fleetctl.controller.failures.failure_store import (
    extend_stints,
    list_failures,
    list_standing,
    list_stints,
    store_changes,
)
from fleetctl.controller.failures.failure_watch import (
    Changes,
    FailureRecord,
    FailureWatch,
    Placement,
    Seen,
    Stint,
)
from fleetctl.controller.failures.lemon import Exposure, Lemon, Standing, judge
from fleetctl.controller.failures.signs import SERIES, Told, signs_of
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.fleet_series import FAILURE_RATIO, FleetSample
from fleetctl.controller.records import Records
from fleetctl.controller.signals.node_groups import NodeGroups
from fleetctl.wire.failure import Failure, FailureGroup, FailureKind, FailuresBy
from fleetctl.wire.node import NodePhase

log = structlog.get_logger()

STORE_EVERY_S = 60.0  # watched time; failures are stored at once
LEMONS_FRESH_FOR_S = 60.0  # an incident's view is asked for each second
RATIOS_OVER_S = 30 * 86_400.0
MAX_PENDING = 1000  # looks whose changes could not be stored
COMMON_CAUSE_NODES = 3  # and more than half of the fleet, at once: that is the way to them, not they
_TOLD_BY = (FailuresBy.HOST, FailuresBy.SKU)
AT_RISK = frozenset({NodePhase.READY, NodePhase.CORDONED, NodePhase.DRAINING, NodePhase.DRAINED, NodePhase.STARTING})


class Failures:
    """Owner of the failures that stand; everything older is in the database."""

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        groups: NodeGroups,
        deep_checks: DeepChecks,
        store: SeriesStore,
        watch: FailureWatch,
        *,
        this_host: str,
        stale_after_s: float,
    ) -> None:
        """`this_host`: where local nodes are; `stale_after_s`: a node that was not looked at for so long is unknown."""
        self._database = records.database
        self._timeline = records.timeline
        self._metrics = records.metrics
        self._clock = records.clock
        self._fleet = fleet
        self._groups = groups
        self._deep_checks = deep_checks
        self._store = store
        self._watch = watch
        self._this_host = this_host
        self._stale_after_s = stale_after_s
        self._pending: list[Changes] = []
        self._stored_at = -math.inf
        self._ratios: dict[FailuresBy, dict[str, float]] = {}  # of the groups that something is known of
        self._lemons: dict[FailuresBy, tuple[float, dict[str, str]]] = {}  # when they were counted, and their words

    @classmethod
    async def opened(
        cls,
        records: Records,
        fleet: Fleet,
        groups: NodeGroups,
        deep_checks: DeepChecks,
        store: SeriesStore,
        *,
        this_host: str,
        stale_after_s: float,
    ) -> Failures:
        """With the failures that stood when the controller ended."""
        standing = await records.database.read(list_standing)
        watch = FailureWatch(lambda: f"failure-{secrets.token_hex(8)}", standing, records.clock.now())
        return cls(records, fleet, groups, deep_checks, store, watch, this_host=this_host, stale_after_s=stale_after_s)

    async def look(self) -> None:
        """One look at all nodes. What can't be stored now is stored with a later one."""
        now = self._clock.now()
        wanted = [state for state in self._fleet.nodes.values() if state.row.wanted]
        unknown = {one.name for one in wanted if now - self._fleet.seen_at(one.name) > self._stale_after_s}
        seen = self._seen([one for one in wanted if one.name not in unknown], now)
        changes = self._watch.look(seen, now, unknown)
        if changes != Changes():
            self._pending = [*self._pending, changes][-MAX_PENDING:]
        for one in changes.begun:
            self._metrics.node_failures.labels(kind=one.kind.value).inc()
        is_due = now - self._stored_at >= STORE_EVERY_S
        if not self._pending and not is_due:
            return
        pending, stints = list(self._pending), [one.id for one in self._watch.stints.values()]
        nodes = {one.place.node for change in pending for one in change.begun}
        incidents = {name: self._fleet.incident_of(name) for name in nodes}
        try:
            await self._database.write(lambda c: store_changes(c, pending, incidents, now))
            if is_due:
                await self._database.write(lambda c: extend_stints(c, stints, now))
                self._stored_at = now
        except StorageLostError:  # told by the database
            return
        self._pending = self._pending[len(pending) :]
        for one in changes.begun:
            log.info("node.failure", node=one.place.node, kind=one.kind.value, host=one.place.host, reason=one.reason)

    async def failures(self, since: float) -> list[Failure]:
        """Those that began since then, or stand, the newest first."""
        found = await self._database.read(lambda c: list_failures(c, since))
        return [failure_view(one, incident) for one, incident in reversed(found)]

    async def groups(self, by: FailuresBy, since: float) -> list[FailureGroup]:
        """Every group that was watched or failed since then, the worst first."""
        records, stints = await self._database.read(lambda c: (list_failures(c, since), list_stints(c, since)))
        known = [one for one, _ in records if one.at >= since]
        return await asyncio.to_thread(failure_groups, by, known, stints)  # a second, for a thousand nodes

    async def offence(self, node: str, since: float) -> str:
        """What the record says of the node's host, or of the node where nobody knows the host, if it is a lemon."""
        state, now = self._fleet.nodes.get(node), self._clock.now()
        if state is None:
            return ""
        place = self._place(state, {})
        by, name = (FailuresBy.HOST, place.host) if place.host else (FailuresBy.NODE, node)
        told = self._lemons.get(by)
        if told is None or not 0 <= now - told[0] < LEMONS_FRESH_FOR_S:
            found = {one.name: offence_words(one) for one in await self.groups(by, since) if one.standing == "lemon"}
            told = self._lemons[by] = now, found
        return told[1].get(name, "")

    async def count(self) -> None:
        """Count who fails how often: what `ratio_series` tells until the next count."""
        now = self._clock.now()
        ratios = {}
        for by in _TOLD_BY:
            groups = await self.groups(by, now - RATIOS_OVER_S)
            ratios[by] = {one.name: known for one in groups if (known := surely_at_least(one)) is not None}
        self._ratios = ratios

    def ratio_series(self) -> Iterator[FleetSample]:
        """Of each node that is looked at, what its host and its SKU are known to fail at least, as times the fleet's
        rate. No sample: nobody knows."""
        for state in self._fleet.nodes.values() if self._ratios else ():
            if state.row.wanted:
                place = self._place(state, {})
                for by, ratios in self._ratios.items():
                    if (ratio := ratios.get(name_in(by, place))) is not None:
                        yield FleetSample(FAILURE_RATIO, state.row.spec, ratio, (("by", by.value),))

    def _seen(self, states: Sequence[NodeState], now: float) -> list[Seen]:
        cards = self._groups.cards()
        skus = {card.node: card.card for card in cards.all if card.card}
        series = self._series(now)
        found = []
        for state in states:
            name = state.name
            right = self._deep_checks.is_right(name, now)
            signs = signs_of(state, Told(right, series.get(name, {}), cards.of_node.get(name, ())), now)
            place, instance = self._place(state, skus), state.instance or ""
            found.append(Seen(place, signs, instance, is_at_risk=state.phase in AT_RISK))
        return without_common_cause(found)

    def _series(self, now: float) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for name in SERIES:
            for sample in evaluate(name, self._store, now):
                node = sample.labels.get("node")
                if node and math.isfinite(sample.value) and now - sample.at <= self._stale_after_s:
                    found.setdefault(node, {})[name] = sample.value
        return found

    def _place(self, state: NodeState, skus: Mapping[str, str]) -> Placement:
        spec, facts = state.row.spec, state.row.spec.facts
        return Placement(
            spec.name,
            facts.get("host") or (self._this_host if spec.provider == "local" else ""),
            facts.get("sku") or facts.get("gpu") or skus.get(spec.name, ""),
            spec.zone,
            spec.pool,
            spec.model,
            spec.revision,
        )


def without_common_cause(seen: Sequence[Seen]) -> list[Seen]:
    """When most of the fleet gives no answer at once, no node is to blame for it."""
    silent = sum(FailureKind.UNREACHABLE in one.signs for one in seen)
    if silent < COMMON_CAUSE_NODES or 2 * silent <= len(seen):
        return list(seen)
    return [
        replace(one, signs={kind: why for kind, why in one.signs.items() if kind is not FailureKind.UNREACHABLE})
        for one in seen
    ]


def name_in(by: FailuresBy, place: Placement) -> str:
    """The group that a place is in; empty where that is not known."""
    if by is FailuresBy.WORKLOAD:
        return "/".join(part or "-" for part in (place.model, place.pool, place.revision))
    name: str = getattr(place, by.value)
    return name


def failure_groups(by: FailuresBy, records: Iterable[FailureRecord], stints: Iterable[Stint]) -> list[FailureGroup]:
    """Counts, rates and how they compare; lemons first, then by the lower end of what their ratio may be. Pure."""
    hours: dict[str, float] = {}
    nodes: dict[str, set[str]] = {}
    episodes: dict[str, set[str]] = {}
    kinds: dict[str, Counter[FailureKind]] = {}
    for stint in stints:
        name = name_in(by, stint.place)
        hours[name] = hours.get(name, 0.0) + max(0.0, stint.until - stint.since) / 3600
        nodes.setdefault(name, set()).add(stint.place.node)
    for record in records:
        name = name_in(by, record.place)
        nodes.setdefault(name, set()).add(record.place.node)
        episodes.setdefault(name, set()).add(record.episode)
        kinds.setdefault(name, Counter())[record.kind] += 1
    # Who they are is not known of those without a name: they are no group, and nothing to compare others with.
    named = sorted(name for name in nodes if name)
    exposures = [Exposure(hours.get(name, 0.0), len(episodes.get(name, ()))) for name in named]
    judged = dict(zip(named, judge(exposures), strict=True))
    found = [
        _group_view(
            by, name, len(own), hours.get(name, 0.0), len(episodes.get(name, ())), kinds.get(name), judged.get(name)
        )
        for name, own in nodes.items()
    ]
    return sorted(found, key=lambda one: (one.standing != "lemon", -(one.ratio_low or 0.0), one.name))


def _group_view(
    by: FailuresBy,
    name: str,
    nodes: int,
    hours: float,
    failures: int,
    kinds: Counter[FailureKind] | None,
    judged: Lemon | None,
) -> FailureGroup:
    judged = judged or Lemon(Standing.UNKNOWN, why=f"nobody says which {by.value} it is")
    return FailureGroup(
        by=by,
        name=name,
        nodes=nodes,
        node_hours=hours,
        failures=failures,
        kinds=dict((kinds or Counter()).most_common()),
        per_1000_node_hours=1000 * failures / hours if hours > 0 else None,
        ratio=judged.ratio,
        ratio_low=judged.low,
        ratio_high=judged.high,
        standing=judged.standing.value,
        why=judged.why,
    )


def surely_at_least(group: FailureGroup) -> float | None:
    """The lower end of a lemon's ratio, at most 1 of an ordinary one; None: its standing is not known."""
    if group.ratio_low is None or group.standing == Standing.UNKNOWN.value:
        return None
    return group.ratio_low if group.standing == Standing.LEMON.value else min(1.0, group.ratio_low)


def offence_words(group: FailureGroup) -> str:
    """A lemon in a sentence."""
    what = ", ".join(f"{kind.value} {count}" for kind, count in group.kinds.items())
    return (
        f"{group.by.value} {group.name} failed {group.failures} times in {group.node_hours:.0f} node-hours ({what}):"
        f" {group.ratio:.1f} times the fleet's rate ({group.ratio_low:.1f} to {group.ratio_high:.1f})"
    )


def failure_view(one: FailureRecord, incident_id: str | None) -> Failure:
    """A failure for the API."""
    return Failure(
        id=one.id,
        episode=one.episode,
        kind=one.kind,
        at=one.at,
        ended_at=one.ended_at,
        reason=one.reason,
        instance=one.instance,
        incident_id=incident_id,
        **asdict(one.place),
    )
