"""A silence as Alertmanager has it, and which alerts it covers. Pure: the time comes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from alerts.errors import AlertsError
from alerts.matcher import Matcher
from fleetctl.controller.alertmanager.webhook_payload import NS, parse_time_ns
from fleetctl.wire.silence import Silence, SilenceMatcher

MAX_MATCHERS = 100


class Silenced(StrEnum):
    """Whether a silence covers an alert."""

    NO = "no"  # there is no silence for it
    YES = "yes"
    UNKNOWN = "unknown"  # silences could not be read


@dataclass(frozen=True, slots=True)
class Silencing:
    """Whether, and by which silences."""

    silenced: Silenced
    by: tuple[str, ...] = ()  # ids of silences


@dataclass(frozen=True, slots=True)
class KnownSilence:
    """One silence, decoded. Times are Unix seconds."""

    id: str
    matchers: tuple[Matcher, ...]
    starts_at: float
    ends_at: float
    created_by: str
    comment: str
    state: Literal["pending", "active", "expired"]

    def covers(self, labels: Mapping[str, str], now: float) -> bool:
        """Whether it mutes an alert with these labels now."""
        return self.is_in_force(now) and all(one.accepts(labels.get(one.name, "")) for one in self.matchers)

    def is_in_force(self, now: float) -> bool:
        """By the clock, so that one read as pending begins in time; one that Alertmanager calls active is."""
        if self.state == "expired" or now >= self.ends_at:
            return False
        return self.state == "active" or self.starts_at <= now

    def to_wire(self) -> Silence:
        """As our API tells it."""
        return Silence(
            id=self.id,
            state=self.state,
            matchers=[SilenceMatcher(name=one.name, op=one.op, value=one.value) for one in self.matchers],
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            created_by=self.created_by,
            comment=self.comment,
        )


def decode_silence(tree: Mapping[str, Any]) -> KnownSilence:
    """An element of `GET /api/v2/silences`. Raises ValueError when it can't be judged, e.g. by its pattern."""
    matchers = tree.get("matchers")
    if not isinstance(matchers, list) or not 0 < len(matchers) <= MAX_MATCHERS:
        raise ValueError("no list of matchers")
    starts_ns, ends_ns = parse_time_ns(tree.get("startsAt")), parse_time_ns(tree.get("endsAt"))
    if starts_ns is None or ends_ns is None:
        raise ValueError("startsAt or endsAt is no time")
    status = tree.get("status")
    state = str(status.get("state")) if isinstance(status, dict) else "active"
    return KnownSilence(
        id=str(tree.get("id", "")),
        matchers=tuple(_matcher(one) for one in matchers),
        starts_at=starts_ns / NS,
        ends_at=ends_ns / NS,
        created_by=str(tree.get("createdBy", "")),
        comment=str(tree.get("comment", "")),
        state="expired" if state == "expired" else "pending" if state == "pending" else "active",
    )


def encode_matcher(matcher: SilenceMatcher) -> dict[str, Any]:
    """As Alertmanager takes it."""
    return {
        "name": matcher.name,
        "value": matcher.value,
        "isRegex": matcher.op in ("=~", "!~"),
        "isEqual": matcher.op in ("=", "=~"),
    }


def covering(silences: Iterable[KnownSilence], labels: Mapping[str, str], now: float) -> tuple[str, ...]:
    """Ids of the silences that mute an alert with these labels."""
    return tuple(one.id for one in silences if one.covers(labels, now))


def _matcher(tree: Any) -> Matcher:
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str) or not isinstance(tree.get("value"), str):
        raise ValueError("a matcher without name and value")
    # isEqual came with Alertmanager 0.22: a silence made before has none.
    is_regex, is_equal = bool(tree.get("isRegex")), tree.get("isEqual") is not False
    op: Literal["=", "!=", "=~", "!~"] = ("=~" if is_equal else "!~") if is_regex else ("=" if is_equal else "!=")
    try:
        return Matcher(tree["name"], op, tree["value"])
    except AlertsError as error:
        raise ValueError(str(error)) from None
