"""What changed last, and when: the first thing to ask about an incident. From the timeline, and from what nodes show.

What people do by hand to a node's process, its revision or its limits is seen too: a change is told from two looks at
the node. A process that was started or stopped without an order of this controller's is told apart: a crash, a kubelet
and a person at a shell look alike from here, and none of them is maintenance that we know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.node_row import RouteIntent
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase

KEPT_S = 6 * 3600.0
"""Nobody asks what changed longer before an incident than this."""
FIRST_START_S = 60.0
"""A start so soon after its row was made is a node's first: nobody restarted it, and who kills it is no maintenance."""


class ChangeKind(StrEnum):
    """What kinds of change are told apart."""

    DEPLOY = "deploy"  # a node runs another revision than it, or the others of its pool, did before
    SCALE = "scale"  # a pool has a node more or less by our will
    LIMITS = "limits"  # limits of a node's engine
    RESTART = "restart"  # another process by our order, or of another revision; of a gateway, its connections ended
    START = "start"  # another process, and nobody here ordered it
    REROUTE = "reroute"  # who gets which requests: a cordon or its end, a traffic rule
    DRAIN = "drain"  # a node began to drain by our will
    STOP = "stop"  # a node began to drain, and nobody here ordered it: whoever runs it told it to end
    CONFIG = "config"  # content of the controller: rules, trees, pages
    ROLLOUT = "rollout"  # a rollout moved on
    ROLLBACK = "rollback"  # a rollout has gone back: its pool runs what it ran before


class Change(NamedTuple):
    """The last change of a kind. Empty names: it is about more than that."""

    kind: ChangeKind
    at: float
    node: str = ""
    pool: str = ""


_OF_TIMELINE = {
    "content.loaded": ChangeKind.CONFIG,
    "gateway.restarted": ChangeKind.RESTART,
    "gateway.started": ChangeKind.RESTART,
    "node.started": ChangeKind.RESTART,
    "autoscaler.scaled": ChangeKind.SCALE,
    "rollout.rolled_back": ChangeKind.ROLLBACK,
}
_OF_TIMELINE_BEGINNINGS = {"rollout.": ChangeKind.ROLLOUT, "traffic_rule.": ChangeKind.REROUTE}


def change_in_entry(kind: str, at: float, node: str | None, data: Mapping[str, Any]) -> Change | None:
    """The change that an entry of the timeline tells of; None for other entries."""
    found = _OF_TIMELINE.get(kind) or next(
        (one for beginning, one in _OF_TIMELINE_BEGINNINGS.items() if kind.startswith(beginning)), None
    )
    return None if found is None else Change(found, at, node or "", str(data.get("pool") or ""))


@dataclass(frozen=True, slots=True)
class _Look:
    """What a change is told from. None: not known at this look."""

    spec: NodeSpec
    is_wanted: bool
    instance: str | None
    route: RouteIntent
    phase: NodePhase
    created_at: float
    is_restarting: bool  # an order of ours to restart it is under way
    replaced: str | None  # the instance that our last restart ended


class Changes:
    """The last change of each kind, node and pool. Threading: event loop only."""

    def __init__(self) -> None:
        self._last: dict[tuple[ChangeKind, str, str], Change] = {}  # by kind, node, and pool where there is no node
        self._began_at = 0.0
        self._looks: dict[str, _Look] | None = None  # None: nothing was looked at yet, so nothing can have changed
        self._limits: dict[str, Mapping[str, float]] = {}

    def hear(self, kind: str, at: float, node: str | None, data: Mapping[str, Any]) -> None:
        """Take up an entry of the timeline."""
        if (change := change_in_entry(kind, at, node, data)) is not None:
            self._note(change.kind, change.at, change.node, change.pool)

    def observe_nodes(self, states: Iterable[NodeState], now: float) -> None:
        """Compare the nodes with what they were at the last look."""
        looks = {state.name: _look_of(state) for state in states}
        before, self._looks = self._looks, looks
        if before is None:
            self._began_at = now
            return
        for name, look in looks.items():
            if name not in before and look.created_at < self._began_at:
                continue  # it was there, and was not looked at yet
            self._compare(name, before.get(name), look, before, now)
        for name in before.keys() - looks.keys():
            if before[name].is_wanted:
                self._note(ChangeKind.SCALE, now, "", before[name].spec.pool)

    def observe_limits(self, limits: Mapping[str, Mapping[str, float]], now: float) -> None:
        """Compare the limits that nodes tell, by node and name of the limit. A node that tells nothing is left out."""
        for node, values in limits.items():
            before = self._limits.get(node)
            if before is not None and before != values:
                self._note(ChangeKind.LIMITS, now, node, self._pool_of(node))
        self._limits |= limits

    def changes(self, now: float) -> Iterator[Change]:
        """The last change of each kind, node and pool within `KEPT_S`."""
        for key in [key for key, change in self._last.items() if now - change.at > KEPT_S]:
            del self._last[key]
        return (one for one in self._last.values() if not self._is_first_start(one))

    def spec_of(self, node: str) -> NodeSpec | None:
        """Of a node that was seen lately."""
        look = (self._looks or {}).get(node)
        return None if look is None else look.spec

    def _compare(
        self, name: str, before: _Look | None, look: _Look, all_before: Mapping[str, _Look], now: float
    ) -> None:
        pool = look.spec.pool
        if look.is_wanted != (before is not None and before.is_wanted):
            self._note(ChangeKind.SCALE, now, "", pool)
        if look.is_wanted and _begins(before, look) and _is_deploy(name, before, look, all_before):
            self._note(ChangeKind.DEPLOY, now, name, pool)
        if before is None:
            return
        if None not in (look.instance, before.instance) and look.instance != before.instance:
            self._note(ChangeKind.RESTART if _is_ordered(before, look) else ChangeKind.START, now, name, pool)
        if look.is_wanted and {look.route, before.route} == {RouteIntent.ACTIVE, RouteIntent.CORDONED}:
            self._note(ChangeKind.REROUTE, now, name, pool)
        if look.phase is NodePhase.DRAINING and before.phase is not NodePhase.DRAINING:
            is_ours = not look.is_wanted or look.route is not RouteIntent.ACTIVE or look.is_restarting
            self._note(ChangeKind.DRAIN if is_ours else ChangeKind.STOP, now, name, pool)

    def _is_first_start(self, change: Change) -> bool:
        look = (self._looks or {}).get(change.node)
        return (
            change.kind in (ChangeKind.RESTART, ChangeKind.START)
            and look is not None
            and change.at <= look.created_at + FIRST_START_S
        )

    def _note(self, kind: ChangeKind, at: float, node: str, pool: str) -> None:
        key = (kind, node, "" if node else pool)
        if key not in self._last or self._last[key].at <= at:
            self._last[key] = Change(kind, at, node, pool or self._pool_of(node))

    def _pool_of(self, node: str) -> str:
        spec = self.spec_of(node) if node else None
        return spec.pool if spec is not None else ""


def _look_of(state: NodeState) -> _Look:
    row = state.row
    mark = row.restart or {}
    return _Look(
        row.spec,
        row.wanted,
        state.instance,
        row.route,
        state.phase,
        row.created_at,
        row.is_restarting,
        mark.get("instance"),
    )


def _is_ordered(before: _Look, look: _Look) -> bool:
    """Whether the other process that runs there now is one that somebody wanted: a restart of ours, before or after its
    end was stored, or another revision, which nothing starts by itself."""
    is_ours = before.is_restarting or look.is_restarting or look.replaced == before.instance
    return is_ours or before.spec.revision != look.spec.revision


def _begins(before: _Look | None, look: _Look) -> bool:
    """Whether something new runs there, or serves for the first time."""
    if before is None or not before.is_wanted or before.spec.revision != look.spec.revision:
        return True
    is_first_ready = look.phase is NodePhase.READY and before.phase is NodePhase.STARTING
    return look.instance != before.instance or is_first_ready


def _is_deploy(name: str, before: _Look | None, look: _Look, all_before: Mapping[str, _Look]) -> bool:
    """Whether what begins is another revision than the node, or others of its pool, had."""
    if before is not None and before.spec.revision != look.spec.revision:
        return True
    others = {
        one.spec.revision
        for other, one in all_before.items()
        if other != name and one.is_wanted and one.spec.pool == look.spec.pool
    }
    is_new = before is None or not before.is_wanted or before.phase is NodePhase.STARTING
    return is_new and bool(others - {look.spec.revision})
