"""vLLM's fields of a request, on a real node with a real model; transformers says what is right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.engine import EngineNode, read_stream, start_node, tiny_model_dir
from tests.fixtures.openai import strict_client

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    limits = ("--max-num-batched-tokens", "64", "--num-kv-blocks", "200", "--max-num-seqs", "8")
    with start_node(tmp_path_factory.mktemp("fields"), runner="torch", extra_args=limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: EngineNode) -> Iterator[openai.OpenAI]:
    with strict_client(node.url) as made:
        yield made


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(tiny_model_dir())


def complete(node: EngineNode, **body: Any) -> dict[str, Any]:
    asked = {"prompt": TEXT, "max_tokens": 8, "seed": 3, "ignore_eos": True, "return_token_ids": True, **body}
    answer = node.http.post(COMPLETIONS, json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def drawn(answer: dict[str, Any], index: int = 0) -> list[int]:
    return list(answer["choices"][index]["token_ids"])


def reference_logprobs(token_ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir(), dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([token_ids])).logits[0].float(), -1)


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_prompt_logprobs_are_the_models(node: EngineNode, tokenizer: Tokenizer, kind: str) -> None:
    if kind == "completion":
        answer = complete(node, prompt_logprobs=2)
        entries, token_ids = answer["choices"][0]["prompt_logprobs"], list(tokenizer.encode(TEXT))
    else:
        body = {"messages": HI, "max_tokens": 1, "prompt_logprobs": 2, "return_token_ids": True}
        answer = node.http.post(CHAT, json=body).json()
        entries, token_ids = answer["prompt_logprobs"], answer["choices"][0]["prompt_token_ids"]
    reference = reference_logprobs(token_ids)
    assert entries[0] is None
    assert len(entries) == len(token_ids)
    for at, (token_id, entry) in enumerate(zip(token_ids[1:], entries[1:], strict=True)):
        own = entry[str(token_id)]
        assert own["logprob"] == pytest.approx(float(reference[at, token_id]), abs=2e-3)
        assert own["decoded_token"] == tokenizer.piece(token_id).decode("utf-8", "replace")
        assert own["rank"] == pytest.approx(int((reference[at] > reference[at, token_id]).sum()) + 1, abs=2)
        assert {1, 2} <= {one["rank"] for one in entry.values()}
        assert len(entry) in (2, 3)


def test_the_tokens_asked_for_have_the_models_log_probabilities(node: EngineNode, tokenizer: Tokenizer) -> None:
    ids = [400, 7, 31]
    answer = complete(node, logprobs=0, logprob_token_ids=ids, return_tokens_as_token_ids=True, temperature=0)
    prompt = list(tokenizer.encode(TEXT))
    reference = reference_logprobs([*prompt, *drawn(answer)])[len(prompt) - 1 : -1]
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token_id}" for token_id in drawn(answer)]
    for at, top in enumerate(logprobs["top_logprobs"]):
        assert {f"token_id:{i}" for i in ids} <= set(top)
        assert [top[f"token_id:{i}"] for i in ids] == pytest.approx(reference[at, ids].tolist(), abs=2e-3)
    body = {"messages": HI, "max_tokens": 2, "logprobs": True, "logprob_token_ids": ids, "ignore_eos": True}
    chat = node.http.post(CHAT, json=body | {"return_tokens_as_token_ids": True}).json()
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert [top["token"] for top in entry["top_logprobs"]] == [f"token_id:{i}" for i in ids]


def test_several_choices_share_their_prompt(node: EngineNode) -> None:
    prompt = list(range(40, 140))
    computed = node.metric("vllm:prompt_tokens_by_source_total", source="local_compute") or 0
    answer = complete(node, prompt=prompt, n=4, max_tokens=3)
    assert node.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == computed + 100 + 3 * 4, (
        "each choice computes the last, partial block of the prompt, the first one all of it"
    )
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 12, 112)
    assert len({tuple(drawn(answer, i)) for i in range(4)}) > 1


def test_the_best_of_some_is_the_likeliest_a_token(node: EngineNode, client: openai.OpenAI) -> None:
    every = complete(node, n=5, logprobs=0)
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["token_ids"]) for c in every["choices"]]
    order = sorted(range(5), key=lambda index: -means[index])
    best = complete(node, n=2, best_of=5)
    assert [drawn(best, 0), drawn(best, 1)] == [drawn(every, order[0]), drawn(every, order[1])]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["choices"][0]["logprobs"] is None, "nobody asked for them"
    assert best["usage"]["completion_tokens"] == 5 * 8, "all that was drawn"
    answer = client.completions.create(model="tiny", prompt=[TEXT, "once"], max_tokens=4, best_of=3)
    assert len(answer.choices) == 2


def test_a_prompt_is_text_or_token_ids_or_lists_of_them(node: EngineNode, tokenizer: Tokenizer) -> None:
    ids = list(tokenizer.encode(TEXT))
    expected = drawn(complete(node))
    assert drawn(complete(node, prompt=ids)) == expected
    several = complete(node, prompt=[ids, [5, 6, 7]])
    assert drawn(several) == expected
    assert several["choices"][1]["prompt_token_ids"] == [5, 6, 7]


def test_a_prompt_is_cut_to_its_last_tokens(node: EngineNode, tokenizer: Tokenizer) -> None:
    ids = list(tokenizer.encode(TEXT))
    cut = complete(node, truncate_prompt_tokens=4, echo=True)
    assert cut["choices"][0]["prompt_token_ids"] == ids[-4:]
    assert cut["choices"][0]["text"].startswith(tokenizer.decode(ids[-4:]))
    assert cut["usage"]["prompt_tokens"] == 4
    longest = node.http.get("/v1/models").json()["data"][0]["max_model_len"]
    filled = complete(node, prompt=TEXT * 400, truncate_prompt_tokens=-1)
    assert filled["usage"]["total_tokens"] == longest
    body = {"messages": HI, "truncate_prompt_tokens": 3, "max_tokens": 1}
    assert node.http.post(CHAT, json=body).json()["usage"]["prompt_tokens"] == 3


def test_only_allowed_tokens_are_drawn(node: EngineNode) -> None:
    ids = {50, 60, 70}
    body = {"allowed_token_ids": sorted(ids), "temperature": 2.0, "max_tokens": 30}
    whole = drawn(complete(node, **body))
    assert set(whole) == ids
    streamed = read_stream(
        node,
        COMPLETIONS,
        {"prompt": TEXT, "seed": 3, "ignore_eos": True, "return_token_ids": True, "stream": True, **body},
    )
    assert streamed.token_ids() == whole


def test_bad_words_do_not_come(node: EngineNode, tokenizer: Tokenizer) -> None:
    word = next(
        text
        for token_id in drawn(complete(node, temperature=0, max_tokens=20))
        if len(text := tokenizer.bytes_of(token_id).decode("utf-8", "replace").strip()) > 1
    )
    assert word in complete(node, temperature=0, max_tokens=20)["choices"][0]["text"]
    without = complete(node, temperature=0, max_tokens=20, bad_words=[word])
    banned = {tokenizer.encode(form, add_special_tokens=False) for form in (word, f" {word}")}
    ids = drawn(without)
    for form in banned:
        assert not any(tuple(ids[at : at + len(form)]) == form for at in range(len(ids)))


def test_an_output_that_repeats_itself_ends(node: EngineNode) -> None:
    body = {"allowed_token_ids": [50], "max_tokens": 40}
    limit = {"max_pattern_size": 2, "min_count": 5}
    answer = complete(node, **body, repetition_detection=limit)
    assert drawn(answer) == [50] * 5
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    streamed = read_stream(node, COMPLETIONS, {"prompt": TEXT, "repetition_detection": limit, "stream": True, **body})
    assert streamed.finish_reason() == "repetition"
    at_least = complete(node, **body, repetition_detection=limit, min_tokens=9)
    assert len(drawn(at_least)) == 9
    assert node.metric("vllm:request_success_total", finished_reason="repetition") == 3


def test_special_tokens_are_shown_when_asked_for(node: EngineNode, tokenizer: Tokenizer) -> None:
    token_id, name = next(iter(tokenizer.special_texts.items()))
    body = {"allowed_token_ids": [token_id], "max_tokens": 2}
    assert complete(node, **body)["choices"][0]["text"] == ""
    shown = complete(node, **body, skip_special_tokens=False, spaces_between_special_tokens=True, logprobs=0)
    assert shown["choices"][0]["text"] == name * 2
    assert shown["choices"][0]["logprobs"]["text_offset"] == [0, len(name)]


def test_a_chat_goes_on_with_its_last_message(node: EngineNode) -> None:
    hugging_face = AutoTokenizer.from_pretrained(tiny_model_dir())
    for last in ("Sure, the ", "  user", "a"):
        messages = [*HI, {"role": "assistant", "content": last}]
        expected = hugging_face.apply_chat_template(messages, continue_final_message=True, return_dict=False)
        body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        assert node.http.post("/tokenize", json=body).json()["tokens"] == expected
        answer = node.http.post(CHAT, json=body | {"max_tokens": 1, "return_token_ids": True}).json()
        assert answer["choices"][0]["prompt_token_ids"] == expected


def test_the_body_names_the_request_where_no_header_does(node: EngineNode) -> None:
    answer = node.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "request_id": "mine-1"})
    assert answer.headers["X-Request-Id"] == "mine-1"
    assert answer.json()["id"] == "cmpl-mine-1"
    both = node.http.post(
        COMPLETIONS, json={"prompt": "x", "max_tokens": 1, "request_id": "mine-2"}, headers={"X-Request-Id": "theirs"}
    )
    assert both.json()["id"] == "cmpl-theirs"
    refused = node.http.post(COMPLETIONS, json={"prompt": [10**6], "request_id": "mine-3"})
    assert refused.headers["X-Request-Id"] == "mine-3"


def test_probes_of_other_platforms_are_answered(node: EngineNode) -> None:
    assert node.http.get("/ping").status_code == node.http.post("/ping").status_code == 200
    assert set(node.http.get("/version").json()) == {"version"}


def test_thinking_ends_with_its_budget(tmp_path: Path) -> None:
    thinking = tmp_path / "thinking"
    shutil.copytree(tiny_model_dir(), thinking)
    rust = RustTokenizer.from_file(str(thinking / "tokenizer.json"))
    rust.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    rust.save(str(thinking / "tokenizer.json"))
    start, end = (rust.token_to_id(mark) for mark in ("<think>", "</think>"))
    with start_node(tmp_path, model_dir=thinking) as node:
        body = {"prompt": [5, start], "max_tokens": 12, "ignore_eos": True, "return_token_ids": True, "seed": 1}
        free = node.http.post(COMPLETIONS, json=body).json()["choices"][0]["token_ids"]
        held = node.http.post(COMPLETIONS, json=body | {"thinking_token_budget": 4}).json()["choices"][0]["token_ids"]
        assert end not in free
        assert held[:5] == [*free[:4], end]
        assert len(held) == 12
        streamed = read_stream(node, COMPLETIONS, body | {"thinking_token_budget": 4, "stream": True})
        assert streamed.token_ids() == held
        unlimited = node.http.post(COMPLETIONS, json=body | {"thinking_token_budget": -1}).json()
        assert unlimited["choices"][0]["token_ids"] == free


def test_what_forbids_tokens_travels_with_a_request(tmp_path: Path) -> None:
    body = {
        "prompt": [7, 8, 9],
        "max_tokens": 300,
        "seed": 5,
        "stream": True,
        "return_token_ids": True,
        "allowed_token_ids": list(range(300, 340)),
        "bad_words": ["the"],
        "repetition_detection": {"max_pattern_size": 1, "min_count": 4},
        "logprobs": 0,
        "logprob_token_ids": [301, 302],
        "skip_special_tokens": False,
    }
    headers = {"X-Fleet-Handoff": "accept"}
    with start_node(tmp_path) as source, start_node(tmp_path) as target:
        whole = read_stream(target, COMPLETIONS, body)
        with source.slowed(200):
            first = read_stream(
                source, COMPLETIONS, body, headers=headers, on_chunk=lambda count: count == 4 and source.drain(0)
            )
        assert first.handoff is not None
        second = read_stream(target, "/internal/continue", first.handoff, headers=headers)
    assert second.is_done
    assert [*first.token_ids(), *second.token_ids()] == whole.token_ids()
    assert second.finish_reason() == whole.finish_reason()
    assert whole.chunks[-1]["choices"][0]["logprobs"] == second.chunks[-1]["choices"][0]["logprobs"]
