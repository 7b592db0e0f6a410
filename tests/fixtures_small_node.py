"""A small node that speaks the contract over HTTP, as a process of its own: `python fixtures_small_node.py serve ...`.

It holds as many requests as a test tells it to (`POST /test {"held": 3}`); everything else is the real contract:
health with reasons, drain with a receipt, metrics, the admin token.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class SmallNode:
    def __init__(self, name: str, token: str, load_s: float) -> None:
        self.name, self.token = name, token
        self.ready_at = time.monotonic() + load_s
        self.started_at = time.time()
        self.lock = threading.Lock()
        self.held = 0
        self.movable = True
        self.state = "serving"
        self.deadline = 0.0
        self.drains = 0
        self.receipt = {"in_flight": 0, "finished": 0, "moved": 0, "refused": 0, "aborted": 0}
        self.metrics: str | None = None
        self.health = ""

    def drain_status(self) -> dict[str, Any]:
        with self.lock:
            if self.state == "draining" and self.held and self.movable and time.monotonic() >= self.deadline:
                self.receipt["moved"] += self.held
                self.held = 0
            if self.state == "draining" and self.held == 0:
                self.state = "drained"
            return {
                "state": self.state, "since": self.started_at, "deadline_at": None, "running": self.held, "waiting": 0,
                "receipt": dict(self.receipt), "drains": self.drains,
            }  # fmt: skip

    def start_drain(self, deadline_s: float) -> None:
        with self.lock:
            self.drains += 1
            self.state, self.deadline = "draining", time.monotonic() + deadline_s
            self.receipt = {"in_flight": self.held, "finished": 0, "moved": 0, "refused": 0, "aborted": 0}

    def change(self, body: dict[str, Any]) -> None:
        with self.lock:
            if "held" in body:
                if self.state == "draining":
                    self.receipt["finished"] += max(0, self.held - body["held"])
                self.held = body["held"]
            for key in ("movable", "metrics", "health"):
                if key in body:
                    setattr(self, key, body[key])

    def health_status(self) -> tuple[int, str]:
        if self.health:
            return 503, self.health
        if time.monotonic() < self.ready_at:
            return 503, "loading"
        if self.state != "serving":
            return 503, "draining"
        return 200, "ready"

    def exposition(self) -> str:
        if self.metrics is not None:
            return self.metrics
        return f'vllm:num_requests_running{{model_name="m"}} {self.held}\n'


def make_handler(node: SmallNode) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path in ("/health/ready", "/health"):
                status, reason = node.health_status()
                body = {"ready": status == 200, "reason": reason, "since": node.started_at, "age_s": 0.0}
                return self.answer(status, body)
            if self.path == "/metrics":
                return self.answer_text(200, node.exposition(), "text/plain; version=0.0.4")
            if self.path == "/admin/drain" and self.is_allowed():
                return self.answer(200, node.drain_status())
            return self.answer(404, {"error": "no such route"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if self.path == "/test":
                node.change(body)
                return self.answer(200, {})
            if not self.is_allowed():
                return None
            if self.path == "/admin/drain":
                node.start_drain(body["deadline_s"])
                return self.answer(200, node.drain_status())
            if self.path == "/admin/resume":
                node.state = "serving"
                return self.answer(200, {})
            return self.answer(404, {"error": "no such route"})

        def is_allowed(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {node.token}":
                return True
            self.answer(401, {"error": "token"})
            return False

        def answer(self, status: int, body: dict[str, Any]) -> None:
            self.answer_text(status, json.dumps(body), "application/json")

        def answer_text(self, status: int, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--node-name", required=True)
    parser.add_argument("--admin-token-file", type=Path, required=True)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--fail-at-start", action="store_true")
    arguments, _ = parser.parse_known_args()
    if arguments.fail_at_start:
        sys.exit("error: no such model directory")
    token = arguments.admin_token_file.read_text().strip()
    node = SmallNode(arguments.node_name, token, arguments.load_s)
    server = ThreadingHTTPServer((arguments.host, arguments.port), make_handler(node))
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
