"""Spans and log lines of requests on real nodes, read by a real OTLP/HTTP receiver."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.trace_config import BadEndpointError, trace_endpoint
from tests.fixtures.engine import EngineNode, read_stream, spawn_node, start_node, tiny_model_dir, wait_for
from tests.fixtures.otlp import Collector, Span, start_collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with start_collector() as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[EngineNode]:
    with traced(tmp_path_factory.mktemp("traced"), f"{collector.url}/v1/traces") as running:
        yield running


@contextlib.contextmanager
def traced(tmp_path: Path, url: str, *extra: str, timeout_s: float = 60.0) -> Iterator[EngineNode]:
    """`timeout_s`: what is sent again since its answer was late comes twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(timeout_s))
        with start_node(tmp_path, extra_args=("--otlp-traces-endpoint", url, "--pool", "main", *extra)) as running:
            yield running


def request_span(collector: Collector, request_id: str) -> Span:
    spans: list[Span] = wait_for(lambda: collector.named("llm_request", request_id), f"the span of {request_id}")
    assert len(spans) == 1
    return spans[0]


def line_of(node: EngineNode, request_id: str) -> dict[str, Any]:
    def written() -> list[dict[str, Any]]:
        return [e for e in node.events("request.finished") if e["request_id"] == request_id]

    lines = wait_for(written, f"the line of {request_id}")
    assert len(lines) == 1
    return dict(lines[0])


def test_a_span_holds_the_phases_of_its_request(node: EngineNode, collector: Collector) -> None:
    before = time.time_ns()
    body = {"prompt": "hello there", "max_tokens": 6, "ignore_eos": True, "temperature": 0.5, "priority": 3}
    answer = node.http.post("/v1/completions", json=body, headers={"X-Request-Id": "phases", **SAMPLED}).json()
    span = request_span(collector, "phases")
    assert (span.trace_id, span.parent_id, span.kind) == (TRACE, PARENT, 2)
    assert before <= span.start_ns < span.end_ns <= time.time_ns()
    phases = [collector.named(name, "phases") for name in ("queue", "prefill", "decode")]
    assert [len(found) for found in phases] == [1, 1, 1]
    queue, prefill, decode = (found[0] for found in phases)
    assert {s.parent_id for s in (queue, prefill, decode)} == {span.span_id}
    assert span.start_ns == queue.start_ns <= queue.end_ns == prefill.start_ns
    assert prefill.end_ns == decode.start_ns < decode.end_ns <= span.end_ns
    facts = span.attributes
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.prompt_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": 6,
        "http.response.status_code": 200,
        "fleet.request.state": "finished",
        "fleet.request.priority": 3,
        "fleet.request.preemptions": 0,
    }
    assert {name: facts.get(name) for name in expected} == expected
    in_queue, ttft = facts["gen_ai.latency.time_in_queue"], facts["gen_ai.latency.time_to_first_token"]
    assert in_queue == pytest.approx((queue.end_ns - queue.start_ns) / 1e9, abs=1e-6)
    assert ttft == pytest.approx((prefill.end_ns - queue.start_ns) / 1e9, abs=1e-6)
    assert facts["gen_ai.latency.time_in_model_decode"] == pytest.approx((decode.end_ns - decode.start_ns) / 1e9)
    assert not span.is_error
    assert span.resource["service.name"] == "fleet-node"
    assert span.resource["fleet.pool"] == "main"
    assert "hello there" not in repr(collector.spans)


def test_the_log_line_and_the_span_tell_the_same(node: EngineNode, collector: Collector) -> None:
    read_stream(node, "/v1/chat/completions", chat(5), headers={"X-Request-Id": "same", **SAMPLED})
    span, line = request_span(collector, "same"), line_of(node, "same")
    assert (line["trace_id"], line["state"], line["status"], line["kind"]) == (TRACE, "finished", 200, "chat")
    assert line["tokens_out"] == span.attributes["gen_ai.usage.output_tokens"] == 5
    assert line["answer_id"] == span.attributes["gen_ai.response.id"]
    for name, attribute in (
        ("queue_s", "time_in_queue"),
        ("prefill_s", "time_in_model_prefill"),
        ("decode_s", "time_in_model_decode"),
        ("ttft_s", "time_to_first_token"),
        ("e2e_s", "e2e"),
    ):
        assert line[name] == pytest.approx(span.attributes[f"gen_ai.latency.{attribute}"], abs=1e-4)


def chat(max_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
    }


def test_without_a_caller_each_request_is_a_trace_of_its_own(node: EngineNode, collector: Collector) -> None:
    for request_id in ("own-1", "own-2"):
        node.http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": request_id})
    one, two = request_span(collector, "own-1"), request_span(collector, "own-2")
    assert one.trace_id != two.trace_id
    assert one.parent_id == two.parent_id == ""
    assert line_of(node, "own-1")["trace_id"] == one.trace_id


@pytest.mark.parametrize("parent", ["nonsense", "00-" + "0" * 32 + f"-{PARENT}-01", "f" * 3000])
def test_a_bad_traceparent_is_as_none(node: EngineNode, collector: Collector, parent: str) -> None:
    request_id = f"bad-{len(parent)}"
    headers = {"X-Request-Id": request_id, "traceparent": parent}
    assert node.http.post("/v1/completions", json={"prompt": "x"}, headers=headers).status_code == 200
    assert request_span(collector, request_id).parent_id == ""


def test_what_the_caller_does_not_sample_is_not_sent(node: EngineNode, collector: Collector) -> None:
    unsampled = {"X-Request-Id": "unsampled", "traceparent": f"00-{TRACE}-{PARENT}-00"}
    node.http.post("/v1/completions", json={"prompt": "x"}, headers=unsampled)
    node.http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "after"})
    request_span(collector, "after")
    assert collector.named("llm_request", "unsampled") == []
    assert line_of(node, "unsampled")["trace_id"] == TRACE


def test_each_terminal_state_has_its_line_and_its_span(node: EngineNode, collector: Collector) -> None:
    def post(request_id: str, body: Any, **headers: str) -> int:
        headers = {"X-Request-Id": request_id, **headers}
        return int(node.http.post("/v1/completions", json=body, headers=headers).status_code)

    long = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True}
    assert post("is-invalid", {"prompt": "x", "temperature": 99}) == 400
    assert post("is-unknown", {"prompt": "x", "model": "other"}) == 404
    assert post("is-too-long", {"prompt": "x", "max_tokens": 1_000_000}) == 400
    with node.slowed():
        assert post("is-late", long | {"deadline_s": 0.2}) == 504
        with node.http.stream(
            "POST", "/v1/completions", json=long | {"stream": True}, headers={"X-Request-Id": "is-gone"}
        ) as answer:
            next(answer.iter_lines())
        with node.http.stream(
            "POST", "/v1/completions", json=long | {"stream": True}, headers={"X-Request-Id": "is-aborted"}
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            aborted = node.http.post("/admin/abort", json={"request_ids": ["is-aborted"]}).json()["aborted"]
            assert aborted == ["is-aborted"]
            assert any("error" in text for text in lines)
        moving = read_stream(
            node,
            "/v1/completions",
            long | {"stream": True},
            headers={"X-Request-Id": "is-moved", "X-Fleet-Handoff": "accept"},
            on_chunk=lambda count: node.drain(0) if count == 1 else None,
        )
    assert moving.handoff is not None
    assert post("is-refused", {"prompt": "x"}) == 503
    node.http.post("/admin/resume")
    rest = node.http.post(
        "/internal/continue", json=moving.handoff, headers={"X-Request-Id": "is-moved-here", "X-Fleet-Deadline-S": "1"}
    )
    assert rest.status_code == 200
    expected = {
        "is-invalid": ("invalid", 400, "invalid_value"),
        "is-unknown": ("invalid", 404, "model_not_found"),
        "is-too-long": ("invalid", 400, "context_length_exceeded"),
        "is-late": ("failed", 504, "deadline_exceeded"),
        "is-gone": ("aborted", 200, None),
        "is-aborted": ("failed", 200, "aborted"),
        "is-refused": ("refused", 503, "draining"),
    }
    for request_id, (state, status, code) in expected.items():
        line, span = line_of(node, request_id), request_span(collector, request_id)
        assert (line["state"], line["status"], line["error_code"]) == (state, status, code), request_id
        assert line["trace_id"] == span.trace_id
        assert span.attributes["fleet.request.state"] == state
        assert span.attributes.get("error.type") == code
        assert span.is_error == (state == "failed" or status == 503)
        was_taken_in = state in ("failed", "aborted")
        assert (len(collector.named("queue", request_id)) == 1) == was_taken_in

    def lines_of_moved() -> list[dict[str, Any]]:
        return [e for e in node.events("request.finished") if e["request_id"] == "is-moved"]

    wait_for(lambda: len(lines_of_moved()) == 2, "the lines of both nodes")
    moved = lines_of_moved()
    assert [(e["state"], e["continued"]) for e in moved] == [("moved", False), ("finished", True)]
    assert moved[0]["tokens_out"] < moved[1]["tokens_out"] == 1000
    counted = {s: node.metric("engine_requests_total", state=s) for s in ("invalid", "refused", "moved", "failed")}
    assert counted == {"invalid": 3, "refused": 1, "moved": 1, "failed": 2}


def test_spans_are_flushed_when_the_node_is_stopped(tmp_path: Path) -> None:
    with start_collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=fleet")
        patch.setenv("OTEL_SERVICE_NAME", "mine")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
        with start_node(tmp_path) as node:
            node.http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "last"})
            assert collector.spans == []
            node.proc.send_signal(signal.SIGTERM)
            assert node.proc.wait(timeout=60) == 0
        assert request_span(collector, "last").resource["service.name"] == "mine"
        assert collector.paths == ["/v1/traces"]
        assert collector.headers[0]["x-team"] == "fleet"


def test_a_dead_collector_is_told_once_and_harms_nobody(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening: every connection is refused
        with traced(tmp_path, f"http://127.0.0.1:{closed.getsockname()[1]}", timeout_s=2.0) as node:
            for _ in range(3):
                assert node.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
                wait_for(lambda: node.events("traces.export_failed"), "the failure to be told")
            assert len(node.events("traces.export_failed")) == 1
            assert "opentelemetry" not in node.log_text(), "the library's own lines are kept out"
            node.proc.send_signal(signal.SIGTERM)
            assert node.proc.wait(timeout=60) == 0


def test_without_a_collector_nothing_of_the_sdk_is_imported() -> None:
    code = "import engine.serve, engine.api.app, sys; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("option", "environ", "expected"),
    [
        (None, {}, None),
        ("http://c:4318/v1/traces", {}, "http://c:4318/v1/traces"),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {}, "http://c:4318/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/base/"}, "https://c/base/v1/traces"),
        (
            None,
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "bad"},
            "http://c/x",
        ),
        ("http://c/a", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "http://c/a"),
        ("http://c/a", {"OTEL_SDK_DISABLED": "true"}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_where_spans_go(option: str | None, environ: dict[str, str], expected: str | None) -> None:
    assert trace_endpoint(option, environ) == expected


@pytest.mark.parametrize(
    ("option", "environ", "names"),
    [
        ("c:4318", {}, "--otlp-traces-endpoint"),
        ("grpc://c:4317", {}, "--otlp-traces-endpoint"),
        ("http://c:99999", {}, "--otlp-traces-endpoint"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (
            None,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ),
    ],
)
def test_a_collector_that_can_not_be_meant_is_refused(option: str | None, environ: dict[str, str], names: str) -> None:
    with pytest.raises(BadEndpointError, match=names):
        trace_endpoint(option, environ)


def test_a_bad_address_ends_the_start_with_one_line(tmp_path: Path) -> None:
    node = spawn_node(tmp_path, model_dir=tiny_model_dir(), extra_args=("--otlp-traces-endpoint", "nowhere"))
    assert node.proc.wait(timeout=60) == 2
    assert node.log_text().startswith("error: --otlp-traces-endpoint: not an http:// or https:// address")
