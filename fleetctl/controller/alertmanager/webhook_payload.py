"""An Alertmanager notification as it arrives, decoded once: version 4, older versions, and what else calls itself so.

Strict in what it means, lenient in its shape: a receiver that refuses a notification loses it, because Alertmanager
repeats nothing that was answered with 4xx before the group's next turn. One unreadable alert never costs its group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from alerts.evaluation.alert import alertmanager_fingerprint
from fleetctl.kit.errors import BadInputError

MAX_LABELS = 200
MAX_NAME_CHARS = 500
MAX_LABEL_CHARS = 10_000
MAX_ANNOTATION_CHARS = 10_000  # longer ones are cut: they are for people
MAX_TOLD = 10
NS = 1_000_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:[.,](\d{1,18}))?\s*([Zz]|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, slots=True)
class Notice:
    """What one notification says of one alert, which is known by its labels. Times in nanoseconds since 1970, as exact
    as Alertmanager has them."""

    fingerprint: str
    is_firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_ns: int | None
    ends_ns: int | None  # None: not over, or not said
    generator_url: str = ""


@dataclass(frozen=True, slots=True)
class Notification:
    """One POST of Alertmanager, decoded."""

    version: str
    group_key: str
    receiver: str
    truncated: int  # alerts that were left out: neither firing nor resolved by this
    external_url: str
    notices: tuple[Notice, ...]
    rejected: tuple[str, ...] = ()  # why, for the first alerts that can't be read
    num_rejected: int = 0


def decode_notification(body: bytes, now: float, *, max_alerts: int) -> Notification:
    """The notification in a request's body.

    Raises BadInputError when no retry can make sense of it: no JSON, no alerts in it, or none of them readable.
    """
    tree = _parse(body)
    if isinstance(tree, list):  # what Prometheus itself posts to Alertmanager
        tree = {"alerts": tree}
    if not isinstance(tree, dict):
        raise BadInputError(f"body: expected Alertmanager's webhook payload, found {_kind(tree)}")
    alerts = tree.get("alerts", tree.get("alert"))  # "alert" in payloads of version 2
    if alerts is None and ("alerts" in tree or "groupKey" in tree):
        alerts = []
    if not isinstance(alerts, list):
        raise BadInputError(
            f"body: alerts: expected a list, found {_kind(alerts)}",
            remedy="send Alertmanager's own webhook payload (version 4), without a `payload` of its own",
        )
    if len(alerts) > max_alerts:
        raise BadInputError(
            f"body: alerts: {len(alerts)} in one notification, more than {max_alerts}",
            remedy="set max_alerts in Alertmanager's webhook_config, or webhook.max_alerts here",
        )
    notices: list[Notice] = []
    rejected: list[str] = []
    for index, alert in enumerate(alerts):
        try:
            notices.append(_notice(alert, tree, now))
        except BadInputError as error:
            rejected.append(f"alerts[{index}]: {error.message}")
    if rejected and not notices:
        raise BadInputError(f"body: {rejected[0]}")
    return Notification(
        version=_text(tree.get("version", "")),
        group_key=_group_key(tree),
        receiver=_text(tree.get("receiver", ""))[:MAX_NAME_CHARS],
        truncated=_count(tree.get("truncatedAlerts")),
        external_url=_text(tree.get("externalURL", ""))[:MAX_NAME_CHARS],
        notices=tuple(notices),
        rejected=tuple(rejected[:MAX_TOLD]),
        num_rejected=len(rejected),
    )


def parse_time_ns(value: Any) -> int | None:
    """RFC 3339 to nanoseconds since 1970. None for nothing, for Go's zero time, and for what is no time."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return _from_number(value)
    match = _TIME.fullmatch(str(value).strip())
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone is None or zone in "Zz" else zone
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    if whole.year <= 1:
        return None
    seconds = int((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    at = seconds * NS + int((fraction or "0")[:9].ljust(9, "0"))
    return at if abs(at) < 2**63 else None


def _notice(alert: Any, tree: Mapping[str, Any], now: float) -> Notice:
    if not isinstance(alert, dict):
        raise BadInputError(f"expected an object, found {_kind(alert)}")
    labels = _string_map(alert.get("labels"), "labels", MAX_LABEL_CHARS)
    if not labels:
        raise BadInputError("labels: none, so nothing says which alert it is")
    if len(labels) > MAX_LABELS:
        raise BadInputError(f"labels: {len(labels)}, more than {MAX_LABELS}")
    for name, value in labels.items():
        if len(name) > MAX_NAME_CHARS or len(value) >= MAX_LABEL_CHARS:
            raise BadInputError(f"labels: {name[:40]}: longer than {MAX_LABEL_CHARS} characters")
    annotations = _string_map(alert.get("annotations"), "annotations", MAX_ANNOTATION_CHARS)
    starts_ns, ends_ns = parse_time_ns(alert.get("startsAt")), parse_time_ns(alert.get("endsAt"))
    is_firing = _is_firing(alert, tree, ends_ns, now)
    return Notice(
        # Of the labels, as Alertmanager computes its own. What the payload gives is a hint: a sender that gives several
        # alerts the same one would have one of them end the others.
        fingerprint=alertmanager_fingerprint(labels),
        is_firing=is_firing,
        labels=labels,
        annotations=dict(list(annotations.items())[:MAX_LABELS]),
        starts_ns=starts_ns,
        # Older ones give a firing alert the time at which it would end by itself.
        ends_ns=None if is_firing else ends_ns,
        generator_url=_text(alert.get("generatorURL") or "")[:2000],
    )


def _is_firing(alert: Mapping[str, Any], tree: Mapping[str, Any], ends_ns: int | None, now: float) -> bool:
    """By its own status; else by its end; else by the group's. An alert that does not say is taken to fire."""
    status = alert.get("status")
    if isinstance(status, dict):  # the shape of Alertmanager's own API
        status = status.get("state")
    if isinstance(status, str) and status.strip():
        return status.strip().lower() not in ("resolved", "ok", "normal", "inactive")
    if ends_ns is not None:
        return ends_ns > now * NS
    return str(tree.get("status", "firing")).strip().lower() != "resolved"


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadInputError(f"body: not JSON: {str(error)[:200]}") from None


def _string_map(value: Any, where: str, max_chars: int) -> dict[str, str]:
    """An object of strings; numbers and booleans in it become text, null is left out as an empty label is."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected an object, found {_kind(value)}")
    found: dict[str, str] = {}
    for name, one in value.items():
        text = _text(one)[:max_chars]
        if text:
            found[_text(name)] = text
    return found


def _text(value: Any) -> str:
    """As text that any database takes: without NUL and halves of surrogate pairs."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadInputError("nested too deep") from None
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")


def _group_key(tree: Mapping[str, Any]) -> str:
    """Text in version 4, a number in version 3; where there is none, what the group is made of."""
    key = tree.get("groupKey")
    if key is None or key == "":
        labels = tree.get("groupLabels")
        key = json.dumps(labels, sort_keys=True) if isinstance(labels, dict) and labels else ""
        key = f"{_text(tree.get('receiver', ''))}:{key}"
    return _text(key)


def _count(value: Any) -> int:
    try:
        return max(0, min(int(value), 10**9))
    except (TypeError, ValueError, OverflowError):
        return 0


def _from_number(value: float) -> int | None:
    """Unix time in seconds, or milliseconds where it would otherwise be after the year 5000."""
    if not 0 < value < 1e15:
        return None
    return int(value * NS) if value < 1e11 else int(value * 1_000_000)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
