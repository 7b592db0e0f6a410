"""Rollouts: orders of people, and the loop that moves each rollout on. Both store first; the pools loop does the rest.

A transition, what it wants of the pool, its traffic rules, its entry on the timeline and its row in the audit are one
transaction: a controller that is killed has done all of it or nothing, and the next one goes on from what is stored.
A little longer than others for that transaction, which orders and the loop share.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from fleetctl.controller.audit import AuditFacts, append_rows
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.freezes import Freezes
from fleetctl.controller.nodes.node_row import NodeRow, RouteIntent, list_nodes
from fleetctl.controller.nodes.pool_row import (
    PoolRow,
    get_pool,
    list_pools,
    list_revisions,
    want_revision,
)
from fleetctl.controller.nodes.revision import Revision
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.nodes.rule_row import delete_rule, get_rule, put_rule
from fleetctl.controller.records import Records
from fleetctl.controller.rollouts.evidence import EvidenceReader
from fleetctl.controller.rollouts.gate import GateReport, Tally, judge
from fleetctl.controller.rollouts.next_state import CONTROLLER, RolloutLimits, SeenPool, next_rollout
from fleetctl.controller.rollouts.orders import ordered
from fleetctl.controller.rollouts.rollout import Rollout, RolloutState, SeenNode, Wanted, wanted_of
from fleetctl.controller.rollouts.rollout_row import (
    earlier_revision,
    get_under_way,
    list_rollouts,
    list_under_way,
    put_rollout,
)
from fleetctl.controller.timeline import insert_event
from fleetctl.providers.provider import NodeSetting
from fleetctl.providers.spec import NodeSpec
from fleetctl.settings.rollouts import RolloutSettings
from fleetctl.traffic_rule import CanarySpec, RuleSpec, ShadowSpec, TrafficRule
from runbooks.node_setting import NodeSetting as TakenSetting
from runbooks.ports import (
    PermanentError,
    PoolOwner,
    Receipt,
    RevisionFacts,
    RolloutFacts,
    RolloutOrder,
)
from runbooks.restraint import freeze_text

ReadSettings = Callable[[NodeSpec], Mapping[str, NodeSetting] | None]
"""What nodes like one can be started with; None: nobody could say. May take a moment."""

ReadShadow = Callable[[str], Awaitable[tuple[float, float] | None]]
"""What gateways say of a shadow by its rule's id: answers that differ, of those compared; None: no gateway tells."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What bounds the exchange of a pool's nodes."""

    surge: int = 1
    floor_ratio: float = 0.6


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """A rollout, what is seen of its pool, and what it wants of it."""

    rollout: Rollout
    pool: PoolRow
    seen: SeenPool
    wanted: Wanted
    has_counted: bool = False  # the gate looked just now: what it counted is to be stored


class _Told(NamedTuple):
    """A transition's entry on the timeline, and its number there."""

    seq: int
    entry: dict[str, Any]


class Rollouts:
    """Owner of the stored rollouts. Threading: event loop only."""

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        routing: Routing,
        freezes: Freezes,
        evidence: EvidenceReader,
        read_shadow: ReadShadow,
        settings: RolloutSettings,
        pool_limits: PoolLimits,
        *,
        stale_after_s: float,
        read_settings: ReadSettings = lambda _: None,
    ) -> None:
        """`stale_after_s`: a node that was not looked at for so long is in an unknown state."""
        self._records = records
        self._database = records.database
        self._clock = records.clock
        self._fleet = fleet
        self._routing = routing
        self._freezes = freezes
        self._evidence = evidence
        self._read_shadow = read_shadow
        self._settings = settings
        self._pool_limits = pool_limits
        self._stale_after_s = stale_after_s
        self._read_settings = read_settings
        self._limits = RolloutLimits(
            settings.ready_within_s, settings.max_start_failures, settings.step_min_s, settings.step_limit_s
        )
        self._reports: dict[str, GateReport] = {}  # by rollout, as of the last look
        self._judged_at: dict[str, float] = {}
        self._stored: list[Rollout] | None = None  # as `history` read them, until something is stored
        self._num_stored = 0

    async def advance_rollouts(self) -> None:
        """One turn: judge each rollout under way, and store what follows."""
        statuses = await self.statuses()
        for status in statuses:
            await self._advance(await self._judged(status))
        self._tell_metrics(statuses)

    async def statuses(self) -> list[RolloutStatus]:
        """Every rollout under way, with its pool as it is now."""

        def work(connection: sa.Connection) -> tuple[list[Rollout], dict[str, PoolRow], list[NodeRow]]:
            under_way = list_under_way(connection)
            if not under_way:  # as in most seconds of most fleets
                return [], {}, []
            return under_way, {pool.name: pool for pool in list_pools(connection)}, list_nodes(connection)

        under_way, pools, rows = await self._database.read(work)
        return [self._status(rollout, pools.get(rollout.pool) or _gone(rollout), rows) for rollout in under_way]

    async def history(self, pool: str | None = None) -> list[Rollout]:
        """Rollouts, those under way too, the newest first. All of them are kept: open incidents ask each second."""
        if pool is not None:
            return await self._database.read(lambda c: list_rollouts(c, pool))
        if self._stored is not None:
            return self._stored
        num_stored = self._num_stored
        found = await self._database.read(list_rollouts)
        if num_stored == self._num_stored:
            self._stored = found
        return found

    def report_of(self, rollout: Rollout) -> GateReport | None:
        """The gate's last word on the present step; None: it did not look yet."""
        return self._reports.get(rollout.id)

    async def facts(self) -> RevisionFacts:
        """What plans need of revisions and rollouts."""

        def work(connection: sa.Connection) -> tuple[dict[str, Revision], dict[str, RolloutFacts]]:
            known = {row.revision.id: row.revision for row in list_revisions(connection)}
            under_way = {one.pool: one for one in list_under_way(connection)}
            surge = self._pool_limits.surge
            return known, {
                pool.name: _facts(connection, pool, under_way.get(pool.name), surge) for pool in list_pools(connection)
            }

        known, pools = await self._database.read(work)
        specs = {
            name: known[one.revision].spec("new", pool=name, zone="")
            for name, one in pools.items()
            if one.revision in known
        }
        takes = await asyncio.to_thread(lambda: {name: self._read_settings(spec) for name, spec in specs.items()})
        return RevisionFacts(
            frozenset(known),
            {
                name: replace(one, given=tuple(specs[name].options), takes=_settings(takes[name]))
                if name in specs
                else one
                for name, one in pools.items()
            },
        )

    async def order(self, order: RolloutOrder) -> Receipt:
        """Carry out an order. One that was carried out before changes nothing. Raises PermanentError."""
        now = self._clock.now()
        rows = await self._database.read(list_nodes)

        def work(connection: sa.Connection) -> tuple[Rollout, _Told | None]:
            pool = get_pool(connection, order.pool)
            if pool is None:
                raise PermanentError(f"there is no pool {order.pool}")
            standing = get_under_way(connection, order.pool)
            following = ordered(connection, order, pool, standing, now)
            if following is None:
                assert standing is not None
                return standing, None
            self._store(connection, following, pool, rows)
            kind = "started" if len(following.history) == 1 else following.state.value
            return following, self._tell(connection, following, kind)

        rollout, stored = await self._routing.publish_change(work)
        if stored is not None:
            self._note_stored()
            await self._told(rollout, stored)
        left = rollout.to_revision if rollout.state is RolloutState.ROLLING_BACK else rollout.from_revision
        told = f"{rollout.id}: {rollout.state.value.replace('_', ' ')}, {left} to {rollout.target}"
        return {
            "rollout": rollout.id,
            "state": rollout.state.value,
            "revision": rollout.to_revision,
            "told": f"{told}; it goes on by itself: fleetctl rollout status {rollout.pool}",
        }

    def _status(self, rollout: Rollout, pool: PoolRow, rows: Sequence[NodeRow]) -> RolloutStatus:
        now = self._clock.now()
        mine = [row for row in rows if row.spec.pool == pool.name and row.wanted]
        nodes = tuple(self._seen(row, now) for row in mine)
        new = {row.name for row in mine if row.spec.revision == rollout.to_revision}
        failing = pool.backoff if pool.backoff is not None and pool.backoff.node in new else None
        seen = SeenPool(
            pool.wanted_size,
            nodes,
            failing.failures if failing else 0,
            failing.error if failing else "",
            self._frozen(rollout),
            self._reports.get(rollout.id),
        )
        return RolloutStatus(rollout, pool, seen, self._wanted(rollout, pool, nodes))

    def _wanted(self, rollout: Rollout, pool: PoolRow, nodes: Sequence[SeenNode]) -> Wanted:
        limits = self._pool_limits
        wanted = wanted_of(rollout, pool.wanted_size, nodes, surge=limits.surge, floor_ratio=limits.floor_ratio)
        if rollout.override and not rollout.state.is_end and not wanted.goes_on_frozen and not self._frozen(rollout):
            wanted = replace(wanted, goes_on_frozen=rollout.override)
        return wanted

    def _seen(self, row: NodeRow, now: float) -> SeenNode:
        state = self._fleet.nodes.get(row.name)
        was_ready = row.route is not RouteIntent.NONE or (state is not None and state.was_ready)
        return SeenNode(
            row.name,
            row.spec.revision,
            is_known=state is not None and now - self._fleet.seen_at(row.name) <= self._stale_after_s,
            is_ready=state is not None and state.is_serving,
            was_ready=was_ready,
            has_died=was_ready and state is not None and state.process_up is False and not row.is_restarting,
            age_s=now - row.created_at,
        )

    def _frozen(self, rollout: Rollout) -> str:
        """What holds the rollout; empty: nothing. A person's override is for what was frozen before it."""
        for freeze in self._freezes.in_force:
            is_overridden = bool(rollout.override) and freeze.made_at <= rollout.override_at
            if freeze.pool in (None, rollout.pool) and not is_overridden:
                return freeze_text(freeze)
        return ""

    async def _judged(self, status: RolloutStatus) -> RolloutStatus:
        """The status with the gate's word of now, where it is due."""
        rollout, now = status.rollout, self._clock.now()
        due = self._judged_at.get(rollout.id, -math.inf) + self._settings.judge_every_s
        is_judged = rollout.is_gated and rollout.state is not RolloutState.ROLLING_BACK
        new = [node.name for node in status.seen.nodes if node.is_ready and node.revision == rollout.to_revision]
        if not is_judged or not new or 0 <= due - now <= self._settings.judge_every_s:
            return status
        old = [node.name for node in status.seen.nodes if node.is_ready and node.revision != rollout.to_revision]
        told = await self._read_shadow(rollout.shadow_id) if rollout.shadow_share else None
        look = self._evidence.look(rollout, new, old, Tally(*told) if told is not None else None, now)
        alpha = self._settings.fail_error_ratio
        report = judge(look.evidence, look.asked, look.unknown, alpha=alpha, beta=self._settings.pass_error_ratio)
        self._reports[rollout.id], self._judged_at[rollout.id] = report, now
        judged = replace(rollout, evidence=look.stored)
        return replace(status, rollout=judged, seen=replace(status.seen, report=report), has_counted=True)

    async def _advance(self, status: RolloutStatus) -> None:
        """Store what follows from the status, if anything does."""
        rollout, now = status.rollout, self._clock.now()
        if not status.pool.wanted_size and not status.seen.nodes:
            why = "its pool has no nodes any more"
            following: Rollout | None = rollout.moved(RolloutState.FAILED, at=now, by=CONTROLLER, why=why)
        else:
            following = next_rollout(rollout, status.seen, status.wanted, self._limits, now)
        is_transition = following is not None and len(following.history) != len(rollout.history)
        target = following or rollout
        wanted = self._wanted(target, status.pool, status.seen.nodes) if following else status.wanted
        if following is None and not self._differs(rollout, status.pool, wanted) and not status.has_counted:
            return
        rows = await self._database.read(list_nodes)

        def work(connection: sa.Connection) -> tuple[bool, _Told | None]:
            standing, pool = get_under_way(connection, rollout.pool), get_pool(connection, rollout.pool)
            if standing is None or standing.id != rollout.id or standing.history != rollout.history:
                return False, None  # a person's order came meanwhile
            self._store(connection, target, pool or status.pool, rows)
            if not is_transition:
                return True, None
            kind = "step" if target.step != rollout.step else target.state.value
            audited = AuditFacts(now, CONTROLLER, f"rollout.{kind}", f"rollout/{target.pool}", target.why, "done")
            append_rows(connection, [audited])
            return True, self._tell(connection, target, kind)

        if self._differs(target, status.pool, wanted) or is_transition:
            is_stored, told = await self._routing.publish_change(work)
        else:
            is_stored, told = await self._database.write(work)
        if is_stored:
            self._note_stored()
        if told is not None:
            await self._told(target, told)

    def _note_stored(self) -> None:
        self._stored = None
        self._num_stored += 1

    def _forget(self, rollout: Rollout) -> None:
        """What the gate said is of a step that is over."""
        if not rollout.evidence or rollout.state.is_end:
            self._reports.pop(rollout.id, None)
            self._judged_at.pop(rollout.id, None)

    def _differs(self, rollout: Rollout, pool: PoolRow, wanted: Wanted) -> bool:
        """Whether pool or traffic rules are not as wanted."""
        is_same = (pool.num_current, pool.stable_revision, pool.num_stable, pool.override) == (
            wanted.num_current,
            *wanted.stable,
            wanted.goes_on_frozen,
        )
        known = {rule.id: rule.spec for rule in self._routing.table.rules}
        specs = _specs(rollout, pool, wanted)
        return (
            not is_same
            or pool.revision != wanted.revision
            or any(known.get(rule_id) != spec for rule_id, spec in specs.items())
        )

    def _store(self, connection: sa.Connection, rollout: Rollout, pool: PoolRow, rows: Sequence[NodeRow]) -> None:
        """The rollout, and what it wants of its pool and of traffic: one transaction."""
        now = self._clock.now()
        nodes = [self._seen(row, now) for row in rows if row.spec.pool == pool.name and row.wanted]
        put_rollout(connection, rollout)
        wanted = self._wanted(rollout, pool, nodes)
        if wanted.revision:
            want_revision(
                connection,
                pool.name,
                wanted.revision,
                wanted.num_current,
                rollout.id,
                now,
                stable=wanted.stable,
                override=wanted.goes_on_frozen,
            )
        for rule_id, spec in _specs(rollout, pool, wanted).items():
            standing = get_rule(connection, rule_id)
            if spec is None:
                delete_rule(connection, rule_id)
            elif standing is None or standing.spec != spec:
                reason = f"{rollout.id}: {rollout.state.value.replace('_', ' ')}"
                put_rule(connection, TrafficRule(id=rule_id, spec=spec, made_by=CONTROLLER, made_at=now, reason=reason))

    def _tell(self, connection: sa.Connection, rollout: Rollout, kind: str) -> _Told:
        """Put a transition on the timeline."""
        share = "" if rollout.state.is_end or rollout.back_to else f" at {rollout.share * 100:.3g}%"
        text = (
            f"{rollout.id} of pool {rollout.pool}, {rollout.from_revision} to {rollout.to_revision}:"
            f" {rollout.state.value.replace('_', ' ')}{share}, by {rollout.updated_by}: {rollout.why}"
        )
        facts: dict[str, Any] = {
            "rollout": rollout.id,
            "pool": rollout.pool,
            "from": rollout.from_revision,
            "to": rollout.to_revision,
        }
        entry = self._records.timeline.entry(f"rollout.{kind}", text, data=facts)
        return _Told(insert_event(connection, entry), entry)

    async def _told(self, rollout: Rollout, told: _Told) -> None:
        """What follows once a transition is stored."""
        self._forget(rollout)
        await self._records.timeline.announce(told.seq, told.entry)
        if rollout.state.is_end:
            self._records.metrics.rollouts.labels(result=rollout.state.value).inc()

    def _tell_metrics(self, statuses: Sequence[RolloutStatus]) -> None:
        now = self._clock.now()
        self._records.metrics.tell_rollouts(
            {
                one.rollout.pool: (
                    one.rollout.state.value,
                    one.rollout.share,
                    one.rollout.needs_person,
                    max(0.0, now - one.rollout.updated_at),
                )
                for one in statuses
            }
        )


def _gone(rollout: Rollout) -> PoolRow:
    """A pool that has no nodes any more."""
    return PoolRow(rollout.pool, "", 0, "", 0, PoolOwner.PERSON, None, 0.0, "")


def _facts(connection: sa.Connection, pool: PoolRow, rollout: Rollout | None, surge: int) -> RolloutFacts:
    if rollout is None:
        return RolloutFacts(pool.revision, earlier_revision(connection, pool.name, pool.revision))
    return RolloutFacts(
        revision=pool.revision,
        earlier=rollout.from_revision,
        state=rollout.state.value,
        steps=rollout.steps,
        step=rollout.step,
        to=rollout.to_revision,
        size=pool.wanted_size,
        surge=surge,
    )


def _settings(known: Mapping[str, NodeSetting] | None) -> dict[str, TakenSetting] | None:
    return None if known is None else {name: TakenSetting(*astuple(one)) for name, one in known.items()}


def _specs(rollout: Rollout, pool: PoolRow, wanted: Wanted) -> dict[str, RuleSpec | None]:
    """The traffic rules of a rollout by id; None: there is to be none."""
    model = pool.model or None
    canary = shadow = None
    if wanted.share is not None:
        canary = CanarySpec(model=model, revisions={rollout.to_revision: round(wanted.share, 4)})
    if wanted.shadow is not None:
        shadow = ShadowSpec(model=model, revision=rollout.to_revision, share=wanted.shadow)
    return {rollout.rule_id: canary, rollout.shadow_id: shadow}
