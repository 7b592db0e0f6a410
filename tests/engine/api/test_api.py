"""The node's HTTP API: tokens as the runner drew them, errors in OpenAI's shape, limits, guarded routes."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.fake_runner import generate
from engine.protocol.step import SamplingParams
from engine.text.detokenizer import TextStream
from engine.text.tokenizer import Tokenizer, load_tokenizer
from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import CoreGate, EngineNode, read_stream, start_node, tiny_model_dir, wait_for


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("api"), extra_args=("--max-model-len", "1024")) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(tiny_model_dir())


def expected_tokens(tokenizer: Tokenizer, prompt: str, seed: int, count: int) -> list[int]:
    sampling = SamplingParams(max_tokens=count, seed=seed)
    return generate(tokenizer.encode(prompt), sampling, tokenizer.vocab_size)


def expected_text(tokenizer: Tokenizer, tokens: list[int], stop: tuple[str, ...] = ()) -> str:
    stream = TextStream(tokenizer.bytes_of, stop=stop)
    text = ""
    for token in tokens:
        text += stream.push(token)
        if stream.stopped_by is not None:
            return text
    return text + stream.finish()


def complete(node: EngineNode, **body: Any) -> dict[str, Any]:
    answer = node.http.post("/v1/completions", json={"ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_whole_answer_holds_the_tokens_that_were_drawn(node: EngineNode, tokenizer: Tokenizer) -> None:
    answer = complete(node, prompt="hello", max_tokens=20, seed=5, return_token_ids=True)
    choice = answer["choices"][0]
    tokens = expected_tokens(tokenizer, "hello", 5, 20)
    assert choice["token_ids"] == tokens
    assert choice["text"] == expected_text(tokenizer, tokens)
    assert choice["finish_reason"] == "length"
    prompt = len(tokenizer.encode("hello"))
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (prompt, 20, prompt + 20)


def test_a_stream_is_the_whole_answer_in_pieces(node: EngineNode, tokenizer: Tokenizer) -> None:
    body = {"prompt": "hello", "max_tokens": 40, "seed": 6, "ignore_eos": True, "stream": True}
    body |= {"return_token_ids": True, "stream_options": {"include_usage": True}}
    answer = read_stream(node, "/v1/completions", body)
    tokens = expected_tokens(tokenizer, "hello", 6, 40)
    assert answer.token_ids() == tokens
    assert answer.text() == expected_text(tokenizer, tokens)
    assert answer.is_done
    assert [c["usage"] for c in answer.chunks[:-1]] == [None] * (len(answer.chunks) - 1)
    assert answer.chunks[-1]["usage"]["completion_tokens"] == 40
    assert answer.chunks[-1]["choices"] == []
    assert len({c["id"] for c in answer.chunks}) == 1
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_without_asking_there_are_no_token_ids_and_no_empty_pieces(node: EngineNode) -> None:
    body = {"prompt": "hello", "max_tokens": 60, "seed": 6, "ignore_eos": True, "stream": True}
    answer = read_stream(node, "/v1/completions", body)
    choices = [c for chunk in answer.chunks for c in chunk["choices"]]
    assert all("token_ids" not in c for c in choices)
    assert all(c["text"] or c["finish_reason"] for c in choices)
    assert "usage" not in answer.chunks[0]


def test_chat_streams_a_role_then_content_then_a_reason(node: EngineNode) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10, "stream": True, "ignore_eos": True}
    answer = read_stream(node, "/v1/chat/completions", body)
    deltas = [c["delta"] for chunk in answer.chunks for c in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in d for d in deltas[1:])
    assert answer.finish_reason() == "length"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in answer.chunks)


def test_an_absent_seed_is_drawn_anew(node: EngineNode) -> None:
    first, second = (complete(node, prompt="a", max_tokens=12)["choices"][0]["text"] for _ in range(2))
    assert first != second


def test_choices_differ_and_each_is_repeatable(node: EngineNode, tokenizer: Tokenizer) -> None:
    answer = complete(node, prompt="hello", max_tokens=8, n=3, seed=9, return_token_ids=True)
    got = [c["token_ids"] for c in answer["choices"]]
    assert got == [expected_tokens(tokenizer, "hello", 9 + i, 8) for i in range(3)]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == len(tokenizer.encode("hello"))
    assert answer["usage"]["completion_tokens"] == 24


def test_several_prompts_are_answered_in_order(node: EngineNode, tokenizer: Tokenizer) -> None:
    answer = complete(node, prompt=["one", "two"], max_tokens=4, n=2, seed=3, return_token_ids=True)
    got = [c["token_ids"] for c in answer["choices"]]
    assert got == [expected_tokens(tokenizer, p, 3 + i, 4) for p in ("one", "two") for i in range(2)]


def test_a_prompt_may_be_token_ids(node: EngineNode, tokenizer: Tokenizer) -> None:
    ids = list(tokenizer.encode("hello"))
    by_ids, by_text = (complete(node, prompt=p, max_tokens=5, seed=1)["choices"] for p in (ids, "hello"))
    assert by_ids == by_text


@pytest.mark.parametrize("stream", [False, True])
def test_echo_comes_before_the_answer(node: EngineNode, stream: bool) -> None:
    body = {"prompt": "hello", "max_tokens": 4, "seed": 2, "ignore_eos": True, "echo": True, "stream": stream}
    plain = complete(node, prompt="hello", max_tokens=4, seed=2)["choices"][0]["text"]
    if stream:
        assert read_stream(node, "/v1/completions", body).text() == "hello" + plain
    else:
        assert complete(node, **body)["choices"][0]["text"] == "hello" + plain


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(node: EngineNode, tokenizer: Tokenizer, stream: bool) -> None:
    tokens = expected_tokens(tokenizer, "hello", 4, 60)
    text = expected_text(tokenizer, tokens)
    stop = text[20:24]
    body = {"prompt": "hello", "max_tokens": 60, "seed": 4, "ignore_eos": True, "stop": [stop], "stream": stream}
    if stream:
        answer = read_stream(node, "/v1/completions", body)
        shown, reason = answer.text(), answer.finish_reason()
    else:
        choice = complete(node, **body)["choices"][0]
        shown, reason = choice["text"], choice["finish_reason"]
        assert choice["stop_reason"] == stop
    assert shown == text[: text.index(stop)]
    assert reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_stop_string_at_the_end_is_shown(node: EngineNode, tokenizer: Tokenizer, stream: bool) -> None:
    text = expected_text(tokenizer, expected_tokens(tokenizer, "hello", 4, 30))
    body = {"prompt": "hello", "max_tokens": 30, "seed": 4, "ignore_eos": True, "stop": text[-2:] + "never"}
    if stream:
        assert read_stream(node, "/v1/completions", {**body, "stream": True}).text() == text
    else:
        assert complete(node, **body)["choices"][0]["text"] == text


def test_tokens_past_a_stop_string_are_not_counted(node: EngineNode, tokenizer: Tokenizer) -> None:
    tokens = expected_tokens(tokenizer, "hello", 4, 60)
    stop = expected_text(tokenizer, tokens)[20:24]
    answer = complete(node, prompt="hello", max_tokens=60, seed=4, stop=stop, return_token_ids=True)
    got = answer["choices"][0]["token_ids"]
    assert got == tokens[: len(got)]
    assert answer["usage"]["completion_tokens"] == len(got) < 60
    assert stop not in expected_text(tokenizer, got[:-1])


def test_a_stop_token_ends_the_answer_and_is_no_text(node: EngineNode, tokenizer: Tokenizer) -> None:
    tokens = expected_tokens(tokenizer, "hello", 4, 30)
    at = next(i for i, token in enumerate(tokens) if i > 4 and token not in tokens[:i])
    answer = complete(node, prompt="hello", max_tokens=30, seed=4, stop_token_ids=[tokens[at]], return_token_ids=True)
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tokens[at])
    assert choice["token_ids"] == tokens[: at + 1]
    assert choice["text"] == expected_text(tokenizer, tokens[:at])


def test_completion_logprobs_follow_the_tokens(node: EngineNode) -> None:
    choice = complete(node, prompt="hello", max_tokens=6, seed=1, logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert [len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [6] * 4
    assert logprobs["text_offset"][0] == 0
    assert all(value < 0 for value in logprobs["token_logprobs"])


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_have_one_entry_for_each_token(node: EngineNode, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "ignore_eos": True, "seed": 1}
    body |= {"logprobs": True, "top_logprobs": 3, "stream": stream}
    if stream:
        choices = [c for chunk in read_stream(node, "/v1/chat/completions", body).chunks for c in chunk["choices"]]
        entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    else:
        entries = node.http.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert len(entries) == 6
    assert all(len(entry["top_logprobs"]) == 3 and isinstance(entry["bytes"], list) for entry in entries)


def test_models_lists_what_is_served(node: EngineNode) -> None:
    entry = node.http.get("/v1/models").json()["data"][0]
    assert (entry["id"], entry["object"], entry["max_model_len"]) == ("tiny", "model", 1024)


def test_tokenising_there_and_back(node: EngineNode) -> None:
    made = node.http.post("/tokenize", json={"model": "tiny", "prompt": "héllo 🙂"}).json()
    assert made["count"] == len(made["tokens"])
    assert node.http.post("/detokenize", json={"tokens": made["tokens"]}).json() == {"prompt": "héllo 🙂"}


def test_tokenising_a_conversation_is_what_chat_counts(node: EngineNode) -> None:
    messages = [{"role": "user", "content": "hi"}]
    count = node.http.post("/tokenize", json={"messages": messages}).json()["count"]
    body = {"messages": messages, "max_tokens": 1, "ignore_eos": True}
    assert node.http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"] == count


def test_request_ids_go_in_and_come_out(node: EngineNode) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    given = node.http.post("/v1/completions", json=body, headers={"X-Request-Id": "abc-1"})
    assert given.headers["X-Request-Id"] == "abc-1"
    assert given.json()["id"] == "cmpl-abc-1"
    bad = node.http.post("/v1/completions", json=body, headers={"X-Request-Id": "a b\t<c>"})
    assert len(bad.headers["X-Request-Id"]) == 32
    assert node.http.get("/nowhere", headers={"X-Request-Id": "abc-2"}).headers["X-Request-Id"] == "abc-2"


GOOD = {"prompt": "x", "max_tokens": 1}
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", {}, 400, "prompt"),
        ("/v1/completions", {**GOOD, "temperature": 3}, 400, "temperature"),
        ("/v1/completions", {**GOOD, "top_p": 0}, 400, "top_p"),
        ("/v1/completions", {**GOOD, "n": 9}, 400, "n"),
        ("/v1/completions", {**GOOD, "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {**GOOD, "stop": [""]}, 400, None),
        ("/v1/completions", {**GOOD, "stop": ["a"] * 17}, 400, None),
        ("/v1/completions", {**GOOD, "logprobs": 21}, 400, "logprobs"),
        ("/v1/completions", {**GOOD, "logit_bias": {"a": 1}}, 400, "logit_bias"),
        ("/v1/completions", {**GOOD, "logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ("/v1/completions", {**GOOD, "min_tokens": 5}, 400, "min_tokens"),
        ("/v1/completions", {**GOOD, "stream_options": {"include_usage": True}}, 400, None),
        ("/v1/completions", {**GOOD, "prompt": []}, 400, None),
        ("/v1/completions", {**GOOD, "prompt": ""}, 400, "prompt"),
        ("/v1/completions", {**GOOD, "prompt": [99999]}, 400, "prompt"),
        ("/v1/completions", {**GOOD, "prompt": [-1]}, 400, None),
        ("/v1/completions", {**GOOD, "prompt": "\ud800"}, 400, None),
        ("/v1/completions", {**GOOD, "model": "other"}, 404, "model"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages.0.role"),
        ("/v1/chat/completions", {**HI, "tools": [{"type": "function"}]}, 400, "tools.0.function"),
        ("/v1/chat/completions", {**HI, "response_format": {"type": "xml"}}, 400, "response_format.type"),
        ("/v1/chat/completions", {**HI, "top_logprobs": 2}, 400, None),
        ("/tokenize", {}, 400, None),
        ("/detokenize", {"tokens": [99999]}, 400, "tokens"),
    ],
)
def test_bad_input_is_told_in_openais_shape(
    node: EngineNode, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = node.http.post(path, content=json.dumps(body))  # plain ASCII, also for what is no text
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"prompt": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_a_400(node: EngineNode, content: bytes) -> None:
    answer = node.http.post("/v1/completions", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("max_tokens", [2000, None])
def test_what_does_not_fit_the_context_is_told_by_its_code(node: EngineNode, max_tokens: int | None) -> None:
    prompt = [5] * (1024 if max_tokens is None else 10)
    answer = node.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "1024" in answer.json()["error"]["message"]


def test_chat_without_a_limit_may_fill_the_context(node: EngineNode) -> None:
    answer = node.http.post("/v1/chat/completions", json={**HI, "ignore_eos": True}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 1024


def test_unknown_routes_and_methods_are_told_in_openais_shape(node: EngineNode) -> None:
    assert node.http.get("/nowhere").json()["error"]["type"] == "not_found_error"
    wrong = node.http.get("/v1/completions")
    assert (wrong.status_code, "error" in wrong.json()) == (405, True)


def test_a_body_that_is_too_large_is_a_413(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--max-body-bytes", "2000")) as small:
        known = small.http.post("/v1/completions", json={"prompt": "x" * 3000})
        chunked = small.http.post("/v1/completions", content=(b"x" * 500 for _ in range(6)))
        assert (known.status_code, chunked.status_code) == (413, 413)
        assert small.http.post("/v1/completions", json=GOOD).status_code == 200


@pytest.fixture
def slow(node: EngineNode) -> Iterator[EngineNode]:
    """Steps so slow that a long answer does not end by itself within a test."""
    with node.slowed(200):
        yield node


def assert_freed(node: EngineNode, aborted_before: float | None) -> None:
    assert aborted_before is not None
    wait_for(lambda: node.metric("engine_requests_total", state="aborted") == aborted_before + 1, "the abort")
    wait_for(lambda: node.metric("vllm:kv_cache_usage_perc") == 0, "the blocks to be free")
    assert node.metric("vllm:num_requests_running") == 0


def test_hanging_up_frees_the_request(slow: EngineNode) -> None:
    aborted = slow.metric("engine_requests_total", state="aborted")
    body = {"prompt": "hello", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    assert_freed(slow, aborted)


def test_hanging_up_without_a_stream_frees_the_request(slow: EngineNode) -> None:
    aborted = slow.metric("engine_requests_total", state="aborted")
    body = {"prompt": "hello", "max_tokens": 1000, "ignore_eos": True}
    url = httpx.URL(slow.url)
    with socket.create_connection((url.host, url.port)) as connection:
        content = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        wait_for(lambda: slow.metric("vllm:num_requests_running") == 1, "it to run")
    assert_freed(slow, aborted)


ADMIN = [
    ("GET", "/admin/drain"),
    ("POST", "/admin/drain"),
    ("POST", "/admin/resume"),
    ("GET", "/admin/requests"),
    ("GET", "/admin/faults"),
    ("POST", "/internal/continue"),
]


@pytest.mark.parametrize(("method", "path"), ADMIN)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong-token-1", "Basic test-admin-token", "Bearer"])
def test_guarded_routes_need_the_token(node: EngineNode, method: str, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = httpx.request(method, node.url + path, verify=NO_TLS, headers=headers, json={})
    assert answer.status_code == 401
    assert "test-admin-token" not in answer.text


def test_without_a_token_file_guarded_routes_are_shut(tmp_path: Path) -> None:
    with start_node(tmp_path, has_token=False) as shut:
        answer = shut.http.get("/admin/drain")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "no_admin_token")


def test_faults_are_404_unless_enabled(tmp_path: Path) -> None:
    with start_node(tmp_path, has_faults=False) as plain:
        assert plain.http.get("/admin/faults").status_code == 404
        assert plain.http.post("/admin/faults", json={"slow_steps": 2}).status_code == 404


@pytest.mark.parametrize("body", [{}, {"slow_steps": 0.5}, {"slow_steps": "x"}, {"hang": True, "slow_steps": None}])
def test_bad_faults_are_refused(node: EngineNode, body: dict[str, Any]) -> None:
    assert node.http.post("/admin/faults", json=body).status_code == 400


def test_a_slow_step_fault_shows_in_step_seconds(node: EngineNode) -> None:
    def mean_step_s() -> float:
        before = [node.metric(f"engine_step_seconds_{part}", kind="decode") or 0.0 for part in ("sum", "count")]
        complete(node, prompt="hello", max_tokens=20)
        after = [node.metric(f"engine_step_seconds_{part}", kind="decode") or 0.0 for part in ("sum", "count")]
        return (after[0] - before[0]) / (after[1] - before[1])

    quick = mean_step_s()
    assert node.http.post("/admin/faults", json={"slow_steps": 10}).json() == {"slow_steps": 10}
    try:
        assert mean_step_s() > 3 * quick
    finally:
        assert node.http.post("/admin/faults", json={"slow_steps": None}).json() == {"slow_steps": None}


def test_requests_in_flight_are_listed_without_text(node: EngineNode) -> None:
    secret = "hello-secret-prompt"
    body = {"prompt": secret, "max_tokens": 300, "ignore_eos": True, "stream": True}
    seen: list[dict[str, Any]] = []

    def look(count: int) -> None:
        if count == 5:
            listed = wait_for(lambda: known(node.http.get("/admin/requests")), "the core to say what is held")
            assert secret not in listed.text
            seen.extend(listed.json()["requests"])
            node.full_speed()

    def known(listed: httpx.Response) -> httpx.Response | None:
        return None if "kv_blocks_unknown" in listed.json() else listed

    with node.slowed():
        read_stream(node, "/v1/completions", body, headers={"X-Request-Id": "look-at-me"}, on_chunk=look)
    assert seen[0]["request_id"] == "look-at-me"
    assert seen[0]["state"] == "running"
    assert seen[0]["tokens_out"] >= 5
    tokens = int(seen[0]["tokens_in"]) + int(seen[0]["tokens_out"])
    assert seen[0]["kv_blocks"] in (tokens // 16, tokens // 16 + 1, tokens // 16 + 2)  # a block or a step ahead
    nothing: dict[str, Any] = {"requests": [], "arriving": []}
    wait_for(lambda: node.http.get("/admin/requests").json() == nothing, "the request to be off the list")


def test_info_names_the_node_and_its_limits(node: EngineNode) -> None:
    info = node.http.get("/info").json()
    assert info["pid"] == node.proc.pid
    assert info["state"] == "ready"
    assert info["kv_capacity_tokens"] > 0
    assert info["limits"]["max_model_len"] == 1024
    assert "test-admin-token" not in str(info)


def test_a_full_queue_refuses_with_retry_after(tmp_path: Path) -> None:
    args = ("--max-num-seqs", "1", "--max-num-queued-reqs", "2")
    with start_node(tmp_path, extra_args=args) as small:
        small.http.post("/admin/faults", json={"slow_steps": 1000})
        body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
        threads = [
            threading.Thread(
                target=lambda: httpx.post(f"{small.url}/v1/completions", verify=NO_TLS, json=body, timeout=60)
            )
            for _ in range(3)
        ]
        threads[0].start()
        wait_for(lambda: small.metric("vllm:num_requests_running") == 1, "one to run")
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: small.metric("vllm:num_requests_waiting") == 2, "two to wait")
        assert (small.metric("engine_oldest_waiting_seconds") or 0) > 0
        answer = small.http.post("/v1/completions", json=GOOD)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.headers["X-Fleet-Refused"] == "overloaded"
        assert small.metric("engine_admission_rejected_total", reason="overloaded") == 1
        assert small.metric("engine_requests_total", state="refused") == 1
        small.full_speed()
        for thread in threads:
            thread.join(timeout=60)
        wait_for(lambda: small.metric("engine_requests_total", state="finished") == 3, "all three to finish")


def test_a_node_that_loads_says_so_and_takes_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = CoreGate(tmp_path / "gate", monkeypatch)
    gate.close()
    with start_node(tmp_path, is_ready=False) as loading:
        health = loading.http.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, "loading")
        refused = loading.http.post("/v1/completions", json=GOOD)
        assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (503, "not_ready")
        assert loading.http.get("/health/live").status_code == 200
        assert loading.http.get("/metrics").status_code == 200
        gate.open()
        loading.wait_ready()
        assert loading.http.post("/v1/completions", json=GOOD).status_code == 200
