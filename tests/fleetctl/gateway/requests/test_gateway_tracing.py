"""Spans of the gateway, as a collector gets them and as nodes are told of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.gateway_tracing import traces_wanted
from tests.fixtures.gateway import Script, small_fleet
from tests.fixtures.otlp import Collector, start_collector

pytestmark = pytest.mark.anyio

TRACE_ID, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = {"traceparent": f"00-{TRACE_ID}-{CLIENTS_SPAN}-01", "tracestate": "vendor=1"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with start_collector() as started:
        yield started


async def test_a_moved_request_is_one_span_between_its_client_and_both_nodes(
    tmp_path: Path, collector: Collector
) -> None:
    limits = GatewaySettings(traces_endpoint=collector.url)
    async with small_fleet(tmp_path, "a", "b", limits=limits) as (served, nodes, _):
        for node in nodes:
            node.script = Script(tells_progress=True)
        served.gateway.loads.suspect("b", 60)
        nodes[0].script = Script(tells_progress=True, cut_at=3)
        reply = await served.chat(headers={**TRACE, "X-Request-Id": "traced"}, max_tokens=8)
        assert reply.is_done
        told = [node.seen[0]["headers"]["traceparent"].split("-") for node in nodes]
    (span,) = collector.named("gateway.request")
    assert (span.trace_id, span.parent_id, span.kind) == (TRACE_ID, CLIENTS_SPAN, 2)
    assert told == [["00", TRACE_ID, span.span_id, "01"]] * 2
    assert nodes[1].seen[0]["headers"]["tracestate"] == "vendor=1"
    assert span.attributes["gen_ai.request.id"] == "traced"
    assert span.attributes["fleet.request.state"] == "finished"
    assert (span.attributes["fleet.gateway.moved"], span.attributes["fleet.node"]) == (1, "b")
    assert span.resource["service.name"] == "fleet-gateway"
    tries = collector.named("gateway.node", "traced")
    assert [(one.attributes["node"], one.attributes["result"]) for one in tries] == [
        ("a", "answered"),
        ("b", "answered"),
    ]
    (stream,) = collector.named("gateway.stream", "traced")
    assert span.start_ns <= stream.start_ns <= stream.end_ns <= span.end_ns
    assert not span.is_error


async def test_a_lost_request_is_an_error_and_a_client_without_a_trace_begins_one(
    tmp_path: Path, collector: Collector
) -> None:
    async with small_fleet(tmp_path, "a", limits=GatewaySettings(traces_endpoint=collector.url)) as (served, nodes, _):
        nodes[0].script = Script(cut_at=3)
        await served.chat(headers={"X-Request-Id": "lost"}, max_tokens=8)
    (span,) = collector.named("gateway.request")
    assert span.is_error
    assert (span.attributes["error.type"], span.parent_id) == ("node_lost", "")


async def test_without_a_collector_the_clients_trace_passes_as_it_is(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        await served.chat(headers=TRACE)
        assert nodes[0].seen[0]["headers"]["traceparent"] == TRACE["traceparent"]


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        (None, {}, False),
        ("http://127.0.0.1:4318", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ("http://127.0.0.1:4318", {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_spans_are_sent_where_an_endpoint_is_named_and_nothing_forbids_it(
    endpoint: str | None, environ: dict[str, str], wanted: bool
) -> None:
    assert traces_wanted(endpoint, environ) is wanted


def test_an_endpoint_gets_otlps_path_and_a_bad_one_is_refused() -> None:
    assert GatewaySettings(traces_endpoint="http://c:4318").traces_endpoint == "http://c:4318/v1/traces"
    with pytest.raises(ValidationError, match="not an http:// or https:// address"):
        GatewaySettings(traces_endpoint="collector:4318")
