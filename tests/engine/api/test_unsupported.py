"""What other servers know: honoured, or refused by name when it asks for something. Never ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.text.tokenizer import load_tokenizer
from tests.fixtures.engine import EngineNode, read_stream, start_node, tiny_model_dir
from tests.fixtures.openai import strict_client

COMPLETION: tuple[str, dict[str, Any]] = ("/v1/completions", {"prompt": "x", "max_tokens": 1})
CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("unsupported"), extra_args=("--served-model-name", "tiny", "o/x")) as made:
        yield made


@pytest.mark.parametrize("form", [COMPLETION, CHAT], ids=["completion", "chat"])
@pytest.mark.parametrize(
    ("name", "asks", "neutral"),
    [
        ("use_beam_search", True, False),
        ("prompt_embeds", "AAAA", None),
        ("kv_transfer_params", {"a": 1}, None),
    ],
)
def test_vllms_fields_are_refused_when_they_ask_for_something(
    node: EngineNode, form: tuple[str, dict[str, Any]], name: str, asks: Any, neutral: Any
) -> None:
    path, body = form
    refused = node.http.post(path, json=body | {name: asks})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert "not supported" in refused.json()["error"]["message"]
    assert node.http.post(path, json=body | {name: neutral}).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("web_search_options", {}),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("chat_template", "{{ 1 }}"),
    ],
)
def test_a_chats_fields_as_well(node: EngineNode, name: str, value: Any) -> None:
    refused = node.http.post(CHAT[0], json=CHAT[1] | {name: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize(
    "hint", [{"service_tier": "auto"}, {"store": True}, {"metadata": {"a": "b"}}, {"modalities": ["text"]}]
)
def test_hints_are_taken(node: EngineNode, hint: dict[str, Any]) -> None:
    assert node.http.post(CHAT[0], json=CHAT[1] | hint).status_code == 200


@pytest.mark.parametrize(
    ("form", "changes", "param"),
    [
        (COMPLETION, {"prompt": [-1]}, "prompt.0"),
        (COMPLETION, {"best_of": 3, "stream": True}, "best_of"),
        (COMPLETION, {"best_of": 2, "n": 3}, "best_of"),
        (COMPLETION, {"allowed_token_ids": []}, "allowed_token_ids"),
        (COMPLETION, {"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        (COMPLETION, {"bad_words": ["fine", " "]}, "bad_words.1"),
        (COMPLETION, {"logprobs": 0, "logprob_token_ids": [10**6]}, "logprob_token_ids"),
        (COMPLETION, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (COMPLETION, {"truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
        (COMPLETION, {"thinking_token_budget": 5}, "thinking_token_budget"),
        (COMPLETION, {"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection"),
        (COMPLETION, {"request_id": "no/slash"}, "request_id"),
        (CHAT, {"continue_final_message": True, "add_generation_prompt": True}, None),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, None),
        (CHAT, {"logprob_token_ids": [5]}, None),
        (COMPLETION, {"suffix": "end"}, "suffix"),
        (COMPLETION, {"stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETION, {"prompt": [5] * 8192}, "prompt"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"max_tokens": 8192}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
    ],
)
def test_errors_name_the_field_that_is_meant(
    node: EngineNode, form: tuple[str, dict[str, Any]], changes: dict[str, Any], param: str | None
) -> None:
    answer = node.http.post(form[0], json=form[1] | changes)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert "Value error" not in answer.text


@pytest.mark.parametrize(
    "arguments", ['{"a": ' + "9" * 9000 + "}", '{"a": ' * 2000 + "1" + "}" * 2000], ids=["digits", "deep"]
)
def test_arguments_that_no_reader_takes_are_a_400(node: EngineNode, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    assert node.http.post(CHAT[0], json=CHAT[1] | {"messages": messages}).status_code == 400


def test_the_official_client_finds_one_model(node: EngineNode) -> None:
    with strict_client(node.url) as client:
        assert client.models.retrieve("tiny").id == "tiny"
    assert node.http.get("/v1/models/o/x").json()["id"] == "o/x"
    missing = node.http.get("/v1/models/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_usage_can_come_with_every_chunk(node: EngineNode) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "x", "max_tokens": 4, "ignore_eos": True, "stream": True, "stream_options": options}
    counts = [chunk["usage"]["completion_tokens"] for chunk in read_stream(node, COMPLETION[0], body).chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_tokenising_shows_the_tokens_texts(node: EngineNode) -> None:
    answer = node.http.post("/tokenize", json={"prompt": "hello there", "return_token_strs": True}).json()
    assert "".join(answer["token_strs"]) == "hello there"
    assert len(answer["token_strs"]) == answer["count"]
    assert "token_strs" not in node.http.post("/tokenize", json={"prompt": "hello"}).json()


def test_prefixes_are_shared_within_one_salt_only(node: EngineNode) -> None:
    def cached(salt: str | None) -> int:
        body = {"prompt": list(range(3, 100)), "max_tokens": 1, "cache_salt": salt}
        usage = node.http.post(COMPLETION[0], json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached("a") > 0, cached("a") > 0, cached("b") > 0, cached(None) > 0] == [False, True, False, False]


def test_templates_get_their_arguments_and_keep_their_own_names(node: EngineNode) -> None:
    tokenizer = load_tokenizer(tiny_model_dir())
    messages = [{"role": "user", "content": "x"}]
    plain = tokenizer.render_chat(messages)
    assert tokenizer.render_chat(messages, arguments={"eos_token": "mine", "enable_thinking": False}) == plain
    given = {"chat_template_kwargs": {"enable_thinking": False}}
    assert node.http.post(CHAT[0], json=CHAT[1] | given).status_code == 200
    for bad in ({"messages": []}, {"a b": 1}, {f"k{i}": 1 for i in range(17)}):
        assert node.http.post(CHAT[0], json=CHAT[1] | {"chat_template_kwargs": bad}).status_code == 400
