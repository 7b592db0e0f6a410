"""A notice in the words of those who take it: Slack, PagerDuty, Opsgenie, mail, anything else. Pure.

All messages of one thread are one there: PagerDuty's dedup_key, Opsgenie's alias, Slack's thread_ts, a mail's
In-Reply-To. Where there is no word for that, the message says `Re:`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote

from fleetctl.controller.notifications.notice import Notice, NoticeKind
from fleetctl.settings.notifications import ReceiverKind, ReceiverSettings

MAX_SUMMARY_CHARS = 1024  # PagerDuty's
MAX_DEDUP_CHARS = 255
MAX_MESSAGE_CHARS = 130  # Opsgenie's
MAX_ALIAS_CHARS = 512
MAX_TEXT_CHARS = 15_000  # Opsgenie's description; Slack takes 40,000
SIGNATURE_HEADER = "X-Fleetctl-Signature"
TIMESTAMP_HEADER = "X-Fleetctl-Timestamp"

_PAGERDUTY_SEVERITIES = {"critical": "critical", "page": "error", "warning": "warning", "ticket": "info"}
_OPSGENIE_PRIORITIES = {"critical": "P1", "page": "P2", "warning": "P3", "ticket": "P5"}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notice to one receiver. `key` is the same for a repeat: where there is a word for that, both are one."""

    notice: Notice
    key: str
    thread: str
    is_reply: bool = False  # there is a message of the thread already
    reference: str = ""  # its name there, where the receiver gave one
    ends_thread: bool = False  # nothing of the thread stands any more


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent: no part of it may be logged, as URL and headers hold secrets."""

    url: str
    body: bytes
    headers: dict[str, str]


Words = tuple[str, dict[str, Any], dict[str, str]]
"""URL, body, headers."""


def message_for(receiver: ReceiverSettings, url: str, secret: str, delivery: Delivery, now: float) -> Message:
    """The HTTP message. `url` and `secret` are the receiver's, read just now."""
    target, body, headers = _WORDS[receiver.kind](receiver, url, secret, delivery)
    content = json.dumps(body, ensure_ascii=False).encode()
    sent = {"Content-Type": "application/json; charset=utf-8", "Idempotency-Key": delivery.key, **headers}
    if receiver.kind is ReceiverKind.webhook and secret:
        sent |= signature_headers(secret, content, now)
    return Message(target, content, sent)


def signature_headers(secret: str, body: bytes, now: float) -> dict[str, str]:
    """HMAC-SHA256 over the time and the body: who has the key knows that we wrote it, and when."""
    stamp = str(int(now))
    digest = hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {TIMESTAMP_HEADER: stamp, SIGNATURE_HEADER: f"v1={digest}"}


def mail_for(receiver: ReceiverSettings, delivery: Delivery, now: float) -> EmailMessage:
    """The mail. The first of a thread is named after it, so that all others can answer it."""
    assert receiver.sender is not None  # the settings were checked
    domain = receiver.sender.rpartition("@")[2]
    mail = EmailMessage()
    mail["From"], mail["To"] = receiver.sender, ", ".join(receiver.to)
    mail["Subject"] = _subject(delivery)
    mail["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
    first = f"<{delivery.thread}@{domain}>"
    mail["Message-ID"] = f"<{delivery.key}@{domain}>" if delivery.is_reply else first
    if delivery.is_reply:
        mail["In-Reply-To"] = mail["References"] = first
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(delivery.notice.body or delivery.notice.subject)
    return mail


def _subject(delivery: Delivery) -> str:
    return f"Re: {delivery.notice.subject}" if delivery.is_reply else delivery.notice.subject


def _webhook(receiver: ReceiverSettings, url: str, secret: str, delivery: Delivery) -> Words:
    del secret  # it signs
    notice = delivery.notice
    body = {
        "kind": notice.kind.value,
        "receiver": receiver.name,
        "key": delivery.key,
        "thread": delivery.thread,
        "is_reply": delivery.is_reply,
        "subject": notice.subject,
        "text": notice.text,
        "news": list(notice.news),
        "lines": list(notice.lines),
        **notice.facts(),
    }
    return url, body, {}


def _slack(receiver: ReceiverSettings, url: str, secret: str, delivery: Delivery) -> Words:
    notice = delivery.notice
    is_threaded = receiver.channel is not None and bool(delivery.reference)
    subject = notice.subject if is_threaded else _subject(delivery)
    plain = f"*{subject}*\n{notice.body}".strip()[:MAX_TEXT_CHARS]
    # Slack reads <, > and & as markup: what nodes and people wrote must not make links or call a channel.
    text = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if receiver.channel is None:
        return url, {"text": text}, {}
    body: dict[str, Any] = {"channel": receiver.channel, "text": text, "unfurl_links": False}
    if is_threaded:
        body["thread_ts"] = delivery.reference
        body["reply_broadcast"] = notice.kind.calls
    return url, body, {"Authorization": f"Bearer {secret}"}


def _pagerduty(receiver: ReceiverSettings, url: str, secret: str, delivery: Delivery) -> Words:
    del receiver
    notice = delivery.notice
    body: dict[str, Any] = {
        "routing_key": secret,
        "event_action": {
            NoticeKind.ACKNOWLEDGED: "acknowledge",
            NoticeKind.RESOLVED: "resolve" if delivery.ends_thread else "trigger",
        }.get(notice.kind, "trigger"),
        "dedup_key": delivery.thread[:MAX_DEDUP_CHARS],
    }
    if body["event_action"] == "trigger":
        links = (("incident", notice.link), ("dashboard", notice.dashboard))
        body |= {
            "payload": {
                "summary": notice.subject[:MAX_SUMMARY_CHARS],
                "source": "fleetctl",
                "severity": _PAGERDUTY_SEVERITIES.get(notice.severity, "critical"),
                "custom_details": {**notice.facts(), "text": notice.text[:MAX_TEXT_CHARS]},
            },
            "client": "fleetctl",
            "links": [{"href": href, "text": text} for text, href in links if href],
        }
    return url, body, {}


def _opsgenie(receiver: ReceiverSettings, url: str, secret: str, delivery: Delivery) -> Words:
    del receiver
    notice, alias = delivery.notice, delivery.thread[:MAX_ALIAS_CHARS]
    headers = {"Authorization": f"GenieKey {secret}"}
    act = {
        NoticeKind.ACKNOWLEDGED: "acknowledge",
        NoticeKind.RESOLVED: "close" if delivery.ends_thread else "notes",
        NoticeKind.UPDATE: "notes",
    }.get(notice.kind)
    if act is not None and delivery.is_reply:
        where = f"{url.rstrip('/')}/{quote(alias, safe='')}/{act}?identifierType=alias"
        return where, {"note": notice.text[:MAX_TEXT_CHARS], "source": "fleetctl"}, headers
    body = {
        "message": notice.subject[:MAX_MESSAGE_CHARS],
        "alias": alias,
        "description": notice.text[:MAX_TEXT_CHARS],
        "details": notice.facts(),
        "source": "fleetctl",
    }
    if priority := _OPSGENIE_PRIORITIES.get(notice.severity):
        body["priority"] = priority
    return url, body, headers


_WORDS: Mapping[ReceiverKind, Callable[[ReceiverSettings, str, str, Delivery], Words]] = {
    ReceiverKind.webhook: _webhook,
    ReceiverKind.slack: _slack,
    ReceiverKind.pagerduty: _pagerduty,
    ReceiverKind.opsgenie: _opsgenie,
}
