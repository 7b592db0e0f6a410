"""May a node be ended: budgets of its platform that say how many of some nodes must stay healthy. Pure.

A PodDisruptionBudget is one. It is asked again, by the platform itself, when the node is ended; this tells beforehand
what the answer will be, when what a plan starts before is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from runbooks.ability import Ability
from runbooks.fleet_view import Change, FleetView
from runbooks.ports import EndBudget, NodeFacts
from runbooks.target import TargetKind
from runbooks.verb import Action


@dataclass(slots=True)
class _Book:
    """What a plan does to the nodes of one budget: how many it starts, and how many it ended for good."""

    started: int = 0
    ended: int = 0


def needed(budget: EndBudget, expected: int) -> int:
    """How many must be healthy when so many are expected. Shares are rounded up, as Kubernetes does."""
    amount = math.ceil(budget.limit * expected / 100 - 1e-9) if budget.is_percent else budget.limit
    return amount if budget.is_minimum else expected - amount


def why_not_ended(actions: Sequence[Action], fleet: FleetView) -> str:
    """Which budget forbids what the actions end, each after those before it; empty when none does, as far as known."""
    books: dict[str, _Book] = {}
    for action in actions:
        change = action.change or Change()
        for of, num in _started_in(change, fleet).items():
            books.setdefault(of, _Book()).started += num
        if not {Ability.STOP, Ability.RESTART} & set(action.verb.needs) or action.target.kind is TargetKind.ROLLOUT:
            continue
        for name in sorted(change.taken_out):
            node = (fleet.nodes or {}).get(name)
            if node is None or not node.wanted:
                continue
            for budget in node.end_budgets:
                book = books.setdefault(budget.name, _Book())
                if why := _why_not(name, node, budget, book):
                    return why
                book.ended += name in change.removes
    return ""


def _started_in(change: Change, fleet: FleetView) -> Counter[str]:
    """New nodes by the budgets of the nodes that they copy: whose labels they will have."""
    nodes, wanted = fleet.nodes or {}, fleet.wanted or frozenset()
    copied = [nodes.get(like or name) for name, like in change.creates.items() if name not in wanted]
    return Counter(budget.name for node in copied if node is not None for budget in node.end_budgets)


def _why_not(name: str, node: NodeFacts, budget: EndBudget, book: _Book) -> str:
    """Its platform counts a node out before it ends it: what is left must be enough."""
    change = book.started - book.ended
    healthy, must = budget.healthy + change, needed(budget, budget.expected + change)
    left = healthy - (1 if node.counts_healthy else 0)
    if left >= must:
        return ""
    new = f", {book.started} new among them" if book.started else ""
    return (
        f"PodDisruptionBudget {budget.name} forbids the end of {name}: {healthy} healthy{new}, {left} would be left,"
        f" and {must} must stay; start a node more first, or change the budget"
    )
