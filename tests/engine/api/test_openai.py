"""The official client against a node: what it sends is understood, what it reads is as it expects."""

import os
import signal
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.fixtures.engine import EngineNode, start_node, wait_for
from tests.fixtures.openai import stream_completion, strict_client

HI: list[ChatCompletionMessageParam] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("openai")) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: EngineNode) -> Iterator[openai.OpenAI]:
    with strict_client(node.url) as made:
        yield made


def test_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=12, seed=3)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12


def test_a_chat_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HI, max_tokens=30, seed=3)
    stream = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=30, seed=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == (whole.usage.completion_tokens if whole.usage else None)


def test_a_completion_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="once", max_tokens=25, seed=4, logprobs=2)
    chunks = list(stream_completion(client, prompt="once", max_tokens=25, seed=4, logprobs=2))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.tokens


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=5, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2] * 5


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=5, n=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="tiny", prompt="x", max_tokens=100_000)
    assert too_long.value.code == "context_length_exceeded"


def test_a_drained_node_is_unavailable(node: EngineNode, client: openai.OpenAI) -> None:
    node.drain(0)
    try:
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model="tiny", prompt="x")
        assert refused.value.response.headers["X-Fleet-Refused"] == "draining"
    finally:
        node.http.post("/admin/resume")


def test_an_error_in_a_stream_is_raised(node: EngineNode, client: openai.OpenAI) -> None:
    core = node.core_pid()
    with node.slowed():
        stream = stream_completion(client, prompt="x", max_tokens=8000, ignore_eos=True)
        next(iter(stream))
        os.kill(core, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine core died"):
            for _ in stream:
                pass
    wait_for(lambda: node.core_pid() != core, "a new core")
    node.wait_ready()
