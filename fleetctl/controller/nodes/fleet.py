"""What each node is doing, as seen now: the provider's word on its instance and the node's own word on itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from fleetctl.controller.database import StorageLostError
from fleetctl.controller.nodes.node_answers import NoAnswerError, NodeDrain, NodeHealth, NotAllowedError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import (
    NodeRow,
    Role,
    RouteIntent,
    delete_stopped,
    get_node,
    list_nodes,
    want_node,
)
from fleetctl.controller.nodes.pool_row import note_unrecorded_pools
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.nodes.wanted_history import note_unrecorded
from fleetctl.controller.records import Records
from fleetctl.controller.slots import Slots
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.providers.provider import NodeProvider, ObservedInstance, Sign, exit_words
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase

log = structlog.get_logger()

LOADING_REASONS = frozenset({"loading", "warming_up"})


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node, wanted and seen. `since` is when it entered its phase; None while it was not looked at yet."""

    row: NodeRow
    phase: NodePhase
    reason: str
    since: float | None
    url: str | None = None
    instance: str | None = None  # the provider's identity of what runs; another one after a restart
    process_up: bool | None = None  # by the provider's word; None: being started, or not wanted
    exit_status: int | None = None  # of a process that ended; see `ObservedInstance`
    machine_problems: tuple[Sign, ...] | None = None  # as `ObservedInstance` has them; None: nobody tells
    reasons: tuple[Sign, ...] | None = None
    comes_back: bool | None = None  # of a process that ended; as above
    was_ready: bool = False  # since this instance started; a node that was never ready is starting, not lost

    @property
    def name(self) -> str:
        """The node's name."""
        return self.row.name

    @property
    def is_serving(self) -> bool:
        """Whether it is ready and gets requests."""
        return self.phase is NodePhase.READY and self.row.route is RouteIntent.ACTIVE


class Fleet:
    """Keeps `nodes` true: looks at each one every turn, starts what is wanted and was never started, admits the ready.

    It never restarts a node that died: that is an incident, and a runbook's work.
    """

    def __init__(
        self,
        records: Records,
        provider: NodeProvider,
        client: NodeClient,
        routing: Routing,
        incident_of: Callable[[str], str | None],
        *,
        interval_s: float = 1.0,
        min_round_s: float = 0.0,
        forget_after_s: float = 86400.0,
        why_out: Callable[[str], str] = lambda name: "",
    ) -> None:
        """`incident_of`: the id of the open incident that covers a node; `interval_s`: between two looks at a node;
        `min_round_s`: a turn waits at least so long for answers; `forget_after_s`: how long a stopped node is kept;
        `why_out`: what is known against a node that says it is ready, a word of phases; empty: nothing."""
        self._why_out = why_out
        self._forget_after_s = forget_after_s
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._provider = provider
        self._client = client
        self._routing = routing
        self.incident_of = incident_of
        self.nodes: dict[str, NodeState] = {}
        self.looked_at: float | None = None  # when every node was last looked at
        self._slots = Slots(records.clock, interval_s=interval_s, name="probe", min_round_s=min_round_s)
        self._rows: Sequence[NodeRow] = ()
        self._seen_at: dict[str, float] = {}  # when the newest look at each node began
        self._look_errors: dict[str, str] = {}
        self._looks = itertools.count(1)
        self._started: set[str] = set()
        self._learnt_from: dict[str, int] = {}  # the look that each node's state comes from

    async def take_charge(
        self,
        specs: Sequence[NodeSpec],
        *,
        start_nodes: bool,
        list_own: Callable[[], Sequence[ObservedInstance]],
    ) -> None:
        """Look after what runs already. Nothing is started that nobody asked for.

        `start_nodes`: somebody asked. Then the initial fleet is wanted where no node ever was, and what is wanted and
        does not run is started by the next turn. Without it a node that ended stays ended: its alert says so.
        `list_own`: what runs that only a fleet of ours can have started; what others run is taken up when it is found.
        """
        now = self._clock.now()
        await self._database.write(lambda c: note_unrecorded(c, now))
        await self._database.write(lambda c: note_unrecorded_pools(c, now))
        rows = await self._database.read(list_nodes)
        if not rows and start_nodes:
            await self._database.write(lambda c: [want_node(c, spec, Role.MEMBER, now) for spec in specs])
        elif not rows and specs:
            log.info("fleet.empty", remedy="`fleetctl up` starts a fleet, `fleetctl node start NAME` a node")
        silent: set[str] = set()
        for row in rows:
            if row.wanted and row.started and not row.is_restarting and row.spec.provider not in silent:
                try:
                    await self._attach(row, start_nodes=start_nodes)
                except UnreachableError as error:  # whether they run is not known: each turn looks again
                    log.warning("nodes.not_attached", provider=row.spec.provider, error=error.message)
                    silent.add(row.spec.provider)
        for one in await asyncio.to_thread(list_own):
            if one.name not in {row.name for row in rows}:
                log.warning("node.unclaimed", node=one.name, url=one.url, reason="it runs, and no fleet wants it")

    async def _attach(self, row: NodeRow, *, start_nodes: bool) -> None:
        attached = await asyncio.to_thread(self._provider.attach, row.spec)
        if attached is not None:
            log.info("node.attached", node=row.name, instance=attached.instance)
            return
        if start_nodes:
            await self._routing.change(row.name, started=False)
        how = exit_words((await asyncio.to_thread(self._provider.observe, row.name)).exit_status)
        next_words = "it is started again" if start_nodes else "nobody asked to start it"
        ended = f"{row.name}: its process ended while no controller looked{f' ({how})' if how else ''}; {next_words}"
        await self._timeline.append("node.ended", ended, node=row.name, incident_id=self.incident_of(row.name))

    async def observe_nodes(self) -> None:
        """Look at every node once, spread over the interval; ends with the last look, or before the next turn."""
        with contextlib.suppress(StorageLostError):  # what was wanted last is looked at all the same
            self._rows = await self._database.read(list_nodes)
        rows = self._rows
        now = self._clock.now()
        shown = {row.name: row for row in rows}
        missing = [
            row
            for row in shown.values()
            if row.wanted and not row.started and not row.is_restarting and row.role is Role.MEMBER
        ]
        await asyncio.gather(*(self._start_member(row) for row in missing))
        for gone in self.nodes.keys() - shown.keys():
            del self.nodes[gone]
            self._seen_at.pop(gone, None)
        await self._slots.run_round(list(shown), lambda name: self._look_at(shown[name]))
        with contextlib.suppress(StorageLostError):  # told by the database; the next turn tries again
            await self._publish_phases()
        self.looked_at = min((self._seen_at.get(name, -math.inf) for name in shown), default=now)

    async def forget(self, row: NodeRow) -> bool:
        """Drop a stopped node and what its provider keeps of it. False while it runs, or is wanted again.

        Events, runs and the history of what was wanted keep its name. Raises FleetctlError.
        """
        if (await asyncio.to_thread(self._provider.observe, row.name)).running:
            return False
        if not await self._database.write(lambda c: delete_stopped(c, row.name)):
            return False
        await asyncio.to_thread(self._provider.forget, row.name)
        self.nodes.pop(row.name, None)
        self._seen_at.pop(row.name, None)
        await self._timeline.append("node.forgotten", f"{row.name}: stopped, and out of every list now", node=row.name)
        return True

    async def forget_old(self) -> None:
        """Drop the nodes that were stopped long ago."""
        now = self._clock.now()
        for row in await self._database.read(list_nodes):
            if not row.wanted and now - row.updated_at > self._forget_after_s:
                try:
                    await self.forget(row)
                except FleetctlError as error:
                    log.warning("node.not_forgotten", node=row.name, error=error.message)

    def has_started(self, name: str) -> bool:
        """Whether this controller asked for the node's process, and no other one before it."""
        return name in self._started

    def seen_at(self, name: str) -> float:
        """When the newest look at the node began, in Unix seconds; minus infinity when it was never looked at."""
        return self._seen_at.get(name, -math.inf)

    async def stop(self) -> None:
        """Give up the looks that are under way."""
        await self._slots.stop()

    async def _look_at(self, row: NodeRow) -> None:
        """One node's turn. A provider that can't look leaves what was known, which grows old."""
        look, now = next(self._looks), self._clock.now()
        try:
            state = await self._observe(row)
        except FleetctlError as error:
            if self._look_errors.get(row.name) != error.message:
                log.error("node.look_failed", node=row.name, error=error.message)
                self._look_errors[row.name] = error.message
            return
        self._look_errors.pop(row.name, None)
        await self._learn(state, look)
        self._seen_at[row.name] = now

    async def _start_member(self, row: NodeRow) -> None:
        try:
            await self.start_node(row)
        except FleetctlError as error:
            # The others must be looked at all the same; the next turn tries again.
            log.error("node.start_failed", node=row.name, error=error.message)

    async def start_node(self, row: NodeRow) -> None:
        """Ask the provider for the node's process, then record that it was asked. Raises FleetctlError."""
        await asyncio.to_thread(self._provider.ensure_started, row.spec)
        self._started.add(row.name)
        await self._routing.change(row.name, started=True)
        await self._timeline.append(
            "node.started",
            f"{row.name}: process started",
            node=row.name,
            incident_id=self.incident_of(row.name),
        )

    async def observe_node(self, name: str) -> NodeState | None:
        """Look at one node now, without waiting for the next turn. None: no such node."""
        look = next(self._looks)
        row = await self._database.read(lambda c: get_node(c, name))
        if row is None:
            return None
        state = await self._learn(await self._observe(row), look)
        await self._publish_phases()
        return state

    async def _publish_phases(self) -> None:
        await self._routing.publish_phases({name: state.phase for name, state in self.nodes.items()})

    async def _observe(self, row: NodeRow) -> NodeState:
        view = await asyncio.to_thread(self._provider.observe, row.name)
        before = self.nodes.get(row.name)
        was_ready = before is not None and before.was_ready and before.instance == view.instance
        health: NodeHealth | None = None
        drain: NodeDrain | None = None
        # What was only found goes on running when it is ours no more: that is nobody's stop.
        running = view.running and (view.sees_process or row.wanted)
        if running and view.url:
            out = self._why_out(row.name)
            may_sleep = row.is_cordoned or "asleep" in (out, before.reason if before else "")
            health = await self._client.health(view.url, row.spec.engine, may_sleep=may_sleep, api_key=row.spec.api_key)
            if health.ready and out and out != "asleep":
                health = replace(health, ready=False, reason=out)
            if health.answered and health.reason == "draining":
                try:
                    drain = await self._client.drain_state(view.url)
                except (NoAnswerError, NotAllowedError) as error:
                    log.warning("node.drain_unknown", node=row.name, error=str(error))
        # A controller that was just started has not seen the node ready; a routed node was, but for one whose process
        # it has started itself: that loads.
        was_routed = before is None and row.route is not RouteIntent.NONE and not self.has_started(row.name)
        was_ready = was_ready or bool(health and health.ready) or was_routed
        phase, reason = judge_phase(row, running, health, drain, was_ready, view.exit_status, view.trouble)
        is_lost = not running and row.wanted and row.started and not row.is_restarting
        return NodeState(
            row=row,
            phase=phase,
            reason=reason,
            since=None,
            url=view.url,
            instance=view.instance,
            process_up=_process_up(view, is_lost),
            exit_status=view.exit_status,
            machine_problems=view.machine_problems,
            reasons=view.reasons,
            comes_back=view.comes_back,
            was_ready=was_ready,
        )

    async def _learn(self, state: NodeState, look: int) -> NodeState:
        row = state.row
        # Looks overlap: one that began before another and ends after it tells old news.
        if look < self._learnt_from.get(row.name, 0):
            return self.nodes.get(row.name, state)
        self._learnt_from[row.name] = look
        # What was read may be old by now: an effect may have cordoned or stopped the node since.
        if state.url and state.url != row.url and row.wanted:
            await self._routing.change(row.name, only_if={"wanted": True}, url=state.url)
            row = replace(row, url=state.url)
        # Without the name of its model no request can be for it.
        is_new = row.route is RouteIntent.NONE and row.role is Role.MEMBER and bool(row.spec.model)
        if state.phase is NodePhase.READY and is_new:
            standing = {"wanted": True, "route": RouteIntent.NONE, "role": Role.MEMBER}
            await self._routing.change(row.name, only_if=standing, route=RouteIntent.ACTIVE)
            row = replace(row, route=RouteIntent.ACTIVE)
        state = replace(state, row=row)
        before = self.nodes.get(state.name)
        changed = before is None or before.phase is not state.phase
        since = self._clock.now() if before is None or changed else before.since
        state = replace(state, since=since)
        self.nodes[state.name] = state
        if changed and (before is not None or state.phase not in (NodePhase.STOPPED, NodePhase.STARTING)):
            with contextlib.suppress(StorageLostError):  # the entry is lost, the look is not
                await self._timeline.append(
                    f"node.{state.phase.value}",
                    f"{state.name}: {state.phase.value.replace('_', ' ')}"
                    + (f" ({state.reason})" if state.reason else ""),
                    node=state.name,
                    incident_id=self.incident_of(state.name),
                    data={"reason": state.reason, "was": before.phase.value if before else None},
                )
        return state


def _process_up(view: ObservedInstance, is_lost: bool) -> bool | None:
    """By the word of who runs it; None: nobody here sees its process, or it is not to be there."""
    if not view.sees_process:
        return None
    return True if view.running else (False if is_lost else None)


def judge_phase(
    row: NodeRow,
    running: bool,
    health: NodeHealth | None,
    drain: NodeDrain | None,
    was_ready: bool,
    exit_status: int | None = None,
    trouble: str = "",
) -> tuple[NodePhase, str]:
    """A node's phase and the reason for it, from what is wanted and what was seen. `trouble`: the provider's words."""
    if not running:
        if not row.wanted:
            return NodePhase.STOPPED, ""
        if not row.started or row.is_restarting:
            return NodePhase.STARTING, "its process is being started"
        how = exit_words(exit_status)
        if trouble:
            return NodePhase.UNREACHABLE, trouble
        return NodePhase.UNREACHABLE, f"its process ended: {how}" if how else "its process ended"
    if not row.wanted:
        return (NodePhase.DRAINING if drain and drain.held else NodePhase.DRAINED), "being stopped"
    if health is None or not health.answered:
        said = "; ".join(one for one in (health.reason if health else "its address is not known", trouble) if one)
        return (NodePhase.UNREACHABLE, said) if was_ready else (NodePhase.STARTING, said)
    if health.reason == "draining":
        if drain is not None and drain.state == "drained":
            return NodePhase.DRAINED, ""
        held = f"{drain.held} requests left" if drain else "requests left: unknown"
        return NodePhase.DRAINING, held
    if health.ready:
        return (NodePhase.CORDONED, "takes no new requests") if row.is_cordoned else (NodePhase.READY, "")
    if health.reason in LOADING_REASONS:
        return NodePhase.STARTING, health.reason
    return NodePhase.NOT_READY, health.reason
