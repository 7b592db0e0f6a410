"""Pools as they stand, and the one loop that brings each of them to what is wanted of it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.freezes import Freezes
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent, list_nodes, want_node
from fleetctl.controller.nodes.pool_plan import (
    PoolLimits,
    PoolNode,
    PoolPlan,
    PoolStep,
    StepKind,
    WantedPool,
    plan_pool,
)
from fleetctl.controller.nodes.pool_row import (
    PoolRow,
    RevisionRow,
    StartBackoff,
    get_revision,
    list_pools,
    list_revisions,
    store_backoff,
)
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.provider import NodeProvider, capacity_of
from fleetctl.settings.controller import ActionSettings
from fleetctl.wire.pool import Pool, PoolState, Revision
from runbooks.errors import RunbookError
from runbooks.restraint import freeze_text
from runbooks.run import Run, RunStatus
from runbooks.target import Target, TargetKind
from runbooks.verbs.scale import free_names

log = structlog.get_logger()

ActiveRuns = Callable[[], Awaitable[Sequence[Run]]]
"""The runs that are approved and not at their end."""

Act = Callable[[str, str, str], Awaitable[Run]]
"""A run of one command, given the command, the reason, and why it is held by no restraint; guards may refuse it."""

Held = Callable[[], Mapping[str, int]]
"""Node name to requests that it holds, where that is known."""

LOG_LINES = 3
REFUSED_AGAIN_S = 30.0  # a guard that said no is not asked more often


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool, its wanted nodes, and what follows from the two."""

    pool: PoolRow
    nodes: tuple[NodeRow, ...]
    states: Mapping[str, NodeState]  # of the nodes that were looked at lately
    held_by: str | None
    plan: PoolPlan


class Pools:
    """Looks at every pool, and does the next step of each: `plan_pool` says which.

    A start is stored as a wanted node, which the fleet loop starts; drains and stops are runs of those verbs, so that
    guards, claims and the journal hold for them as for anybody's.
    """

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        routing: Routing,
        provider: NodeProvider,
        active_runs: ActiveRuns,
        act: Act,
        held: Held,
        freezes: Freezes,
        limits: ActionSettings,
        *,
        stale_after_s: float,
    ) -> None:
        """`stale_after_s`: a node that was not looked at for so long is in an unknown state."""
        self._database = records.database
        self._timeline = records.timeline
        self._metrics = records.metrics
        self._clock = records.clock
        self._fleet = fleet
        self._routing = routing
        self._provider = provider
        self._active_runs = active_runs
        self._act = act
        self._held = held
        self._freezes = freezes
        self._limits = limits
        self._stale_after_s = stale_after_s
        self._refusals: dict[str, tuple[float, str]] = {}  # pool: until when its refusal holds, and its words
        self._without_room: dict[str, tuple[float, str]] = {}  # the same of starts that nothing is left for

    async def converge_pools(self) -> None:
        """One turn: the next step of each pool that is not as wanted."""
        statuses = [await self._with_failed_start(status) for status in await self._statuses()]
        for status in statuses:
            for step in status.plan.steps:
                try:
                    await self._take_step(status, step)
                except (FleetctlError, RunbookError) as error:
                    log.error("pool.step_failed", pool=status.pool.name, step=step.kind.value, error=error.message)
        self._metrics.tell_pools(
            {
                status.pool.name: {
                    "wanted": status.pool.wanted_size,
                    "current": len(status.nodes),
                    "ready": sum(state.is_serving for state in status.states.values()),
                }
                for status in statuses
            },
            {status.pool.name: status.pool.backoff.failures if status.pool.backoff else 0 for status in statuses},
        )

    async def views(self) -> list[Pool]:
        """Every pool by name."""
        return [pool_view(status) for status in await self._statuses()]

    async def revision_views(self) -> list[Revision]:
        """Every revision, the newest first."""
        revisions, pools, rows = await self._database.read(lambda c: (list_revisions(c), list_pools(c), list_nodes(c)))
        return [revision_view(one, pools, rows) for one in revisions]

    async def _statuses(self) -> list[PoolStatus]:
        pools, rows = await self._database.read(lambda c: (list_pools(c), list_nodes(c)))
        runs, held = await self._active_runs(), self._held()
        return [self._status(pool, [row for row in rows if row.spec.pool == pool.name], runs, held) for pool in pools]

    def _status(
        self, pool: PoolRow, rows: Sequence[NodeRow], runs: Iterable[Run], held: Mapping[str, int]
    ) -> PoolStatus:
        wanted = tuple(row for row in rows if row.wanted)
        states = {row.name: state for row in wanted if (state := self._known(row.name)) is not None}
        names = {row.name for row in rows}
        holder = next((run.id for run in runs if acts_on(run, pool.name, names)), None)
        return PoolStatus(pool, wanted, states, holder, self._plan(pool, wanted, states, holder, held))

    def _plan(
        self,
        pool: PoolRow,
        rows: Sequence[NodeRow],
        states: Mapping[str, NodeState],
        holder: str | None,
        held: Mapping[str, int],
    ) -> PoolPlan:
        now = self._clock.now()
        nodes = [
            PoolNode(
                name=row.name,
                phase=states[row.name].phase if row.name in states else None,
                is_current=row.spec.revision == pool.revision,
                failed_start=self._has_failed(pool, row, states.get(row.name)),
                held=held.get(row.name),
                created_at=row.created_at,
            )
            for row in rows
        ]
        plan = plan_pool(
            WantedPool(pool.wanted_size, pool.num_current, pool.num_stable),
            nodes,
            PoolLimits(self._limits.surge, self._limits.max_unavailable),
            held_by=holder,
            not_before=pool.backoff.not_before if pool.backoff and pool.backoff.is_waiting else None,
            now=now,
        )
        frozen = next((one for one in self._freezes.in_force if one.pool in (None, pool.name)), None)
        if plan.steps and frozen is not None and not pool.override:
            return PoolPlan(PoolState.HELD, f"{plan.reason}, but {freeze_text(frozen)}")
        until, why = self._without_room.get(pool.name, (-math.inf, ""))
        if now < until and any(step.kind in (StepKind.START, StepKind.START_STABLE) for step in plan.steps):
            return PoolPlan(PoolState.HELD, why)
        until, why = self._refusals.get(pool.name, (-math.inf, ""))
        if now < until and any(step.kind in (StepKind.DRAIN, StepKind.STOP) for step in plan.steps):
            return PoolPlan(PoolState.HELD, why)
        return plan

    def _has_failed(self, pool: PoolRow, row: NodeRow, state: NodeState | None) -> bool:
        """Whether a start that was asked for ended before the node was ever ready; not one of a run, which sees it."""
        if state is None or state.process_up is not False or row.route is not RouteIntent.NONE:
            return False
        is_ours = self._fleet.has_started(row.name) or (pool.backoff is not None and pool.backoff.node == row.name)
        return is_ours and row.role is Role.MEMBER and row.started

    async def _with_failed_start(self, status: PoolStatus) -> PoolStatus:
        """The status once a failure that is new was counted, or one that is over was forgotten."""
        backoff, pool = status.pool.backoff, status.pool
        if status.held_by is not None:
            return status
        failed = [row for row in status.nodes if self._has_failed(pool, row, status.states.get(row.name))]
        if not failed:
            tried = next((row for row in status.nodes if backoff is not None and row.name == backoff.node), None)
            if backoff is None or (tried is not None and tried.route is RouteIntent.NONE):
                return status
            await self._database.write(lambda c: store_backoff(c, pool.name, None))
            return replace(status, pool=replace(pool, backoff=None))
        if backoff is not None and backoff.is_waiting and backoff.node in {row.name for row in failed}:
            return status
        name = min(row.name for row in failed)
        lines = (await asyncio.to_thread(self._provider.read_logs, name, lines=LOG_LINES)).lines
        failures = backoff.failures + 1 if backoff is not None else 1
        pause_s = min(self._limits.start_backoff_s * 2.0 ** (failures - 1), self._limits.start_backoff_max_s)
        found = StartBackoff(name, failures, self._clock.now() + pause_s, True, " | ".join(lines)[:1000])
        await self._database.write(lambda c: store_backoff(c, pool.name, found))
        text = f"{name}: ended before it was ready, {failures} in a row; starts again in {pause_s:g} s"
        await self._timeline.append(
            "pool.start_failed", text, node=name, data={"pool": pool.name, "failures": failures, "log": found.error}
        )
        pool = replace(pool, backoff=found)
        return replace(status, pool=pool, plan=self._plan(pool, status.nodes, status.states, None, {}))

    async def _take_step(self, status: PoolStatus, step: PoolStep) -> None:
        pool = status.pool
        match step.kind:
            case StepKind.START:
                await self._start(pool, pool.revision)
            case StepKind.START_STABLE:
                await self._start(pool, pool.stable_revision)
            case StepKind.RETRY:
                assert pool.backoff is not None
                tried = replace(pool.backoff, is_waiting=False)
                await self._database.write(lambda c: store_backoff(c, pool.name, tried))
                await self._routing.change(step.node, only_if={"wanted": True, "role": Role.MEMBER}, started=False)
            case StepKind.DRAIN:
                await self._ask_run(status, f"drain {step.node}")
            case StepKind.STOP:
                await self._ask_run(status, f"node stop {step.node}")

    async def _start(self, pool: PoolRow, revision_id: str) -> None:
        """Make one more node of a revision wanted; its process is started by the fleet loop."""
        now = self._clock.now()
        rows, revision = await self._database.read(lambda c: (list_nodes(c), get_revision(c, revision_id)))
        siblings = [row for row in rows if row.spec.pool == pool.name]
        if revision is None or not siblings:
            return
        newest = max(siblings, key=lambda row: row.created_at)
        room = capacity_of(self._provider, newest.spec)
        if room.more == 0:
            self._without_room[pool.name] = now + REFUSED_AGAIN_S, f"no more nodes can be started: {room.why}"
            log.warning("pool.no_capacity", pool=pool.name, why=room.why)
            return
        (name,) = room.names[:1] if room.names else free_names(newest.name, {row.name for row in rows}, 1)
        spec = revision.spec(name, pool=pool.name, zone=newest.spec.zone)
        await self._database.write(lambda c: want_node(c, spec, Role.MEMBER, now, grows_pool=False))
        await self._timeline.append(
            "pool.node_wanted", f"{name}: wanted, pool {pool.name} is one short", node=name, data={"pool": pool.name}
        )

    async def _ask_run(self, status: PoolStatus, command: str) -> None:
        reason = f"pool {status.pool.name} wants {status.pool.wanted_size} nodes: {status.plan.reason}"
        run = await self._act(command, reason, status.pool.override)
        if run.status is RunStatus.REFUSED:
            until = self._clock.now() + REFUSED_AGAIN_S
            self._refusals[status.pool.name] = until, f"{command} was refused: {run.error}"
            log.warning("pool.held", pool=status.pool.name, command=command, error=run.error)

    def _known(self, name: str) -> NodeState | None:
        """What was seen of the node lately; None when that is not known."""
        age_s = self._clock.now() - self._fleet.seen_at(name)
        return self._fleet.nodes.get(name) if age_s <= self._stale_after_s else None


def pool_view(status: PoolStatus) -> Pool:
    """A pool for the API; its reason names the rollout that is under way."""
    pool, backoff = status.pool, status.pool.backoff
    rollout = f"{pool.updated_by}: " if pool.num_current and pool.updated_by.startswith("rollout-") else ""
    return Pool(
        name=pool.name,
        model=pool.model,
        wanted=pool.wanted_size,
        nodes=len(status.nodes),
        ready=sum(state.is_serving for state in status.states.values()),
        unknown=len(status.nodes) - len(status.states),
        revision=pool.revision,
        revisions=Counter(row.spec.revision for row in status.nodes),
        owner=pool.owner.value,
        held_by=status.held_by,
        state=status.plan.state,
        reason=rollout + status.plan.reason,
        start_failures=backoff.failures if backoff else 0,
        next_start_at=backoff.not_before if backoff and backoff.is_waiting else None,
        start_error=backoff.error if backoff else "",
        updated_at=pool.updated_at,
        updated_by=pool.updated_by,
    )


def revision_view(row: RevisionRow, pools: Iterable[PoolRow], nodes: Iterable[NodeRow]) -> Revision:
    """A revision with the nodes and pools that have it."""
    revision_id = row.revision.id
    return Revision(
        id=revision_id,
        created_at=row.created_at,
        nodes=[node.name for node in nodes if node.wanted and node.spec.revision == revision_id],
        pools=[pool.name for pool in pools if pool.revision == revision_id],
        **row.revision.to_json(),
    )


def acts_on(run: Run, pool: str, nodes: Iterable[str]) -> bool:
    """Whether the run changes the pool or one of these nodes of it."""
    meant = {Target(TargetKind.POOL, pool), Target(TargetKind.FLEET, "")}
    meant |= {Target(TargetKind.NODE, name) for name in nodes}
    return not run.dry_run and not meant.isdisjoint(run.targets)
