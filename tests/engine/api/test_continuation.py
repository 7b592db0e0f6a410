"""A stream whose node is gone: from what its reader kept, a node goes on with it as if nothing had happened."""

from __future__ import annotations

import hmac
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fixtures.engine import TOKEN, EngineNode, start_node

pytestmark = pytest.mark.e2e

CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "string", "pattern": "^[a-z ]{20}$"}, "n": {"enum": [1, 2]}},
    "required": ["words", "n"],
    "additionalProperties": False,
}
SAY = {"type": "function", "function": {"name": "say", "parameters": SCHEMA}}
HI = [{"role": "user", "content": "hi"}]
USAGE = {"include_usage": True}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (COMPLETION_PATH, {"max_tokens": 12, "seed": 3}),
    "greedy chat": (CHAT_PATH, {"max_tokens": 12, "temperature": 0, "stream_options": USAGE}),
    "no seed": (CHAT_PATH, {"max_tokens": 12}),
    "usage in each event": (
        COMPLETION_PATH,
        {
            "max_tokens": 10,
            "seed": 1,
            "return_token_ids": True,
            "stream_options": USAGE | {"continuous_usage_stats": True},
        },
    ),
    "stop strings": (
        COMPLETION_PATH,
        {"max_tokens": 400, "seed": 5, "stop": ["ab", "th", "zz"], "min_tokens": 4, "stream_options": USAGE},
    ),
    "stop string shown": (
        COMPLETION_PATH,
        {"max_tokens": 400, "seed": 6, "stop": ["e", "o"], "include_stop_str_in_output": True, "min_tokens": 9},
    ),
    "stop tokens": (COMPLETION_PATH, {"max_tokens": 400, "seed": 8, "stop_token_ids": [*range(60, 80)]}),
    "choices": (
        COMPLETION_PATH,
        {"n": 3, "max_tokens": 400, "seed": 2, "stop": ["a", "q"], "min_tokens": 3, "stream_options": USAGE},
    ),
    "prompts": (COMPLETION_PATH, {"prompt": ["once", "twice"], "max_tokens": 6, "seed": 2, "return_token_ids": True}),
    "echo with logprobs": (COMPLETION_PATH, {"max_tokens": 8, "seed": 9, "echo": True, "logprobs": 2}),
    "logprobs and ids": (
        CHAT_PATH,
        {"max_tokens": 8, "seed": 4, "logprobs": True, "top_logprobs": 2, "return_token_ids": True},
    ),
    "penalties": (
        CHAT_PATH,
        {"max_tokens": 12, "seed": 4, "presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {"5": 2}},
    ),
    "grammar": (COMPLETION_PATH, {"max_tokens": 300, "seed": 7, "structured_outputs": {"json": SCHEMA}}),
    "tools": (
        CHAT_PATH,
        {"max_tokens": 300, "seed": 7, "tools": [SAY], "tool_choice": "required", "parallel_tool_calls": False},
    ),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("node")) as started:
        yield started


@dataclass(frozen=True)
class Kept:
    """A stream as its reader kept it: each event with the progress lines before it."""

    events: list[tuple[str, str]]
    resolved: Any

    @property
    def data(self) -> list[str]:
        return [data for _, data in self.events]


def headers_of(request_id: str) -> dict[str, str]:
    proof = hmac.digest(TOKEN.encode(), request_id.encode(), "sha256").hex()
    return {"X-Request-Id": request_id, "X-Fleet-Progress": proof}


def read(node: EngineNode, path: str, body: Any, request_id: str, headers: dict[str, str] | None = None) -> Kept:
    asked = headers_of(request_id) if headers is None else headers
    answer = node.http.post(path, json=body, headers=asked)
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        *lines, data = block.split("\n")
        assert data.startswith("data: ")
        assert all(line.startswith(":p ") for line in lines)
        events.append(("".join(f"{line}\n" for line in lines), data.removeprefix("data: ")))
    resolved = answer.headers.get("X-Fleet-Progress")
    return Kept(events, None if resolved is None else json.loads(resolved))


def continuation(path: str, body: Any, request_id: str, resolved: Any, progress: str) -> dict[str, Any]:
    return {
        "version": 2,
        "request_id": request_id,
        "path": path,
        "request": body,
        "resolved": resolved,
        "progress": progress,
        "elapsed_s": 0.5,
    }


def said(data: list[str]) -> dict[Any, Any]:
    """All that a client reads, however it was cut into events. What a node had cached may differ."""
    told: dict[Any, Any] = {"end": data[-1]}
    for event in map(json.loads, data[:-1]):
        told["head"] = {k: event[k] for k in ("id", "object", "created", "model")}
        if usage := event.get("usage"):
            told["usage"] = {k: v for k, v in usage.items() if k != "prompt_tokens_details"}
        for choice in event["choices"]:
            gather(told, ("choice", choice["index"]), choice)
            if usage and "token_ids" in choice:
                assert usage["completion_tokens"] == len(told["choice", choice["index"], "token_ids"])
    return told


def gather(told: dict[Any, Any], key: tuple[Any, ...], value: Any) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            gather(told, (*key, name), part)
    elif isinstance(value, list) and value and isinstance(value[0], dict) and "index" in value[0]:
        for part in value:
            gather(told, (*key, part["index"]), part)
    elif isinstance(value, list | str):
        told[key] = told[key] + value if key in told else value
    elif value is not None:
        told[key] = value


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_exactly_wherever_it_was_cut(node: EngineNode, kind: str) -> None:
    path, changes = KINDS[kind]
    prompt = {"messages": HI} if path == CHAT_PATH else {"prompt": "hello"}
    body = {**prompt, **changes, "stream": True}
    request_id = f"cut-{kind.replace(' ', '-')}"
    whole = read(node, path, body, request_id)
    assert whole.resolved is not None
    cuts = range(1, len(whole.events))
    for cut in cuts if len(cuts) <= 6 else sorted([*random.Random(kind).sample(cuts, 6), cuts[-1]]):
        progress = "".join(lines for lines, _ in whole.events[:cut])
        if progress.endswith(":p $\n"):
            continue  # only [DONE] is left: nobody is asked for it
        sent = continuation(path, body, request_id, whole.resolved, progress)
        rest = read(node, "/internal/continue", sent, request_id)
        assert said([*whole.data[:cut], *rest.data]) == said(whole.data), f"cut after {cut} events"
        assert rest.resolved == whole.resolved
        if cut + 1 < len(whole.events):  # what continues a stream may be cut as well
            progress += "".join(lines for lines, _ in rest.events[:1])
            last = continuation(path, body, request_id, whole.resolved, progress)
            if not progress.endswith(":p $\n"):
                again = read(node, "/internal/continue", last, request_id)
                assert said([*whole.data[:cut], rest.data[0], *again.data]) == said(whole.data)


def test_a_handed_off_stream_tells_all_that_its_receiver_begins_after(node: EngineNode) -> None:
    """Also tokens of which nothing was said yet: the node that takes it over may die too."""
    body = {"prompt": "hello", "max_tokens": 400, "seed": 3, "stream": True}
    lines, handoff, num_events = [], None, 0
    headers = headers_of("drained") | {"X-Fleet-Handoff": "accept"}
    with node.slowed(), node.http.stream("POST", COMPLETION_PATH, json=body, headers=headers) as answer:
        for line in answer.iter_lines():
            if line.startswith(":p "):
                lines.append(line)
            elif line.startswith("data: {"):
                num_events += 1
                handoff = json.loads(line.removeprefix("data: "))
                if num_events == 5:
                    node.drain(0)
    node.http.post("/admin/resume")
    assert handoff is not None
    (choice,) = handoff["state"]["choices"]
    assert [int(i) for line in lines for i in line.split(" ")[2:]] == choice["output_token_ids"]


def test_an_id_without_a_seed_gives_the_same_answer_again_and_another_id_another(node: EngineNode) -> None:
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 1, "stream": True}
    first, second, other = (read(node, COMPLETION_PATH, body, name).data for name in ("same", "same", "other"))
    texts = [said(data)["choice", 0, "text"] for data in (first, second, other)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Request-Id": "x", "X-Fleet-Progress": "accept"},
        {"X-Request-Id": "x", "X-Fleet-Progress": headers_of("y")["X-Fleet-Progress"]},
        {"X-Request-Id": "x", "X-Fleet-Handoff": "accept"},
    ],
)
def test_who_can_not_prove_to_be_the_gateway_reads_an_ordinary_stream(
    node: EngineNode, headers: dict[str, str]
) -> None:
    kept = read(node, COMPLETION_PATH, {"prompt": "hello", "max_tokens": 3, "stream": True}, "x", headers)
    assert kept.resolved is None
    assert all(not lines for lines, _ in kept.events)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"progress": ":p 1 5\n"}, 400),
        ({"progress": ":p 0 99999999\n"}, 400),
        ({"progress": ":p 0 -3\n"}, 400),
        ({"progress": ":p 0!stop 3\n:p 0 4\n"}, 400),
        ({"progress": ":p 0" + " 1" * 13 + "\n"}, 400),
        ({"elapsed_s": -1}, 400),
        ({"path": "/v1/embeddings"}, 400),
        ({"request": {"prompt": "hello", "max_tokens": 12}}, 400),
        ({"request": {"prompt": "hello", "stream": "yes"}}, 400),
        ({"request": {"prompt": "goodbye", "stream": True}}, 409),
        ({"version": 3}, 409),
        ({"surprise": 1}, 400),
    ],
)
def test_what_can_not_be_continued_is_refused(node: EngineNode, change: dict[str, Any], status: int) -> None:
    body = {"prompt": "hello", "max_tokens": 12, "stream": True}
    whole = read(node, COMPLETION_PATH, body, "bad")
    sent = continuation(COMPLETION_PATH, body, "bad", whole.resolved, whole.events[0][0]) | change
    answer = node.http.post("/internal/continue", json=sent)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_continued_stream_keeps_its_first_deadline(node: EngineNode) -> None:
    body = {"prompt": "hello", "max_tokens": 12, "stream": True, "deadline_s": 60}
    first = read(node, COMPLETION_PATH, body, "late")
    sent = continuation(COMPLETION_PATH, body, "late", first.resolved, first.events[0][0]) | {"elapsed_s": 60.1}
    answer = node.http.post("/internal/continue", json=sent, headers=headers_of("late"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
