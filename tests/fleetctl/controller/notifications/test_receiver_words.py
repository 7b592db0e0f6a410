"""A notice in the words of Slack, PagerDuty, Opsgenie and mail, as their APIs want them; updates in the same thread."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.controller.notifications.receiver_words import Delivery, mail_for, message_for
from fleetctl.settings.notifications import NotificationSettings, ReceiverSettings

NOW = 1_700_000_000.0
NOTICE = Notice(
    NoticeKind.OPENED,
    "node-2 is slow <!channel>",
    severity="page",
    sev="SEV-2",
    incident="inc-7",
    news=("TTFT p95 > 2 s & rising",),
    cause="slow_node (confirmed)",
    approve="fleetctl runbook approve run-1",
    show="fleetctl incident show inc-7",
    link="https://ops.example/inc-7",
)


def receiver(kind: str, **fields: Any) -> ReceiverSettings:
    wants = {
        "slack": {"url_env": "CHAT_URL"},
        "webhook": {"url": "https://w.example/hook"},
        "pagerduty": {"secret_env": "KEY"},
        "opsgenie": {"secret_env": "KEY"},
        "email": {"smtp_host": "mail.example", "sender": "fleet@ops.example", "to": ["ann@ops.example"]},
    }[kind]
    return ReceiverSettings.model_validate({"name": "oncall", "kind": kind, **wants, **fields})


def sent(kind: str, notice: Notice = NOTICE, *, secret: str = "", **fields: Any) -> tuple[str, dict[str, Any], Any]:
    one = receiver(kind, **fields.pop("receiver", {}))
    delivery = Delivery(notice, **{"key": "ntf-1", "thread": "inc-7", **fields})
    made = message_for(one, "https://there.example/v2/alerts", secret, delivery, NOW)
    return made.url, json.loads(made.body), made.headers


def test_slack_gets_what_to_type_and_nothing_in_it_calls_a_channel() -> None:
    _, body, headers = sent("slack")
    assert set(body) == {"text"}
    assert "fleetctl runbook approve run-1" in body["text"]
    assert "&lt;!channel&gt;" in body["text"]
    assert "&gt; 2 s &amp; rising" in body["text"]
    assert "Authorization" not in headers
    assert "*Re: SEV-2 node-2" in sent("slack", is_reply=True)[1]["text"], "a webhook knows no thread"


def test_slacks_api_gets_the_thread_that_it_named() -> None:
    bot = {"url_env": None, "channel": "C1", "secret_env": "KEY"}
    _, first, headers = sent("slack", secret="xoxb", receiver=bot)
    assert (first["channel"], headers["Authorization"]) == ("C1", "Bearer xoxb")
    assert "thread_ts" not in first
    update = Notice(NoticeKind.UPDATE, "more")
    _, second, _ = sent("slack", update, secret="xoxb", receiver=bot, is_reply=True, reference="17.4")
    assert (second["thread_ts"], second["reply_broadcast"], second["text"]) == ("17.4", False, "*more*")


@pytest.mark.parametrize(
    ("kind", "ends", "action"),
    [
        (NoticeKind.OPENED, False, "trigger"),
        (NoticeKind.UPDATE, False, "trigger"),
        (NoticeKind.ACKNOWLEDGED, False, "acknowledge"),
        (NoticeKind.RESOLVED, True, "resolve"),
        (NoticeKind.RESOLVED, False, "trigger"),  # others of a digest stand
    ],
)
def test_pagerduty_has_one_alert_for_an_incident_from_its_opening_to_its_end(kind, ends, action) -> None:
    notice = Notice(kind, "x" * 5000, severity="critical")
    _, body, headers = sent("pagerduty", notice, secret="routing", ends_thread=ends)
    assert (body["routing_key"], body["event_action"], body["dedup_key"]) == ("routing", action, "inc-7")
    assert "routing" not in str(headers)
    if action == "trigger":
        assert set(body["payload"]) >= {"summary", "source", "severity"}
        assert body["payload"]["severity"] == "critical"
        assert len(body["payload"]["summary"]) <= 1024


def test_pagerduty_gets_severity_cause_and_link() -> None:
    _, body, _ = sent("pagerduty", secret="routing")
    assert body["payload"]["severity"] == "error"
    assert body["payload"]["custom_details"]["cause"] == "slow_node (confirmed)"
    assert body["links"] == [{"href": "https://ops.example/inc-7", "text": "incident"}]


def test_opsgenie_gets_an_alert_under_its_key_and_what_is_new_as_its_notes() -> None:
    url, body, headers = sent("opsgenie", Notice(NoticeKind.OPENED, "x" * 500, severity="page"), secret="secret")
    assert headers["Authorization"] == "GenieKey secret"
    assert (len(body["message"]), body["alias"], body["priority"]) == (130, "inc-7", "P2")
    assert url == "https://there.example/v2/alerts"
    for kind, ends, act in (
        (NoticeKind.UPDATE, False, "notes"),
        (NoticeKind.ACKNOWLEDGED, False, "acknowledge"),
        (NoticeKind.RESOLVED, True, "close"),
        (NoticeKind.RESOLVED, False, "notes"),
    ):
        url, body, _ = sent("opsgenie", Notice(kind, "new"), secret="s", is_reply=True, ends_thread=ends)
        assert url == f"https://there.example/v2/alerts/inc-7/{act}?identifierType=alias"
        assert set(body) == {"note", "source"}


def test_a_webhook_gets_every_field_and_a_signature_that_its_key_makes() -> None:
    one = receiver("webhook", secret_env="KEY")
    made = message_for(one, "https://w.example", "key", Delivery(NOTICE, "ntf-1", "inc-7"), NOW)
    stamp = made.headers["X-Fleetctl-Timestamp"]
    digest = hmac.new(b"key", f"{stamp}.".encode() + made.body, hashlib.sha256).hexdigest()
    assert made.headers["X-Fleetctl-Signature"] == f"v1={digest}"
    body = json.loads(made.body)
    assert (body["kind"], body["thread"], body["incident"], body["key"]) == ("opened", "inc-7", "inc-7", "ntf-1")
    assert "X-Fleetctl-Signature" not in sent("webhook")[2]


def test_a_mail_answers_the_first_of_its_thread_and_its_subject_is_one_line() -> None:
    evil = Notice(NoticeKind.OPENED, "slow\r\nBcc: eve@evil.example\x1b[2J", news=("ü",))
    first = mail_for(receiver("email"), Delivery(evil, "ntf-1", "inc-7"), NOW)
    assert first["Message-ID"] == "<inc-7@ops.example>"
    assert first["Bcc"] is None
    assert first["Subject"] == "slow Bcc: eve@evil.example [2J"
    reply = mail_for(receiver("email"), Delivery(evil, "ntf-2", "inc-7", is_reply=True), NOW)
    assert (reply["In-Reply-To"], reply["References"]) == ("<inc-7@ops.example>", "<inc-7@ops.example>")
    assert reply["Message-ID"] == "<ntf-2@ops.example>"
    assert reply["Subject"].startswith("Re: slow")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "slack", "url": "https://x.example/hunter2"}, "url_file or url_env"),
        ({"kind": "slack"}, "one of url, url_file and url_env is needed"),
        ({"kind": "slack", "channel": "C1"}, "the bot token"),
        ({"kind": "pagerduty"}, "the key"),
        ({"kind": "email", "sender": "a@b"}, "smtp_host, sender and to are needed"),
        ({"kind": "email", "smtp_host": "m", "sender": "a@b", "to": ["c@d\r\nRCPT"]}, "not an address"),
        ({"kind": "webhook", "url": "file:///etc/passwd"}, "not a URL"),
        ({"kind": "webhook", "url": "https://x.example", "url_env": "X"}, "give one of"),
        ({"kind": "fax"}, "slack"),
    ],
)
def test_a_receiver_that_can_not_be_told_is_refused_without_its_url(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        ReceiverSettings.model_validate({"name": "oncall", **wrong})
    assert "hunter2" not in str(caught.value)


def test_routes_name_only_who_is_there() -> None:
    with pytest.raises(ValueError, match=r"routes\[0\]: there is no receiver boss"):
        NotificationSettings.model_validate({"routes": [{"escalation": {"to": ["boss"]}}]})
    twice = [{"name": "a", "kind": "webhook", "url": "https://x.example"}] * 2
    with pytest.raises(ValueError, match="a is there twice"):
        NotificationSettings.model_validate({"receivers": twice})
