"""Admin routes that change a node while it serves, and what protects it: limits, deadlines, keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import EngineNode, Streamed, read_stream, start_node, tiny_model_dir, wait_for

LONG = {"prompt": "hello", "max_tokens": 3000, "ignore_eos": True, "seed": 1}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("admin"), extra_args=("--max-output-tokens", "3000")) as node:
        yield node


@pytest.fixture
def node(running: EngineNode) -> Iterator[EngineNode]:
    """Slow enough that long requests are still there when a test looks."""
    limits = running.http.get("/admin/limits").json()
    with running.slowed():
        yield running
        running.http.post("/admin/abort", json={"request_ids": None})
    running.http.post("/admin/limits", json=limits)
    wait_for(lambda: running.http.get("/admin/requests").json()["requests"] == [], "the node to be empty")


class Client(threading.Thread):
    """One streamed request in a thread."""

    def __init__(self, node: EngineNode, request_id: str, **body: Any) -> None:
        super().__init__(daemon=True)
        self.node, self.request_id, self.body = node, request_id, {**LONG, "stream": True, **body}
        self.streamed: Streamed | None = None
        self.start()

    def run(self) -> None:
        headers = {"X-Request-Id": self.request_id}
        self.streamed = read_stream(self.node, "/v1/completions", self.body, headers=headers)

    def answer(self) -> Streamed:
        self.join(timeout=60)
        assert self.streamed is not None, "no answer yet"
        return self.streamed


def wait_in_flight(node: EngineNode, count: int) -> None:
    wait_for(lambda: len(node.http.get("/admin/requests").json()["requests"]) == count, f"{count} in flight")


def test_abort_ends_the_named_requests_with_an_error_event(node: EngineNode) -> None:
    named, other = Client(node, "named"), Client(node, "other")
    wait_in_flight(node, 2)
    answer = node.http.post("/admin/abort", json={"request_ids": ["named", "nobody"]})
    assert answer.json() == {"aborted": ["named"], "unknown": ["nobody"]}
    assert named.answer().error == {
        "message": "aborted by an operator",
        "type": "server_error",
        "param": None,
        "code": "aborted",
    }
    assert not named.answer().is_done
    assert other.is_alive()
    assert node.http.post("/admin/abort", json={"request_ids": None}).json()["aborted"] == ["other"]
    assert other.answer().error is not None
    wait_for(lambda: node.metric("vllm:kv_cache_usage_perc") == 0, "the blocks to be free")


def test_abort_knows_the_answers_id_as_well(node: EngineNode) -> None:
    client = Client(node, "by-id")
    wait_in_flight(node, 1)
    assert node.http.post("/admin/abort", json={"request_ids": ["cmpl-by-id"]}).json()["aborted"] == ["by-id"]
    assert client.answer().error is not None


def test_a_request_whose_id_is_in_flight_is_told_so_and_one_that_moves_comes_in(node: EngineNode) -> None:
    first = Client(node, "twice")
    wait_in_flight(node, 1)
    headers, short = {"X-Request-Id": "twice"}, {**LONG, "max_tokens": 2}
    again = node.http.post("/v1/completions", json=short, headers=headers)
    assert (again.status_code, again.headers["Retry-After"]) == (409, "1")
    assert again.json()["error"] == {
        "message": "request twice is in flight on this node",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_in_flight",
    }
    assert node.http.get("/admin/requests").json()["arriving"] == []
    wait_in_flight(node, 1)
    (state,) = node.http.post("/admin/export", json={"request_ids": ["twice"]}).json()["requests"]
    with node.http.stream("POST", "/internal/continue", json=state, headers=headers) as moved:
        assert moved.status_code == 200, "it is the first one's caller that sends it"
        wait_in_flight(node, 2)
    assert node.http.post("/admin/abort", json={"request_ids": ["twice"]}).json()["aborted"][0] == "twice"
    assert first.answer().error is not None
    assert node.http.post("/v1/completions", json=short, headers=headers).status_code == 200


def test_a_request_asked_again_by_who_has_just_hung_up_is_computed(node: EngineNode) -> None:
    headers = {"X-Request-Id": "lost-its-gateway"}
    with node.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}, headers=headers) as first:
        assert next(first.iter_lines())
    again = node.http.post("/v1/completions", json={**LONG, "max_tokens": 2}, headers=headers)
    assert again.status_code == 200


@pytest.mark.parametrize("body", [{}, {"request_ids": "a"}, {"request_ids": [1]}, {"request_ids": None, "x": 1}])
def test_bad_aborts_are_refused(node: EngineNode, body: dict[str, Any]) -> None:
    assert node.http.post("/admin/abort", json=body).status_code == 400


def kv_use(node: EngineNode) -> dict[str, int]:
    """The core answers between two steps, in time or not."""
    answer = wait_for(lambda: (told := node.http.get("/admin/kv")).is_success and told, "the core to answer in time")
    return dict(answer.json())


def test_what_the_kv_cache_is_used_for_is_told(node: EngineNode) -> None:
    before = kv_use(node)
    assert before["num_held"] == 0
    client = Client(node, "holds-blocks")
    wait_in_flight(node, 1)
    told = wait_for(lambda: (use := kv_use(node))["num_held"] > 0 and use, "blocks are held")
    assert told["num_held"] + told["num_kept"] <= told["num_blocks"] == before["num_blocks"]
    assert told["num_shared"] == 0
    node.http.post("/admin/abort", json={"request_ids": ["holds-blocks"]})
    client.answer()


def test_limits_change_while_requests_run(node: EngineNode) -> None:
    assert node.http.post("/admin/limits", json={"max_num_seqs": 1}).json()["max_num_seqs"] == 1
    clients = [Client(node, f"limit-{i}") for i in range(3)]
    wait_in_flight(node, 3)
    wait_for(lambda: node.metric("vllm:num_requests_running") == 1, "one to run")
    assert node.metric("vllm:num_requests_waiting") == 2
    assert node.http.get("/info").json()["limits"]["max_num_seqs"] == 1
    node.http.post("/admin/limits", json={"max_num_seqs": 8})
    wait_for(lambda: node.metric("vllm:num_requests_running") == 3, "all to run")
    node.http.post("/admin/abort", json={"request_ids": None})
    assert all(client.answer().error is not None for client in clients)


def test_admission_limits_change_too(node: EngineNode) -> None:
    node.http.post("/admin/limits", json={"max_num_seqs": 1, "max_num_queued_reqs": 1})
    clients = [Client(node, "first")]
    wait_for(
        lambda: [r["state"] for r in node.http.get("/admin/requests").json()["requests"]] == ["running"], "it to run"
    )
    clients.append(Client(node, "second"))
    wait_in_flight(node, 2)
    refused = node.http.post("/v1/completions", json=LONG)
    assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (429, "overloaded")
    node.http.post("/admin/limits", json={"max_num_queued_reqs": 5})
    clients.append(Client(node, "third"))
    wait_in_flight(node, 3)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": None}, "max_num_seqs"),
        ({"max_num_seqs": 5000}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 1}, "max_num_batched_tokens"),
        ({"chunk": 5}, "chunk"),
    ],
)
def test_limits_that_contradict_are_refused(node: EngineNode, body: dict[str, Any], named: str) -> None:
    before = node.http.get("/admin/limits").json()
    answer = node.http.post("/admin/limits", json=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert node.http.get("/admin/limits").json() == before


def test_a_reset_prefix_cache_finds_nothing(node: EngineNode) -> None:
    body = {"prompt": list(range(3, 67)), "max_tokens": 1}

    def cached() -> int:
        answer = node.http.post("/v1/completions", json=body).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 0
    assert node.http.post("/admin/reset_prefix_cache").json() == {"success": True}
    assert cached() == 0


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_deadline_ends_a_request_with_an_error(node: EngineNode, where: str) -> None:
    def until(deadline_s: float) -> tuple[dict[str, Any], dict[str, str]]:
        if where == "body":
            return LONG | {"deadline_s": deadline_s}, {}
        return LONG, {"X-Fleet-Deadline-S": str(deadline_s)}

    body, headers = until(0.5)
    whole = node.http.post("/v1/completions", json=body, headers=headers)
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "deadline_exceeded")
    for deadline_s in (1, 4, 16, 64):  # a busy machine may draw nothing within the first of them
        body, headers = until(deadline_s)
        streamed = read_stream(node, "/v1/completions", {**body, "stream": True}, headers=headers)
        assert streamed.error is not None
        assert streamed.error["code"] == "deadline_exceeded"
        if streamed.text():
            break
    assert streamed.text(), "what was drawn in time was sent"


def test_a_request_that_ends_in_time_does_not_hear_of_its_deadline(node: EngineNode) -> None:
    body = {"prompt": "hello", "max_tokens": 3, "deadline_s": 60}
    assert node.http.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "1e9"])
def test_bad_deadlines_are_refused(node: EngineNode, value: str) -> None:
    answer = node.http.post("/v1/completions", json=LONG, headers={"X-Fleet-Deadline-S": value})
    assert answer.status_code == 400
    assert "X-Fleet-Deadline-S" in answer.json()["error"]["message"]


def test_an_answer_is_no_longer_than_the_node_allows(node: EngineNode) -> None:
    refused = node.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3001})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"
    client = Client(node, "capped", max_tokens=None)
    wait_in_flight(node, 1)
    assert client.is_alive()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/admin/abort"),
        ("GET", "/admin/limits"),
        ("POST", "/admin/limits"),
        ("POST", "/admin/reset_prefix_cache"),
    ],
)
def test_admin_routes_need_the_token(node: EngineNode, method: str, path: str) -> None:
    answer = httpx.request(method, f"{node.url}{path}", verify=NO_TLS, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "bad_admin_token")


def test_limits_hold_for_a_core_that_starts_later(tmp_path: Path) -> None:
    with start_node(tmp_path) as node:
        node.http.post("/admin/limits", json={"max_num_seqs": 1})
        core = node.core_pid()
        os.kill(core, signal.SIGKILL)
        wait_for(lambda: node.core_pid() != core, "another core")
        node.wait_ready()
        node.http.post("/admin/faults", json={"slow_steps": 100})
        clients = [Client(node, f"later-{i}") for i in range(2)]
        wait_in_flight(node, 2)
        wait_for(lambda: node.metric("vllm:num_requests_running") == 1, "one to run")
        assert node.metric("vllm:num_requests_waiting") == 1
        node.http.post("/admin/abort", json={"request_ids": None})
        assert all(client.answer().error is not None for client in clients)


def test_with_keys_clients_need_one_and_probes_do_not(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# team a\nkey-of-team-a\n\nkey-of-team-b\n")
    with start_node(tmp_path, extra_args=("--api-key-file", str(keys))) as node:
        body = {"prompt": "hello", "max_tokens": 2}

        def status(key: str | None, path: str = "/v1/completions", method: str = "POST") -> int:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            return httpx.request(method, f"{node.url}{path}", verify=NO_TLS, json=body, headers=headers).status_code

        assert [status(key) for key in ("key-of-team-a", "key-of-team-b")] == [200, 200]
        assert [status(key) for key in (None, "key-of-team-c", "# team a", node.token)] == [401] * 4
        assert status(None, "/v1/models", "GET") == 401
        assert status(None, "/tokenize") == 401
        assert [status(None, path, "GET") for path in ("/health", "/health/deep", "/metrics", "/info")] == [200] * 4
        assert status("key-of-team-a", "/admin/limits", "GET") == 401, "a client is no operator"
        assert "key-of-team" not in node.log_text()


@pytest.mark.parametrize(
    ("text", "says"), [("", "holds no key"), ("# none\n", "holds no key"), ("abc\n", "at least 8")]
)
def test_bad_key_files_are_one_line(tmp_path: Path, text: str, says: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(text)
    command = [sys.executable, "-m", "engine", "serve", "--model", str(tiny_model_dir()), "--api-key-file", str(keys)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --api-key-file {keys}: ")
    assert says in done.stderr
