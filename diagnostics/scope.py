"""Where something is: a node, a pool, a model, a zone, a revision, or the fleet; and what several nodes have in common.

A scope is a few labels that hold together; {} is the fleet. A node's scope names its pool too, for the trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

PLACES = ("pool", "model", "zone", "revision")  # of two that fit equally well, the first is named
MIN_NODES = 3  # this many nodes are no coincidence, however large the place is
MIN_OF_SMALL = 2  # in a small place fewer are enough, if they are half of it

Nodes = Mapping[str, Mapping[str, str]]
"""Each known node's name to the places it is in."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The same alert on several nodes, and the place that explains them best."""

    name: str
    scope: Mapping[str, str]
    nodes: frozenset[str]  # those of the place with the alert
    members: frozenset[str]  # all known nodes of the place

    @property
    def why(self) -> str:
        """The evidence in one line: how many of the place's nodes, and the first of them."""
        shown = ", ".join(sorted(self.nodes)[:5]) + (", ..." if len(self.nodes) > 5 else "")
        return f"{self.name} on {len(self.nodes)} of {len(self.members)} nodes of {scope_text(self.scope)}: {shown}"


def scope_of(labels: Mapping[str, str]) -> dict[str, str]:
    """What an alert is about by its own labels. Empty: the whole fleet.

    The model is left out beside a pool: some rules of one pool have the label and some have not.
    """
    if labels.get("node"):
        return {name: labels[name] for name in ("node", "pool") if labels.get(name)}
    names = ("pool" if labels.get("pool") else "model", "zone", "revision")
    return {name: labels[name] for name in names if labels.get(name)}


def node_scope(node: str, known: Nodes) -> dict[str, str]:
    """A node with its own pool and model, where they are known: what its pool was through is evidence about it."""
    places = known.get(node, {})
    return {"node": node, **{place: places[place] for place in ("pool", "model") if places.get(place)}}


def is_wide(scope: Mapping[str, str]) -> bool:
    """Whether it is more than one node."""
    return not scope.get("node")


def scope_contains(scope: Mapping[str, str], place: Mapping[str, str]) -> bool:
    """Whether `place` (an alert's labels, or a scope) lies in `scope`. What the place does not say is not in it."""
    if scope.get("node"):
        return scope["node"] == place.get("node")
    return all(place.get(name) == value for name, value in scope.items())


def scope_text(scope: Mapping[str, str]) -> str:
    """A scope in words: the node's name, "pool chat", "pool chat, zone a", or "the fleet"."""
    if scope.get("node"):
        return scope["node"]
    return ", ".join(f"{name} {scope[name]}" for name in PLACES if scope.get(name)) or "the fleet"


def nodes_in_scope(scope: Mapping[str, str], known: Nodes) -> frozenset[str]:
    """The known nodes in a scope that is wider than a node."""
    return frozenset(node for node, places in known.items() if scope_contains(scope, places))


def shared_places(name: str, affected: Iterable[str], known: Nodes) -> list[Shared]:
    """The places that explain why alert `name` fires on the `affected` nodes, each with its share of them.

    A place counts when the alert is on three of its known nodes, or on half of them and two at least; the fleet when
    it is on three and half. Of several, the one whose nodes differ least from those affected, then the smallest.
    """
    left = frozenset(affected)
    candidates = _candidates(left, known)
    found: list[Shared] = []
    while True:
        fitting = [
            (len(nodes ^ left), len(nodes), rank, scope, nodes)
            for rank, scope, nodes in candidates
            if _counts(len(nodes & left), len(nodes), is_fleet=not scope)
        ]
        if not fitting:
            return found
        _, _, _, scope, nodes = min(fitting, key=lambda one: (*one[:3], sorted(one[3].items())))
        found.append(Shared(name, scope, nodes & left, nodes))
        left -= nodes


def _candidates(affected: Set[str], known: Nodes) -> list[tuple[int, dict[str, str], frozenset[str]]]:
    nodes_in: dict[tuple[str, str], set[str]] = {}
    wanted = {(p, v) for node in affected for p in PLACES if (v := known.get(node, {}).get(p))}
    for node, places in known.items():
        for place in PLACES:
            if (key := (place, places.get(place, ""))) in wanted:
                nodes_in.setdefault(key, set()).add(node)
    found = [(PLACES.index(place), {place: value}, frozenset(nodes)) for (place, value), nodes in nodes_in.items()]
    return [*found, (len(PLACES), {}, frozenset(known))]


def _counts(num_affected: int, num_known: int, *, is_fleet: bool) -> bool:
    is_half = 2 * num_affected >= num_known
    if is_fleet:
        return num_affected >= MIN_NODES and is_half
    return num_affected >= MIN_NODES or (num_affected >= MIN_OF_SMALL and is_half)
