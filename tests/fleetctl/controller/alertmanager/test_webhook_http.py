"""The webhook over loopback: stored before it is answered, and answered so that Alertmanager does the right thing."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.requests import Request

from alerts.evaluation.alert import alertmanager_fingerprint
from fleetctl.client import ControllerClient
from fleetctl.controller import tables
from fleetctl.controller.alertmanager.external_alerts import ExternalAlerts
from fleetctl.controller.alertmanager.webhook_payload import decode_notification
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.database import Database, get_meta, put_meta
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.tls import NO_TLS
from fleetctl.settings.alertmanager import WebhookSettings
from fleetctl.wire.silence import SilenceMatcher, SilenceRequest
from tests.fixtures import DATA
from tests.fixtures.controller import TOKEN, NoProvider, make_config, serving, stop_all, until

pytestmark = pytest.mark.anyio
PATH = "/webhooks/alertmanager"
WEBHOOKS = DATA / "webhooks"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def body(*alerts: dict[str, Any], **top: Any) -> bytes:
    return json.dumps({"version": "4", "groupKey": "g", "status": "firing", "alerts": alerts, **top}).encode()


def alert(name: str = "HighTTFT", status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, **labels},
        "annotations": {"summary": f"{name} is on"},
        "startsAt": "2026-11-20T21:26:25Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prom/g",
    }


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    state_dir = tmp_path_factory.mktemp("controller")
    settings = WebhookSettings(max_body_bytes=4096, max_alerts=10, max_active=20, severities={"Loud": "critical"})
    try:
        async with serving(make_config(state_dir, nodes=2, webhook=settings)) as url:
            async with ControllerClient(url) as client:

                async def ready() -> bool:
                    return (await client.status()).nodes_ready == 2

                await until(ready, "two nodes are ready")
            yield url
    finally:
        stop_all(state_dir)


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False, base_url=url, headers=BEARER) as http:
        yield http


async def test_an_alert_from_outside_opens_an_incident_names_its_source_and_is_diagnosed(url: str) -> None:
    async with (
        httpx.AsyncClient(verify=NO_TLS, trust_env=False, base_url=url, headers=BEARER) as http,
        ControllerClient(url) as client,
    ):
        address = (await client.node("node-2")).url.removeprefix("http://")
        told = alert("TTFTHigh", instance=address, severity="LOUD")
        answer = await http.post(PATH, content=body(told))
        assert (answer.status_code, answer.json()["new"]) == (200, 1)

        async def found() -> Any:
            incidents = [one for one in await client.incidents() if one.scope.get("node") == "node-2"]
            return incidents[0] if incidents and incidents[0].diagnosis else None

        incident = await until(found, "its incident is open and diagnosed")
        (shown,) = incident.alerts
        assert (shown.source, shown.source_url, shown.severity) == ("alertmanager", "http://prom/g", "critical")
        assert incident.scope == {"node": "node-2", "pool": "default"}
        for again in range(2):
            answer = await http.post(PATH, content=body(told))
            assert answer.json() == {"new": 0, "repeated": 1, "truncated": 0, "rejected": 0, "reasons": []}, again
        kinds = [entry.kind for entry in await client.events(incident_id=incident.id)]
        assert (kinds.count("incident.opened"), kinds.count("alert.fired")) == (1, 1)
        (listed,) = [one for one in await client.alerts() if one.name == "TTFTHigh"]
        assert (listed.state, listed.source, listed.silenced) == ("firing", "alertmanager", "no")

        await http.post(PATH, content=body({**told, "status": "resolved", "endsAt": "2026-11-20T21:30:00Z"}))

        async def over() -> bool:
            return (await client.incident(incident.id)).status == "resolved"

        await until(over, "the incident ended")


async def test_an_alert_about_something_that_is_not_ours_is_an_incident_without_diagnosis(url: str) -> None:
    async with (
        httpx.AsyncClient(verify=NO_TLS, trust_env=False, base_url=url, headers=BEARER) as http,
        ControllerClient(url) as client,
    ):
        await http.post(PATH, content=body(alert("DiskFull", instance="db-7:9100")))

        async def found() -> Any:
            return next((one for one in await client.incidents() if one.alerts[0].name == "DiskFull"), None)

        incident = await until(found, "its incident is open")
        since = (await client.status()).now

        async def walked() -> bool:
            status = await client.status()
            return status.now - status.loops["diagnosis"] > since + 0.5  # begun and ended since

        await until(walked, "diagnosis had its turn")
        assert (await client.incident(incident.id)).diagnosis is None
        assert incident.severity == "ticket"


async def test_truncation_is_told_and_absent_alerts_are_not_resolved(url: str, http: httpx.AsyncClient) -> None:
    await http.post(PATH, content=body(alert("Many", node="node-1"), alert("Many", node="node-2")))
    cut = body(alert("Many", "resolved", node="node-1"), status="resolved", truncatedAlerts=1)
    assert (await http.post(PATH, content=cut)).json()["truncated"] == 1
    async with ControllerClient(url) as client:

        async def seen() -> bool:
            states = {one.labels["node"]: one.state for one in await client.alerts() if one.name == "Many"}
            return states == {"node-1": "resolved", "node-2": "firing"}

        await until(seen, "one is resolved and the other is not")
        events = [one for one in await client.events() if one.kind == "webhook.truncated"]
        assert len(events) == 1
        assert "max_alerts" in events[0].text
    await http.post(PATH, content=body(alert("Many", "resolved", node="node-2")))


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "JSON"),
        (b"{}", 400, "alerts"),
        (body(*[alert()] * 5, pad="x" * 3000), 413, "max_alerts"),
        (body(pad="x" * 100_000), 413, "larger"),
        (body(*[{"labels": {"a": "b"}}] * 11), 400, "more than 10"),
    ],
    ids=["empty", "no alerts", "too large", "far too large", "too many"],
)
async def test_what_no_retry_can_mend_is_4xx(http: httpx.AsyncClient, content: bytes, status: int, words: str) -> None:
    answer = await http.post(PATH, content=content)
    assert answer.status_code == status
    assert words in answer.text


@pytest.mark.parametrize(
    ("content", "coding", "status", "words"),
    [
        (gzip.compress(body(alert("Packed", "resolved"))), "gzip", 200, '"new":1'),
        (b"no gzip", "gzip", 400, "not gzip"),
        (gzip.compress(body(alert("Packed")))[:-9], "gzip", 400, "cut short"),
        (gzip.compress(b" " * 50_000_000), "gzip", 413, "max_alerts"),
        (b"anything", "br", 400, "send gzip, or plain JSON"),
    ],
    ids=["packed", "not packed", "cut short", "bomb", "another coding"],
)
async def test_a_packed_body_is_unpacked_within_the_limit(
    http: httpx.AsyncClient, content: bytes, coding: str, status: int, words: str
) -> None:
    answer = await http.post(PATH, content=content, headers={"Content-Encoding": coding})
    assert answer.status_code == status
    assert words in answer.text


@pytest.mark.parametrize("path", [PATH, f"{PATH}/"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic x", TOKEN])
async def test_without_the_token_nothing_is_taken(url: str, path: str, header: str | None) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as http:
        headers = {"Authorization": header} if header is not None else {}
        answer = await http.post(f"{url}{path}", content=body(alert("Forged")), headers=headers)
        assert answer.status_code == 401
        assert "Alertmanager" in answer.json()["remedy"]
        assert "Forged" not in (await http.get(f"{url}/v1/alerts")).text


async def test_silences_without_an_alertmanager_are_kept_here(url: str) -> None:
    async with ControllerClient(url, TOKEN) as client:
        matchers = [SilenceMatcher(name="node", op="=", value="node-77")]
        made = await client.add_silence(SilenceRequest(matchers=matchers, duration_s=60, comment="c", created_by="ann"))
        assert [(one.id, one.state, one.matchers) for one in await client.silences()] == [(made.id, "active", matchers)]
        assert (await client.expire_silence(made.id)).state == "expired"
        with pytest.raises(BadInputError, match="no silence x"):
            await client.expire_silence("x")


async def test_other_methods_are_refused(http: httpx.AsyncClient) -> None:
    assert (await http.get(PATH)).status_code == 405


async def test_too_many_firing_alerts_are_asked_to_come_again(http: httpx.AsyncClient) -> None:
    many = [alert(f"A{number}") for number in range(10)]
    assert (await http.post(PATH, content=body(*many[:5], groupKey="1"))).status_code == 200
    for start in (5, 10, 15, 20):
        answer = await http.post(PATH, content=body(*[alert(f"B{n}") for n in range(start, start + 5)]))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "max_active" in answer.json()["remedy"]


async def test_the_counts_are_in_status_and_metrics(url: str, http: httpx.AsyncClient) -> None:
    await http.post(PATH, content=body(alert("Counted", "resolved"), groupKey="counted", truncatedAlerts=1))
    await http.post(PATH, content=b"{}")
    async with ControllerClient(url) as client:
        webhook = (await client.status()).webhook
    assert webhook.accepted > 0
    assert webhook.refused > 0
    text = (await http.get("/metrics")).text
    assert f'controller_webhook_notifications_total{{result="accepted"}} {float(webhook.accepted)}' in text
    (truncated,) = re.findall(r"^controller_webhook_truncated_alerts_total (\S+)$", text, re.MULTILINE)
    assert float(truncated) >= 1


def stored(state_dir: Path) -> list[tuple[str, int]]:
    database = Database(f"sqlite:///{state_dir / 'controller.sqlite'}")
    with database.engine.begin() as connection:
        notices = tables.webhook_notices.c
        rows = connection.execute(sa.select(notices.status, notices.times).order_by(notices.first_at, notices.status))
        found = [(status, times) for status, times in rows]
    database.close()
    return found


async def test_what_was_answered_is_stored_though_nothing_else_happened(tmp_path: Path) -> None:
    """The controller is gone before its loops had a turn: the next one has the alert, and one incident."""
    config = make_config(tmp_path, nodes=1)
    async with open_controller(config, NoProvider()) as controller:
        taken = await take(controller, WEBHOOKS / "17_am025_01_all.json")
        assert (taken["new"], taken["repeated"]) == (3, 0)
    assert stored(tmp_path) == [("firing", 1)] * 3
    ids = set()
    for _ in range(2):
        async with open_controller(config, NoProvider()) as controller:
            again = await take(controller, WEBHOOKS / "17_am025_01_all.json")
            assert (again["new"], again["repeated"]) == (0, 3)
            await controller.loops.run_turn("alerts")
            (incident,) = controller.book.open_incidents()
            ids.add(incident.id)
            assert {one.labels["node"] for one in incident.alerts} == {"n1", "n2", "n3"}
    assert len(ids) == 1
    async with open_controller(config, NoProvider()) as controller:
        await take(controller, WEBHOOKS / "22_am025_06_all.json")
        await controller.loops.run_turn("alerts")
        (incident,) = controller.book.open_incidents()
        assert incident.cleared_at is not None
    assert stored(tmp_path) == [("firing", 3)] * 3 + [("resolved", 1)] * 3


async def take(controller: Controller, path: Path) -> dict[str, Any]:
    """The file, given to the webhook as a request."""
    return await asked(controller, await asyncio.to_thread(path.read_bytes))


async def asked(controller: Controller, content: bytes) -> dict[str, Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    answer = await controller.alertmanager.webhook.receive(Request({"type": "http", "headers": []}, receive))
    return {"status": answer.status_code, "headers": dict(answer.headers), **json.loads(bytes(answer.body))}


async def test_a_database_that_does_not_take_it_is_asked_for_a_retry(tmp_path: Path) -> None:
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider()) as controller:
        with controller.database.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE webhook_notices")
        answer = await asked(controller, body(alert()))
        assert (answer["status"], answer["headers"]["retry-after"]) == (503, "5")
        tables.metadata.create_all(controller.database.engine)
        assert (await asked(controller, body(alert())))["new"] == 1


async def test_too_many_notifications_are_asked_to_come_again(tmp_path: Path) -> None:
    settings = WebhookSettings(max_per_minute=2)
    async with open_controller(make_config(tmp_path, nodes=1, webhook=settings), NoProvider()) as controller:
        statuses = [(await asked(controller, body(alert())))["status"] for _ in range(3)]
        assert statuses == [200, 200, 503], "not 429, which Alertmanager does not send again"
        assert controller.alertmanager.webhook.state.deferred == 1


async def test_our_own_alert_that_comes_back_is_no_second_one(tmp_path: Path) -> None:
    async with open_controller(make_config(tmp_path, nodes=1), NoProvider()) as controller:
        own = {"alertname": "LLMNodeDown", "node": "node-1"}
        external = ExternalAlerts(
            controller.database,
            controller.fleet,
            controller.clock,
            WebhookSettings(),
            lambda: {alertmanager_fingerprint(own)},
        )
        content = body({"labels": own, "status": "firing"}, {"labels": {**own, "x": "y"}})
        await external.record_notification(decode_notification(content, 0.0, max_alerts=10))
        assert [one.labels.get("x") for one in external.alerts()] == ["y"]
        assert [one.labels.get("x") for one, _ in external.take_changes()] == ["y"]
        again = ExternalAlerts(controller.database, controller.fleet, controller.clock, WebhookSettings(), set)
        await again.load()
        assert [one.labels.get("x") for one in again.alerts()] == ["y"], "known as ours after a restart too"


@pytest.mark.parametrize("kind", ["bearer", "bearer file", "basic", "basic file"])
async def test_credentials_of_its_own(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("word\n")
    given: dict[str, Any] = {
        "bearer": {"bearer_token": "word"},
        "bearer file": {"bearer_token_file": secret},
        "basic": {"username": "am", "password": "word"},
        "basic file": {"username": "am", "password_file": secret},
    }[kind]
    basic = "Basic " + base64.b64encode(b"am:word").decode()
    good = basic if kind.startswith("basic") else "Bearer word"
    async with open_controller(
        make_config(tmp_path / "state", nodes=1, webhook=WebhookSettings(**given)), NoProvider()
    ) as controller:

        def status(header: str) -> int:
            refusal = controller.alertmanager.auth.refusal(
                {"type": "http", "headers": [(b"authorization", header.encode())]}
            )
            return 200 if refusal is None else refusal.status_code

        assert status(good) == 200
        for bad in (f"Bearer {TOKEN}", good + "x", "Basic YW06", "Bearer ", "Basic ÿ", ""):
            assert status(bad) == 401, bad
        if "file" in kind:
            secret.write_text("other")
            assert status(good) == 401, "the file is read anew"
            secret.unlink()
            assert status(good) == 503


def test_state_of_the_version_before_is_taken_up(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'controller.sqlite'}"
    first = Database(where)
    with first.engine.begin() as connection:
        put_meta(connection, "schema_version", 1)
        for table in (tables.webhook_notices, tables.external_alerts):
            table.drop(connection)
    first.close()
    second = Database(where)
    with second.engine.begin() as connection:
        assert get_meta(connection, "schema_version") == tables.SCHEMA_VERSION
        assert sa.inspect(connection).has_table("external_alerts")
    second.close()


def test_an_unusable_setting_names_itself() -> None:
    with pytest.raises(ValueError, match="severities"):
        WebhookSettings(severities={"x": "enormous"})
    with pytest.raises(ValueError, match="not a scope"):
        WebhookSettings(scope_labels={"galaxy": ("g",)})
    with pytest.raises(ValueError, match="not both"):
        WebhookSettings(bearer_token="a", username="b", password="c")
    with pytest.raises(BadInputError, match="nowhere"):
        WebhookSettings(bearer_token_file=Path("nowhere")).token()
