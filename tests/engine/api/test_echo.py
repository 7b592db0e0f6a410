"""Echoed prompts with their log probabilities, on a real node with a real model, against transformers."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.engine import EngineNode, read_stream, start_node, tiny_model_dir
from tests.fixtures.openai import SentLogprobs, completion, stream_completion, strict_client

WORDS = "the quick brown fox jumps over the lazy dog and then it sleeps for a while. "
LONG = WORDS * 8  # several chunks of prefill, and several blocks


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    limits = ("--max-num-batched-tokens", "64", "--num-kv-blocks", "200", "--max-num-seqs", "8")
    with start_node(tmp_path_factory.mktemp("echo"), runner="torch", extra_args=limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: EngineNode) -> Iterator[openai.OpenAI]:
    with strict_client(node.url) as made:
        yield made


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(tiny_model_dir())


def reference(token_ids: tuple[int, ...]) -> list[float]:
    """Log probability of each token but the first, in one pass without cache or chunks."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir(), dtype=torch.float32)
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([token_ids])).logits[0].float(), -1)
    return [float(logprobs[at, token]) for at, token in enumerate(token_ids[1:])]


def logprobs_of(answer: Any, index: int = 0) -> SentLogprobs:
    found = answer.choices[index].logprobs
    assert found is not None
    return SentLogprobs.model_validate(found.model_dump())


def test_an_echoed_prompt_has_the_models_log_probabilities(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    answer = completion(client, prompt=LONG, max_tokens=3, echo=True, logprobs=2, temperature=0, ignore_eos=True)
    found, token_ids = logprobs_of(answer), tokenizer.encode(LONG)
    assert found.tokens is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert len(token_ids) > 128, "the prompt takes several steps"
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(token_ids) + 3
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert found.token_logprobs[1 : len(token_ids)] == pytest.approx(reference(token_ids), abs=2e-3)
    for token, top in zip(found.tokens[1:], found.top_logprobs[1:], strict=True):
        assert top is not None
        assert 1 <= len(top) <= 3, "the two that were asked for, and the token itself"
        assert token in top
    text = answer.choices[0].text
    assert text.startswith(LONG)
    assert "".join(found.tokens[: len(token_ids)]) == LONG
    starts = [0, *accumulate(len(token) for token in found.tokens[: len(token_ids)])]
    assert found.text_offset is not None
    assert found.text_offset[: len(token_ids) + 1] == starts
    for position, (own, top) in enumerate(zip(found.token_logprobs, found.top_logprobs, strict=True)):
        if own is not None and top is not None:
            assert own <= max(top.values()) + 1e-6, position


def test_a_cached_prefix_takes_nothing_away(node: EngineNode, client: openai.OpenAI) -> None:
    first = completion(client, prompt=LONG, max_tokens=1, echo=True, logprobs=0, temperature=0)
    warm = completion(client, prompt=LONG, max_tokens=1, temperature=0)
    assert warm.usage is not None
    assert warm.usage.prompt_tokens_details is not None
    assert warm.usage.prompt_tokens_details.cached_tokens, "the prefix is in the cache"
    again = completion(client, prompt=LONG, max_tokens=1, echo=True, logprobs=0, temperature=0)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert logprobs_of(again).token_logprobs == pytest.approx(logprobs_of(first).token_logprobs, abs=1e-4, nan_ok=True)
    assert logprobs_of(again).top_logprobs is None


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_a_stream_says_the_same(client: openai.OpenAI, max_tokens: int) -> None:
    body: dict[str, Any] = {"prompt": LONG, "max_tokens": max_tokens, "echo": True, "logprobs": 1, "temperature": 0}
    whole = completion(client, **body)
    chunks = [chunk for chunk in stream_completion(client, **body) if chunk.choices]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == whole.choices[0].finish_reason
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs is not None]
    wanted = whole.choices[0].logprobs
    assert wanted is not None
    for name in ("tokens", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(wanted, name)
    logprobs = [value for part in parts for value in part.token_logprobs or ()]
    assert logprobs == pytest.approx(wanted.token_logprobs, abs=1e-4)


def test_only_the_prompt_can_be_asked_about(node: EngineNode, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    before = {name: node.metric(f"vllm:{name}_tokens_total") or 0 for name in ("prompt", "generation")}
    answer = completion(client, prompt=["once upon", "twice"], max_tokens=0, echo=True, logprobs=1, n=2)
    assert [choice.text for choice in answer.choices] == ["once upon"] * 2 + ["twice"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 4
    lengths = [len(tokenizer.encode(text)) for text in ("once upon", "twice")]
    assert [len(logprobs_of(answer, i).tokens or ()) for i in range(4)] == [lengths[0]] * 2 + [lengths[1]] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (sum(lengths), 0)
    assert node.metric("vllm:generation_tokens_total") == before["generation"]
    assert node.metric("vllm:prompt_tokens_total") == before["prompt"] + 2 * sum(lengths)


def test_an_echo_alone_computes_nothing(node: EngineNode, client: openai.OpenAI) -> None:
    steps = node.metric("vllm:iteration_tokens_total_count")
    answer = completion(client, prompt="once upon", max_tokens=0, echo=True)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("once upon", "length")
    streamed = list(stream_completion(client, prompt="once upon", max_tokens=0, echo=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == "once upon"
    assert node.metric("vllm:iteration_tokens_total_count") == steps


def test_one_token_has_no_log_probability(client: openai.OpenAI) -> None:
    answer = completion(client, prompt=[5], max_tokens=0, echo=True, logprobs=1)
    assert (logprobs_of(answer).token_logprobs, logprobs_of(answer).top_logprobs) == ([None], [None])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": "x", "max_tokens": 0}, "or 0 with echo"),
        ({"prompt": "x", "max_tokens": -1, "echo": True}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 1, "echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": [[7] * 2000] * 4, "max_tokens": 0, "echo": True, "logprobs": 20, "n": 8}, "at most 1000000"),
    ],
)
def test_what_can_not_be_asked_is_refused(node: EngineNode, body: dict[str, Any], says: str) -> None:
    answer = node.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_a_moved_request_has_its_prompts_log_probabilities_once(node: EngineNode) -> None:
    body = {"prompt": LONG, "max_tokens": 200, "echo": True, "logprobs": 0, "temperature": 0, "ignore_eos": True}
    whole = node.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    with node.slowed(200):
        moved = read_stream(
            node,
            "/v1/completions",
            {**body, "stream": True},
            headers={"X-Fleet-Handoff": "accept"},
            on_chunk=lambda count: node.drain(0) if count == 3 else None,
        )
    node.http.post("/admin/resume")
    assert moved.handoff is not None
    rest = read_stream(node, "/internal/continue", moved.handoff)
    parts = [c["logprobs"] for s in (moved, rest) for chunk in s.chunks for c in chunk["choices"] if c["logprobs"]]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [offset for part in parts for offset in part["text_offset"]] == whole["text_offset"]
