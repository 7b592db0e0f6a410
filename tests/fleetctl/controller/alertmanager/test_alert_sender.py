"""Our alerts to Alertmanager: what is due, what a queue does when its peer is away, and what is never sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from alerts.evaluation.alert import ActiveAlert, State
from fleetctl.controller.alertmanager.alert_sender import AlertSender
from fleetctl.controller.alertmanager.alertmanager_client import AlertmanagerClient
from fleetctl.controller.alertmanager.outgoing_alert import OutgoingAlert, outgoing
from fleetctl.controller.alertmanager.peer_queue import PeerQueue
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.settings.alertmanager import AlertmanagerPeer
from tests.fixtures.controller import until
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio
NOW = 1_795_000_000.0


def make_alert(state: State = "firing", node: str = "n1", **changes: Any) -> ActiveAlert:
    values: dict[str, Any] = {
        "fingerprint": node,
        "name": "A",
        "state": state,
        "labels": {"alertname": "A", "node": node, "empty": ""},
        "annotations": {"summary": "s"},
        "value": 1.0,
        "active_at": NOW - 30,
        "fired_at": NOW - 10,
    }
    return ActiveAlert(**{**values, **changes})


class Peer(AlertmanagerClient):
    """An Alertmanager that says what the test wants. Nothing is sent anywhere."""

    def __init__(self) -> None:
        super().__init__(AlertmanagerPeer(url="http://alertmanager:9093"))
        self.took: list[list[dict[str, Any]]] = []
        self.error: FleetctlError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def post_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.took.append([dict(one) for one in alerts])

    def nodes(self) -> list[str]:
        return [one["labels"]["node"] for batch in self.took for one in batch]


def form(alert: ActiveAlert, now: float = NOW, **options: Any) -> OutgoingAlert | None:
    return outgoing(
        alert, now, external_labels={"cluster": "x", "node": "z"}, generator_url="u", resend_s=60, **options
    )


def sent(alert: ActiveAlert, now: float = NOW, **options: Any) -> dict[str, Any]:
    found = form(alert, now, **options)
    assert found is not None
    return found.to_json()


def test_a_firing_alert_is_as_prometheus_sends_it() -> None:
    assert sent(make_alert(fired_at=1_795_000_000.5)) == {
        "labels": {"alertname": "A", "node": "n1", "cluster": "x"},
        "annotations": {"summary": "s"},
        "startsAt": "2026-11-18T11:06:40.500Z",
        "endsAt": "2026-11-18T11:10:40.000Z",
        "generatorURL": "u",
    }


def test_a_resolved_one_ends_when_it_did_and_never_before_its_start() -> None:
    assert sent(make_alert("resolved", resolved_at=NOW))["endsAt"] == "2026-11-18T11:06:40.000Z"
    early = sent(make_alert("resolved", fired_at=NOW, resolved_at=NOW - 5))
    assert early["endsAt"] == early["startsAt"]
    assert sent(make_alert(), NOW + 60, ended_at=NOW)["endsAt"] == "2026-11-18T11:06:40.000Z"


def test_one_whose_signal_is_lost_goes_on_and_one_that_never_fired_is_not_sent() -> None:
    lost = sent(make_alert("unknown"))
    assert lost["endsAt"] > lost["startsAt"]
    assert "signal" in lost["annotations"]["fleetctl_state"]
    assert form(make_alert("pending", fired_at=None)) is None
    assert form(make_alert("unknown", fired_at=None)) is None


class Story:
    """A sender over one peer, in driven time."""

    def __init__(self, **options: Any) -> None:
        self.clock = DrivenClock(NOW)
        self.peer = Peer()
        self.told: list[tuple[str, str]] = []

        def tell(kind: str, text: str) -> None:
            self.told.append((kind, text))

        self.queue = PeerQueue(self.peer, self.clock, ControllerMetrics(), tell=tell, **options)
        self.alerts: list[ActiveAlert] = []
        self.held: set[str] = set()
        self.gone: set[str] = set()
        self.sender = AlertSender(
            [self.queue],
            lambda: self.alerts,
            self.clock,
            is_held_back=lambda alert: alert.labels["node"] in self.held,
            is_gone=lambda labels: labels["node"] in self.gone,
            external_labels={},
            public_url="http://c",
            resend_s=60,
        )

    async def turn(self, seconds: float = 0.0) -> list[str]:
        """What the peer was sent by this turn."""
        self.clock.move(seconds)
        before = len(self.peer.nodes())
        await self.sender.queue_due()
        for _ in range(20):
            await asyncio.sleep(0)
        return self.peer.nodes()[before:]


async def test_news_goes_out_at_once_and_again_each_minute() -> None:
    story = Story()
    story.alerts = [make_alert(), make_alert("pending", "n2", fired_at=None)]
    assert await story.turn() == ["n1"]
    assert await story.turn(30) == []
    assert await story.turn(30) == ["n1"]
    story.alerts = [make_alert("resolved", resolved_at=NOW + 61)]
    assert await story.turn(1) == ["n1"]
    assert await story.turn(59) == []
    assert await story.turn(1) == ["n1"], "resolved ones too, for as long as the rules keep them"
    story.alerts = [make_alert(fired_at=NOW + 125)]
    assert await story.turn(1) == ["n1"], "it fires again"
    story.alerts = []
    assert await story.turn(600) == []
    await story.sender.stop()


async def test_what_we_do_ourselves_calls_nobody_but_what_was_said_is_kept_up() -> None:
    story = Story()
    story.alerts, story.held = [make_alert(), make_alert(node="n2")], {"n1"}
    assert await story.turn() == ["n2"]
    story.held = {"n1", "n2"}
    assert await story.turn(60) == ["n2"]
    story.held = set()
    assert await story.turn(1) == ["n1"]
    story.gone = {"n1"}
    assert await story.turn(1) == ["n1"]
    assert story.peer.took[-1][0]["endsAt"] == "2026-11-18T11:07:42.000Z"
    await story.sender.stop()


async def test_a_dead_peer_keeps_the_newest_and_gets_it_when_it_is_back() -> None:
    story = Story()
    story.peer.error = UnreachableError("down")
    story.alerts = [make_alert()]
    assert await story.turn() == []
    story.alerts = [make_alert("resolved", resolved_at=NOW + 5)]
    assert await story.turn(5) == []
    story.peer.error = None
    state = story.queue.state()
    assert (state.sent, state.queued, state.last_error) == (0, 1, "down")
    assert state.failed >= 1
    for _ in range(10):
        await story.turn(5)
        if story.peer.took:
            break
    assert [one["endsAt"] for one in story.peer.took[0]] == ["2026-11-18T11:06:45.000Z"]
    state = story.queue.state()
    assert (state.sent, state.queued, state.last_error, state.dropped) == (1, 0, "", 0)
    await story.sender.stop()


async def test_a_page_of_a_long_absence_is_there_ten_seconds_after_the_peer_is() -> None:
    """Away for a minute it was asked every half minute, so that a page of meanwhile came 28 s after it was back."""
    story = Story()
    story.peer.error = UnreachableError("down")
    story.alerts = [make_alert()]
    for _ in range(36):
        assert await story.turn(5) == []
    story.peer.error = None
    assert [await story.turn(5), await story.turn(5)].count(["n1"]) == 1
    assert [kind for kind, _ in story.told] == ["alertmanager.unreachable", "alertmanager.reached_again"]
    assert "(down): 1 wait, and it calls nobody meanwhile" in story.told[0][1]
    assert "takes alerts again, after 3 min " in story.told[1][1]
    await story.sender.stop()


async def test_news_that_comes_while_a_request_fails_is_what_is_sent_next() -> None:
    story = Story()
    story.peer.gate.clear()
    story.alerts = [make_alert()]
    await story.turn()
    story.alerts = [make_alert("resolved", resolved_at=NOW + 5)]
    await story.turn(5)
    story.peer.error = UnreachableError("down")
    story.peer.gate.set()
    await story.turn()
    assert story.queue.state().failed == 1
    story.peer.error = None
    await story.turn(5)
    assert [one["endsAt"] for batch in story.peer.took for one in batch] == ["2026-11-18T11:06:45.000Z"]
    await story.sender.stop()


async def test_a_peer_that_hangs_delays_neither_the_turn_nor_the_other_peer() -> None:
    story, other = Story(), Peer()
    second = PeerQueue(other, story.clock, ControllerMetrics())
    story.peer.gate.clear()
    both = AlertSender(
        [story.queue, second],
        lambda: [make_alert()],
        story.clock,
        is_held_back=lambda _: False,
        is_gone=lambda _: False,
        external_labels={},
        public_url="",
        resend_s=60,
    )
    await asyncio.wait_for(both.queue_due(), 60)

    async def arrived() -> bool:
        return other.nodes() == ["n1"]

    await until(arrived, "the other peer has it")
    assert story.peer.nodes() == []
    await both.stop()


async def test_a_full_queue_drops_the_oldest_and_says_so() -> None:
    story = Story(max_queued=3)
    story.peer.gate.clear()
    story.alerts = [make_alert(node=f"n{number}") for number in range(5)]
    await story.turn()
    state = story.queue.state()
    assert (state.dropped, state.queued) == (2, 0)  # three are on their way
    story.peer.gate.set()
    await story.turn()
    assert story.peer.nodes() == ["n2", "n3", "n4"]
    await story.sender.stop()


async def test_what_waited_for_too_long_is_dropped() -> None:
    story = Story()
    story.peer.error = UnreachableError("down")
    story.alerts = [make_alert()]
    await story.turn()
    story.alerts = []
    story.peer.error = None
    await story.turn(241)
    state = story.queue.state()
    assert (state.sent, state.dropped, state.queued) == (0, 1, 0)
    await story.sender.stop()


async def test_what_alertmanager_refuses_is_not_sent_again_at_once() -> None:
    story = Story()
    story.peer.error = BadInputError("answered 400")
    story.alerts = [make_alert()]
    await story.turn()
    state = story.queue.state()
    assert (state.failed, state.queued, state.last_error) == (1, 0, "answered 400")
    story.peer.error = None
    assert await story.turn(60) == ["n1"]
    await story.sender.stop()


async def test_large_sets_go_in_batches() -> None:
    story = Story()
    story.alerts = [make_alert(node=f"n{number}") for number in range(150)]
    assert len(await story.turn()) == 150
    assert max(len(batch) for batch in story.peer.took) <= 64
    await story.sender.stop()


async def test_an_alert_that_comes_back_from_resolved_keeps_its_own_start() -> None:
    first = sent(make_alert())
    again = sent(replace(make_alert(), fired_at=NOW + 300), NOW + 300)
    assert again["startsAt"] > first["startsAt"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("alertmanager:9093", "expected a URL"),
        ("http://", "expected a URL"),
        ("http://user:word@host:9093", "no user or password"),
        ("http://host/?x=1", "without query"),
        ({"url": "http://h", "username": "u"}, "basic authentication needs"),
        ({"url": "http://h", "bearer_token": "t", "username": "u", "password": "p"}, "not both"),
        ({"url": "http://h", "nonsense": 1}, "nonsense"),
    ],
)
def test_a_peer_that_can_not_work_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AlertmanagerPeer.model_validate(given)


def test_certificates_that_are_not_there_are_named() -> None:
    for name in ("ca_file", "cert_file"):
        with pytest.raises(BadInputError, match=f"{name} /none"):
            AlertmanagerPeer.model_validate({"url": "https://h", name: "/none"}).tls()


def test_a_url_may_carry_a_prefix() -> None:
    assert AlertmanagerPeer(url="https://h/am/").url == "https://h/am"
    assert AlertmanagerPeer(url="https://h/am/api/v2/").url == "https://h/am"


@pytest.mark.parametrize(
    ("docs_url", "annotations"),
    [
        ("https://wiki/fleetctl/", {"runbook_url": "https://wiki/fleetctl/docs/alerts.md#a"}),
        (None, {"runbook": "fleetctl alerts explain A"}),
    ],
)
def test_the_runbook_of_an_alert_can_be_followed_from_where_it_is_read(
    docs_url: str | None, annotations: dict[str, str]
) -> None:
    alert = make_alert(annotations={"runbook_url": "docs/alerts.md#a"})
    assert sent(alert, docs_url=docs_url)["annotations"] == annotations
    absolute = {"runbook_url": "https://elsewhere/a"}
    assert sent(make_alert(annotations=absolute), docs_url=docs_url)["annotations"] == absolute
