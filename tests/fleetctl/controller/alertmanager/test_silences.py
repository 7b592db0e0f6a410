"""Silences: what they cover, and what happens while nobody can read them."""

from __future__ import annotations

from typing import Any

import pytest

from diagnostics.incident import FiredAlert, Incident, open_incident
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.alertmanager.external_scope import FleetMap
from fleetctl.controller.alertmanager.silence import Silenced, decode_silence
from fleetctl.controller.alertmanager.silences import Silences
from fleetctl.kit.errors import BadInputError, UnreachableError
from fleetctl.settings.alertmanager import AlertmanagerPeer
from fleetctl.wire.silence import SilenceMatcher, SilenceRequest
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio
NOW = 1_795_000_000.0
LABELS = {"alertname": "LLMNodeDown", "node": "n1"}


def tree(
    *matchers: dict[str, Any],
    state: str = "active",
    starts: str = "2026-01-01T00:00:00Z",
    ends: str = "2027-01-01T00:00:00Z",
    silence_id: str = "s",
) -> dict[str, Any]:
    return {
        "id": silence_id,
        "matchers": list(matchers),
        "startsAt": starts,
        "endsAt": ends,
        "createdBy": "ann",
        "comment": "c",
        "status": {"state": state},
        "updatedAt": starts,
    }


def matcher(name: str, value: str, **kind: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "isRegex": False, "isEqual": True, **kind}


class Peer(AlertmanagerClient):
    """An Alertmanager with these silences, or none that answers."""

    def __init__(self, *silences: dict[str, Any]) -> None:
        super().__init__(AlertmanagerPeer(url="http://alertmanager:9093"))
        self.trees: list[dict[str, Any]] | None = list(silences)

    async def silences(self) -> list[dict[str, Any]]:
        if self.trees is None:
            raise UnreachableError("down")
        return self.trees


@pytest.mark.parametrize(
    ("matchers", "covers"),
    [
        ([matcher("node", "n1")], True),
        ([matcher("node", "n2")], False),
        ([matcher("node", "n1"), matcher("alertname", "Other")], False),
        ([matcher("node", "n.", isRegex=True)], True),
        ([matcher("node", "n", isRegex=True)], False),
        ([matcher("node", "n2", isEqual=False)], True),
        ([matcher("node", "n[23]", isRegex=True, isEqual=False)], True),
        ([matcher("zone", "")], True),
        ([matcher("zone", "a", isEqual=False)], True),
        ([{"name": "node", "value": "n1", "isRegex": False}], True),
    ],
)
def test_matchers_are_alertmanagers(matchers: list[dict[str, Any]], covers: bool) -> None:
    assert decode_silence(tree(*matchers)).covers(LABELS, NOW) is covers


@pytest.mark.parametrize(
    ("change", "covers"),
    [
        ({}, True),
        ({"state": "expired"}, False),
        ({"ends": "2026-11-18T11:06:39Z"}, False),
        ({"state": "pending", "starts": "2026-11-18T12:00:00Z"}, False),
        ({"state": "pending", "starts": "2026-11-18T11:06:40Z"}, True),
        ({"state": "active", "starts": "2026-11-18T11:07:00Z"}, True),
    ],
    ids=["in force", "expired", "over", "to come", "begins now", "active by Alertmanager's clock"],
)
def test_only_in_its_time(change: dict[str, str], covers: bool) -> None:
    assert decode_silence(tree(matcher("node", "n1"), **change)).covers(LABELS, NOW) is covers


async def test_known_unknown_and_none() -> None:
    clock, peer, dead = DrivenClock(NOW), Peer(tree(matcher("node", "n1"))), Peer()
    dead.trees = None
    assert Silences([], clock).silencing_of(LABELS).silenced is Silenced.NO
    silences = Silences([dead, peer], clock)
    assert silences.silencing_of(LABELS).silenced is Silenced.UNKNOWN
    assert silences.holds(LABELS), "nobody has looked yet"
    await silences.read_silences()
    assert silences.silencing_of(LABELS).by == ("s",)
    assert silences.silencing_of({"node": "n2"}).silenced is Silenced.NO
    assert not silences.holds({"node": "n2"})
    peer.trees = None
    clock.move(60)
    await silences.read_silences()
    assert silences.silencing_of(LABELS).silenced is Silenced.YES
    clock.move(1)
    assert silences.silencing_of(LABELS).silenced is Silenced.UNKNOWN
    assert not silences.holds(LABELS), "what may not be silenced is shown"
    state = silences.state()
    assert (state.known, state.read_at, state.last_error) == (False, NOW, "down")


async def test_a_first_look_that_fails_holds_nothing_back() -> None:
    peer = Peer()
    peer.trees = None
    silences = Silences([peer], DrivenClock(NOW))
    await silences.read_silences()
    assert not silences.holds(LABELS)


async def test_a_silence_that_is_not_understood_makes_the_others_unknown() -> None:
    odd = tree(matcher("node", "(?=n)", isRegex=True), silence_id="odd")
    silences = Silences([Peer(odd, tree(matcher("node", "n1")))], DrivenClock(NOW))
    await silences.read_silences()
    assert silences.silencing_of(LABELS).silenced is Silenced.YES
    assert silences.silencing_of({"node": "n2"}).silenced is Silenced.UNKNOWN
    assert not silences.state().known


async def test_what_ended_at_one_peer_has_ended() -> None:
    mine = tree(matcher("node", "n1"))
    silences = Silences([Peer(mine), Peer({**mine, "status": {"state": "expired"}})], DrivenClock(NOW))
    await silences.read_silences()
    assert silences.silencing_of(LABELS).silenced is Silenced.NO


def incident_of(*alerts: FiredAlert) -> Incident:
    opened = open_incident(alerts[0], NOW)
    return opened if len(alerts) == 1 else Incident(**{**_fields(opened), "alerts": alerts})


def _fields(incident: Incident) -> dict[str, Any]:
    return {name: getattr(incident, name) for name in Incident.__dataclass_fields__}


def fired(node: str, source: str = "rules", state: str = "firing") -> FiredAlert:
    return FiredAlert(node, "LLMNodeDown", "page", state, {**LABELS, "node": node}, fired_at=NOW, source=source)


async def automation(*silences: dict[str, Any], answers: bool = True) -> Automation:
    peer = Peer(*silences)
    peer.trees = peer.trees if answers else None
    read = Silences([peer], DrivenClock(NOW))
    await read.read_silences()
    return Automation(read, lambda: FleetMap({"n1": {"pool": "p"}}, {}), lambda alert: alert.labels)


async def test_silenced_alerts_start_nothing() -> None:
    gate, incident = await automation(tree(matcher("node", "n1"))), incident_of(fired("n1"))
    assert not gate.may_open(fired("n1"))
    assert (gate.may_diagnose(incident), gate.may_propose(incident), gate.may_run_unasked(incident)) == (False,) * 3


async def test_one_alert_that_is_not_silenced_is_reason_enough() -> None:
    gate, incident = await automation(tree(matcher("node", "n1"))), incident_of(fired("n1"), fired("n2"))
    assert (gate.may_diagnose(incident), gate.may_propose(incident), gate.may_run_unasked(incident)) == (True,) * 3
    over = incident_of(fired("n1"), fired("n2", state="resolved"))
    assert not gate.may_propose(over)


async def test_while_silences_are_unknown_a_person_decides() -> None:
    gate, incident = await automation(answers=False), incident_of(fired("n1"))
    assert gate.may_open(fired("n1"))
    assert (gate.may_diagnose(incident), gate.may_propose(incident)) == (True, True)
    assert not gate.may_run_unasked(incident)


async def test_outside_alerts_are_diagnosed_where_they_are_ours() -> None:
    gate = await automation()
    assert gate.may_diagnose(incident_of(fired("n1", "alertmanager")))
    assert not gate.may_diagnose(incident_of(fired("n9", "alertmanager")))
    assert gate.may_diagnose(incident_of(fired("n9")))


def request(*matchers: SilenceMatcher) -> SilenceRequest:
    return SilenceRequest(matchers=list(matchers), duration_s=60, comment="c", created_by="ann")


async def test_without_an_alertmanager_the_setting_is_named() -> None:
    silences = Silences([], DrivenClock(NOW))
    for work in (
        silences.current(),
        silences.expire("x"),
        silences.add(request(SilenceMatcher(name="a", op="=", value="b"))),
    ):
        with pytest.raises(BadInputError, match="no Alertmanager") as caught:
            await work
        assert "alertmanagers:" in str(caught.value.remedy)


@pytest.mark.parametrize(("op", "value"), [("=~", "("), ("=", ""), ("=~", "")])
async def test_a_silence_that_can_not_be_or_covers_all_is_refused(op: Any, value: str) -> None:
    silences = Silences([Peer()], DrivenClock(NOW))
    with pytest.raises(BadInputError, match="matchers"):
        await silences.add(request(SilenceMatcher(name="node", op=op, value=value)))
