"""Placing over real sockets: who is tried, how often, and what is remembered of a node that did not take it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from fleetctl.gateway.http.answers import MAX_RETRY_AFTER_S, read_retry_after_s
from fleetctl.gateway.http.node_client import NodeClient
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.ejection import Ejections
from fleetctl.gateway.nodes.health_metrics import HealthMetrics
from fleetctl.gateway.nodes.loads import REFUSED_S, SUSPECT_S, Loads
from fleetctl.gateway.nodes.node_keys import NodeKeys
from fleetctl.gateway.nodes.node_watch import NodeWatch, ProbeAnswer
from fleetctl.gateway.nodes.table import Endpoint, Routing, Table
from fleetctl.gateway.requests.fates import Fates, ProxiedRequest
from fleetctl.gateway.requests.place import MAX_TRIES, Job, NotPlaced, Placed, Placer
from fleetctl.gateway.routing.routing_facts import RoutingFacts
from fleetctl.kit.key_ring import KeyPlace, KeyRing
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire.routing import RouteState
from tests.fixtures.gateway import NODE_TOKEN, Script, ScriptedNode, scripted_nodes

pytestmark = pytest.mark.anyio

DRAINING = (503, {"X-Fleet-Refused": "draining"})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A placer before scripted nodes, on a clock that stands still."""

    def __init__(self, client: NodeClient, nodes: list[ScriptedNode], api_key: str = "") -> None:
        self.clock = Clock()
        self.nodes = {node.name: node for node in nodes}
        self.loads = Loads(clock=self.clock)
        self.metrics = GatewayMetrics()
        self.routing = Routing()
        endpoints = tuple(Endpoint(n.name, n.url, RouteState.ACTIVE, "default", "demo", api_key=api_key) for n in nodes)
        self.routing.replace(Table(1, endpoints), 0.0)
        self.limits = GatewaySettings()
        self.watch = NodeWatch(self.loads, self.limits, self._probe, clock=self.clock)
        self.placer = Placer(
            client,
            self.routing,
            self.loads,
            self.metrics,
            self.watch,
            Ejections(self.limits.ejection),
            HealthMetrics(self.metrics.registry),
            self.limits,
            keys=NodeKeys(KeyRing({"chat": KeyPlace(env="CHAT_KEY")})),
            clock=self.clock,
        )
        self.proxied: ProxiedRequest = Fates().begin("r1")

    async def _probe(self, endpoint: Endpoint) -> ProbeAnswer | None:
        raise AssertionError("nobody sweeps here")

    async def place(self, job: Job | None = None) -> Placed | NotPlaced:
        return await self.placer.place(job or make_job(), self.proxied)

    def is_suspect_after(self, node: str, seconds: float) -> bool:
        self.clock.now = 100.0 + seconds
        return self.loads.is_suspect(node)

    def retries(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("gateway_retries_total", {"reason": reason})


def make_job(**changes: object) -> Job:
    values: dict[str, object] = {
        "method": "GET",
        "target": "/v1/models",
        "body": None,
        "headers": [(b"x-request-id", b"r1")],
        "facts": RoutingFacts(tokens=7),
    }
    return Job(**{**values, **changes})  # type: ignore[arg-type]


def make_continuation() -> Job:
    headers = [(b"x-request-id", b"r1"), (b"authorization", f"Bearer {NODE_TOKEN}".encode())]
    return make_job(method="POST", target="/internal/continue", body=b"{}", headers=headers, is_continuation=True)


@asynccontextmanager
async def rig_of(*names: str, api_key: str = "") -> AsyncIterator[Rig]:
    async with scripted_nodes(*names) as nodes, aclosing(NodeClient(connect_limit_s=2.0)) as client:
        yield Rig(client, nodes, api_key)


CLIENTS = (b"authorization", b"Bearer of-the-client")


async def test_a_node_gets_its_own_key_and_never_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_KEY", "of-the-node")
    for named, expected in (("chat", "Bearer of-the-node"), ("lost", None), ("", "Bearer of-the-client")):
        async with rig_of("a", api_key=named) as rig:
            placed = await rig.place(make_job(headers=[CLIENTS, (b"x-request-id", b"r1")]))
            assert isinstance(placed, Placed)
            placed.close()
            assert rig.nodes["a"].seen[0]["headers"].get("authorization") == expected


async def test_a_refused_key_of_ours_is_no_answer_for_the_client() -> None:
    async with rig_of("a", "b", api_key="chat") as rig:
        for node in rig.nodes.values():
            node.script.refuse = (401, {})
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert where.reasons == {"a": "key_refused", "b": "key_refused"}
    async with rig_of("a") as rig:
        rig.nodes["a"].script.refuse = (401, {})
        placed = await rig.place(make_job(headers=[CLIENTS]))
        assert isinstance(placed, Placed)
        assert placed.answer.status == 401, "the client's own key was refused: it is to know"
        placed.close()


async def test_a_placed_request_is_held_by_its_node_until_it_is_closed() -> None:
    async with rig_of("a") as rig:
        placed = await rig.place()
        assert isinstance(placed, Placed)
        assert (placed.endpoint.node, placed.answer.status) == ("a", 200)
        assert rig.loads.inflight_requests() == {"a": 1}
        assert rig.loads.of("a").kv_tokens == 7
        assert (rig.proxied.nodes, rig.proxied.retries) == (["a"], 0)
        placed.close()
        assert rig.loads.inflight_requests() == {}


async def test_without_a_table_nobody_is_tried() -> None:
    async with rig_of("a") as rig:
        rig.routing.table = None
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert (where.reasons, where.is_overload, where.retry_after_s) == ({}, False, 1)
        assert not rig.nodes["a"].seen


async def test_excluded_nodes_are_not_tried() -> None:
    async with rig_of("a", "b") as rig:
        for _ in range(3):
            placed = await rig.place(make_job(excluded=frozenset({"a"})))
            assert isinstance(placed, Placed)
            placed.close()
        assert not rig.nodes["a"].seen
        assert rig.proxied.nodes == ["b", "b", "b"]


async def test_a_refusal_is_forgotten_after_a_second_and_its_load_at_once() -> None:
    async with rig_of("a") as rig:
        rig.nodes["a"].script.refuse = DRAINING
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert where.reasons == {"a": "draining"}
        assert not where.is_overload
        assert (rig.proxied.retries, rig.proxied.nodes, rig.retries("draining")) == (1, [], 1)
        assert rig.loads.inflight_requests() == {}
        assert rig.is_suspect_after("a", REFUSED_S - 0.01)
        assert not rig.is_suspect_after("a", REFUSED_S)


async def test_a_refused_connection_is_remembered_longer() -> None:
    async with rig_of("a") as rig:
        await rig.nodes["a"].stop()
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert where.reasons == {"a": "connect"}
        assert (rig.proxied.retries, rig.retries("connect")) == (1, 1), "tried once: it can't have the request in hand"
        assert rig.loads.inflight_requests() == {}
        assert rig.is_suspect_after("a", SUSPECT_S - 0.01)
        assert not rig.is_suspect_after("a", SUSPECT_S)


async def test_an_answer_clears_a_suspicion() -> None:
    async with rig_of("a") as rig:
        rig.loads.suspect("a", 1000)
        placed = await rig.place()
        assert isinstance(placed, Placed)
        placed.close()
        assert not rig.loads.is_suspect("a")


@pytest.mark.parametrize(("status", "is_taken"), [(404, True), (500, True), (502, False), (503, False), (429, False)])
async def test_a_nodes_own_errors_are_answers_and_the_fleets_are_refusals(status: int, is_taken: bool) -> None:
    async with rig_of("a") as rig:
        rig.nodes["a"].script.refuse = (status, {})
        where = await rig.place()
        assert isinstance(where, Placed) == is_taken
        if isinstance(where, Placed):
            where.close()
        else:
            assert where.reasons == {"a": "overloaded" if status == 429 else f"status_{status}"}
            assert where.is_overload == (status == 429)


@pytest.mark.parametrize(("status", "reason"), [(400, "not_continued"), (404, "not_continued"), (502, "status_502")])
async def test_a_continuation_must_be_taken_whatever_the_error_is_called(status: int, reason: str) -> None:
    async with rig_of("a") as rig:
        rig.nodes["a"].script.fail_continue = status
        where = await rig.place(make_continuation())
        assert isinstance(where, NotPlaced)
        assert where.reasons == {"a": reason}


NAMES = tuple("abcdefghij")


async def test_a_new_request_asks_eight_nodes_and_a_continuation_all_of_them() -> None:
    async with rig_of(*NAMES) as rig:
        for node in rig.nodes.values():
            node.script = Script(refuse=DRAINING)
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert len(where.reasons) == MAX_TRIES == rig.proxied.retries
        assert sum(len(node.seen) for node in rig.nodes.values()) == MAX_TRIES
        where = await rig.place(make_continuation())
        assert isinstance(where, NotPlaced)
        assert set(where.reasons) == set(NAMES)


async def test_a_request_that_nodes_die_of_is_sent_to_one_other_node_at_most() -> None:
    async with rig_of("a", "b", "c", "d") as rig:
        for node in rig.nodes.values():
            node.script = Script(drop_before_answer=True)
        where = await rig.place(make_job(method="POST", target="/v1/completions", body=b'{"prompt": "x"}'))
        assert isinstance(where, NotPlaced)
        assert sum(len(node.seen) for node in rig.nodes.values()) == 2
        assert set(where.reasons.values()) == {"disconnected"}
        assert rig.retries("disconnected") == 2
        assert rig.loads.inflight_requests() == {}


async def test_a_lone_node_is_not_given_again_the_request_that_it_died_with() -> None:
    async with rig_of("a") as rig:
        rig.nodes["a"].script = Script(drop_before_answer=True)
        job = make_job(method="POST", target="/v1/completions", body=b'{"prompt": "x"}')
        where = await rig.place(job)
        assert isinstance(where, NotPlaced)
        assert (len(rig.nodes["a"].seen), where.reasons) == (1, {"a": "disconnected"})
        rig.nodes["a"].script = Script()
        assert isinstance(await rig.place(job), NotPlaced), (
            "nor when it is placed anew, e.g. after a cut at another node"
        )
        assert len(rig.nodes["a"].seen) == 1


async def test_a_node_that_ended_long_ago_is_forgotten_when_another_one_ends() -> None:
    async with rig_of("a") as rig:
        rig.placer.note_death(rig.proxied, make_job(), "gone", "disconnected")
        assert rig.placer.ended_besides(["a"], 0.0)
        rig.clock.now += 3600
        rig.placer.note_death(rig.proxied, make_job(), "a", "disconnected")
        assert not rig.placer.ended_besides(["a"], 0.0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 1),
        ("1", 1),
        ("60", 60),
        ("61", MAX_RETRY_AFTER_S),
        ("9" * 12, 60),
        ("soon", 1),
        ("-3", 1),
        ("", 1),
    ],
)
async def test_a_client_is_told_to_come_back_within_a_minute(header: str, seconds: int) -> None:
    async with rig_of("a") as rig:
        rig.nodes["a"].script.refuse = (429, {"Retry-After": header})
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert (where.retry_after_s, where.is_overload) == (seconds, True)


@pytest.mark.parametrize("header", ["\xb2", "1\xb3", "\u0663"])
def test_digits_that_are_no_number_of_ascii_are_no_retry_after(header: str) -> None:
    assert read_retry_after_s(header) == 1


async def test_the_first_node_that_has_room_again_says_when_to_come_back() -> None:
    async with rig_of("a", "b", "c") as rig:
        for name, after in (("a", "9"), ("b", "5"), ("c", "12")):
            rig.nodes[name].script.refuse = (429, {"Retry-After": after})
        where = await rig.place()
        assert isinstance(where, NotPlaced)
        assert where.retry_after_s == 5
