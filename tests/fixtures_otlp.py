"""A collector for tests: a real HTTP server that reads OTLP protobuf as a collector would."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Span:
    """One received span, plain."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int  # 1 internal, 2 server
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool
    resource: dict[str, Any]


@dataclass
class Collector:
    """What was received so far. `status` is answered to every post."""

    url: str = ""
    status: int = 200
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def named(self, name: str, request_id: str | None = None) -> list[Span]:
        """Spans of this name; with `request_id` only of that request (children by their parent)."""
        with self.lock:
            spans = list(self.spans)
        if request_id is None:
            return [s for s in spans if s.name == name]
        owners = {s.span_id for s in spans if s.attributes.get("gen_ai.request.id") == request_id}
        return [s for s in spans if s.name == name and (s.span_id in owners or s.parent_id in owners)]


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def _spans(message: ExportTraceServiceRequest) -> Iterator[Span]:
    for group in message.resource_spans:
        resource = {a.key: _plain(a.value) for a in group.resource.attributes}
        for scope in group.scope_spans:
            for s in scope.spans:
                yield Span(
                    s.name,
                    s.trace_id.hex(),
                    s.span_id.hex(),
                    s.parent_span_id.hex(),
                    s.kind,
                    s.start_time_unix_nano,
                    s.end_time_unix_nano,
                    {a.key: _plain(a.value) for a in s.attributes},
                    s.status.code == 2,
                    resource,
                )


@contextlib.contextmanager
def start_collector() -> Iterator[Collector]:
    """Listens on loopback until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            with collector.lock:
                collector.paths.append(self.path)
                collector.headers.append({key.lower(): value for key, value in self.headers.items()})
                if collector.status == 200:
                    collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
