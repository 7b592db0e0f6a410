"""Requests that leave the house through a real gateway, to services faked at the HTTP boundary."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fleetctl.gateway.overflow.ledger import FILE_NAME
from fleetctl.gateway.overflow.overflow import order_for
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.overflow import OverflowEndpoint, OverflowModel, OverflowSettings
from fleetctl.traffic_rule import OverflowSpec, TrafficRule
from tests.fixtures.gateway import Script, Served, small_fleet, until

pytestmark = pytest.mark.anyio

MODEL = OverflowModel(model="demo", outside_model="far/big:1", input_cost=1.0, output_cost=2.0)
KEY = "sk-outside"
ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass
class Outside:
    """A service outside. `answer` may be a status that it refuses with, or what it does instead of answering."""

    answer: int | str = 200
    seen: list[dict[str, Any]] = field(default_factory=list)
    is_signed: list[bool] = field(default_factory=list)
    hung_up: int = 0
    url: str = ""

    async def openai(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append({"body": body, "headers": dict(request.headers), "path": request.path})
        if isinstance(self.answer, int) and self.answer != 200:
            error = {"error": {"message": f"the key is {KEY}"}}
            return web.json_response(error, status=self.answer, headers={"Retry-After": "9"})
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "from far"}, "finish_reason": "stop"}
            return web.json_response({"id": "x", "choices": [choice], "usage": USAGE})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        frames = [{"id": "x", "choices": [{"index": 0, "delta": {"content": text}}]} for text in ("from ", "far")]
        for frame in [*frames, {"id": "x", "choices": [], "usage": USAGE}]:
            await response.write(b"data: " + json.dumps(frame).encode() + b"\n\n")
            if self.answer == "cut":
                assert request.transport is not None
                request.transport.close()
                return response
            if self.answer == "hang":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.hung_up += 1
                    raise
        await response.write(b"data: [DONE]\n\n")
        return response

    async def converse(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append({"body": json.loads(body), "headers": dict(request.headers), "path": request.raw_path})
        self.is_signed.append(is_signed(request, body))
        usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
        if request.path.endswith("/converse"):
            message = {"role": "assistant", "content": [{"text": "from far"}]}
            return web.json_response({"output": {"message": message}, "stopReason": "end_turn", "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "application/vnd.amazon.eventstream"})
        await response.prepare(request)
        await response.write(frame("messageStart", {"role": "assistant"}))
        await response.write(frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "from "}}))
        if self.answer == "exception":
            await response.write(frame("throttlingException", {"message": "slow down"}, kind="exception"))
            return response
        tail = frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "far"}})
        tail += frame("messageStop", {"stopReason": "end_turn"}) + frame("metadata", {"usage": usage})
        for start in range(0, len(tail), 11):  # frames cut anywhere
            await response.write(tail[start : start + 11])
        return response


def frame(name: str, payload: dict[str, Any], kind: str = "event") -> bytes:
    """One message of application/vnd.amazon.eventstream, as its specification has it."""
    type_name = ":event-type" if kind == "event" else ":exception-type"
    headers = b""
    for key, value in ((type_name, name), (":message-type", kind), (":content-type", "application/json")):
        headers += struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    whole = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return whole + struct.pack("!I", zlib.crc32(whole))


def is_signed(request: web.Request, body: bytes) -> bool:
    """Signature Version 4, computed anew from what arrived."""
    scheme, _, rest = request.headers["Authorization"].partition(" ")
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    access, day, region, service, _ = parts["Credential"].split("/")
    signed = parts["SignedHeaders"].split(";")
    path = request.raw_path.partition("?")[0].replace("%", "%25")  # encoded once more: all services but S3
    canonical = "\n".join(
        [
            "POST",
            path,
            "",
            *(f"{name}:{request.headers[name].strip()}" for name in signed),
            "",
            ";".join(signed),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", request.headers["X-Amz-Date"], scope, digest])
    key = b"AWS4" + SECRET.encode()
    for one in (day, region, service, "aws4_request"):
        key = hmac.new(key, one.encode(), hashlib.sha256).digest()
    wanted = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    return (scheme, access, service, parts["Signature"]) == ("AWS4-HMAC-SHA256", ACCESS, "bedrock", wanted)


@asynccontextmanager
async def outside_service() -> AsyncIterator[Outside]:
    made = Outside()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.openai)
    app.router.add_post("/v1/completions", made.openai)
    app.router.add_post("/model/{model}/{operation}", made.converse)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


def limits(url: str, **changes: Any) -> GatewaySettings:
    base = url if changes.get("kind") == "bedrock" else f"{url}/v1"
    given = {"name": "far", "url": base, "models": (MODEL,), "tenants": ("*",), "api_key_env": "FAR_KEY"}
    given |= {"daily_max_tokens": 100_000, "daily_max_cost": 1.0, "when": ("no_node", "overloaded", "model_not_here")}
    return GatewaySettings(overflow=OverflowSettings(endpoints=(OverflowEndpoint(**(given | changes)),)))


def bedrock(url: str, **changes: Any) -> GatewaySettings:
    changes = {"kind": "bedrock", "region": "eu-west-1", "api_key_env": None} | changes
    return limits(url, **changes)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def counted(served: Served, result: str) -> float | None:
    labels = {"endpoint": "far", "result": result}
    return served.gateway.metrics.registry.get_sample_value("gateway_overflow_requests_total", labels)


def spent(run_dir: Path) -> dict[str, int]:
    stored = json.loads((run_dir / FILE_NAME).read_text())["endpoints"]["far"]["day"]
    return {key: stored[key] for key in ("tokens", "micros")}


FULL = Script(refuse=(429, {"X-Fleet-Refused": "overloaded"}))
GONE = Script(refuse=(503, {"X-Fleet-Refused": "draining"}))


@pytest.mark.parametrize("kind", ["openai", "bedrock"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_request_that_no_node_takes_is_answered_outside_and_paid_for(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    if kind == "bedrock":
        pytest.importorskip("botocore")
    async with outside_service() as outside:
        made = limits(outside.url) if kind == "openai" else bedrock(outside.url)
        async with small_fleet(tmp_path, "a", limits=made) as (served, nodes, _):
            nodes[0].script = GONE
            reply = await served.chat(stream=stream, headers={"Authorization": "Bearer client-key"})
            assert reply.status == 200
            assert reply.headers["X-Fleet-Served-By"] == "overflow"
            text = reply.text if stream else json.loads(reply.body)["choices"][0]["message"]["content"]
            assert text == "from far"
            assert reply.is_done or not stream
            assert not any(event.get("usage") for event in reply.events), "the client did not ask for it"
            fate = await served.fate(reply.headers["X-Request-Id"])
            assert (fate["fate"], fate["nodes"]) == ("finished", ["overflow/far"])
            await until(lambda: counted(served, "served") == 1)
            await until(lambda: spent(tmp_path) == {"tokens": 10, "micros": 7 * 1 + 3 * 2}, "settled by its usage")
            (seen,) = outside.seen
            assert "client-key" not in str(seen)
            if kind == "openai":
                assert seen["headers"]["Authorization"] == f"Bearer {KEY}"
                assert seen["body"]["model"] == "far/big:1"
            else:
                assert outside.is_signed == [True]
                assert seen["path"].startswith("/model/far%2Fbig%3A1/converse")


@pytest.mark.parametrize(
    ("script", "changes", "model", "goes"),
    [
        (GONE, {"tenants": ()}, "demo", False),
        (GONE, {"when": ("overloaded",)}, "demo", False),
        (FULL, {"when": ("overloaded",)}, "demo", True),
        (GONE, {}, "unknown", False),
        (Script(), {}, "demo", False),
        (Script(), {"models": (MODEL.model_copy(update={"model": "large"}),)}, "large", True),
        (GONE, {"daily_max_tokens": 50}, "demo", False),
        (GONE, {"daily_max_cost": 0.000001}, "demo", False),
        (GONE, {"api_key_env": "NOT_SET"}, "demo", False),
    ],
    ids=[
        "no tenant may",
        "another reason",
        "overloaded",
        "no such model there",
        "served here",
        "model not here",
        "no tokens left",
        "no money left",
        "no key",
    ],
)
async def test_only_a_rule_with_budget_and_key_lets_a_request_out(
    tmp_path: Path, script: Script, changes: dict[str, Any], model: str, goes: bool
) -> None:
    async with outside_service() as outside:
        async with small_fleet(tmp_path, "a", limits=limits(outside.url, **changes)) as (served, nodes, _):
            nodes[0].script = script
            reply = await served.chat(model=model)
            assert len(outside.seen) == goes
            assert ("X-Fleet-Served-By" in reply.headers) == goes
            if "api_key_env" in changes:
                assert counted(served, "no_key") == 1
                assert spent(tmp_path) == {"tokens": 0, "micros": 0}


@pytest.mark.parametrize(
    "more", [b'"note": "\xff"', b'"more": [' + b"[]," * 60_000 + b"[]]"], ids=["no JSON", "very many values"]
)
async def test_a_body_that_routing_could_read_and_is_not_to_be_parsed_stays_in_the_house(
    tmp_path: Path, more: bytes
) -> None:
    body = b'{"model": "demo", "messages": [], ' + more + b"}"  # nothing else reads it
    async with outside_service() as outside:
        async with small_fleet(tmp_path, "a", limits=limits(outside.url)) as (served, nodes, controller):
            controller.set(cordoned=tuple(nodes))
            await until(lambda: (table := served.gateway.routing.table) is not None and not table.active)
            async with served.session.post(served.url + "/v1/chat/completions", data=body) as response:
                assert (response.status, outside.seen) == (503, [])
            assert counted(served, "not_expressible") == 1


async def test_an_unreadable_budget_keeps_everything_in_the_house(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("not json")
    async with outside_service() as outside:
        async with small_fleet(tmp_path, "a", limits=limits(outside.url)) as (served, nodes, _):
            nodes[0].script = GONE
            reply = await served.chat()
            assert (reply.status, outside.seen) == (503, [])
            assert counted(served, "budget_unknown") == 1


@pytest.mark.parametrize(
    ("status", "told", "fate"),
    [(400, 400, "refused"), (429, 429, "refused"), (401, 502, "failed"), (503, 502, "failed")],
)
async def test_an_error_of_the_outside_is_told_without_its_words(
    tmp_path: Path, status: int, told: int, fate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with outside_service() as outside:
        outside.answer = status
        async with small_fleet(tmp_path, "a", limits=limits(outside.url)) as (served, nodes, _):
            nodes[0].script = GONE
            reply = await served.chat()
            assert reply.status == told
            assert reply.error is not None
            assert f"overflow/far answered {status}" in reply.error["message"]
            assert KEY not in reply.body.decode()
            assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == fate
            await until(lambda: spent(tmp_path)["tokens"] == 0, "nothing was answered, nothing is paid")
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err


async def test_a_stream_that_is_cut_outside_ends_with_an_error_and_stays_reserved(tmp_path: Path) -> None:
    async with outside_service() as outside:
        outside.answer = "cut"
        async with small_fleet(tmp_path, "a", limits=limits(outside.url)) as (served, nodes, _):
            nodes[0].script = GONE
            reply = await served.chat(max_tokens=8)
            assert reply.error is not None
            assert reply.error["code"] == "overflow_failed"
            assert counted(served, "failed") == 1
            assert spent(tmp_path)["tokens"] > 1024


async def test_an_exception_in_a_bedrock_stream_is_told(tmp_path: Path) -> None:
    pytest.importorskip("botocore")
    async with outside_service() as outside:
        outside.answer = "exception"
        async with small_fleet(tmp_path, "a", limits=bedrock(outside.url)) as (served, nodes, _):
            nodes[0].script = GONE
            reply = await served.chat()
            assert reply.text == "from "
            assert reply.error is not None
            assert "throttlingException" in reply.error["message"]


async def test_a_client_that_hangs_up_ends_the_request_outside(tmp_path: Path) -> None:
    async with outside_service() as outside:
        outside.answer = "hang"
        async with small_fleet(tmp_path, "a", limits=limits(outside.url)) as (served, nodes, _):
            nodes[0].script = GONE
            task = asyncio.create_task(served.chat(headers={"X-Request-Id": "gone"}))
            await until(lambda: bool(outside.seen))
            task.cancel()
            await until(lambda: outside.hung_up == 1, "the connection outside is closed")
            await until(lambda: counted(served, "client_gone") == 1)
            assert (await served.fate("gone"))["fate"] == "client_gone"


async def test_a_long_queue_everywhere_sends_new_requests_out_before_they_wait(tmp_path: Path) -> None:
    async with outside_service() as outside:
        made = limits(outside.url, when=("queue_wait",), queue_wait_s=60)
        async with small_fleet(tmp_path, "a", "b", limits=made) as (served, nodes, _):
            for node in nodes:
                node.gate.clear()
            waiting = [asyncio.create_task(served.chat(f"p{i}")) for i in range(8)]
            await until(lambda: all(node.open for node in nodes))
            assert outside.seen == []
            served.gateway.watch._clock = lambda: time.monotonic() + 100  # a hundred seconds later
            assert (await served.chat("new")).headers["X-Fleet-Served-By"] == "overflow"
            for node in nodes:
                node.gate.set()
            await asyncio.gather(*waiting)
            assert len(outside.seen) == 1


def test_the_signer_makes_the_signature_of_awss_own_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """`get-vanilla` of AWS' Signature Version 4 test suite, as a POST: `post-vanilla`."""
    auth = pytest.importorskip("botocore.auth")
    import datetime

    from fleetctl.gateway.overflow import bedrock_endpoint

    at = datetime.datetime(2015, 8, 30, 12, 36, 0, tzinfo=datetime.UTC)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *args, **kwargs: at.replace(tzinfo=None), raising=True)
    monkeypatch.setattr(bedrock_endpoint, "SERVICE", "service")
    headers = bedrock_endpoint.AwsSigner("us-east-1").headers("https://example.amazonaws.com/", b"", {})
    assert headers["Authorization"].endswith(
        "SignedHeaders=host;x-amz-date, Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    )


def order(state: Any, made_at: float = 0.0, **more: Any) -> TrafficRule:
    spec = OverflowSpec(state=state, **more)
    return TrafficRule(id=f"{spec.default_id}-{made_at}", spec=spec, made_at=made_at, expires_at=100.0)


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ((), None),
        ((order("on"),), "on"),
        ((order("off", 2.0), order("on", 1.0)), "off"),
        ((order("on", 1.0, model="demo"), order("off", 2.0)), "on"),
        ((order("on", 1.0, model="other"),), None),
        ((order("on", 1.0, model="demo"), order("off", 2.0, model="demo")), "off"),
    ],
    ids=["none", "one", "the last", "the model's", "another model's", "the model's last"],
)
def test_an_order_for_the_model_is_stronger_than_one_for_all_and_the_last_one_holds(
    rules: tuple[TrafficRule, ...], found: str | None
) -> None:
    held = order_for(rules, "demo", 99.0)
    assert (held and held.state) == found
    assert order_for(rules, "demo", 100.0) is None, "an order that is over is none, whoever is away"


async def test_the_way_out_is_opened_and_closed_by_orders_and_the_settings_hold_without_one(tmp_path: Path) -> None:
    async with outside_service() as outside:
        made = limits(outside.url, when=("no_node",))
        async with small_fleet(tmp_path, "a", limits=made) as (served, nodes, controller):

            async def ordered(*orders: TrafficRule) -> None:
                rules = tuple(one.model_copy(update={"expires_at": None}) for one in orders)
                controller.order(*rules)
                await until(lambda: (table := served.gateway.routing.table) is not None and table.rules == rules)

            async with served.session.get(served.url + "/gateway/status") as response:
                told = (await response.json())["overflow"]
            assert told == [{"endpoint": "far", "models": ["demo"], "budget_left": 1.0}]
            nodes[0].script = FULL
            assert (await served.chat()).status == 429, "the settings say no_node only"
            await ordered(order("on"))
            assert (await served.chat()).headers["X-Fleet-Served-By"] == "overflow"
            await ordered(order("on"), order("off", 1.0, model="demo"))
            nodes[0].script = GONE
            assert (await served.chat()).status == 503
            await ordered()
            assert (await served.chat()).headers["X-Fleet-Served-By"] == "overflow"
