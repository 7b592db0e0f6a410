"""Each limit on what a stranger can send: the last value that passes, the first that does not, and its line in docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.api import connection, json_weight, schema, schema_tools
from engine.api.admin import MAX_ADMIN_BYTES
from engine.protocol import grammar
from tests.fixtures import ROOT
from tests.fixtures.engine import EngineNode, start_node

CONTEXT = 512
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
DOCS = ROOT / "docs" / "node-limits.md"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    args = ("--max-model-len", str(CONTEXT), "--num-kv-blocks", "4096", "--max-output-tokens", "64")
    with start_node(tmp_path_factory.mktemp("limits"), extra_args=args) as running:
        yield running


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 1, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **fields}


def in_format(chars: int) -> dict[str, Any]:
    """A JSON schema whose texts have about so many characters."""
    made = {"type": "object", "description": "d" * chars}
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": made}})


LIMITS: dict[str, tuple[str, Any, Any]] = {
    "n": (COMPLETIONS, completion(n=schema.MAX_CHOICES), completion(n=schema.MAX_CHOICES + 1)),
    "prompts": (
        COMPLETIONS,
        completion(prompt=["x"] * schema.MAX_PROMPTS),
        completion(prompt=["x"] * (schema.MAX_PROMPTS + 1)),
    ),
    "max_tokens": (COMPLETIONS, completion(max_tokens=64), completion(max_tokens=65)),
    "context": (COMPLETIONS, completion(prompt=[5] * (CONTEXT - 1)), completion(prompt=[5] * CONTEXT)),
    "stop": (
        COMPLETIONS,
        completion(stop=["never"] * schema.MAX_STOPS),
        completion(stop=["never"] * (schema.MAX_STOPS + 1)),
    ),
    "stop-length": (COMPLETIONS, completion(stop="n" * 256), completion(stop="n" * 257)),
    "stop-tokens": (COMPLETIONS, completion(stop_token_ids=[9] * 64), completion(stop_token_ids=[9] * 65)),
    "logprobs": (
        COMPLETIONS,
        completion(logprobs=schema.MAX_LOGPROBS),
        completion(logprobs=schema.MAX_LOGPROBS + 1),
    ),
    "top-logprobs": (
        CHAT,
        chat(logprobs=True, top_logprobs=schema.MAX_LOGPROBS),
        chat(logprobs=True, top_logprobs=schema.MAX_LOGPROBS + 1),
    ),
    "logit-bias": (
        COMPLETIONS,
        completion(logit_bias={str(i): 1 for i in range(3, 400)}),
        completion(logit_bias={str(i): 1 for i in range(100_000)}),
    ),
    "logit-bias-value": (COMPLETIONS, completion(logit_bias={"5": -100}), completion(logit_bias={"5": -100.5})),
    "messages": (
        "/tokenize",
        {"messages": [{"role": "user", "content": "x"}] * 100},
        {"messages": [{"role": "user", "content": "x"}] * (schema.MAX_MESSAGES + 1)},
    ),
    "role": (
        CHAT,
        chat(messages=[{"role": "user", "content": "x"}]),
        chat(messages=[{"role": "r" * 33, "content": "x"}]),
    ),
    "user": (COMPLETIONS, completion(user="u" * 256), completion(user="u" * 257)),
    "model": (COMPLETIONS, completion(model="tiny"), completion(model="m" * 257)),
    "priority": (COMPLETIONS, completion(priority=1000), completion(priority=1001)),
    "deadline": (COMPLETIONS, completion(deadline_s=86_400), completion(deadline_s=86_401)),
    "schema": (CHAT, in_format(grammar.MAX_SCHEMA_BYTES - 100), in_format(grammar.MAX_SCHEMA_BYTES)),
    "detokenize": ("/detokenize", {"tokens": [9] * 10_000}, {"tokens": [9] * (schema.MAX_TOKENS + 1)}),
    "aborts": (
        "/admin/abort",
        {"request_ids": ["none"] * schema.MAX_NAMED},
        {"request_ids": ["none"] * (schema.MAX_NAMED + 1)},
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_at_the_limit_passes_and_what_is_over_it_is_a_400(node: EngineNode, name: str) -> None:
    path, within, beyond = LIMITS[name]
    good, bad = node.http.post(path, json=within), node.http.post(path, json=beyond)
    assert good.status_code == 200, good.text[:500]
    assert bad.status_code == 400, bad.text[:500]
    assert bad.json()["error"]["type"] == "invalid_request_error"


def test_a_text_that_can_not_fit_is_refused_without_the_seconds_of_tokenising_it(node: EngineNode) -> None:
    """Counted in what tokenising would have made of it: the message has a bound, not the number of tokens."""
    text = "a" * 4_000_000
    for path, body in ((COMPLETIONS, completion(prompt=text)), ("/tokenize", {"prompt": text})):
        error = node.http.post(path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "at least" in error["message"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": [' + b"true," * 1_000_000 + b"true]}",
        b'{"prompt": "x", "logit_bias": {' + b",".join(b'"%d":[]' % i for i in range(100_000)) + b"}}",
        b'{"prompt": "x", "stop": [' + b"1," * 1_000_000 + b"1]}",
        b'{"messages": [' + b"{}," * 1_000_000 + b"{}]}",
        b'{"' + b"k" * 1_000_000 + b'": 1}',
    ],
    ids=["prompts", "biases", "stops", "messages", "long-name"],
)
def test_a_million_mistakes_get_one_short_answer(node: EngineNode, content: bytes) -> None:
    path = CHAT if b"messages" in content else COMPLETIONS
    answer = node.http.post(path, content=content)
    assert answer.status_code == 400
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (COMPLETIONS, b'{"prompt": [' + b"5," * 400_000 + b"5]}"),
        (CHAT, b'{"messages": [' + b'{"role": "user", "content": "x"},' * 30_000 + b"{}]}"),
        ("/tokenize", b'{"prompt": "x", "unknown": [' + b"{}," * 60_000 + b"{}]}"),
    ],
    ids=["numbers", "objects", "unknown-field"],
)
def test_more_values_than_can_be_parsed_in_passing_are_refused_unparsed(
    node: EngineNode, path: str, content: bytes
) -> None:
    answer = node.http.post(path, content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_values")


def test_texts_of_any_look_are_no_values(node: EngineNode) -> None:
    answer = node.http.post("/tokenize", json={"prompt": "x", "unknown": '[{:,\\"' * 500_000})
    assert answer.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("path", [COMPLETIONS, "/tokenize", "/admin/resume", "/admin/drain", "/internal/continue"])
def test_what_a_web_page_may_send_unasked_is_no_request(node: EngineNode, path: str, kind: str) -> None:
    answer = node.http.post(path, content=b'{"prompt": "x", "deadline_s": 1}', headers={"Content-Type": kind})
    if path == "/admin/resume":  # takes no body; a page has no token
        assert answer.status_code == 200
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "not_json")


@pytest.mark.parametrize(
    "body",
    [
        completion(max_tokens="5"),
        completion(max_tokens=True),
        completion(max_tokens=5.5),
        completion(stream="yes"),
        completion(stream=1),
        completion(temperature="0.5"),
        completion(prompt=5),
        completion(logit_bias={"5": "1"}),
    ],
)
def test_values_of_another_type_are_refused_not_guessed(node: EngineNode, body: dict[str, Any]) -> None:
    assert node.http.post(COMPLETIONS, json=body).status_code == 400


def test_an_operators_body_has_a_smaller_limit(node: EngineNode) -> None:
    answer = node.http.post("/admin/limits", content=b" " * (MAX_ADMIN_BYTES + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "value",
    [
        schema.MAX_CHOICES,
        schema.MAX_PROMPTS,
        schema.MAX_STOPS,
        schema.MAX_MESSAGES,
        schema.MAX_TEXT_CHARS,
        schema.MAX_TOKENS,
        schema.MAX_LOGPROBS,
        schema.MAX_BIASES,
        schema.MAX_DEADLINE_S,
        schema.MAX_NAMED,
        schema.MAX_EXPORTED,
        schema.MAX_TEMPLATE_ARGUMENTS,
        json_weight.BASE_WEIGHT,
        schema_tools.MAX_TOOLS,
        schema_tools.MAX_TOOL_CALLS,
        schema_tools.MAX_ARGUMENTS_CHARS,
        grammar.MAX_SCHEMA_DEPTH,
        grammar.MAX_SCHEMA_NODES,
        grammar.MAX_REGEX_CHARS,
        grammar.MAX_LARK_CHARS,
        grammar.MAX_CHOICES,
        f"{grammar.MAX_SCHEMA_BYTES // 2**10} KiB",
        f"{connection.MAX_HEAD_BYTES // 2**10} KiB",
        f"{MAX_ADMIN_BYTES // 2**20} MiB",
    ],
)
def test_each_limit_is_in_the_documentation(value: int | str) -> None:
    shown = f"{value:,}" if isinstance(value, int) else value
    assert f" {shown}" in DOCS.read_text(encoding="utf-8"), f"{DOCS.name} does not say {shown}"
