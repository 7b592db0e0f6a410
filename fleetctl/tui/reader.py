"""The one reader of the controller: each turn it reads what the screen needs and what is due, and keeps the rest.

A part is due when its period is over, or when an event said that it changed. Nodes are told as they change, by a stream
of their own while a screen shows them; where there is none they are read as a list, of a large fleet no oftener than
they are scraped.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.told_node import KnownNodes
from fleetctl.tui.chart_view import COLUMNS
from fleetctl.tui.cockpit_client import CockpitClient
from fleetctl.tui.snapshot import Budget, Part, Snapshot, Tail, Trend, Wanted, current_run, is_closed, rank
from fleetctl.wire.identity import CallerInfo
from fleetctl.wire.incident import Incident
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.timeline import TimelineEntry

LARGE_FLEET = 200  # nodes: beyond, they are read as often as they are scraped
LARGE_EVERY_TURNS = 3
TURNS: dict[Part, int] = {
    Part.INCIDENTS: 5,
    Part.FOCUS: 5,
    Part.RUNS: 15,
    Part.PAGE: 15,
    Part.PAST: 8,
    Part.AUDIT: 5,
    Part.BUDGETS: 8,
    Part.CHARTS: 8,
}
"""After how many turns a part is read again though no event spoke of it; others: each turn."""
TOLD_BY_EVENTS = frozenset({Part.INCIDENTS, Part.FOCUS, Part.RUNS, Part.ALERTS, Part.AUDIT, Part.POOLS})
TOLD_OF_NODES = frozenset({Part.NODES, Part.NODE})
OF_SCRAPES = frozenset({Part.NODES, Part.POOLS, Part.GROUPS})  # they change when nodes are scraped
BEHIND: dict[Part, int] = {Part.INCIDENTS: 5, Part.FOCUS: 5, Part.POOLS: 5, Part.NODES: 30}
"""What header, questions and completion need of what the screen does not show, and after how many turns it is read."""
UNASKED = frozenset({Part.INCIDENTS, Part.FOCUS})  # of them, those that events have read at once
MAX_EVENTS = 10_000
MAX_INCIDENTS = 500  # the newest: older ones are fleetctl's to list
MAX_RUNS = 1000
TREND_LENGTH = 40
NO_TREND = Trend()
PAST_S = 3600
OBJECTIVES = "llm:objective_ratio"
BURNS = "llm:slo_errors:ratio_rate{} / (1 - llm:objective_ratio) and llm:slo_total:rate offset {}"
BURN_WINDOWS = (("5m", "150s"), ("1h", "30m"), ("6h", "3h"))
"""Windows, and since when there has to be something: less than half of one is none, as in alerts/rules/slo.yaml."""
OF_NODES = "llm:{}_seconds:p95{}"
OF_POOLS = "histogram_quantile(0.95, sum by (le, pool) (llm:{}_seconds:bucket_rate{}))"


class SnapshotReader:
    """Reads snapshots from a controller, and keeps the last good one for when it is away."""

    def __init__(self, controller: CockpitClient, now: Callable[[], float]) -> None:
        self._controller = controller
        self._now = now
        self._last = Snapshot()
        self._wanted = Wanted()
        self._turn = 0
        self._read_in: dict[Part, int] = {}  # part to the turn in which it was last read
        self._stale: set[Part] = set()
        self._pages: dict[str, RunbookInfo] = {}  # a page changes only when the controller restarts
        self._trends: dict[str, tuple[deque[float | None], deque[float | None]]] = {}
        self._events: deque[TimelineEntry] = deque(maxlen=MAX_EVENTS)
        self._told_events: tuple[TimelineEntry, ...] | None = ()  # the same while none came: nothing is listed anew
        self._told_nodes: dict[str, Node] | None = None  # None: nobody tells of them, they are read
        self._told_at: dict[str, float] = {}  # when each was last told
        self._told_anew: set[str] = set()  # names of those that were told since nodes were last shown
        self._has_told = False  # what is shown of nodes is not what was told last

    def heard(self, entries: Iterable[TimelineEntry]) -> None:
        """Events came: what they are about is read again."""
        known = self._events[-1].seq if self._events else 0
        new = [entry for entry in entries if entry.seq > known]
        if new:
            self._events.extend(new)
            self._told_events = None  # listed anew when it is read
            self._stale |= TOLD_BY_EVENTS
            if any(entry.node is not None for entry in new):
                self._stale |= TOLD_OF_NODES

    def heard_nodes(self, known: KnownNodes) -> None:
        """The stream of nodes told of changes, or of all of them."""
        now = self._now()
        self._told_nodes = dict(known.nodes)
        self._told_at = {
            name: now if name in known.changed else self._told_at.get(name, now) for name in self._told_nodes
        }
        self._told_anew |= known.changed
        self._has_told = True

    def lost_nodes(self) -> None:
        """The stream of nodes is cut, or nobody follows it: until it goes on they are read."""
        if self._told_nodes is not None:
            self._told_nodes = None
            self._stale.add(Part.NODES)

    def forget(self) -> None:
        """A person did something, or asked to look again: everything is read anew."""
        self._stale |= set(Part)

    async def read(self, wanted: Wanted) -> Snapshot:
        """The state of now, as far as it is wanted."""
        before, begun = self._last, self._now()
        self._turn += 1
        try:
            fresh = await self._read(wanted)
        except FleetctlError as error:
            since = before.cut_off_since
            self._last = replace(before, cut_off_since=begun if since is None else since, error=error.message)
            self._stale |= set(Part)
            return self._last
        now = self._now()
        if before.cut_off_since is not None and before.known_at is not None:
            fresh = replace(fresh, reconnected_at=now, was_away_s=now - before.cut_off_since)
        self._last = replace(fresh, known_at=now, took_s=now - begun, cut_off_since=None, error="")
        return self._last

    def _due(self, wanted: Wanted) -> set[Part]:
        if wanted.incident != self._wanted.incident:
            self._stale |= {Part.FOCUS, Part.CHARTS}
        if wanted.node != self._wanted.node:
            self._stale |= {Part.NODE, Part.REQUESTS}
        if wanted.page != self._wanted.page:
            self._stale |= {Part.PAGE, Part.FOCUS}
        if wanted.group is not self._wanted.group:
            self._stale.add(Part.GROUPS)
        if wanted.alert != self._wanted.alert:
            self._stale.add(Part.EXPLANATION)
        self._wanted = wanted
        due = set()
        for part in wanted.parts | BEHIND.keys():
            is_shown = part in wanted.parts
            every = TURNS.get(part, 1) if is_shown else BEHIND[part]
            if part in OF_SCRAPES and is_shown and len(self._last.nodes) > LARGE_FLEET:
                every = max(every, LARGE_EVERY_TURNS)
            is_stale = part in self._stale and (is_shown or part in UNASKED)
            if part is Part.NODES and self._told_nodes is not None:
                continue
            if is_stale or self._turn - self._read_in.get(part, -1000) >= every:
                due.add(part)
        return due

    async def _read(self, wanted: Wanted) -> Snapshot:
        due = self._due(wanted)
        self._stale -= due  # before they are asked for: what is heard of them meanwhile has them read once more
        controller, last = self._controller, self._last
        readers = {
            Part.NODES: self._nodes,
            Part.POOLS: self._pools,
            Part.GROUPS: self._groups,
            Part.ALERTS: self._alerts,
            Part.EXPLANATION: self._explanation,
            Part.INCIDENTS: self._incidents,
            Part.RUNS: self._runs,
            Part.NODE: self._node,
            Part.REQUESTS: self._requests,
            Part.PAST: self._past,
            Part.BUDGETS: self._budgets,
            Part.AUTOSCALER: self._autoscaler,
            Part.TRAFFIC: self._traffic,
            Part.AUDIT: self._audit,
            Part.PAGE: self._page_asked_for,
        }
        chosen = [part for part in readers if part in due]
        status, caller, *found = await asyncio.gather(
            controller.status(), self._caller(), *(readers[part]() for part in chosen)
        )
        if last.status is not None and status.started_at != last.status.started_at:
            self._pages.clear()
            self._stale |= set(Part) - due
            due.add(Part.FOCUS)
        changes: dict[str, Any] = {}
        for change in found:
            changes |= change
        if self._told_nodes is not None and self._has_told:
            changes |= self._nodes_as_told(self._told_nodes)
            due.add(Part.NODES)
            self._stale.discard(Part.NODES)
        if Part.FOCUS in due:
            changes |= await self._focus(changes.get("incidents", last.incidents))
        if Part.CHARTS in due:
            changes |= await self._charts(changes.get("focus", last.focus))
        if self._told_events is None:
            self._told_events = tuple(self._events)
        at = self._now()
        self._read_in |= dict.fromkeys(due, self._turn)
        read_at = {**last.read_at, **dict.fromkeys(due, at)}
        return replace(last, **changes, status=status, caller=caller, events=self._told_events, read_at=read_at)

    async def _caller(self) -> CallerInfo | None:
        """Asked once for each connection: a role changes with the token."""
        if self._last.caller is not None and self._last.cut_off_since is None:
            return self._last.caller
        return await self._controller.caller()

    async def _nodes(self) -> dict[str, Any]:
        nodes = await self._controller.nodes()
        return {**self._shown(nodes, {node.name for node in nodes}), "node_told_at": {}}

    def _nodes_as_told(self, nodes: dict[str, Node]) -> dict[str, Any]:
        changed, self._told_anew, self._has_told = self._told_anew, set(), False
        return {**self._shown(nodes.values(), changed), "node_told_at": self._told_at}

    def _shown(self, nodes: Iterable[Node], changed: set[str]) -> dict[str, Any]:
        """The nodes in their order, with what those that were told anew have told lately."""
        ordered = tuple(sorted(nodes, key=_stopped_last))
        trends = {node.name: self._last.trends.get(node.name, NO_TREND) for node in ordered}
        for node in ordered:
            if node.name in changed:
                ttft, tokens = self._trends.setdefault(
                    node.name, (deque(maxlen=TREND_LENGTH), deque(maxlen=TREND_LENGTH))
                )
                ttft.append(node.ttft_s.value)
                tokens.append(node.tokens_per_s.value)
                trends[node.name] = Trend(tuple(ttft), tuple(tokens))
        for name in self._trends.keys() - trends.keys():
            del self._trends[name]
        return {"nodes": ordered, "trends": trends}

    async def _pools(self) -> dict[str, Any]:
        pools = tuple(await self._controller.pools())
        return {} if pools == self._last.pools else {"pools": pools}  # the same while nothing is: it is drawn anew else

    async def _groups(self) -> dict[str, Any]:
        by = self._wanted.group
        if by is None:
            return {}
        return {"groups": {by: tuple(await self._controller.groups(by))}}

    async def _alerts(self) -> dict[str, Any]:
        return {"alerts": tuple(await self._controller.alerts())}

    async def _explanation(self) -> dict[str, Any]:
        wanted = self._wanted.alert
        if wanted is None:
            return {"explained": None, "explanation": None}
        try:
            return {"explained": wanted, "explanation": await self._controller.explain_alert(wanted)}
        except BadInputError:  # it cleared, or Alertmanager judged it
            return {"explained": wanted, "explanation": None}

    async def _incidents(self) -> dict[str, Any]:
        incidents = await self._controller.incidents(limit=MAX_INCIDENTS)
        return {"incidents": tuple(sorted(incidents, key=rank))}

    async def _runs(self) -> dict[str, Any]:
        return {"runs": tuple(await self._controller.runs(limit=MAX_RUNS))}

    async def _node(self) -> dict[str, Any]:
        if self._wanted.node is None:
            return {"node": None}
        try:
            return {"node": await self._controller.node(self._wanted.node)}
        except BadInputError:  # it is gone (404): there is nothing to show, and the rest is good
            return {"node": None}

    async def _requests(self) -> dict[str, Any]:
        if self._wanted.node is None:
            return {"requests": None, "kv": None}
        try:
            held, kv = await asyncio.gather(
                self._controller.node_requests(self._wanted.node), self._controller.node_kv(self._wanted.node)
            )
            return {"requests": held, "kv": kv}
        except BadInputError:  # it is gone (404)
            return {"requests": None, "kv": None}

    async def _past(self) -> dict[str, Any]:
        wanted = [(name, before) for name in ("ttft", "itl") for before in ("", f" offset {PAST_S}s")]
        told: dict[str, list[dict[str, float]]] = {}
        for label, expression in (("node", OF_NODES), ("pool", OF_POOLS)):
            try:
                answers = await asyncio.gather(*(self._controller.query(expression.format(*one)) for one in wanted))
            except BadInputError:  # too many series: not known
                continue
            told[label] = [_by_label(answer, label) for answer in answers]
        return {f"{label}_tails": _tails(values) for label, values in told.items()}

    async def _budgets(self) -> dict[str, Any]:
        asked = (OBJECTIVES, *(BURNS.format(window, since) for window, since in BURN_WINDOWS))
        try:
            answers = await asyncio.gather(*(self._controller.query(expression) for expression in asked))
        except BadInputError:  # too many series
            return {"budgets": None}
        told = [_by_labels(answer, "pool", "slo") for answer in answers]
        names = sorted({name for values in told for name in values})
        found = (Budget(pool, slo, *(values.get((pool, slo)) for values in told)) for pool, slo in names)
        return {"budgets": tuple(found)}

    async def _autoscaler(self) -> dict[str, Any]:
        return {"autoscaler": tuple(await self._controller.autoscaler())}

    async def _traffic(self) -> dict[str, Any]:
        routing, rollouts = await asyncio.gather(self._controller.routing(), self._controller.rollouts())
        try:
            tenants, unknown = tuple(await self._controller.tenants()), ""
        except UnreachableError as error:  # no gateway tells; a controller that is away fails the other calls too
            tenants, unknown = (), error.message
        return {"routing": routing, "rollouts": tuple(rollouts), "tenants": tenants, "tenants_unknown": unknown}

    async def _audit(self) -> dict[str, Any]:
        return {"audit": tuple(await self._controller.audit(limit=500))}

    async def _focus(self, incidents: tuple[Incident, ...]) -> dict[str, Any]:
        wanted = self._wanted.incident or (incidents[0].id if incidents else None)
        focus = await self._incident(wanted) if wanted is not None else None
        if self._wanted.page is not None:
            return {"focus": focus}
        run = current_run(focus) if focus is not None else None
        return {"focus": focus, "page": await self._page(run.runbook) if run is not None else None}

    async def _charts(self, focus: Incident | None) -> dict[str, Any]:
        """Of the incident that is shown. What was measured in one that is over changes no more."""
        last = self._last
        if focus is None:
            return {"charts": None, "charts_of": None, "charts_unknown": ""}
        if is_closed(focus) and last.charts_of == focus.id and last.focus is not None and is_closed(last.focus):
            return {}
        try:
            found, unknown = await self._controller.incident_charts(focus.id, COLUMNS), ""
        except BadInputError as error:  # its file is gone
            found, unknown = None, error.message
        return {"charts": found, "charts_of": focus.id, "charts_unknown": unknown}

    async def _incident(self, incident_id: str) -> Incident | None:
        try:
            return await self._controller.incident(incident_id)
        except BadInputError:  # it is gone (404)
            return None

    async def _page_asked_for(self) -> dict[str, Any]:
        return {} if self._wanted.page is None else {"page": await self._page(self._wanted.page)}

    async def _page(self, name: str) -> RunbookInfo | None:
        if name not in self._pages:
            try:
                self._pages[name] = await self._controller.runbook(name)
            except BadInputError:  # a one-step action has no page
                return None
        return self._pages[name]


def _by_label(answer: dict[str, Any], label: str) -> dict[str, float]:
    """A label's value to the sample's, of a query; what is no number is left out."""
    return {name: value for (name,), value in _by_labels(answer, label).items()}


def _by_labels(answer: dict[str, Any], *labels: str) -> dict[tuple[str, ...], float]:
    """As `_by_label`, by several; the highest where samples differ in other labels."""
    found: dict[tuple[str, ...], float] = {}
    for sample in answer["samples"]:
        value, name = sample["value"], tuple(sample["labels"].get(label, "") for label in labels)
        if all(name) and isinstance(value, int | float) and math.isfinite(value):
            found[name] = max(float(value), found.get(name, -math.inf))
    return found


def _tails(told: list[dict[str, float]]) -> dict[str, Tail]:
    names = {name for values in told for name in values}
    return {name: Tail(*(values.get(name) for values in told)) for name in names}


def _stopped_last(node: Node) -> tuple[bool, str, str]:
    return node.phase is NodePhase.STOPPED, node.pool, node.name
