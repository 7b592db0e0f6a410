"""Where requests go: the routing table with each node's share, rules in force, rollouts, tenants. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.traffic_rule import TrafficRule
from fleetctl.tui.cell import UNKNOWN, Cell, StorySection, Tone, clock_time, count, percent, rate, span
from fleetctl.tui.node_view import PHASES
from fleetctl.tui.rollout_view import rollout_heading
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire.routing import RouteState
from fleetctl.wire.tenant import TenantUse

Row = tuple[Cell, ...]
MAX_ROUTES = 60
_ROUTES = {RouteState.ACTIVE: Tone.GOOD, RouteState.CORDONED: Tone.WARN, RouteState.LEAVING: Tone.BUSY}


def traffic_sections(snapshot: Snapshot, now: float) -> tuple[StorySection, ...]:
    """Rules and rollouts first: what a person changed explains the rest."""
    return (_rules(snapshot, now), *_rollouts(snapshot), _routes(snapshot), _tenants(snapshot))


def titles(*titles: str, left: int = 1) -> Row:
    return tuple(Cell(title, Tone.DIM, right=at >= left) for at, title in enumerate(titles))


def _rules(snapshot: Snapshot, now: float) -> StorySection:
    rules = snapshot.status.traffic_rules if snapshot.status is not None else []
    if not rules:
        return StorySection(Cell("No traffic rules: requests go where the gateway's own choice sends them.", Tone.DIM))
    rows = tuple(
        (
            Cell(rule.id, Tone.STRONG),
            Cell(rule.spec.words),
            Cell("until ended" if rule.expires_at is None else f"{span(rule.expires_at - now)} left", Tone.DIM),
            Cell(_made(rule), Tone.DIM),
        )
        for rule in rules
    )
    return StorySection(Cell(count(len(rules), "traffic rule"), Tone.WARN), rows)


def _made(rule: TrafficRule) -> str:
    """Since when, whose it is and why, as far as that was told."""
    who = f" by {rule.made_by}" if rule.made_by else ""
    return f"since {clock_time(rule.made_at)}{who}{': ' + rule.reason if rule.reason else ''}"


def _rollouts(snapshot: Snapshot) -> Iterator[StorySection]:
    for rollout in snapshot.rollouts:
        if not rollout.is_ended:
            yield StorySection(rollout_heading(rollout), (), (Cell(rollout.waits_for or rollout.why, Tone.DIM),))


def _routes(snapshot: Snapshot) -> StorySection:
    table = snapshot.routing
    if table is None:
        return StorySection(Cell("Nothing was routed yet: there is no routing table.", Tone.DIM))
    nodes = {node.name: node for node in snapshot.nodes}
    rates = {name: node.requests_per_s.value for name, node in nodes.items()}
    known = [value for value in (rates.get(route.node) for route in table.routes) if value is not None]
    total = sum(known)
    rows: list[Row] = [titles("node", "route", "pool", "seen", "req/s", "share", "revision", left=4)]
    for route in table.routes[:MAX_ROUTES]:
        value = rates.get(route.node)
        glyph, tone = PHASES[route.phase] if route.phase is not None else ("?", Tone.DIM)
        share = UNKNOWN if value is None or len(known) < len(table.routes) or not total else percent(value / total)
        rows.append(
            (
                Cell(route.node, Tone.STRONG),
                Cell(route.state.value, _ROUTES[route.state]),
                Cell(route.pool),
                Cell(f"{glyph} {route.phase.value if route.phase is not None else 'not looked at'}", tone),
                Cell(UNKNOWN if value is None else rate(value), right=True),
                Cell(share, right=True),
                Cell(route.revision or UNKNOWN, Tone.DIM),
            )
        )
    more = len(table.routes) - MAX_ROUTES
    notes = (Cell(f"and {more} more; g f lists all nodes", Tone.DIM),) if more > 0 else ()
    heading = (
        f"Routing table {table.version}: {count(len(table.routes), 'node')}, {count(table.num_gateways, 'gateway')}"
    )
    return StorySection(Cell(heading, Tone.STRONG), tuple(rows), notes)


def _tenants(snapshot: Snapshot) -> StorySection:
    if snapshot.tenants_unknown:
        return StorySection(Cell(f"Tenants are not known: {snapshot.tenants_unknown}", Tone.WARN))
    if not snapshot.tenants:
        return StorySection(Cell("No tenants.", Tone.DIM))
    rows = (titles("tenant", "class", "run", "in left", "out left", "admitted", "refused", left=2),)
    return StorySection(Cell("Tenants", Tone.STRONG), (*rows, *(_tenant(one) for one in snapshot.tenants)))


def _tenant(one: TenantUse) -> Row:
    refused = sum(one.refused.values())
    left = [one.left.get(name) for name in ("input", "output")]
    return (
        Cell(one.tenant, Tone.STRONG),
        Cell(one.priority or UNKNOWN),
        Cell(str(one.running), right=True),
        *(Cell(UNKNOWN if value is None else f"{value:,}", right=True) for value in left),
        Cell(f"{one.admitted:,}", right=True),
        Cell(f"{refused:,}", Tone.WARN if refused else Tone.PLAIN, right=True),
    )
