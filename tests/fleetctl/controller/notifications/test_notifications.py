"""Real receivers are told of incidents, once each: through retries, crashes and a full disk; no secret is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from diagnostics.incident import Incident
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.settings.notifications import LinkSettings, NotificationSettings
from tests.fixtures.controller import NoProvider, make_config, until
from tests.fixtures.driven import DrivenClock
from tests.fixtures.notifying import acknowledged, make_incident, resolved, with_cause
from tests.fixtures.receivers import HttpReceiver, MailServer, http_receiver, mail_server, make_certificate

pytestmark = pytest.mark.anyio


@pytest.fixture
def http() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@asynccontextmanager
async def controller_with(
    state_dir: Path, clock: DrivenClock, *receivers: dict[str, Any], **settings: Any
) -> AsyncIterator[Controller]:
    notifications = NotificationSettings.model_validate(
        {"receivers": receivers, "wait_for_cause_s": 0, "max_messages": 100, **settings}
    )
    config = make_config(
        state_dir,
        nodes=0,
        start_nodes=False,
        notifications=notifications,
        links=LinkSettings(grafana_url="https://grafana.example/"),
    )
    async with open_controller(config, NoProvider(), clock) as controller:
        yield controller


async def turn(controller: Controller) -> None:
    """Look, send, and wait until that is done."""
    await controller.notifications.plan()
    await controller.notifications.send()
    await controller.notifications.settle()


async def tell(controller: Controller, incident: Incident) -> Incident:
    await controller.book.store_incident(incident)
    await turn(controller)
    return incident


def webhook(http: HttpReceiver, **fields: Any) -> dict[str, Any]:
    return {"name": "hook", "kind": "webhook", "url": f"{http.url}/hook", **fields}


async def states(controller: Controller) -> list[str]:
    return [one.state.value for one in await controller.notifications.listing()]


async def test_an_incident_is_told_from_its_opening_to_its_end_in_one_slack_thread(
    tmp_path: Path, http: HttpReceiver
) -> None:
    (tmp_path / "token").write_text("xoxb-hunter2\n")
    http.answer = (200, {"ok": True, "ts": "1700.42"}, {})
    slack = {"name": "chat", "kind": "slack", "url": f"{http.url}/api/chat.postMessage", "channel": "C1"}
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, {**slack, "secret_file": tmp_path / "token"}) as controller:
        incident = await tell(controller, make_incident(at=clock.now()))
        incident = await tell(controller, with_cause(incident, "slow_node"))
        incident = await tell(controller, acknowledged(incident, at=clock.now()))
        await tell(controller, resolved(incident, clock.now()))
        await turn(controller)
        told = await controller.notifications.listing(incident.id)
        events = await controller.timeline.read_all(incident.id)
    assert [body.get("thread_ts") for body in http.bodies] == [None, "1700.42", "1700.42", "1700.42"]
    assert [one.kind for one in told] == ["opened", "update", "acknowledged", "resolved"]
    assert {one.state.value for one in told} == {"delivered"}
    assert [one.data["notification"] for one in events if one.kind == "notification.delivered"] == [
        one.id for one in told
    ]
    first = http.bodies[0]["text"]
    assert f"fleetctl incident show {incident.id}" in first
    assert "https://grafana.example/d/fleetctl-node?var-node=node-2" in first.replace("&amp;", "&")
    assert "impact: requests lost: not known" in first
    assert http.heard[0][1]["authorization"] == "Bearer xoxb-hunter2"
    assert "hunter2" not in json.dumps([one.model_dump() for one in told])


async def test_what_users_felt_of_an_open_incident_is_told_without_receivers_too(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with controller_with(tmp_path, clock) as controller:
        incident = await tell(controller, make_incident(at=clock.now()))
        told = await controller.notifications.impact_of(incident)
        over = await controller.notifications.impact_of(resolved(incident, clock.now()))
    assert told == "requests lost: not known (the gateway was not scraped before it began)"
    assert over == ""


async def test_who_asks_for_what_users_felt_waits_no_longer_than_a_moment_and_is_told_the_same_for_a_while(
    tmp_path: Path,
) -> None:
    clock = DrivenClock()
    may_end, asked = asyncio.Event(), 0

    async def slowly(incident: Incident, runs: object) -> str:
        nonlocal asked
        asked += 1
        await may_end.wait()
        return f"look {asked}"

    async with controller_with(tmp_path, clock) as controller:
        notifications = controller.notifications
        incident = await tell(controller, make_incident(at=clock.now()))
        notifications._source = replace(notifications._source, impact=slowly)
        assert await notifications.impact_of(incident) == ""
        assert await notifications.impact_of(incident) == ""
        may_end.set()
        await until(lambda: _true(not notifications._looking), "it was read")
        assert [await notifications.impact_of(incident) for _ in range(3)] == ["look 1"] * 3
        assert asked == 1
        clock.move(25.0)
        assert await notifications.impact_of(incident) == "look 2", "what was so a while ago is not told as now"


async def _true(found: bool) -> bool:
    return found


async def test_a_mail_is_answered_by_those_after_it(tmp_path: Path, mail: MailServer) -> None:
    receiver = {
        "name": "mail",
        "kind": "email",
        "smtp_host": "127.0.0.1",
        "smtp_port": mail.port,
        "smtp_tls": "none",
        "sender": "fleet@ops.example",
        "to": ["ann@ops.example", "bob@ops.example"],
    }
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, receiver) as controller:
        incident = await tell(controller, make_incident(at=clock.now()))
        await tell(controller, resolved(incident, clock.now()))
        mail.refuse = "550 no such user"
        await tell(controller, make_incident("node-3", at=clock.now()))
        mail.refuse = "450 come back later"
        await tell(controller, make_incident("node-4", at=clock.now()))
        told = await controller.notifications.listing()
    first, last = mail.mails
    assert first["Message-ID"] == f"<{incident.id}@ops.example>"
    assert last["In-Reply-To"] == first["Message-ID"]
    assert last["Subject"] == "Re: [resolved] SEV-2 node-2 is slower than its peers"
    assert first["To"] == "ann@ops.example, bob@ops.example"
    assert [one.state.value for one in told] == ["delivered", "delivered", "failed", "waiting"]
    assert told[2].why == "receiver mail: every address was refused (550)"


async def test_a_mail_server_that_wants_tls_and_a_login_gets_both_and_one_that_nobody_vouches_for_gets_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, secret = make_certificate(tmp_path), tmp_path / "password"
    clock = DrivenClock()
    with mail_server(certificate, password="hunter2") as mail:
        receiver = {
            "name": "mail",
            "kind": "email",
            "smtp_host": "127.0.0.1",
            "smtp_port": mail.port,
            "smtp_user": "fleet",
            "secret_file": secret,
            "sender": "fleet@ops.example",
            "to": ["ann@ops.example"],
        }
        async with controller_with(tmp_path, clock, receiver) as controller:
            secret.write_text("hunter2")
            await tell(controller, make_incident("node-1", at=clock.now()))
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            await tell(controller, make_incident("node-2", at=clock.now()))
            secret.write_text("wrong")
            await tell(controller, make_incident("node-3", at=clock.now()))
            told = await controller.notifications.listing()
    assert [(one.state.value, one.why) for one in told] == [
        ("failed", "receiver mail: the mail server's certificate is not to be trusted"),
        ("delivered", "the mail server took it"),
        ("failed", "receiver mail: the mail server says 535; see smtp_user and its secret"),
    ]
    assert len(mail.mails) == 1


async def test_a_receiver_that_does_not_answer_is_asked_again_later_each_time_and_given_up_once(
    tmp_path: Path, http: HttpReceiver
) -> None:
    http.answer = (503, {}, {})
    clock = DrivenClock()
    limits = {"retry_s": 5, "max_retry_s": 300, "give_up_after_s": 600}
    async with controller_with(tmp_path, clock, webhook(http), **limits) as controller:
        await tell(controller, make_incident(at=clock.now()))
        began, tries = clock.now(), [0.0]
        while (await states(controller)) == ["waiting"]:
            clock.move(1)
            heard = len(http.heard)
            await turn(controller)
            if len(http.heard) > heard:
                tries.append(round(clock.now() - began))
        (told,) = await controller.notifications.listing()
        failing = controller.metrics.registry.get_sample_value("fleetctl_receiver_failing", {"receiver": "hook"})
        ends = {"receiver": "hook", "outcome": "failed"}
        failed = controller.metrics.registry.get_sample_value("fleetctl_notifications_total", ends)
        receiver = controller.notifications.receivers()[0]
    assert tries == [0, 5, 15, 35, 75, 155, 315, 615]
    assert (told.state.value, told.attempts) == ("failed", 8)
    assert told.why == "given up after 8 attempts: receiver hook: answered 503"
    assert (failing, failed, receiver.last_error) == (1.0, 1.0, "receiver hook: answered 503")
    assert len({headers["idempotency-key"] for _, headers, _ in http.heard}) == 1


async def test_one_that_asks_for_time_gets_it_and_one_that_refuses_is_not_asked_again(
    tmp_path: Path, http: HttpReceiver
) -> None:
    http.answers = [(429, {}, {"Retry-After": "120"})]
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        await tell(controller, make_incident(at=clock.now()))
        clock.move(119)
        await turn(controller)
        assert len(http.heard) == 1
        clock.move(1)
        await turn(controller)
        assert await states(controller) == ["delivered"]
        http.answer = (302, {}, {"Location": f"{http.url}/elsewhere"})
        await tell(controller, make_incident("node-3", at=clock.now()))
        assert await states(controller) == ["delivered", "failed"]
    assert [path for path, _, _ in http.heard] == ["/hook"] * 3, "no redirect is followed"


async def test_a_controller_that_ends_between_writing_and_sending_leaves_it_to_the_next_one(
    tmp_path: Path, http: HttpReceiver
) -> None:
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        await controller.book.store_incident(make_incident(at=clock.now()))
        await controller.notifications.plan()
    assert http.heard == []
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        await turn(controller)
        await turn(controller)
        assert await states(controller) == ["delivered"]
    assert len(http.heard) == 1


async def test_what_was_told_before_a_restart_is_not_told_again_and_its_end_is(
    tmp_path: Path, http: HttpReceiver
) -> None:
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        incident = await tell(controller, make_incident(at=clock.now()))
        await controller.book.store_incident(resolved(incident, clock.now()))
    clock.move(86_400)  # too long ago to be among the recent ones
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        assert controller.book.recent() == []
        await turn(controller)
        await turn(controller)
    assert [body["kind"] for body in http.bodies] == ["opened", "resolved"]


async def test_a_full_disk_keeps_nobody_from_being_called_and_what_happened_is_stored_later(
    tmp_path: Path, http: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetctl.controller.database import StorageLostError

    clock = DrivenClock()
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        await controller.book.store_incident(make_incident(at=clock.now()))
        write = controller.database.write

        async def full(work: Any) -> Any:
            raise StorageLostError("no space left", remedy="free some")

        monkeypatch.setattr(controller.database, "write", full)
        await turn(controller)
        assert len(http.heard) == 1
        assert await controller.notifications.listing() == []
        monkeypatch.setattr(controller.database, "write", write)
        await turn(controller)
        assert await states(controller) == ["delivered"]
        assert [one.kind for one in await controller.timeline.read_newest()][-1] == "notification.delivered"
    assert len(http.heard) == 1


async def test_a_controller_that_may_not_lead_any_more_tells_nobody(tmp_path: Path, http: HttpReceiver) -> None:
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        await controller.book.store_incident(make_incident(at=clock.now()))
        controller.lease._lease_s = 1.0
        controller.lease.end()
        await turn(controller)
    assert http.heard == []


async def test_a_test_is_marked_sent_once_and_has_its_end(tmp_path: Path, http: HttpReceiver) -> None:
    (tmp_path / "key").write_text("hunter2")
    pager = {"name": "pager", "kind": "pagerduty", "url": http.url, "secret_file": tmp_path / "key"}
    gone = {"name": "gone", "kind": "webhook", "url_env": "FLEETCTL_NO_SUCH_URL"}
    async with controller_with(tmp_path, DrivenClock(), pager, gone, routes=[{"receivers": []}]) as controller:
        told = await controller.notifications.test("pager", "ann")
        assert told.state.value == "delivered"
        assert told.subject.startswith("[TEST] ")
        assert [body["event_action"] for body in http.bodies] == ["trigger", "resolve"]
        assert http.bodies[0]["payload"]["severity"] == "info"
        http.answer = (400, {}, {})
        assert (await controller.notifications.test("pager", "ann")).state.value == "failed"
        missing = await controller.notifications.test("gone", "ann")
        assert (missing.state.value, missing.attempts) == ("failed", 1)
        assert "FLEETCTL_NO_SUCH_URL is not set" in missing.why
        # No route leads to it, so nobody misses a word: LLMReceiverFailing would page for what somebody just tries.
        failing = controller.metrics.registry.get_sample_value("fleetctl_receiver_failing", {"receiver": "gone"})
        assert not failing
        assert "FLEETCTL_NO_SUCH_URL" in controller.notifications.receivers()[1].last_error
        await turn(controller)
        assert await states(controller) == ["delivered", "failed", "failed"]


async def test_the_timeline_says_of_which_incident_somebody_was_told_and_why_the_next_one_was_called(
    tmp_path: Path, http: HttpReceiver
) -> None:
    clock, lead = DrivenClock(), {"name": "lead", "kind": "webhook", "url": f"{http.url}/lead"}
    routes = [{"receivers": ["hook"], "escalation": {"after_s": 60, "to": ["lead"]}}]
    async with controller_with(tmp_path, clock, webhook(http), lead, routes=routes) as controller:
        await controller.notifications.test("hook", "ann")
        incident = await tell(controller, make_incident(at=clock.now()))
        clock.move(61)
        await turn(controller)
        told = [one.text for one in await controller.timeline.read_newest() if one.kind == "notification.delivered"]
    assert told == [
        "hook took a test",
        f"hook was told of {incident.id}: opened",
        f"lead was told of {incident.id}: nobody has acknowledged it for 1 min; told: hook",
    ]


async def test_a_message_says_what_a_person_can_do_where_nothing_could_be_proposed(
    tmp_path: Path, http: HttpReceiver
) -> None:
    clock = DrivenClock()
    async with controller_with(tmp_path, clock, webhook(http)) as controller:
        incident = await tell(controller, with_cause(make_incident(at=clock.now()), "overload"))
        assert http.bodies[-1]["doing"] == "nothing yet"
        clock.move(10)
        why = "shed-load: it would turn nobody away; add nodes"
        await controller.timeline.append("remediation.not_proposed", why, incident_id=incident.id)
        await tell(controller, acknowledged(incident, at=clock.now()))
    assert http.bodies[-1]["doing"] == f"nothing is proposed: {why}"


async def test_neither_log_nor_timeline_nor_list_has_a_secret_or_a_secret_url(
    tmp_path: Path, http: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_URL", f"{http.url}/hunter2-url")
    monkeypatch.setenv("HOOK_KEY", "hunter2-key")
    http.answers = [(500, {"echo": "hunter2-key"}, {})]
    http.answer = (403, {"echo": "hunter2-key"}, {})
    clock = DrivenClock()
    receiver = {"name": "hook", "kind": "webhook", "url_env": "HOOK_URL", "secret_env": "HOOK_KEY"}
    with structlog.testing.capture_logs() as logs:
        async with controller_with(tmp_path, clock, receiver) as controller:
            await tell(controller, make_incident(at=clock.now()))
            clock.move(60)
            await turn(controller)
            shown = [one.model_dump_json() for one in await controller.notifications.listing()]
            shown += [one.model_dump_json() for one in controller.notifications.receivers()]
            shown += [one.model_dump_json() for one in await controller.timeline.read_newest()]
    assert len(http.heard) == 2
    assert "hunter2" not in str(logs) + str(shown)


async def test_one_slow_receiver_keeps_no_other_waiting(tmp_path: Path, http: HttpReceiver) -> None:
    clock = DrivenClock()
    dead = {"name": "dead", "kind": "webhook", "url": "http://127.0.0.1:9/hook"}
    async with controller_with(tmp_path, clock, dead, webhook(http)) as controller:
        await tell(controller, make_incident(at=clock.now()))
        by_receiver = {one.receiver: one.state.value for one in await controller.notifications.listing()}
    assert by_receiver == {"dead": "waiting", "hook": "delivered"}
