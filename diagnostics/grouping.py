"""Which incident an alert belongs to. Pure: all alerts of a tick are judged together, so their order tells nothing.

In this order, an alert
1. joins the open incident that has an alert of its node: one sick node is one incident;
2. joins the open incident of its place (pool, model, zone, revision), or one around it with the same alert, or, as a
   ticket, one whose cause can be behind it;
3. joins the open incident of another node, which widens, when the same alert is on so many nodes of one place that
   the place is the reason (`diagnostics.scope`), or when its own place holds that node;
4. reopens the incident that it ended with shortly before, or one around its node that was not over when it began and
   whose cause can be behind it: flapping is one story, not many, and so is a queue that is worked off; another alert of
   its place that begins when all is over is another fault's;
5. opens a new incident.

In 1, 2 and 4 the alert must also tell of the same fault (`same_fault`): it is a symptom of one tree with what stands
there, the cause that the incident was given explains it, or it begins with the incident. What begins minutes later for
another reason is another incident, however many alerts lie between; and so is a page half an hour after a ticket of
which nobody knows the cause.

Incidents of single nodes that were open before the place was known stay as they are, runs included, and are marked as
part of the wider one. An incident that a run acts on is never widened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from diagnostics.incident import (
    FiredAlert,
    Incident,
    IncidentStatus,
    has_alert,
    is_lately_resolved,
    join,
    may_reopen,
    nodes_of,
    onset_of,
    open_incident,
    reopen,
    widen,
)
from diagnostics.scope import (
    Nodes,
    Shared,
    is_wide,
    nodes_in_scope,
    scope_contains,
    scope_of,
    scope_text,
    shared_places,
)
from diagnostics.severity import severity_rank
from diagnostics.tree import AlertKind

NEAR_S = 180.0  # alerts that begin within this time of each other are taken for one fault
OLD_STORY_S = 1800.0  # what is graver and begins so long after is no part of what nobody knows the cause of

Kinds = Mapping[str, AlertKind]
Explains = Mapping[str, frozenset[str]]
"""Each cause to the trees whose alerts it can be behind."""


def group_alert(
    alert: FiredAlert,
    incidents: Sequence[Incident],
    now: float,
    known: Nodes | None = None,
    kinds: Kinds | None = None,
    explains: Explains | None = None,
) -> Incident:
    """The incident that one `alert` belongs to, already changed: joined, reopened or new. See `group_alerts`."""
    changed = group_alerts([alert], incidents, now, known, kinds, explains)
    everything = {one.id: one for one in incidents} | changed
    found = _home(alert, _open(everything), known or {}, kinds or {}, explains or {})
    assert found is not None
    return found


def group_alerts(
    alerts: Iterable[FiredAlert],
    incidents: Iterable[Incident],
    now: float,
    known: Nodes | None = None,
    kinds: Kinds | None = None,
    explains: Explains | None = None,
) -> dict[str, Incident]:
    """The incidents that change, by id, when `alerts` begin to fire that no open incident has.

    `incidents` are the open ones and those resolved within `REOPEN_WITHIN_S`. `known`: the nodes of the fleet and where
    they are; without it, nodes are known from alerts only. `kinds`: what alerts are symptoms of; `explains`: what
    causes can be behind. An alert that finds its incident full is not kept.
    """
    before = {one.id: one for one in incidents}
    working = dict(sorted(before.items(), key=lambda item: (item[1].opened_at, item[0])))
    arrivals = sorted(alerts, key=lambda one: (one.fired_at if one.fired_at is not None else now, one.fingerprint))
    nodes = _all_nodes([*arrivals, *(held for one in _open(working) for held in one.alerts)], known or {})
    evidence = _evidence(arrivals, _open(working), nodes)
    reasons = {(one.name, node): one for one in evidence for node in one.nodes}
    for alert in arrivals:
        shared = reasons.get((alert.name, alert.labels.get("node", "")))
        placed = _placed(alert, working, shared, nodes, now, kinds or {}, explains or {})
        working[placed.id] = placed
        if is_wide(scope_of(alert.labels)) and is_wide(placed.scope):
            _link(working, placed.id, alert.name, nodes_in_scope(placed.scope, nodes))
    for shared in evidence:
        target = next((one for one in _open(working) if _is_around(one, shared)), None)
        if target is None:
            if (target := _lead(_open(working), shared, nodes)) is None:
                continue
            working[target.id] = widen(target, shared.scope, shared.why, now)
        _link(working, target.id, shared.name, shared.members)
    return {key: one for key, one in working.items() if one is not before.get(key)}


def _placed(
    alert: FiredAlert,
    working: Mapping[str, Incident],
    shared: Shared | None,
    nodes: Nodes,
    now: float,
    kinds: Kinds,
    explains: Explains,
) -> Incident:
    opened = _open(working)
    if (home := _home(alert, opened, nodes, kinds, explains)) is not None:
        return join(home, alert, now)
    if shared is not None:
        for one in opened:  # the place that explains it has an incident of the same fault by another alert
            is_around = is_wide(one.scope) and _holds(one.scope, shared.scope, nodes)
            if is_around and same_fault(one, alert, kinds, explains):
                return join(one, alert, now)
    if shared is not None and (lead := _lead(opened, shared, nodes)) is not None:
        return join(widen(lead, shared.scope, shared.why, now), alert, now)
    scope = scope_of(alert.labels)
    for one in opened if is_wide(scope) else ():
        if _may_widen(one) and _has_name(one, alert.name) and scope_contains(scope, _whereabouts(one, nodes)):
            return join(widen(one, scope, f"{alert.name} fires for {scope_text(scope)}", now), alert, now)
    for incident in sorted(working.values(), key=lambda one: (-(one.resolved_at or 0.0), one.id)):
        goes_on = is_lately_resolved(incident, now) and _is_explained(incident, alert, kinds, explains)
        is_again = _comes_back(incident, alert, now) and same_fault(incident, alert, kinds, explains)
        if is_again or (goes_on and _is_aftermath(incident, alert, nodes)):
            found = join(reopen(incident, alert, now, goes_on=goes_on), alert, now)
            break
    else:
        found = open_incident(alert, now)
        if (other := working.get(found.id)) is not None and not has_alert(other, alert):
            found = open_incident(alert, now, digest_chars=16)  # of a thousand in one second, some ids meet
    if shared is not None and _lead([found], shared, nodes) is not None:
        found = widen(found, shared.scope, shared.why, now)
    return found


def _home(
    alert: FiredAlert, opened: Sequence[Incident], nodes: Nodes, kinds: Kinds, explains: Explains
) -> Incident | None:
    """The open incident that the alert belongs to without any more evidence."""
    scope = scope_of(alert.labels)
    # An alert of a gateway names the node and no place of it.
    place = {**_said(nodes.get(alert.labels.get("node", ""), {})), **alert.labels}

    def is_there(one: Incident) -> bool:
        return _covers_node(one, alert) or (is_wide(scope) and dict(one.scope) == scope != {})

    def is_its_fault(one: Incident) -> bool:
        if scope == {} and _is_all(
            one.scope, nodes
        ):  # alerts of the whole fleet have no place: the cause has to say so
            return _is_explained(one, alert, kinds, explains)
        return is_there(one) and is_symptom(one, alert, kinds, explains)

    rules: tuple[Callable[[Incident], bool], ...] = (
        lambda one: has_alert(one, alert),
        # Of two incidents of one place, the one whose fault it is a symptom of comes before the one it began near.
        is_its_fault,
        lambda one: is_there(one) and same_fault(one, alert, kinds, explains),
        lambda one: is_wide(one.scope) and scope_contains(one.scope, place) and _has_name(one, alert.name),
        # A ticket or a queue of one node of a pool that is overloaded, or its model's: what the pool suffers from is
        # behind it.
        lambda one: (
            is_wide(one.scope)
            and (alert.severity == "ticket" or (is_wide(scope) and scope != {}) or _is_of_kind(one, alert, kinds))
            and (scope_contains(one.scope, place) or (is_wide(scope) and _holds(one.scope, scope, nodes)))
            and _is_explained(one, alert, kinds, explains)
        ),
    )
    for related in rules:
        if (found := next((one for one in opened if related(one)), None)) is not None:
            return found
    return None


def same_fault(incident: Incident, alert: FiredAlert, kinds: Kinds, explains: Explains | None = None) -> bool:
    """Whether the alert tells of what the incident is about.

    It does when it is of a kind with one of the incident's alerts, when the cause that the incident was given can be
    behind it, or when it began with the incident: `NEAR_S` before or after its onset, and not after its last alert, so
    that no chain of alerts reaches from one fault to the next. What stands alone (wrong answers beside a slow pool) is
    of its own kind, or of the cause of its own node. Alerts from outside, of which we know no kind, belong to what goes
    on where they point.
    """
    if is_symptom(incident, alert, kinds, explains or {}):
        return True
    if any(_stands_alone(one, kinds) for one in (alert, *incident.alerts)):
        return False
    onset = onset_of(alert)
    began = incident.onset_at if incident.onset_at is not None else incident.opened_at
    return onset is None or abs(onset - began) <= NEAR_S


def is_symptom(incident: Incident, alert: FiredAlert, kinds: Kinds, explains: Explains) -> bool:
    """Whether the alert is of a kind with one of the incident's, or its standing cause can be behind it."""
    if _is_of_kind(incident, alert, kinds) and not _is_worse_long_after(incident, alert):
        return True
    node = incident.scope.get("node")
    if any(_stands_alone(one, kinds) for one in (alert, *incident.alerts)) and node != alert.labels.get("node", ""):
        return False
    return _is_explained(incident, alert, kinds, explains)


def _is_worse_long_after(incident: Incident, alert: FiredAlert) -> bool:
    """Whether an alert that is graver than all that the incident has had began long after it: a ticket that has stood
    for half an hour dates no page. One by a name that it has goes on with it."""
    began = incident.onset_at if incident.onset_at is not None else incident.opened_at
    onset = onset_of(alert)
    had = max((severity_rank(one.severity) for one in incident.alerts), default=0)
    is_graver = severity_rank(alert.severity) > had and not _has_name(incident, alert.name)
    return is_graver and onset is not None and onset - began >= OLD_STORY_S


def _is_explained(incident: Incident, alert: FiredAlert, kinds: Kinds, explains: Explains) -> bool:
    """Whether the incident's standing cause can be behind the alert; of one that is over, if the alert began before."""
    kind, found = kinds.get(alert.name), incident.diagnosis
    if kind is None or found is None or found.cause is None:
        return False
    if incident.status is IncidentStatus.RESOLVED:
        onset = onset_of(alert)
        if onset is None or incident.resolved_at is None or onset > incident.resolved_at:
            return False
    return kind.tree in explains.get(found.cause, frozenset())


def _comes_back(incident: Incident, alert: FiredAlert, now: float) -> bool:
    """Whether what was over at the alert's place comes back: on the same node, by an alert that it had, or by one that
    had begun before it was over. What begins later in a pool, and shows in another way, only came soon after it."""
    if not may_reopen(incident, alert, now):
        return False
    onset, over_at = onset_of(alert), incident.resolved_at
    had_begun = onset is None or over_at is None or onset <= over_at
    return had_begun or not is_wide(incident.scope) or _has_name(incident, alert.name)


def _is_aftermath(incident: Incident, alert: FiredAlert, nodes: Nodes) -> bool:
    """Whether it is a ticket of a node inside the place that the incident was about: a queue of minutes is worked off,
    and means of minutes still tell of it."""
    node = alert.labels.get("node")
    is_ticket_of_node = node is not None and alert.severity == "ticket"
    place = {**_said(nodes.get(node or "", {})), **alert.labels}
    return is_ticket_of_node and is_wide(incident.scope) and scope_contains(incident.scope, place)


def _is_of_kind(incident: Incident, alert: FiredAlert, kinds: Kinds) -> bool:
    """Whether the alert, or another symptom of its tree, is one of the incident's; true where nobody knows its kind."""
    if _has_name(incident, alert.name) or (alert.source != "rules" and alert.name not in kinds):
        return True
    kind = kinds.get(alert.name)
    if kind is None or kind.stands_alone:
        return False
    return any(kinds.get(one.name) == kind for one in incident.alerts)


def _holds(outer: Mapping[str, str], inner: Mapping[str, str], nodes: Nodes) -> bool:
    """Whether a place lies in another by its labels or by its nodes, as a pool does that alone serves a model."""
    if scope_contains(outer, inner):
        return True
    inside = nodes_in_scope(inner, nodes) if inner else frozenset()
    return bool(inside) and inside <= nodes_in_scope(outer, nodes)


def _is_all(scope: Mapping[str, str], nodes: Nodes) -> bool:
    """Whether a place is the whole fleet, as the only pool is."""
    return scope == {} or (is_wide(scope) and bool(nodes) and nodes_in_scope(scope, nodes) >= nodes.keys())


def _stands_alone(alert: FiredAlert, kinds: Kinds) -> bool:
    kind = kinds.get(alert.name)
    return kind is not None and kind.stands_alone


def _evidence(arrivals: Sequence[FiredAlert], opened: Sequence[Incident], nodes: Nodes) -> list[Shared]:
    """What explains the new alerts together with those of the same name that fire already."""
    new = {(alert.name, alert.labels["node"]) for alert in arrivals if alert.labels.get("node")}
    names = {name for name, _ in new}
    affected: dict[str, set[str]] = {name: set() for name in sorted(names)}
    for name, node in new:
        affected[name].add(node)
    for incident in opened:
        for held in incident.alerts:
            if held.name in names and held.state == "firing" and held.labels.get("node"):
                affected[held.name].add(held.labels["node"])
    found = [one for name, where_it_fires in affected.items() for one in shared_places(name, where_it_fires, nodes)]
    return [one for one in found if any((one.name, node) in new for node in one.nodes)]


def _lead(opened: Sequence[Incident], shared: Shared, nodes: Nodes) -> Incident | None:
    """The oldest incident that may become the one of the shared place: it lies in it, and nothing acts on it."""
    for one in opened:
        if not _may_widen(one) or not _fires(one, shared.name, shared.nodes):
            continue
        held = set(nodes_of(one)) | (nodes_in_scope(one.scope, nodes) if is_wide(one.scope) else set())
        if shared.members >= held:
            return one
    return None


def _link(working: dict[str, Incident], target_id: str, name: str, inside: frozenset[str]) -> None:
    """Mark the other incidents of the same alert in that place as part of the target."""
    for one in _open(working):
        if one.id == target_id or one.part_of is not None or not _fires(one, name, inside):
            continue
        if inside >= set(nodes_of(one)) and dict(one.scope) != dict(working[target_id].scope):
            working[one.id] = replace(one, part_of=target_id)


def _all_nodes(alerts: Iterable[FiredAlert], known: Nodes) -> dict[str, Mapping[str, str]]:
    """The known nodes, and those that alerts name; what the fleet says of a node comes before what an alert says."""
    found: dict[str, dict[str, str]] = {}
    for alert in alerts:
        if node := alert.labels.get("node"):
            found.setdefault(node, {}).update(alert.labels)
    named = {node: {**labels, **_said(known.get(node, {}))} for node, labels in found.items()}
    return {**{node: _said(places) for node, places in known.items()}, **named}


def _said(places: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in places.items() if value}


def _whereabouts(incident: Incident, nodes: Nodes) -> Mapping[str, str]:
    node = incident.scope.get("node")
    return {**nodes.get(node, {}), **incident.scope} if node else incident.scope


def _is_around(incident: Incident, shared: Shared) -> bool:
    return is_wide(incident.scope) and scope_contains(incident.scope, shared.scope) and _has_name(incident, shared.name)


def _fires(incident: Incident, name: str, on: frozenset[str]) -> bool:
    return any(one.name == name and one.state == "firing" and one.labels.get("node") in on for one in incident.alerts)


def _has_name(incident: Incident, name: str) -> bool:
    return any(one.name == name for one in incident.alerts)


def _covers_node(incident: Incident, alert: FiredAlert) -> bool:
    node = alert.labels.get("node")
    if not node:
        return False
    return incident.scope.get("node") == node or any(one.labels.get("node") == node for one in incident.alerts)


def _may_widen(incident: Incident) -> bool:
    return incident.status is IncidentStatus.OPEN and incident.part_of is None


def _open(working: Mapping[str, Incident]) -> list[Incident]:
    return [one for one in working.values() if one.status is not IncidentStatus.RESOLVED]
