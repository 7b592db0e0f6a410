"""Sources that are servers: DNS, a URL, a Prometheus. Each is a real one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from aiohttp import web

from fleetctl.discovery.discovery import Discovery
from fleetctl.discovery.dns_source import DnsSource
from fleetctl.discovery.http_sources import PrometheusSource
from fleetctl.discovery.source import SourceError, Target
from fleetctl.settings.targets import DnsTargets, PrometheusTargets, TargetGroup
from tests.fixtures.alertmanager import NEEDS_PROMETHEUS
from tests.fixtures.prometheus_server import running_prometheus

pytestmark = pytest.mark.anyio

ZONE = {
    ("_http._tcp.vllm.test.", "SRV"): ["0 5 8000 a.vllm.test.", "0 5 8001 b.vllm.test."],
    ("vllm.test.", "A"): ["10.0.0.2", "10.0.0.1"],
    ("vllm.test.", "AAAA"): ["fd00::1"],
}


class NameServer(asyncio.DatagramProtocol):
    """Answers what the zone has; NXDOMAIN for other names, SERVFAIL while it is broken."""

    def __init__(self) -> None:
        self.is_broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        asked = query.question[0]
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        name, kind = str(asked.name), dns.rdatatype.to_text(asked.rdtype)
        if self.is_broken:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif records := ZONE.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(asked.name, 1, "IN", kind, *records))
        elif not any(name == known for known, _ in ZONE):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, Callable[..., DnsSource]]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    resolver.lifetime = 2.0
    try:
        yield server, lambda **keys: DnsSource(DnsTargets(**keys), resolver)
    finally:
        transport.close()


def addresses(targets: Any) -> list[str]:
    return [target.labels["__address__"] for target in targets]


async def test_names_give_what_their_records_say() -> None:
    async with name_server() as (_, source):
        assert addresses(await source(names=["_http._tcp.vllm.test"]).read()) == [
            "a.vllm.test:8000",
            "b.vllm.test:8001",
        ]
        assert addresses(await source(names=["vllm.test"], type="A", port=80).read()) == ["10.0.0.1:80", "10.0.0.2:80"]
        assert addresses(await source(names=["vllm.test"], type="AAAA", port=80).read()) == ["[fd00::1]:80"]
        assert addresses(await source(names=["vllm.test"]).read()) == [], "the name has no such record"
        assert addresses(await source(names=["gone.test"], type="A", port=80).read()) == [], "nobody has the name"


async def test_a_name_server_that_fails_is_no_empty_list() -> None:
    async with name_server() as (server, source):
        server.is_broken = True
        with pytest.raises(SourceError, match=r"dns vllm\.test: A"):
            await source(names=["vllm.test"], type="A", port=80).read()


@asynccontextmanager
async def serving(answer: Callable[[], web.Response]) -> AsyncIterator[str]:
    async def handle(_: web.Request) -> web.Response:
        return answer()

    app = web.Application()
    app.router.add_get("/targets", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/targets"
    finally:
        await runner.cleanup()


async def test_a_url_lists_targets_and_what_it_says_wrong_keeps_them() -> None:
    says: list[Any] = [[{"targets": ["a:1"], "labels": {"pool": "p"}}]]
    status = 200

    def answer() -> web.Response:
        return web.Response(status=status, text=json.dumps(says[-1]), content_type="application/json")

    async with serving(answer) as url:
        discovery = Discovery([TargetGroup.model_validate({"http_sd_configs": [{"url": url, "refresh_interval": 1}]})])
        assert (await discovery.look(0.0)).nodes["a-1"].pool == "p"
        status = 503
        found = await discovery.look(1.0)
        assert set(found.nodes) == {"a-1"}
        assert "answered 503" in "".join(found.problems.values())
        status = 200
        says.append({"not": "a list"})
        assert "expected a list of target groups" in "".join((await discovery.look(2.0)).problems.values())


@pytest.mark.e2e
@NEEDS_PROMETHEUS
async def test_targets_of_a_prometheus_come_with_their_labels_there(tmp_path: Path) -> None:
    jobs = [
        {
            "job_name": "vllm-chat",
            "metrics_path": "/stats",
            "static_configs": [{"targets": ["127.0.0.1:1"], "labels": {"zone": "eu", "__meta_pod": "p0"}}],
            "relabel_configs": [{"target_label": "pool", "replacement": "chat"}],
        },
        {"job_name": "other", "static_configs": [{"targets": ["127.0.0.1:2"]}]},
    ]
    with running_prometheus(tmp_path / "prometheus", [], scrape_configs=jobs) as (url, _):
        source = PrometheusSource(PrometheusTargets(url=url, job="vllm.*"))
        targets: list[Target] = []
        deadline = time.monotonic() + 60
        while not targets and time.monotonic() < deadline:
            try:
                targets = list(await source.read())
            except SourceError:
                await asyncio.sleep(0.1)
        rules = [{"source_labels": ["__meta_pod"], "target_label": "node"}]
        settings = {"prometheus": [{"url": url, "job": "vllm.*"}], "relabel_configs": rules}
        node = (await Discovery([TargetGroup.model_validate(settings)]).look(0.0)).nodes["p0"]
    assert (node.url, node.metrics_url, node.pool, node.zone) == (
        "http://127.0.0.1:1",
        "http://127.0.0.1:1/stats",
        "chat",
        "eu",
    )
