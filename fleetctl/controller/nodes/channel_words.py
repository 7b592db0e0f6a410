"""A message in the words of those who take it: Slack-compatible webhooks, PagerDuty, Opsgenie, anything else. Pure.

A channel's file says where it goes and, in its second line, the credential. Which words are wanted is known from the
URL's host, or said before the URL: `slack https://chat.example.com/hooks/abc`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

MAX_SUMMARY_CHARS = 1024  # PagerDuty's; Opsgenie takes 130 in its message
MAX_MESSAGE_CHARS = 130


class ChannelKind(StrEnum):
    """Whose words."""

    generic = "generic"  # {"text", "key", "run", "incident", "reason"}; the second line is the Authorization header
    slack = "slack"  # Slack, Mattermost, Rocket.Chat: incoming webhooks
    pagerduty = "pagerduty"  # Events API v2; the second line is the routing key
    opsgenie = "opsgenie"  # Alert API; the second line is the API key


_HOSTS: Mapping[str, ChannelKind] = {
    "hooks.slack.com": ChannelKind.slack,
    "hooks.slack-gov.com": ChannelKind.slack,
    "events.pagerduty.com": ChannelKind.pagerduty,
    "events.eu.pagerduty.com": ChannelKind.pagerduty,
    "api.opsgenie.com": ChannelKind.opsgenie,
    "api.eu.opsgenie.com": ChannelKind.opsgenie,
}


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent: no part of it may be logged, as URL and headers hold secrets."""

    url: str
    body: dict[str, Any]
    headers: dict[str, str]


def kind_and_url(line: str) -> tuple[ChannelKind | None, str]:
    """Whose words a channel's first line asks for, and its URL; None for a word that is no kind."""
    word, _, rest = line.strip().partition(" ")
    if not rest:
        return _HOSTS.get(urlsplit(word).hostname or "", ChannelKind.generic), word
    return (ChannelKind(word) if word in list(ChannelKind) else None), rest.strip()


def message_for(kind: ChannelKind, url: str, credential: str, text: str, key: str, facts: Mapping[str, Any]) -> Message:
    """The message. `key` is the same for a repeat: where there is a word for that, a repeat is one with the first."""
    body, headers = _WORDS[kind](credential, text, key, facts)
    return Message(url, body, {"Idempotency-Key": key, **headers})


def _known(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _subject(key: str, facts: Mapping[str, Any]) -> str:
    """What all messages of one incident are about: they are one thread there."""
    return _known(facts).get("incident") or key


Words = tuple[dict[str, Any], dict[str, str]]


def _generic(credential: str, text: str, key: str, facts: Mapping[str, Any]) -> Words:
    return {"text": text, "key": key, **facts}, ({"Authorization": credential} if credential else {})


def _slack(credential: str, text: str, key: str, facts: Mapping[str, Any]) -> Words:
    del key
    known = _known(facts)
    about = "  ".join(f"{name} {value}" for name, value in known.items() if name != "reason")
    lines = [text, known.get("reason", ""), about]
    if "incident" in known:
        lines.append(f"`fleetctl incident show {known['incident']}`")
    plain = "\n".join(line for line in lines if line)
    # Slack reads <, > and & as markup: what nodes and people wrote must not make links or call a channel.
    escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped}, ({"Authorization": credential} if credential else {})


def _pagerduty(credential: str, text: str, key: str, facts: Mapping[str, Any]) -> Words:
    body = {
        "routing_key": credential,
        "event_action": "trigger",
        "dedup_key": _subject(key, facts)[:255],
        "payload": {
            "summary": text[:MAX_SUMMARY_CHARS],
            "source": "fleetctl",
            "severity": "critical",
            "custom_details": _known(facts),
        },
    }
    return body, {}


def _opsgenie(credential: str, text: str, key: str, facts: Mapping[str, Any]) -> Words:
    body = {
        "message": text[:MAX_MESSAGE_CHARS],
        "alias": _subject(key, facts)[:512],
        "description": text,
        "details": _known(facts),
        "source": "fleetctl",
    }
    return body, {"Authorization": f"GenieKey {credential}"}


_WORDS: Mapping[ChannelKind, Callable[[str, str, str, Mapping[str, Any]], Words]] = {
    ChannelKind.generic: _generic,
    ChannelKind.slack: _slack,
    ChannelKind.pagerduty: _pagerduty,
    ChannelKind.opsgenie: _opsgenie,
}
