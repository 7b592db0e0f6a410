"""Which node it is, where a verdict about several says that one of them has the fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.calm import look_around
from diagnostics.incident import Incident
from diagnostics.inquiry import LATER_S
from diagnostics.scope import Nodes, node_scope
from fleetctl.controller.content.content import Content

MAX_NODES_ASKED = 8  # each is judged by itself: of a verdict's time
ONE_OF_THEM = "a node of "  # how a title says that one node has it; its begin may be a sentence's


def those_with_it(
    found: Diagnosis, suspects: Iterable[str], known: Nodes, content: Content, store: SeriesStore, now: float
) -> dict[str, Diagnosis] | None:
    """The nodes of the suspects that have this cause, each with what is told of it; None: too many to ask."""
    nodes = sorted(suspects)
    if len(nodes) > MAX_NODES_ASKED:
        return None
    asked = {name: look_around(content.knowledge, content.trees, node_scope(name, known), store, now) for name in nodes}
    return {name: one for name, one in asked.items() if one.cause == found.cause}


def is_of_a_later_one(
    incident: Incident, others: Iterable[Incident], suspects: Collection[str], having: Collection[str]
) -> bool:
    """Whether what "a node of" the incident's place is said to have is told by incidents of single nodes that began
    after this one: it is not what this one began with. `having`: the suspects that have it by themselves; where
    none has, it is of one that has something else."""
    later = {
        other.scope.get("node")
        for other in others
        if other.id != incident.id and other.part_of != incident.id and _began(other) - _began(incident) > LATER_S
    }
    its = set(having) or later.intersection(suspects)
    return bool(its) and its <= later


def _began(incident: Incident) -> float:
    """By its alerts or by what its series show, whichever is first: a node that slows down little by little shows it
    in a pool's alerts first."""
    found = incident.diagnosis
    told = (incident.onset_at, found.onset if found is not None else None, incident.opened_at)
    return min(at for at in told if at is not None)


def named(title: str, node: str, place: str) -> str:
    """The title about the node in place of one of that place."""
    said = ONE_OF_THEM + place
    return title.replace(f"A{said[1:]}", node, 1).replace(said, node, 1)
