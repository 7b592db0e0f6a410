"""Nodes, gateways, alerts, incidents and runs as they are told now: what several routes need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.exceptions import HTTPException

from fleetctl.controller.controller import Controller
from fleetctl.controller.incidents.incident_store import StoredIncident, get_incident
from fleetctl.controller.incidents.views import deep_check_view, gateway_view, node_view, run_view
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.node import Node
from fleetctl.wire.run import Run as WireRun
from runbooks.run import Run, RunStatus


def nodes_now(controller: Controller, names: Iterable[str] | None = None) -> list[Node]:
    """Those of these names, or all, by name."""
    now, states = controller.clock.now(), controller.fleet.nodes
    signals, cards = controller.groups.look().signals, controller.groups.cards().of_node
    firing: dict[str, list[str]] = {}
    for alert in alerts_now(controller):
        if str(alert.state) == "firing" and alert.labels.get("node"):
            firing.setdefault(alert.labels["node"], []).append(alert.name)
    scraped, problems = controller.signals.last_success_at, controller.signals.problems
    checks = controller.deep_checks
    return [
        node_view(
            state,
            signals.get(name, {}),
            scraped.get(name),
            firing.get(name, []),
            deep_check_view(checks.last(name), now, checks.max_age_s),
            controller.fleet.seen_at(name),
            now,
            cards.get(name, ()),
        ).model_copy(
            update={"cost_per_hour": controller.groups.cost_of(name), "signal_problem": problems.get(name, "")}
        )
        for name, state in ((name, states[name]) for name in sorted(states if names is None else names))
    ]


def gateways_now(controller: Controller) -> list[Gateway]:
    """All that are known, as they were looked at last."""
    now = controller.clock.now()
    return [gateway_view(state, now) for state in controller.gateways.states.values()]


def alerts_now(controller: Controller) -> list[Any]:
    """Without those of nodes that were taken away."""
    alerting = controller.alerting
    return [alert for alert in alerting.alerts() if not alerting.is_of_removed_node(alert.labels)]


async def incident_stored(controller: Controller, incident_id: str) -> StoredIncident:
    """Also one that a full disk did not take. Raises HTTPException 404."""
    stored = await controller.database.read(lambda c: get_incident(c, incident_id))
    if stored is None and (held := controller.book.get(incident_id)) is not None:
        stored = StoredIncident(held)
    if stored is None:
        raise HTTPException(404, f"there is no incident {incident_id[:100]}")
    return stored


async def run_told(controller: Controller, run: Run) -> WireRun:
    """The run, what was predicted of it, and what keeps a proposal from acting now."""
    held = await controller.executor.why_held(run) if run.status is RunStatus.PROPOSED else ""
    return run_view(run, held=held, prediction=controller.forecasts.known_words(run.id))
