"""Who may ask for what: tokens, roles, and every route of the API with the role and the audit row that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from diagnostics.incident import FiredAlert, Incident, open_incident
from fleetctl.controller import tables
from fleetctl.controller.access.gate import MAX_BAD_TOKENS
from fleetctl.controller.alertmanager.webhook import WEBHOOK_PATH
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.http_api import api_routes, create_app
from fleetctl.controller.http_edge import ApiRoute
from fleetctl.controller.incidents.incident_store import StoredIncident
from fleetctl.controller.openapi import OPERATIONS, plain_path
from fleetctl.providers.provider import ObservedInstance
from fleetctl.wire.identity import TokenRequest, TokenRole
from fleetctl.wire.notification import Notification, NotificationState
from fleetctl.wire.silence import Silence
from tests.fixtures.controller import TOKEN, NoProvider, make_config
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio

ELSEWHERE, HERE = ("192.0.2.9", 1), ("127.0.0.1", 1)
FREEZE = {"reason": "launch", "made_by": "mallory"}
RULE = {"spec": {"kind": "reroute", "over_prefill_s": 5, "share": 0.5}}
SILENCE = {
    "matchers": [{"name": "node", "op": "=", "value": "node-1"}],
    "duration_s": 60,
    "comment": "noise",
    "created_by": "mallory",
}
ASKING = {("POST", "/v1/diagnose")}
"""Routes with a body that change nothing."""

WEBHOOKS = {"/webhooks/alertmanager", "/webhooks/alertmanager/"}
"""Their own way in, their own audit: `tests/fleetctl/controller/alertmanager`."""


class StoppedNodes(NoProvider):
    """Nodes that nobody starts."""

    def observe(self, name: str) -> ObservedInstance:
        return ObservedInstance(name, running=False)


@dataclass(frozen=True, slots=True)
class Api:
    controller: Controller
    clock: DrivenClock

    async def token(self, name: str, role: TokenRole, **options: Any) -> str:
        request = TokenRequest(name=name, role=role, **options)
        return (await self.controller.tokens.create(request, "admin")).token

    @asynccontextmanager
    async def http(self, token: str | None, client: tuple[str, int] = ELSEWHERE) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(self.controller, asyncio.Event())
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        transport = httpx.ASGITransport(app, client=client)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            yield http

    async def send(self, method: str, path: str, body: Any = None, token: str | None = TOKEN) -> httpx.Response:
        async with self.http(token) as http:
            if isinstance(body, bytes):
                return await http.request(method, path, content=body)
            return await http.request(method, path, json=body)

    def routes(self) -> list[ApiRoute]:
        found = api_routes(self.controller, asyncio.Event())
        others = {route.path for route in found if not isinstance(route, ApiRoute)}
        assert others == WEBHOOKS
        return [route for route in found if isinstance(route, ApiRoute)]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    clock = DrivenClock()
    config = make_config(tmp_path, nodes=1)
    async with open_controller(config, StoppedNodes(), clock) as controller:
        yield Api(controller, clock)


async def test_each_route_has_a_role_and_only_reads_are_for_viewers(api: Api) -> None:
    viewer, operator = await api.token("val", TokenRole.VIEWER), await api.token("opa", TokenRole.OPERATOR)
    for route in api.routes():
        asks_only = route.method == "GET" or (route.method, route.path) in ASKING
        assert (route.role is TokenRole.VIEWER) == asks_only, route.path
        assert bool(route.change) != asks_only, route.path
        if asks_only:
            continue
        path = _path(route)
        answer = await api.send(route.method, path, {}, viewer)
        assert (answer.status_code, answer.json()["exit_code"]) == (403, 3), path
        assert f"val has the role viewer; this needs {route.role.value}" == answer.json()["error"]
        named = "opa (operator)" in answer.json()["remedy"]
        assert named == (route.role is TokenRole.OPERATOR)
        assert "controller.token (admin)" in answer.json()["remedy"]
        if route.role is not TokenRole.OPERATOR:
            assert (await api.send(route.method, path, {}, operator)).status_code == 403
        assert (await api.send(route.method, path, {}, None)).status_code == 401
    assert await api.controller.audit.read() == []


async def test_every_route_and_method_is_documented_and_no_other(api: Api) -> None:
    served = {(route.method, plain_path(route.path)) for route in api.routes()}
    documented = set(OPERATIONS) - {("POST", WEBHOOK_PATH)}
    assert documented == served, "fleetctl/controller/openapi.py has one row of OPERATIONS for each route and method"


async def test_each_route_that_changes_something_leaves_a_row_with_the_callers_identity(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boss = await api.token("boss", TokenRole.ADMIN)
    _stub_silences(api, monkeypatch)
    _stub_receivers(api, monkeypatch)
    incident, box = await _incident(api, tmp_path / "box.gz")
    about = f"/v1/incidents/{incident.id}"
    made: dict[tuple[str, str], Any] = {
        ("POST", "/v1/runs"): ("/v1/runs", {"runbook": "reroute-long-context"}),
        ("POST", "/v1/runs/{id}/approval"): ("/v1/runs/{run}/approval", {"decision": "deny", "by": "mallory"}),
        ("POST", "/v1/runs/{id}/cancel"): ("/v1/runs/{run}/cancel", {"by": "mallory"}),
        ("POST", "/v1/runs/{id}/pause"): ("/v1/runs/{active}/pause", {"by": "mallory"}),
        ("POST", "/v1/runs/{id}/resume"): ("/v1/runs/{active}/resume", {"by": "mallory"}),
        ("POST", "/v1/runs/{id}/skip"): ("/v1/runs/{active}/skip", {"by": "mallory"}),
        ("POST", "/v1/actions"): ("/v1/actions", {"command": "drain node-1", "requested_by": "mallory"}),
        ("POST", "/v1/traffic-rules"): ("/v1/traffic-rules", {**RULE, "made_by": "mallory"}),
        ("DELETE", "/v1/traffic-rules/{id:path}"): ("/v1/traffic-rules/long-context?by=mallory", None),
        ("POST", "/v1/incidents"): ("/v1/incidents?by=mallory", box),
        ("POST", "/v1/incidents/{id}/acknowledgement"): (f"{about}/acknowledgement", {"by": "mallory"}),
        ("POST", "/v1/incidents/{id}/assignment"): (f"{about}/assignment", {"to": "bob", "by": "mallory"}),
        ("POST", "/v1/incidents/{id}/comments"): (f"{about}/comments", {"comment": "a fan", "by": "mallory"}),
        ("POST", "/v1/incidents/{id}/severity"): (f"{about}/severity", {"severity": "SEV-1", "by": "mallory"}),
        ("POST", "/v1/incidents/{id}/silence"): (f"{about}/silence", {"for_s": 60, "by": "mallory"}),
        ("POST", "/v1/incidents/{id}/verdict"): (f"{about}/verdict", {"cause": "slow_node", "by": "mallory"}),
        ("POST", "/v1/freezes"): ("/v1/freezes", FREEZE),
        ("DELETE", "/v1/freezes"): ("/v1/freezes?by=mallory", None),
        ("DELETE", "/v1/freezes/{id}"): ("/v1/freezes/{freeze}?by=mallory", None),
        ("POST", "/v1/autoscaler/{pool:path}"): ("/v1/autoscaler/default", {"mode": "advise", "by": "mallory"}),
        ("POST", "/v1/content/reload"): ("/v1/content/reload", None),
        ("POST", "/v1/receivers/{name}/test"): ("/v1/receivers/night/test", {"by": "mallory"}),
        ("POST", "/v1/silences"): ("/v1/silences", SILENCE),
        ("DELETE", "/v1/silences/{id}"): ("/v1/silences/s1", None),
        ("POST", "/v1/tokens"): ("/v1/tokens", {"name": "new", "role": "viewer"}),
        ("DELETE", "/v1/tokens/{name}"): ("/v1/tokens/new", None),
    }
    changing = [route for route in api.routes() if route.change]
    assert {(route.method, route.path) for route in changing} == made.keys(), "a route without its call here"
    for key in made:
        path, body = made[key]
        if "{run}" in path:
            asked = {"runbook": "reroute-long-context"}
            path = path.replace("{run}", (await api.send("POST", "/v1/runs", asked, boss)).json()["id"])
        active = ""
        if "{active}" in path:
            asked = {"runbook": "reroute-long-context", "approve": True}
            active = (await api.send("POST", "/v1/runs", asked, boss)).json()["id"]
            path = path.replace("{active}", active)
            if path.endswith("/resume"):
                await api.send("POST", f"/v1/runs/{active}/pause", {}, boss)
        if "{freeze}" in path:
            path = path.replace("{freeze}", (await api.send("POST", "/v1/freezes", FREEZE, boss)).json()["id"])
        before = await api.controller.audit.read()
        answer = await api.send(key[0], path, body, boss)
        rows = (await api.controller.audit.read())[len(before) :]
        assert rows, f"{key}: no row of the audit; answer: {answer.text}"
        assert {row.via for row in rows} == {"token"}, key
        assert rows[0].who in ("boss", "boss (says mallory)"), (key, rows[0])
        if active:
            await api.send("POST", f"/v1/runs/{active}/cancel", {}, boss)
        if key[0] == "POST" and key[1] == "/v1/runs":
            await api.send("POST", f"/v1/runs/{answer.json()['id']}/cancel", {}, boss)


async def test_token_is_kept_as_its_hash_and_opens_from_the_moment_that_it_is_made(api: Api, tmp_path: Path) -> None:
    answer = await api.send("POST", "/v1/tokens", {"name": "ann", "role": "operator", "expires_in_s": 3600})
    made = answer.json()
    assert (answer.status_code, made["name"], made["role"]) == (201, "ann", "operator")
    told = (await api.send("GET", "/v1/identity", token=made["token"])).json()
    assert told == {"name": "ann", "role": "operator", "via": "token"}
    listed = (await api.send("GET", "/v1/tokens")).json()
    assert [(one["name"], one["is_valid"], "token" in one) for one in listed] == [("ann", True, False)]
    assert listed[0]["last_used_at"] == api.clock.now()
    await api.controller.tokens.refresh()
    await api.controller.timeline.flush()
    secret = made["token"].removeprefix("flt-").encode()
    assert _files_with(secret, tmp_path) == []
    assert _files_with(b"controller.started", tmp_path)  # the database is looked into
    assert (await api.send("POST", "/v1/tokens", {"name": "ann", "role": "viewer"})).status_code == 400


async def test_token_can_have_no_name_that_stands_for_another(api: Api) -> None:
    for name in ("Ann", "admin", "a b", "policy:x", "executor", ""):
        assert (await api.send("POST", "/v1/tokens", {"name": name, "role": "viewer"})).status_code == 400


async def test_revoked_and_expired_tokens_open_nothing_and_say_why(api: Api) -> None:
    ann = await api.token("ann", TokenRole.OPERATOR, expires_in_s=60)
    bob = await api.token("bob", TokenRole.OPERATOR)
    assert (await api.send("POST", "/v1/freezes", FREEZE, ann)).status_code == 201
    assert (await api.send("DELETE", "/v1/tokens/bob")).status_code == 200
    api.clock.move(61)
    for token, why in ((ann, "the token of ann has expired"), (bob, "the token of bob was revoked by admin")):
        answer = await api.send("POST", "/v1/freezes", FREEZE, token)
        assert (answer.status_code, answer.json()["error"]) == (401, why)
    await api.token("bob", TokenRole.VIEWER)  # the name is free again


async def test_token_that_another_controller_revoked_is_refused_after_the_next_look(api: Api) -> None:
    ann = await api.token("ann", TokenRole.OPERATOR)
    revoked = sa.update(tables.tokens).values(revoked_at=1.0, revoked_by="bob")
    await api.controller.database.write(lambda connection: connection.execute(revoked))
    await api.controller.loops.run_turn("tokens")
    assert (await api.send("POST", "/v1/freezes", FREEZE, ann)).status_code == 401


async def test_reads_on_this_machine_need_no_token_and_changes_do(api: Api) -> None:
    async with api.http(None, HERE) as http:
        assert (await http.get("/v1/identity")).json() == {"name": "local", "role": "viewer", "via": "loopback"}
        assert (await http.post("/v1/freezes", json=FREEZE)).status_code == 401
    assert (await api.send("GET", "/v1/nodes", token=None)).status_code == 401
    assert (await api.send("GET", "/v1/nodes", token=await api.token("val", TokenRole.VIEWER))).status_code == 200


async def test_address_that_tries_many_wrong_tokens_is_held_up_and_the_right_one_is_not(api: Api) -> None:
    async with api.http("flt-wrong") as http:
        answers = [await http.post("/v1/freezes", json=FREEZE) for _ in range(MAX_BAD_TOKENS + 1)]
        assert {answer.status_code for answer in answers[:-1]} == {401}
        assert answers[-1].status_code == 429
        assert 0 < int(answers[-1].headers["Retry-After"]) <= 61
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await http.post("/v1/freezes", json=FREEZE, headers=right)).status_code == 201
        api.clock.move(61)
        assert (await http.post("/v1/freezes", json=FREEZE)).status_code == 401
    metrics = api.controller.exposition().decode()
    assert f"controller_bad_tokens_total {MAX_BAD_TOKENS + 2:.1f}" in metrics


async def test_override_needs_two_named_approvers_once_there_are_two_of_them(api: Api) -> None:
    asked = {"command": "reroute long-context --over 5s --share 0.5 --for 10m", "override": "it burns"}
    alone = (await api.send("POST", "/v1/actions", asked)).json()
    assert alone["status"] == "approved"
    await api.send("POST", f"/v1/runs/{alone['id']}/cancel", {})
    ann, bob, cat = [await api.token(name, TokenRole.APPROVER) for name in ("ann", "bob", "cat")]
    run = (await api.send("POST", "/v1/actions", asked, ann)).json()
    assert run["status"] == "proposed"
    answer_at, yes = f"/v1/runs/{run['id']}/approval", {"decision": "approve", "by": "bob"}
    own = await api.send("POST", answer_at, yes, ann)
    assert (own.status_code, "ann asked for it" in own.json()["error"]) == (409, True)
    first = (await api.send("POST", answer_at, yes, bob)).json()
    assert (first["status"], [one["by"] for one in first["approvals"]]) == ("proposed", ["bob"])
    assert first["approval"] == "1 of 2: bob; needs one more approver, not who asked (rule override)"
    assert (await api.send("POST", answer_at, yes, cat)).json()["status"] == "approved"
    rows = [(row.who, row.what) for row in await api.controller.audit.read(target=run["id"])]
    assert ("bob", "run.approval_given") in rows
    assert ("cat (says bob)", "run.approved") in rows


def _files_with(text: bytes, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def _path(route: ApiRoute) -> str:
    return route.path.replace("{id:path}", "x").replace("{id}", "x").replace("{name}", "x")


async def _incident(api: Api, file: Path) -> tuple[Incident, bytes]:
    """An open incident, and its file; to read that in again is refused, which has its row."""
    labels = {"alertname": "LLMNodeSlow", "node": "node-1"}
    alert = FiredAlert("f", "LLMNodeSlow", "page", "firing", labels, fired_at=api.clock.now())
    incident = open_incident(alert, api.clock.now())
    await api.controller.book.store_incident(incident)
    await api.controller.reports.export(StoredIncident(incident), file)
    return incident, await asyncio.to_thread(file.read_bytes)


def _stub_receivers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(name: str, by: str) -> Notification:
        state = NotificationState.DELIVERED
        return Notification(
            id="n1", receiver=name, kind="test", state=state, subject="", text="", thread="", created_at=1
        )

    monkeypatch.setattr(api.controller.notifications, "test", told)


def _stub_silences(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Alertmanager that takes everything."""
    silence = Silence(id="s1", state="active", matchers=[], starts_at=0, ends_at=1, created_by="boss", comment="noise")

    async def answer(_: object) -> Silence:
        return silence

    silences = api.controller.alertmanager.silences
    monkeypatch.setattr(silences, "add", answer)
    monkeypatch.setattr(silences, "expire", answer)
