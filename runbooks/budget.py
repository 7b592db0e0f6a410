"""How many disruptive actions an hour may see: on a node, in a pool, in a zone, in the fleet. Pure judgement.

One action takes one node out of service, for a while or for good; a run that takes the same node out twice (drain, then
stop) counts once. Everything counts, whoever asked; automation may use a part of the budget, people all of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from runbooks.fleet_view import FleetView
from runbooks.guard import GuardAnswer, Ruling
from runbooks.ports import NodeFacts

WINDOW_S = 3600.0


@dataclass(frozen=True, slots=True)
class ActionBudget:
    """Disruptive actions in an hour; of a pool, a zone and the fleet as many as half of its wanted nodes, if more."""

    per_node: int = 8
    per_pool: int = 24
    per_zone: int = 32
    per_fleet: int = 64
    automation_ratio: float = 0.5  # of each: automation stops there

    def of_automation(self) -> ActionBudget:
        """What automation may use of it; at least one action everywhere."""

        def part(limit: int) -> int:
            return max(1, math.floor(limit * self.automation_ratio))

        return replace(
            self,
            per_node=part(self.per_node),
            per_pool=part(self.per_pool),
            per_zone=part(self.per_zone),
            per_fleet=part(self.per_fleet),
        )


@dataclass(frozen=True, slots=True)
class Disruption:
    """A run took a node out of service, or began to, `age_s` seconds ago."""

    run_id: str
    node: str
    age_s: float


def judge_budget(
    nodes: Collection[str],
    recent: Iterable[Disruption] | None,
    fleet: FleetView,
    budget: ActionBudget,
    *,
    run_id: str = "",
    by_automation: bool = False,
) -> Ruling:
    """Whether the run may take out these nodes with what the last hour saw. What it took out itself counts once."""
    if not nodes:
        return Ruling(GuardAnswer.YES, "takes out nothing")
    if recent is None or fleet.nodes is None:
        return Ruling(GuardAnswer.UNKNOWN, "could not look how much was done in the last hour")
    limits = budget.of_automation() if by_automation else budget
    youngest: dict[tuple[str, str], float] = {}
    for one in recent:
        if one.age_s < WINDOW_S:
            key = one.run_id, one.node
            youngest[key] = min(one.age_s, youngest.get(key, one.age_s))
    asked = {(run_id, node) for node in nodes} - youngest.keys()
    disrupted = {node for _, node in youngest}
    for scope, limit in _scopes({node for _, node in asked}, disrupted, fleet, limits, by_automation):
        new = sum(scope.holds(node, fleet.nodes) for _, node in asked)
        ages = [age_s for (_, node), age_s in youngest.items() if scope.holds(node, fleet.nodes)]
        if len(ages) + new > limit:
            return Ruling(GuardAnswer.NO, _refusal(scope, len(ages), new, limit, ages, by_automation))
    return Ruling(GuardAnswer.YES, "within the hour's budget of actions")


@dataclass(frozen=True, slots=True)
class _Scope:
    """A node, or those that have this pool or zone, or all."""

    kind: str
    name: str = ""

    def holds(self, node: str, nodes: Mapping[str, NodeFacts]) -> bool:
        """A node that is not known any more counts for the fleet and for itself."""
        if self.kind == "fleet":
            return True
        if self.kind == "node":
            return node == self.name
        facts = nodes.get(node)
        return facts is not None and getattr(facts, self.kind) == self.name

    @property
    def words(self) -> str:
        return {"fleet": "in the fleet", "node": f"on {self.name}"}.get(self.kind, f"in {self.kind} {self.name}")


def _scopes(
    asked: Collection[str], disrupted: Collection[str], fleet: FleetView, limits: ActionBudget, by_automation: bool
) -> list[tuple[_Scope, int]]:
    """The scopes that the nodes are in, with their limits, the narrowest first. No zone is no scope.

    A share is of what was there when the hour began: what was `disrupted` since counts, wanted or not.
    """
    nodes = fleet.nodes or {}
    ratio = 0.5 * (limits.automation_ratio if by_automation else 1.0)

    def limit(scope: _Scope, fixed: int) -> int:
        there = (name for name, facts in nodes.items() if facts.wanted or name in disrupted)
        return max(fixed, math.ceil(ratio * sum(scope.holds(name, nodes) for name in there)))

    found = [(_Scope("node", name), limits.per_node) for name in sorted(asked)]
    for kind, fixed in (("pool", limits.per_pool), ("zone", limits.per_zone)):
        names = {getattr(nodes[name], kind) for name in asked if name in nodes}
        scopes = [_Scope(kind, name) for name in sorted(names) if name or kind == "pool"]
        found += [(scope, limit(scope, fixed)) for scope in scopes]
    whole = _Scope("fleet")
    return [*found, (whole, limit(whole, limits.per_fleet))]


def _refusal(scope: _Scope, used: int, new: int, limit: int, ages: list[float], by_automation: bool) -> str:
    whose = "automation may bring it to" if by_automation else "the limit is"
    need = used + new - limit
    oldest = sorted(ages, reverse=True)
    again = f"; room in {math.ceil((WINDOW_S - oldest[need - 1]) / 60)} min" if need <= len(oldest) else ""
    return f"budget of actions: {used} within the last hour {scope.words}, {new} more asked for, {whose} {limit}{again}"


class Ages:
    """Ages of stored times that no clock can hold up: a time from the future, of a clock that was set back since, ages
    from when it was first seen."""

    def __init__(self) -> None:
        self._first: dict[Hashable, tuple[float, float]] = {}  # when it was seen first, and how old it was then

    def age_s(self, key: Hashable, at: float, now: float) -> float:
        """The age at `now` of what happened at `at`, both in Unix seconds; `key` stands for it from call to call."""
        if len(self._first) > 10_000:
            self._first.clear()
        seen_at, age_s = self._first.setdefault(key, (now, max(0.0, now - at)))
        return age_s + max(0.0, now - seen_at)
