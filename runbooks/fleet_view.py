"""What a look at the fleet said, and what follows from it: which nodes a target means, what an action would leave."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from runbooks.ports import NodeFacts, RevisionFacts, WantedChange, WayOut
from runbooks.target import NODE_SETS, Target, TargetKind
from runbooks.wanted_past import WantedPast


@dataclass(frozen=True, slots=True)
class Change:
    """What an action does to the nodes that take requests, by name."""

    creates: Mapping[str, str | None] = field(default_factory=dict)  # new nodes, to the node each is a copy of
    adds: frozenset[str] = frozenset()  # take requests again
    removes: frozenset[str] = frozenset()  # take no requests any more
    pauses: frozenset[str] = frozenset()  # take no requests for a while and come back

    @property
    def taken_out(self) -> frozenset[str]:
        """Nodes that take no requests at some time because of it."""
        return self.removes | self.pauses


@dataclass(frozen=True, slots=True)
class FleetView:
    """A look at the fleet. None: could not look."""

    nodes: Mapping[str, NodeFacts] | None  # every node ever wanted, by name
    serving: frozenset[str] | None
    past: WantedPast = field(default_factory=WantedPast)
    priority_classes: frozenset[str] | None = None  # of the gateways' tenants
    ways_out: tuple[WayOut, ...] | None = None  # endpoints outside that gateways have
    revisions: RevisionFacts | None = None

    @classmethod
    def of(
        cls,
        nodes: Iterable[NodeFacts] | None,
        serving: Iterable[str] | None,
        changes: Iterable[WantedChange] | None = (),
        priority_classes: frozenset[str] | None = None,
        ways_out: Iterable[WayOut] | None = None,
        revisions: RevisionFacts | None = None,
    ) -> FleetView:
        """The view of what was looked up."""
        return cls(
            None if nodes is None else {node.name: node for node in nodes},
            None if serving is None else frozenset(serving),
            WantedPast(tuple(changes or ())),
            priority_classes,
            None if ways_out is None else tuple(ways_out),
            revisions,
        )

    @property
    def wanted(self) -> frozenset[str] | None:
        """Names of the nodes that should run."""
        return None if self.nodes is None else frozenset(name for name, node in self.nodes.items() if node.wanted)

    def members(self, target: Target, *, also: frozenset[str] = frozenset()) -> frozenset[str] | None:
        """Names of the wanted nodes that `target` stands for; None is unknown. A tenant or route stands for none.

        `also` are nodes that count as if they were wanted.
        """
        if target.kind is TargetKind.NODE:
            return frozenset({target.name})
        if self.nodes is None:
            return None
        wanted = [node for node in self.nodes.values() if node.wanted or node.name in also]
        if target.kind is TargetKind.FLEET:
            return frozenset(node.name for node in wanted)
        if target.kind in NODE_SETS:
            return frozenset(node.name for node in wanted if getattr(node, target.kind.value) == target.name)
        return frozenset()

    def surge_nodes(self, leaving: Collection[str]) -> frozenset[str]:
        """The newest nodes that pools have beyond their size because a rollout is under way, but for `leaving`."""
        found: set[str] = set()
        for pool, facts in (self.revisions.pools if self.revisions is not None else {}).items():
            nodes = [node for node in (self.nodes or {}).values() if node.wanted and node.pool == pool]
            num = min(len(nodes) - facts.size, facts.surge) if facts.state else 0
            staying = sorted((node for node in nodes if node.name not in leaving), key=lambda node: -node.created_at)
            found.update(node.name for node in staying[: max(0, num)])
        return frozenset(found)

    def unproven(self, pool: str) -> str:
        """The revision that a rollout of the pool is bringing it to; "" where none is under way."""
        facts = self.revisions.pools.get(pool) if self.revisions is not None else None
        return facts.to if facts is not None and facts.state else ""

    def overlap(self, one: Target, other: Target) -> bool | None:
        """Whether an action on one touches the other; None is unknown, which no claim takes for a no."""
        if one == other or TargetKind.FLEET in (one.kind, other.kind):
            return True
        kinds = {one.kind, other.kind}
        if kinds == {TargetKind.NODE} or not kinds <= {TargetKind.NODE, *NODE_SETS}:
            return False
        if one.kind is other.kind:
            return False  # a node has one pool, one model and one revision
        nodes = self.nodes
        if nodes is None or any(t.kind is TargetKind.NODE and t.name not in nodes for t in (one, other)):
            return None
        return any(_stands_for(one, node) and _stands_for(other, node) for node in nodes.values())

    def after(self, change: Change | None) -> FleetView:
        """The fleet as it would be when an action with this change has succeeded."""
        if change is None:
            return self
        nodes = self.nodes
        if nodes is not None and change.creates:
            # A node that is like none we know is in a pool we do not know: it stays unknown.
            found = {name: _model_of(nodes, name, like) for name, like in change.creates.items()}
            new = {name: replace(node, name=name, wanted=True) for name, node in found.items() if node is not None}
            nodes = {**nodes, **new}
        if self.serving is None:
            return replace(self, nodes=nodes)
        back = frozenset(change.creates) | change.adds | change.pauses
        return replace(self, nodes=nodes, serving=(self.serving - change.removes) | back)

    def after_all(self, changes: Iterable[Change | None]) -> FleetView:
        """As `after`, of several actions in order."""
        view = self
        for change in changes:
            view = view.after(change)
        return view


def _model_of(nodes: Mapping[str, NodeFacts], name: str, like: str | None) -> NodeFacts | None:
    """What a node that is started will be like: itself if it runs, else the node it copies, else itself as it was."""
    own = nodes.get(name)
    if own is not None and (own.wanted or like is None):
        return own
    return nodes.get(like or "")


def _stands_for(target: Target, node: NodeFacts) -> bool:
    """Whether the target means this node, which may be stopped: a claim holds it all the same."""
    if target.kind is TargetKind.NODE:
        return node.name == target.name
    return bool(getattr(node, target.kind.value) == target.name)
