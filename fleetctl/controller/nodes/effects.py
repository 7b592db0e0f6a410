"""What runbook steps do to the fleet. Each effect may be called again after a crash and finds its work done.

The order inside an effect is always: store what is wanted, then act, then look. A crash between any two of these leaves
a state from which the same call goes on. One class, longer than others: it is the whole of what a runbook may do, and
what a drain, a stop and a restart wait for is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import structlog
from pydantic import ValidationError

from fleetctl.controller.database import Database
from fleetctl.controller.nodes.drain_account import DrainAccount
from fleetctl.controller.nodes.engine_calls import EngineCalls
from fleetctl.controller.nodes.evidence import Evidence
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.gauge_drain import GaugeDrain
from fleetctl.controller.nodes.node_answers import NoAnswerError, NodeDrain, NotAllowedError, SilentPeerError
from fleetctl.controller.nodes.node_client import ADMIN_TIMEOUT_S, NodeClient
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent, get_node, list_nodes, want_node
from fleetctl.controller.nodes.outreach import Outreach
from fleetctl.controller.nodes.pool_row import begin_scaling, end_scaling, set_owner
from fleetctl.controller.nodes.routing import GatewayWatch, Routing
from fleetctl.controller.nodes.traffic_rules import TrafficRules
from fleetctl.controller.receipts.receipts import OpenReceipt
from fleetctl.engines.engine_call import EngineAct
from fleetctl.engines.kind import EngineKind
from fleetctl.engines.table import engine_kind
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.providers.provider import AsksLeave, CordonsHosts, NodeProvider, end_for_restart
from fleetctl.providers.spec import NodeSpec
from fleetctl.traffic_rule import TrafficRuleRequest
from fleetctl.wire.node import NodePhase
from runbooks.ports import PermanentError, PoolOwner, Receipt, RolloutOrder, TemporaryError
from runbooks.stopwatch import Stopwatch

log = structlog.get_logger()

T = TypeVar("T")

POLL_S = 0.2
RESTART_GRACE_S = 10.0
SCALE_IN_GRACE_S = 10.0
SILENT_GRACE_S = 2.0  # between SIGTERM and SIGKILL, for what was given its time to answer already
GAUGES_WAIT_S = 60.0  # for a scrape, or a Prometheus', that is newer than the question
RESTART_REPEAT_S = 600.0  # a restart that an earlier controller finished this recently is the one asked for again


class Silence(StrEnum):
    """Why a node does not say what it holds."""

    GONE = "gone"  # its process ended
    UNREACHABLE = "unreachable"  # its process runs and gave no answer for `silent_after_s`


_SILENCE_NOTES = {
    # What it held is lost with it, or the gateway moved it: nothing here can know, so no counts.
    Silence.GONE: "its process ended before it was drained",
    Silence.UNREACHABLE: "it does not answer: what it holds is not known, and nothing is waited for",
}


@dataclass(frozen=True, slots=True)
class FleetEffects:
    """Implements `runbooks.ports.Effects` over the provider, the routing table, nodes and the gateway."""

    database: Database
    fleet: Fleet
    provider: NodeProvider
    client: NodeClient
    routing: Routing
    traffic_rules: TrafficRules
    gateway: GatewayWatch
    gateways: Gateways
    account: DrainAccount
    clock: Clock
    forget_signals: Callable[[str], None]
    default_spec: NodeSpec | None
    carry_out: Callable[[RolloutOrder], Awaitable[Receipt]]
    """An order to a pool's rollout."""
    engine: EngineCalls
    by_gauges: GaugeDrain
    outreach: Outreach
    evidence: Evidence
    drain_grace_s: float = 60.0
    silent_after_s: float = 10.0

    async def start_node(self, name: str, *, like: str | None, wait_s: float) -> Receipt:
        """A node that is wanted already is waited for. It enters the routing table once it is ready."""
        row = await self._row(name)
        if row is None or not row.wanted:
            spec = await self._spec_for(name, like, row)
            now = self.clock.now()
            row = await self.database.write(lambda c: want_node(c, spec, Role.REPLACEMENT, now))
        await self._ensure_process(row)
        waited_s = await self._wait_ready(name, wait_s)
        # Only a node that is new to the table: one that somebody cordoned stays so.
        new = {"wanted": True, "route": RouteIntent.NONE}
        version = await self.routing.change(name, only_if=new, route=RouteIntent.ACTIVE, role=Role.MEMBER)
        state = await self.fleet.observe_node(name)
        return {
            "node": name,
            "like": like,
            "ready_after_s": round(waited_s, 2),
            "table_version": version,
            "instance": state.instance if state else None,
            "url": state.url if state else None,
            "gateway": await self.gateway.follow(version),
        }

    async def stop_node(self, name: str, *, grace_s: float, force: bool = False) -> Receipt:
        """What it holds is asked right before; its route and its signals go before its process does.

        A process that does not answer is stopped all the same: its requests can't finish, and the receipt says so.
        """
        row = await self._known(name)
        view = await asyncio.to_thread(self.provider.observe, name)
        receipt: Receipt = {"node": name, "was_running": view.running, "forced": force}
        if view.running and row.wanted:  # what is refused must leave all as it was
            await self._end_process(_check_end, name, grace_s)
        if view.running and view.url and not force:
            receipt |= await self._refuse_while_holding(row)
            if "held" in receipt:
                grace_s = min(grace_s, SILENT_GRACE_S)
        version = await self.routing.change(name, wanted=False, route=RouteIntent.NONE)
        await self.fleet.observe_node(name)
        self.forget_signals(name)  # before it falls silent: nobody is paged for a node that we stop
        if view.running:
            await self._stop_process(name, grace_s)
        await self.fleet.observe_node(name)
        return {**receipt, "table_version": version}

    async def forget_node(self, name: str) -> Receipt:
        """One that is not known is forgotten already."""
        row = await self._row(name)
        if row is None:
            return {"node": name, "note": "it was not known"}
        if row.wanted:
            raise PermanentError(f"{name} is wanted: stop it first")
        try:
            if not await self.fleet.forget(row):
                raise PermanentError(f"{name} runs still: stop it first")
        except FleetctlError as error:
            raise TemporaryError(error.message) from error
        return {"node": name, "stopped_at": row.updated_at}

    async def cordon(self, name: str) -> Receipt:
        """Ends when the gateway has the new table, or did not say so in time: the receipt tells which."""
        row = await self._wanted(name)
        version = await self.routing.change(name, route=RouteIntent.CORDONED)
        await self.fleet.observe_node(name)
        said = await self.gateway.follow(version)
        return {"node": name, "was": row.route.value, "table_version": version, "gateway": said}

    async def uncordon(self, name: str) -> Receipt:
        """The node takes work again first, then the table routes to it."""
        row = await self._wanted(name)
        view = await asyncio.to_thread(self.provider.observe, name)
        if not view.running or not view.url:
            raise PermanentError(f"{name} does not run: it can't take requests")
        if engine_kind(row.spec.engine).is_own:
            drain = await self._answer(self.client.drain_state(view.url))
            if drain.state != "serving":
                await self._answer(self.client.resume(view.url))
        version = await self.routing.change(name, route=RouteIntent.ACTIVE, role=Role.MEMBER)
        await self.fleet.observe_node(name)
        said = await self.gateway.follow(version)
        return {"node": name, "was": row.route.value, "table_version": version, "gateway": said}

    async def cordon_host(self, name: str, *, cordoned: bool) -> Receipt:
        """By the provider of a node that is, or was, there."""
        rows = [row for row in await self.database.read(list_nodes) if row.spec.facts.get("host") == name]
        if not rows:
            raise PermanentError(f"no node of the fleet is on a machine {name}")
        node = max(rows, key=lambda row: row.wanted)
        if not isinstance(self.provider, CordonsHosts):
            raise PermanentError(f"{node.name}: its provider places no nodes on machines")
        try:
            await asyncio.to_thread(self.provider.cordon_host, node.name, cordoned=cordoned)
        except UnreachableError as error:
            raise TemporaryError(error.message) from error
        except FleetctlError as error:
            raise PermanentError(error.message) from error
        there = sorted(row.name for row in rows if row.wanted)
        return {"machine": name, "cordoned": cordoned, "nodes": there}

    async def drain(self, name: str, *, deadline_s: float) -> Receipt:
        """`receipt` names the signed one, with a line for each request; the counts are its, the node's own where it has
        a line that nobody could tell.

        A node that is gone, or gives no answer, is cordoned, and its receipt has the gateways' word alone. One that
        refuses our token keeps its route.
        """
        row = await self._known(name)
        if not row.wanted:
            return {"node": name, "state": "stopped", "note": "the node is stopped already"}
        kind = engine_kind(row.spec.engine)
        if not kind.is_own and await self._answers(row):
            told = await self.by_gauges.drain(row, kind, deadline_s)
            await self.fleet.observe_node(name)
            return told
        version = await self.routing.change(name, route=RouteIntent.CORDONED)
        receipt: Receipt = {
            "node": name,
            "table_version": version,
            "gateway": await self.gateway.follow(version),
        }
        started = self.clock.now()
        asked = False
        view = await asyncio.to_thread(self.provider.observe, name)
        account: OpenReceipt | None = None
        while True:
            try:
                drain = await self._ask_drain(name)
            except PermanentError:  # it refuses our token: it drains nothing, and goes on serving
                if account is None:
                    standing = {"wanted": True, "route": RouteIntent.CORDONED}
                    await self.routing.change(name, only_if=standing, route=row.route)
                raise
            if isinstance(drain, Silence):
                await self.fleet.observe_node(name)
                note = _SILENCE_NOTES[drain]
                account = account or await self.account.begin(name, None, view.instance, is_new=False)
                told = await self.account.close_silent(account, drain.value, note)
                return {**receipt, "state": drain.value, "note": note, **told}
            if account is None and drain.state != "drained":
                is_new = drain.state == "serving"
                account = await self.account.begin(name, await self._url(name), view.instance, is_new=is_new)
            if drain.state == "serving" and not asked:
                # Asked once only: a second request would begin a second drain with its own counts.
                drain = await self._answer(self.client.start_drain(await self._url(name), deadline_s))
                asked = True
                await self.fleet.observe_node(name)
            if drain.state == "drained":
                await self.fleet.observe_node(name)
                account = account or await self.account.receipts.find_open(name, view.instance)
                if account is not None:
                    refused = drain.receipt.get("refused", 0)
                    told = await self.account.close_drained(account, await self._url(name), refused)
                else:
                    told = await self.account.repeated(name, view.instance)
                return {**receipt, "state": "drained", **drain.receipt, **told}
            if self.clock.now() - started > deadline_s + self.drain_grace_s:
                raise TemporaryError(f"{name} still holds {_held(drain)} {self.drain_grace_s:.0f} s after its deadline")
            await self.clock.sleep(POLL_S)

    async def restart_node(self, name: str, *, wait_s: float) -> Receipt:
        """The instance to be replaced is marked first, so that no later call replaces another one."""
        row = await self._wanted(name)
        now = self.clock.now()
        view = await asyncio.to_thread(self.provider.observe, name)
        if not row.is_restarting:
            if (done := _finished_by_predecessor(row, self.database.epoch, now)) is not None:
                return done
            if view.running:
                await self._end_process(_check_end, name, RESTART_GRACE_S)
            note = await self._refuse_while_holding(row) if view.running and view.url else {}
            mark = {"state": "begun", "instance": view.instance, "epoch": self.database.epoch, "at": now}
            await self.routing.change(name, route=RouteIntent.CORDONED, restart=mark)
            row = await self._wanted(name)
        else:
            assert row.restart is not None
            mark, note = row.restart, {}
        if view.running and view.instance == mark.get("instance"):
            await self.fleet.observe_node(name)
            self.forget_signals(name)
            await self._end_process(end_for_restart, name, RESTART_GRACE_S)
        await self._ensure_process(row)
        waited_s = await self._wait_ready(name, wait_s)
        receipt: Receipt = {
            "node": name,
            "replaced_instance": mark.get("instance"),
            "ready_after_s": round(waited_s, 2),
            **note,
        }
        done_mark = {**mark, "state": "done", "at": self.clock.now(), "receipt": receipt}
        version = await self.routing.change(name, route=RouteIntent.ACTIVE, restart=done_mark)
        await self.fleet.observe_node(name)
        return {**receipt, "table_version": version, "gateway": await self.gateway.follow(version)}

    async def restart_gateway(self, name: str, *, wait_s: float) -> Receipt:
        """Called again after a crash it restarts once more: a gateway holds nothing that outlives it."""
        return await self.gateways.restart(name, wait_s)

    async def scale_pool(
        self,
        pool: str,
        *,
        start: Sequence[str],
        stop: Sequence[str],
        like: str | None,
        wait_s: float,
        deadline_s: float,
        before_removal: Callable[[str], Awaitable[None]],
        by: str = "",
    ) -> Receipt:
        """The pool's size first; then all starts at once; stops one after the other, each asked about right before."""
        now = self.clock.now()
        try:
            await self.database.write(lambda c: begin_scaling(c, pool, start=start, stop=stop, by=by, now=now))
        except RefusedError as error:
            raise PermanentError(f"{error.message}; {error.remedy}") from error
        try:
            return await self._scale_nodes(pool, start, stop, like, wait_s, deadline_s, before_removal)
        except (TemporaryError, PermanentError):
            await self.database.write(lambda c: end_scaling(c, pool, self.clock.now()))
            raise

    async def set_pool_owner(self, pool: str, owner: str, *, by: str) -> Receipt:
        """The same owner again changes nothing."""
        now = self.clock.now()
        try:
            before = await self.database.write(lambda c: set_owner(c, pool, PoolOwner(owner), by, now))
        except BadInputError as error:
            raise PermanentError(error.message) from error
        return {"pool": pool, "owner": owner, "was": before.value}

    async def order_rollout(self, order: RolloutOrder) -> Receipt:
        """Stored with what follows from it for the pool and its traffic; the rollout goes on by itself."""
        return await self.carry_out(order)

    async def _scale_nodes(
        self,
        pool: str,
        start: Sequence[str],
        stop: Sequence[str],
        like: str | None,
        wait_s: float,
        deadline_s: float,
        before_removal: Callable[[str], Awaitable[None]],
    ) -> Receipt:
        # All are waited for, also when one fails: a start that is cut off would go on unseen.
        starts = [self.start_node(name, like=like, wait_s=wait_s) for name in start]
        results = await asyncio.gather(*starts, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise next((error for error in errors if not isinstance(error, TemporaryError)), errors[0])
        stopped: dict[str, str] = {}
        requests: dict[str, str] = {}
        for name in stop:
            if await self._row(name) is None:
                stopped[name] = "never started"
                continue
            await before_removal(name)
            drained = await self.drain(name, deadline_s=deadline_s)
            await self.stop_node(name, grace_s=SCALE_IN_GRACE_S)
            stopped[name] = str(drained["state"])
            requests |= {name: f"{drained['summary']} ({drained['receipt']})"} if "summary" in drained else {}
        told = {"requests": requests} if requests else {}
        return {"pool": pool, "started": list(start), "stopped": stopped, **told}

    async def set_limits(
        self, name: str, limits: Mapping[str, int], *, seats_ratio: float | None = None, run_id: str
    ) -> Receipt:
        """What held before is stored first."""
        return await self.engine.set_limits(name, limits, seats_ratio, run_id)

    async def restore_limits(self, name: str, *, run_id: str) -> Receipt:
        """A node that was restarted since has the limits of its settings already."""
        return await self.engine.restore_limits(name, run_id)

    async def reset_prefix_cache(self, name: str) -> Receipt:
        """Done before any request that comes after it."""
        return await self.engine.reset_prefix_cache(name)

    async def load_adapter(self, name: str, adapter: str, *, path: str) -> Receipt:
        """One that is loaded is left as it is."""
        return await self.engine.load_adapter(name, adapter, path)

    async def unload_adapter(self, name: str, adapter: str) -> Receipt:
        """One that is not loaded is unloaded."""
        return await self.engine.unload_adapter(name, adapter)

    async def set_profiling(self, name: str, *, is_on: bool) -> Receipt:
        """Asked once more, an engine answers as it does."""
        return await self.engine.set_profiling(name, is_on=is_on)

    async def sleep_node(self, name: str) -> Receipt:
        """Cordoned first; what it holds is asked right before."""
        row = await self._wanted(name)
        await self.engine.require(name, EngineAct.SLEEP)
        note = await self._refuse_while_holding(row)
        version = await self.routing.change(name, route=RouteIntent.CORDONED)
        receipt = await self.engine.fall_asleep(name)
        await self.fleet.observe_node(name)
        return {**receipt, **note, "table_version": version}

    async def wake_node(self, name: str, *, wait_s: float) -> Receipt:
        """Awake and ready first, then routed. One that was drained before it slept takes work again."""
        row = await self._wanted(name)
        receipt = await self.engine.wake_up(name, wait_s)
        if engine_kind(row.spec.engine).is_own:
            url = await self._url(name)
            if (await self._answer(self.client.drain_state(url))).state != "serving":
                await self._answer(self.client.resume(url))
        waited_s = await self._wait_ready(name, wait_s)
        version = await self.routing.change(name, route=RouteIntent.ACTIVE, role=Role.MEMBER)
        await self.fleet.observe_node(name)
        said = await self.gateway.follow(version)
        return {**receipt, "ready_after_s": round(waited_s, 2), "table_version": version, "gateway": said}

    async def add_silence(self, alert: str, labels: Mapping[str, str], *, for_s: float, by: str, key: str) -> Receipt:
        """One that was made with this key is found by its comment."""
        return await self.outreach.add_silence(alert, labels, for_s, by, key)

    async def notify(self, receiver: str, text: str, *, key: str, facts: Mapping[str, Any]) -> Receipt:
        """The receiver knows a repeat by its key."""
        return await self.outreach.notify(receiver, text, key, facts)

    async def execute(self, program: str, arguments: Sequence[str], *, limit_s: float, key: str) -> Receipt:
        """Called again after a crash: the program knows a repeat by its key."""
        return await self.outreach.execute(program, arguments, limit_s, key)

    async def collect_evidence(self, name: str, *, incident_id: str | None, key: str) -> Receipt:
        """The file is named after the step, so that a second call writes the same one."""
        await self._known(name)
        return await self.evidence.collect(name, incident_id, key)

    async def make_traffic_rule(
        self, rule_id: str, spec: Mapping[str, Any], *, for_s: float | None, made_by: str, reason: str
    ) -> Receipt:
        """A rule of this id is replaced, so that a second call leaves one rule."""
        try:
            request = TrafficRuleRequest.model_validate(
                {"id": rule_id, "spec": spec, "for_s": for_s, "made_by": made_by, "reason": reason}
            )
            rule, before = await self.traffic_rules.make(request)
        except ValidationError as error:
            first = error.errors()[0]
            raise PermanentError(f"traffic rule {rule_id}: {first['msg'].removeprefix('Value error, ')}") from error
        except BadInputError as error:
            raise PermanentError(error.message) from error
        version = self.routing.table.version
        return {
            "rule": rule.id,
            "orders": rule.spec.words,
            "expires_at": rule.expires_at,
            "replaced": before.spec.words if before is not None else None,
            "table_version": version,
            "gateway": await self.gateway.follow(version),
        }

    async def remove_traffic_rule(self, rule_id: str, *, removed_by: str) -> Receipt:
        """One that is not there is removed already."""
        try:
            rule = await self.traffic_rules.remove(rule_id, removed_by)
        except BadInputError as error:
            return {"rule": rule_id, "note": error.message}
        version = self.routing.table.version
        said = await self.gateway.follow(version)
        return {"rule": rule.id, "ordered": rule.spec.words, "table_version": version, "gateway": said}

    async def _row(self, name: str) -> NodeRow | None:
        return await self.database.read(lambda c: get_node(c, name))

    async def _known(self, name: str) -> NodeRow:
        row = await self._row(name)
        if row is None:
            raise PermanentError(f"there is no node named {name}")
        return row

    async def _wanted(self, name: str) -> NodeRow:
        row = await self._known(name)
        if not row.wanted:
            raise PermanentError(f"{name} is stopped")
        return row

    async def _spec_for(self, name: str, like: str | None, row: NodeRow | None) -> NodeSpec:
        try:
            if like is not None:
                return (await self._known(like)).spec.named(name)
            if row is not None:
                return row.spec
            if self.default_spec is None:
                raise PermanentError(f"{name}: nothing says what to start; name a node with --like")
            return self.default_spec.named(name)
        except ValueError as error:
            raise PermanentError(str(error)) from error

    async def _ensure_process(self, row: NodeRow) -> None:
        view = await asyncio.to_thread(self.provider.observe, row.name)
        if row.started and not row.is_restarting and not view.running:
            # It was started before and ended by itself: starting it again and again would hide why.
            raise PermanentError(await self._ended(row.name))
        if view.running and row.started:
            return
        try:
            await self.fleet.start_node(row)
        except RefusedError as error:
            raise PermanentError(error.message) from error
        except FleetctlError as error:
            raise TemporaryError(error.message) from error

    async def _stop_process(self, name: str, grace_s: float) -> None:
        await self._end_process(lambda provider, *call: provider.stop(*call), name, grace_s)

    async def _end_process(self, end: Callable[[NodeProvider, str, float], None], name: str, grace_s: float) -> None:
        try:
            await asyncio.to_thread(end, self.provider, name, grace_s)
        except RefusedError as error:
            raise PermanentError(error.message) from error
        except FleetctlError as error:
            raise TemporaryError(error.message) from error

    async def _wait_ready(self, name: str, wait_s: float) -> float:
        """Seconds until the node was ready."""
        started = self.clock.now()
        while True:
            state = await self.fleet.observe_node(name)
            if state is not None and _answers_ready(state):
                return self.clock.now() - started
            view = await asyncio.to_thread(self.provider.observe, name)
            if not view.running:
                raise PermanentError(await self._ended(name))
            if self.clock.now() - started > wait_s:
                reason = f" ({state.reason})" if state and state.reason else ""
                raise TemporaryError(f"{name} is not ready after {wait_s:.0f} s{reason}")
            await self.clock.sleep(POLL_S)

    async def _ended(self, name: str) -> str:
        tail = (await asyncio.to_thread(self.provider.read_logs, name, lines=3)).lines
        return f"{name}: its process ended before it was ready" + (f": {' | '.join(tail)}" if tail else "")

    async def _refuse_while_holding(self, row: NodeRow) -> Receipt:
        """Cordon the node and make sure that it holds nothing; put the route back when it does.

        What the receipt should say of it. Raises PermanentError when it holds requests.
        """
        drain = await self._ask_drain(row.name)
        if row.route is RouteIntent.ACTIVE and (isinstance(drain, Silence) or not drain.held):
            # A request may be on its way: only when none can be sent any more, "idle" stays true.
            version = await self.routing.change(row.name, route=RouteIntent.CORDONED)
            await self.gateway.follow(version)
            if not isinstance(drain, Silence):
                drain = await self._ask_drain(row.name)
            if not isinstance(drain, Silence) and drain.held:
                await self.routing.change(row.name, only_if={"wanted": True}, route=row.route)
        if isinstance(drain, Silence):
            return {"held": None, "note": _SILENCE_NOTES[drain]}
        if drain.held:
            raise PermanentError(f"{row.name} holds {_held(drain)}: drain it first, or use --force")
        return {}

    async def _ask_drain(self, name: str) -> NodeDrain | Silence:
        """What the node says it holds. It is asked again until it has been silent for `silent_after_s`.

        Raises PermanentError when it refuses our token, TemporaryError when its answer makes no sense.
        """
        spec = (await self._known(name)).spec
        kind = engine_kind(spec.engine)
        if not kind.is_own:
            return await self._ask_gauges(spec, kind)
        watch = Stopwatch(self.clock)
        while True:
            view = await asyncio.to_thread(self.provider.observe, name)
            if not view.running or not view.url:
                return Silence.GONE
            try:
                timeout_s = min(ADMIN_TIMEOUT_S, self.silent_after_s)
                return await self.client.drain_state(view.url, timeout_s=timeout_s)
            except SilentPeerError as error:
                if watch.elapsed_s() >= self.silent_after_s:
                    log.warning("node.silent", node=name, error=str(error), for_s=self.silent_after_s)
                    return Silence.UNREACHABLE
            except (NotAllowedError, NoAnswerError) as error:
                raise _effect_error(error) from error
            await self.clock.sleep(POLL_S)

    async def _ask_gauges(self, spec: NodeSpec, kind: EngineKind) -> NodeDrain | Silence:
        """As `_ask_drain`, of an engine that has no drain of its own: its gauges and the gateways say what it holds."""
        name, watch, since = spec.name, Stopwatch(self.clock), self.clock.now()
        while True:
            view = await asyncio.to_thread(self.provider.observe, name)
            if not view.running or not view.url:
                return Silence.GONE
            answers = (await self.client.health(view.url, kind.name, api_key=spec.api_key)).answered
            if answers and (held := await self.by_gauges.held(name, kind, since)) is not None:
                return NodeDrain("serving", held, 0, {})
            if not answers and watch.elapsed_s() >= self.silent_after_s:
                return Silence.UNREACHABLE
            if watch.elapsed_s() >= GAUGES_WAIT_S:
                raise TemporaryError(f"{name}: nobody says how many requests it holds")
            await self.clock.sleep(POLL_S)

    async def _answers(self, row: NodeRow) -> bool:
        view = await asyncio.to_thread(self.provider.observe, row.name)
        if not view.running or not view.url:
            return False
        return (await self.client.health(view.url, row.spec.engine, api_key=row.spec.api_key)).answered

    async def _url(self, name: str) -> str:
        view = await asyncio.to_thread(self.provider.observe, name)
        if view.url is None:
            raise TemporaryError(f"{name}: its address is not known")
        return view.url

    async def _answer(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except (NotAllowedError, NoAnswerError) as error:
            raise _effect_error(error) from error


def _check_end(provider: NodeProvider, name: str, _: float) -> None:
    if isinstance(provider, AsksLeave):
        provider.check_end(name)


def _effect_error(error: NotAllowedError | NoAnswerError) -> PermanentError | TemporaryError:
    return PermanentError(str(error)) if isinstance(error, NotAllowedError) else TemporaryError(str(error))


def _answers_ready(state: NodeState) -> bool:
    return state.phase in (NodePhase.READY, NodePhase.CORDONED) and state.was_ready and state.row.wanted


def _held(drain: NodeDrain) -> str:
    return f"{drain.held} request{'' if drain.held == 1 else 's'} ({drain.running} running, {drain.waiting} waiting)"


def _finished_by_predecessor(row: NodeRow, epoch: int, now: float) -> Receipt | None:
    """The receipt of a restart that an earlier controller finished but did not live to report."""
    mark = row.restart
    if mark is None or mark.get("state") != "done" or row.is_cordoned:
        return None
    if mark.get("epoch") == epoch or now - float(mark.get("at", 0.0)) > RESTART_REPEAT_S:
        return None
    receipt = mark.get("receipt")
    return {**receipt, "note": "done before the controller restarted"} if isinstance(receipt, dict) else None
