"""An incident wider than a node: what the timeline, the post-mortem and a later controller say of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import FiredAlert, IncidentStatus, mitigate, open_incident, widen
from diagnostics.postmortem import PostmortemInput, render
from diagnostics.standing import is_outgrown
from fleetctl.controller.alertmanager.webhook_payload import decode_notification
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.incidents.incident_store import get_incident, save_incident
from fleetctl.controller.incidents.views import record_of
from fleetctl.controller.tables import incidents
from tests.fixtures.controller import NoProvider, make_config

pytestmark = pytest.mark.anyio
NEW_FIELDS = ("widened_at", "widened_why", "part_of")


def make_alert(node: str) -> FiredAlert:
    labels = {"node": node, "zone": "a"}
    return FiredAlert(f"f-{node}", "Slow", "page", "firing", labels, active_at=90.0, fired_at=100.0)


async def fires(controller: Controller, *nodes: str) -> None:
    """One notification with an alert for each node, all of zone a; and the tick after it."""
    alerts = ",".join(
        f'{{"status":"firing","labels":{{"alertname":"Slow","node":"{node}","zone":"a"}},'
        '"startsAt":"2026-11-20T21:26:25Z"}'
        for node in nodes
    )
    content = f'{{"version":"4","groupKey":"g","status":"firing","alerts":[{alerts}]}}'.encode()
    await controller.alertmanager.external.record_notification(decode_notification(content, 0.0, max_alerts=10))
    await controller.loops.run_turn("alerts")
    await controller.timeline.flush()


async def told(controller: Controller, kind: str) -> list[tuple[str | None, str]]:
    return [(one.incident_id, one.text) for one in await controller.timeline.read() if one.kind == kind]


async def test_the_timeline_says_why_an_incident_widened(tmp_path: Path) -> None:
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider()) as controller:
        await fires(controller, "h1")
        await fires(controller, "h2", "h3")
        (wide,) = controller.book.open_incidents()
        assert dict(wide.scope) == {"zone": "a"}
        why = "from h1 to zone a: Slow on 3 of 3 nodes of zone a: h1, h2, h3"
        assert await told(controller, "incident.widened") == [(wide.id, why)]
        await controller.loops.run_turn("alerts")
        await controller.timeline.flush()
        assert len(await told(controller, "incident.widened")) == 1
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider()) as controller:
        (again,) = controller.book.open_incidents()
        assert (again.id, again.widened_why, dict(again.first_scope)) == (wide.id, wide.widened_why, {"node": "h1"})


async def test_an_incident_that_is_acted_on_is_left_alone_and_linked(tmp_path: Path) -> None:
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider()) as controller:
        await fires(controller, "h1")
        (first,) = controller.book.open_incidents()
        await controller.book.change_incident(first.id, mitigate)
        await fires(controller, "h2", "h3")
        acting = controller.book.get(first.id)
        (wide,) = (one for one in controller.book.open_incidents() if one.id != first.id)
        assert acting is not None
        assert (acting.status, dict(acting.scope)) == (IncidentStatus.MITIGATING, {"node": "h1"})
        assert (acting.part_of, dict(wide.scope)) == (wide.id, {"zone": "a"})
        assert {key for key, _ in await told(controller, "incident.linked")} == {first.id, wide.id}


async def test_incidents_of_an_older_version_still_load(tmp_path: Path) -> None:
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider()) as controller:
        incident = open_incident(make_alert("h1"), 100.0)
        await controller.database.write(lambda c: save_incident(c, incident))

        def age(connection: Any) -> None:
            document = connection.execute(incidents.select()).mappings().one()["document"]
            old = {key: value for key, value in document.items() if key not in NEW_FIELDS}
            assert len(old) == len(document) - len(NEW_FIELDS)
            connection.execute(incidents.update().values(document=old))

        await controller.database.write(age)
        found = await controller.database.read(lambda c: get_incident(c, incident.id))
        assert found is not None
        assert found.incident == incident


async def test_the_post_mortem_names_the_place_and_why() -> None:
    wide = widen(open_incident(make_alert("h1"), 100.0), {"zone": "a"}, "Slow on 3 of 3 nodes", 120.0)
    page = render(PostmortemInput(record_of(wide, [], []), 200.0))
    assert "Scope: zone: a. It widened 1970-01-01 00:02:00: Slow on 3 of 3 nodes. It began" in page
    part = render(PostmortemInput(record_of(replace(wide, part_of="inc-9"), [], []), 200.0))
    assert "It is part of `inc-9`, which explains it." in part


async def test_what_explains_one_node_is_asked_anew_for_the_wider_place() -> None:
    incident = open_incident(make_alert("h1"), 100.0)
    found = Diagnosis("latency", "slow_node", confidence="confirmed", at=110.0)
    assert not is_outgrown(incident, found)
    assert is_outgrown(widen(incident, {"zone": "a"}, "why", 120.0), found)
