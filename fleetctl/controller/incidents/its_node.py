"""Which node it is, where a verdict about several says that one of them has the fault."""

from __future__ import annotations

from collections.abc import Iterable

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.calm import look_around
from diagnostics.scope import Nodes, node_scope
from fleetctl.controller.content.content import Content

MAX_NODES_ASKED = 8  # each is judged by itself: of a verdict's time
ONE_OF_THEM = "a node of "  # how a title says that one node has it; its begin may be a sentence's


def is_of_one(found: Diagnosis) -> bool:
    """Whether its title says that a node has it, and not which."""
    return ONE_OF_THEM in found.title.lower()


def at_its_node(
    found: Diagnosis, suspects: Iterable[str], known: Nodes, content: Content, store: SeriesStore, now: float
) -> tuple[str, Diagnosis] | None:
    """The one node of the suspects that has this cause, with what is told of it; None where none has it, where two
    have, and where there are too many to ask."""
    nodes = sorted(suspects)
    if len(nodes) > MAX_NODES_ASKED:
        return None
    asked = {name: look_around(content.knowledge, content.trees, node_scope(name, known), store, now) for name in nodes}
    same = [(name, one) for name, one in asked.items() if one.cause == found.cause]
    return same[0] if len(same) == 1 else None


def named(title: str, node: str, place: str) -> str:
    """The title about the node in place of one of that place."""
    said = ONE_OF_THEM + place
    return title.replace(f"A{said[1:]}", node, 1).replace(said, node, 1)
