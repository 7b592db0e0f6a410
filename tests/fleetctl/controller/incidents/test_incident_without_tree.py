"""Incidents whose alerts no tree explains, and the alert about a drain that is itself the trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.incident import FiredAlert, open_incident
from fleetctl.controller.controller import open_controller
from tests.fixtures.controller import make_config, make_provider, stop_all
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio


def alert(name: str, severity: str = "page", node: str = "node-1") -> FiredAlert:
    return FiredAlert(f"{name}-{node}", name, severity, "firing", {"node": node, "pool": "default"})


async def test_incident_without_a_tree_says_so_and_what_to_do(tmp_path: Path) -> None:
    clock = DrivenClock()
    try:
        async with open_controller(make_config(tmp_path, nodes=1), make_provider(tmp_path), clock) as controller:
            incident = open_incident(alert("LLMAutomationRests"), clock.now())
            await controller.book.store_incident(incident)
            await controller.diagnosing.diagnose_incidents()
            (standing,) = controller.book.open_incidents()
            assert standing.diagnosis is not None
            assert (standing.diagnosis.cause, standing.diagnosis.confidence) == (None, "unknown")
            entries = await controller.timeline.read(incident_id=incident.id)
            assert [(one.kind, one.text.partition(":")[0]) for one in entries] == [
                ("diagnosis.open", "No tree explains LLMAutomationRests")
            ]
    finally:
        stop_all(tmp_path)


async def test_a_drain_that_hangs_is_no_consequence_of_the_drain(tmp_path: Path) -> None:
    clock = DrivenClock()
    try:
        async with open_controller(make_config(tmp_path, nodes=1), make_provider(tmp_path), clock) as controller:
            await controller.fleet.observe_nodes()
            await controller.effects.cordon("node-1")
            assert controller.alerting.is_expected(alert("LLMNodeDown"))
            assert not controller.alerting.is_expected(alert("LLMDrainStuck", "ticket"))
    finally:
        stop_all(tmp_path)
