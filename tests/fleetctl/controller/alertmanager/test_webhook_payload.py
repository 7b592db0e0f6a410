"""What arrives at the webhook, in every shape that calls itself Alertmanager's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.evaluation.alert import alertmanager_fingerprint
from fleetctl.controller.alertmanager.webhook_payload import Notification, decode_notification, parse_time_ns
from fleetctl.kit.errors import BadInputError
from tests.fixtures import DATA

NOW = 1_795_210_000.0
WEBHOOKS = sorted((DATA / "webhooks").glob("*.json"))
LABELS = {"alertname": "HighTTFT", "node": "n1"}


def decode(body: Any) -> Notification:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_notification(raw, NOW, max_alerts=100)


def one(**alert: Any) -> Any:
    (notice,) = decode({"version": "4", "groupKey": "g", "alerts": [{"labels": LABELS, **alert}]}).notices
    return notice


@pytest.mark.parametrize("path", WEBHOOKS, ids=[path.stem for path in WEBHOOKS])
def test_recorded_bodies_are_read_whole_and_their_fingerprints_are_ours(path: Path) -> None:
    tree = json.loads(path.read_text())
    found = decode(path.read_bytes())
    assert (found.group_key, found.truncated, found.receiver) == (
        tree["groupKey"],
        tree["truncatedAlerts"],
        tree["receiver"],
    )
    assert found.num_rejected == 0
    for notice, alert in zip(found.notices, tree["alerts"], strict=True):
        assert notice.fingerprint == alert["fingerprint"] == alertmanager_fingerprint(alert["labels"])
        assert notice.is_firing == (alert["status"] == "firing")
        assert (notice.ends_ns is None) == notice.is_firing
        assert dict(notice.labels) == alert["labels"]


def test_a_fingerprint_is_computed_from_the_labels_as_alertmanager_does() -> None:
    recorded = json.loads((WEBHOOKS[0]).read_text())["alerts"][0]
    assert one(labels=recorded["labels"]).fingerprint == recorded["fingerprint"]
    assert one(labels=recorded["labels"], fingerprint="").fingerprint == recorded["fingerprint"]
    assert one(labels=recorded["labels"], fingerprint="abc").fingerprint == recorded["fingerprint"]  # a hint only


OLDER = {
    "version 3: no status at the alert, the group key a number": (
        {
            "version": "3",
            "groupKey": 7,
            "status": "firing",
            "alerts": [{"labels": LABELS, "startsAt": "2026-11-20T21:26:25Z"}],
        },
        [True],
    ),
    "version 3, resolved": (
        {"version": "3", "groupKey": 7, "status": "resolved", "alerts": [{"labels": LABELS}]},
        [False],
    ),
    "version 2: alert, not alerts": ({"version": "2", "status": "firing", "alert": [{"labels": LABELS}]}, [True]),
    "no version at all": ({"alerts": [{"labels": LABELS, "status": "resolved"}]}, [False]),
    "an end in the past, no status": ({"alerts": [{"labels": LABELS, "endsAt": "2020-01-01T00:00:00Z"}]}, [False]),
    "an end in the future, no status": ({"alerts": [{"labels": LABELS, "endsAt": "2030-01-01T00:00:00Z"}]}, [True]),
    "what Prometheus posts to Alertmanager": ([{"labels": LABELS, "endsAt": "2030-01-01T00:00:00Z"}], [True]),
    "status as in Alertmanager's API": ({"alerts": [{"labels": LABELS, "status": {"state": "active"}}]}, [True]),
    "Grafana's, with more keys": (
        {
            "version": "1",
            "orgId": 1,
            "state": "alerting",
            "title": "x",
            "alerts": [{"labels": LABELS, "status": "firing", "valueString": "v", "values": {"A": 1}, "panelURL": ""}],
        },
        [True],
    ),
    "no alerts": ({"version": "4", "groupKey": "g", "alerts": []}, []),
    "alerts null": ({"version": "4", "groupKey": "g", "alerts": None}, []),
    "unknown keys of tomorrow": (
        {
            "version": "5",
            "groupKey": "g",
            "routeLabels": {},
            "notification_reason": "x",
            "alerts": [{"labels": LABELS, "new": []}],
        },
        [True],
    ),
}


@pytest.mark.parametrize(("body", "firing"), OLDER.values(), ids=OLDER.keys())
def test_older_and_odd_shapes_are_read(body: Any, firing: list[bool]) -> None:
    assert [notice.is_firing for notice in decode(body).notices] == firing


def test_a_byte_order_mark_and_values_that_are_no_text_are_read() -> None:
    labels = {"alertname": "A", "port": 8000, "on": True, "off": None, "empty": "", "nul": "a\x00b", "half": "\ud800"}
    found = decode(b"\xef\xbb\xbf" + json.dumps({"alerts": [{"labels": labels, "annotations": None}]}).encode())
    (notice,) = found.notices
    assert dict(notice.labels) == {"alertname": "A", "port": "8000", "on": "true", "nul": "a�b", "half": "?"}


def test_one_unreadable_alert_does_not_cost_the_others() -> None:
    found = decode({"groupKey": "g", "alerts": ["x", {"labels": LABELS}, {"labels": {}}, {"labels": ["y"]}]})
    assert (len(found.notices), found.num_rejected) == (1, 3)
    assert "alerts[0]" in found.rejected[0]


BROKEN = {
    "empty": b"",
    "cut off": b'{"alerts": [',
    "not UTF-8": b"\xff\xfe{}",
    "a number": b"7",
    "null": b"null",
    "deep": b"[" * 100_000,
    "no alerts": b"{}",
    "alerts an object": b'{"alerts": {}}',
    "Grafana's older one": b'{"title": "x", "state": "alerting", "evalMatches": []}',
    "all unreadable": b'{"alerts": [{"labels": {}}]}',
    "huge number": b'{"alerts": ' + b"9" * 10_000 + b"}",
    "too many": json.dumps({"alerts": [{"labels": LABELS}] * 101}).encode(),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_what_no_retry_can_mend_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(BadInputError, match="body"):
        decode(body)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20T21:26:25.588819277Z", 1795209985588819277),
        ("2026-11-20T21:26:25Z", 1795209985000000000),
        ("2026-11-20T22:26:25.5+01:00", 1795209985500000000),
        ("2026-11-20 21:26:25", 1795209985000000000),
        ("0001-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+01:00", None),
        ("9999-12-31T23:59:59Z", None),
        ("soon", None),
        ("", None),
        (None, None),
        (True, None),
        (1795209985, 1795209985000000000),
        (1795209985000, 1795209985000000000),
        ({}, None),
    ],
)
def test_times(text: Any, wanted: int | None) -> None:
    assert parse_time_ns(text) == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["labels", "annotations", "startsAt", "endsAt", "status", "fingerprint", "generatorURL"])
ALERTS = st.dictionaries(FIELDS, JSON, max_size=7) | JSON
TOP = st.sampled_from(["status", "groupKey", "groupLabels", "receiver", "truncatedAlerts", "version", "externalURL"])


@given(st.dictionaries(TOP, JSON, max_size=7), st.lists(ALERTS, max_size=4) | JSON)
def test_whatever_comes_is_read_or_refused(tree: dict[str, Any], alerts: Any) -> None:
    body = json.dumps({**tree, "alerts": alerts}).encode()
    try:
        found = decode(body)
    except BadInputError:
        return
    assert len(found.notices) + found.num_rejected == len(alerts or [])
    for notice in found.notices:
        assert notice.labels
        assert 0 < len(notice.fingerprint) <= 64
        json.dumps(dict(notice.labels)).encode()
        assert all(text == text.encode().decode() and "\x00" not in text for text in notice.labels.values())


def test_alerts_that_share_a_fingerprint_are_told_apart_by_their_labels() -> None:
    alerts = [
        {"status": "firing" if i else "resolved", "labels": {"alertname": "A", "node": f"n{i}"}, "fingerprint": "same"}
        for i in range(4)
    ]
    found = decode_notification(json.dumps({"alerts": alerts}).encode(), 0.0, max_alerts=10).notices
    assert len({notice.fingerprint for notice in found}) == 4
    assert sum(notice.is_firing for notice in found) == 3
