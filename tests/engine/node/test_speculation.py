"""Tokens ahead, as clients and scrapers see them: nothing of it in the answers, all of it in the counts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.model.directory import open_model
from tests.fixtures.eagle import drafter_config, random_drafter, write_drafter
from tests.fixtures.engine import EngineNode, read_stream, start_node, tiny_model_dir
from tests.fixtures.medusa import random_heads, write_heads

pytestmark = pytest.mark.e2e

ALWAYS = ("--speculation", "ngram", "--prompt-lookup-min", "1", "--no-adaptive-speculation")
AHEAD = ("--num-speculative-tokens", "6")
# A model of random weights says anything but what it said before; a bias makes it choose among few tokens.
FEW = {"300": 100, "301": 100, "302": 100}
PROMPT = "one and on and on and on and one and on and on"
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 80, "seed": 3, "logit_bias": FEW, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "top_p": 0.9},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
    "choices": {"temperature": 1.0, "n": 3},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    "echo": {"echo": True, "logprobs": 1, "temperature": 0.5},
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineNode, EngineNode]]:
    """One that proposes, one that does not."""
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(start_node(tmp_path_factory.mktemp("node"), runner="torch", extra_args=options))
            for options in ((*ALWAYS, *AHEAD), ())
        ]
        yield made[0], made[1]


def _choices(node: EngineNode, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    answer = node.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"], answer.json()["usage"]


@pytest.mark.parametrize("name", BODIES)
def test_answers_are_the_same_with_and_without(nodes: tuple[EngineNode, EngineNode], name: str) -> None:
    ahead, plain = (_choices(node, BODY | BODIES[name]) for node in nodes)
    assert ahead == plain


def test_a_draft_model_changes_no_answer(nodes: tuple[EngineNode, EngineNode], tmp_path: Path) -> None:
    options = ("--speculation", "draft", "--draft-model", str(tiny_model_dir()), "--num-speculative-tokens", "4")
    with start_node(tmp_path, runner="torch", extra_args=(*options, "--no-adaptive-speculation")) as drafting:
        for name, body in BODIES.items():
            ahead, plain = (_choices(node, BODY | body) for node in (drafting, nodes[1]))
            assert ahead == plain, name
        # without a bias, of which a draft model knows nothing, it is always right about itself
        ahead, plain = (
            _choices(node, {"prompt": PROMPT, "max_tokens": 80, "temperature": 0}) for node in (drafting, nodes[1])
        )
        assert ahead == plain
        assert (drafting.metric("vllm:spec_decode_num_accepted_tokens_total") or 0) > 50


def test_medusa_heads_change_no_answer(nodes: tuple[EngineNode, EngineNode], tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", random_heads(tiny_model_dir(), 3), {"num_heads": 3})
    options = ("--speculation", "medusa", "--draft-model", str(heads), "--no-adaptive-speculation")
    with start_node(tmp_path, runner="torch", extra_args=options) as node:
        for name, body in BODIES.items():
            ahead, plain = (_choices(one, BODY | body) for one in (node, nodes[1]))
            assert ahead == plain, name
        assert (node.metric("vllm:spec_decode_num_draft_tokens_total") or 0) > 50
        told = node.http.get("/info").json()["speculation"]
        assert told == {
            "method": "medusa",
            "num_speculative_tokens": 3,  # as many as there are heads
            "is_adaptive": False,
            "draft_model": "heads",
        }


def test_an_eagle_drafter_changes_no_answer(nodes: tuple[EngineNode, EngineNode], tmp_path: Path) -> None:
    vocab_size = open_model(tiny_model_dir()).config.vocab_size
    drafter = write_drafter(tmp_path / "drafter", random_drafter(vocab_size), drafter_config(vocab_size))
    options = ("--speculation", "eagle3", "--draft-model", str(drafter), "--num-speculative-tokens", "3")
    with start_node(tmp_path, runner="torch", extra_args=(*options, "--no-adaptive-speculation")) as node:
        for name, body in BODIES.items():
            ahead, plain = (_choices(one, BODY | body) for one in (node, nodes[1]))
            assert ahead == plain, name
        assert (node.metric("vllm:spec_decode_num_draft_tokens_total") or 0) > 50
        assert node.http.get("/info").json()["speculation"] == {
            "method": "eagle3",
            "num_speculative_tokens": 3,
            "is_adaptive": False,
            "draft_model": "drafter",
        }


def test_heads_of_another_model_end_the_start_in_one_line(tmp_path: Path) -> None:
    heads = write_heads(tmp_path / "heads", random_heads(tiny_model_dir(), 1), {"hidden_size": 64})
    command = [sys.executable, "-m", "engine", "serve", "--model", str(tiny_model_dir()), "--port", "0"]
    ended = subprocess.run(
        [*command, "--speculation", "medusa", "--draft-model", str(heads)], capture_output=True, text=True, timeout=150
    )
    assert ended.returncode == 2
    assert f"{heads}/config.json: hidden_size: 64, the model's is 128" in ended.stderr


def test_answer_ends_at_its_stop_string(nodes: tuple[EngineNode, EngineNode]) -> None:
    (whole,), _ = _choices(nodes[1], BODY)
    stop = whole["text"][len(whole["text"]) // 2 :][:7]
    ahead, plain = (_choices(node, BODY | {"stop": [stop], "logprobs": 1}) for node in nodes)
    assert ahead == plain
    assert ahead[0][0]["finish_reason"] == "stop"
    assert stop not in ahead[0][0]["text"]


def test_streams_carry_the_same_tokens(nodes: tuple[EngineNode, EngineNode]) -> None:
    body = BODY | {"stream": True, "return_token_ids": True, "logprobs": 1}
    ahead, plain = (read_stream(node, "/v1/completions", body) for node in nodes)
    assert ahead.token_ids() == plain.token_ids()
    assert ahead.text() == plain.text()
    assert len(ahead.chunks) < len(plain.chunks), "several tokens at a time"


def test_answer_moves_to_a_node_that_does_not_propose(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    body = BODY | {"stream": True, "return_token_ids": True, "max_tokens": 300}
    expected = read_stream(target, "/v1/completions", body).token_ids()

    def on_chunk(count: int) -> None:
        if count == 3:
            source.drain(0)

    with source.slowed(300):
        first = read_stream(source, "/v1/completions", body, headers={"X-Fleet-Handoff": "accept"}, on_chunk=on_chunk)
    source.http.post("/admin/resume")
    assert first.handoff is not None
    rest = read_stream(target, "/internal/continue", first.handoff)
    assert [*first.token_ids(), *rest.token_ids()] == expected


def test_proposals_are_counted_under_the_names_of_vllm(nodes: tuple[EngineNode, EngineNode]) -> None:
    node, plain = nodes
    before = node.metric("vllm:spec_decode_num_accepted_tokens_total") or 0
    _choices(node, BODY)
    drafts, proposed, accepted = (
        node.metric(f"vllm:spec_decode_num_{what}_total") for what in ("drafts", "draft_tokens", "accepted_tokens")
    )
    at = [node.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(7)]
    assert accepted is not None
    assert accepted > before
    assert drafts is not None
    assert proposed is not None
    assert at[6] is None, "six are proposed at most"
    assert sum(count or 0 for count in at) == accepted
    assert at[0] is not None
    assert drafts >= at[0] >= (at[1] or 0)
    assert proposed >= accepted
    assert plain.metric("vllm:spec_decode_num_drafts_total") == 0
    assert plain.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0") is None
    assert [event["method"] for event in node.events("speculation.on")] == ["ngram"]
    assert not plain.events("speculation.on")
    told = [one.http.get("/info").json()["speculation"] for one in nodes]
    assert told == [
        {
            "method": "ngram",
            "num_speculative_tokens": 6,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 5,
            "is_adaptive": False,
        },
        None,
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--num-speculative-tokens", "0"), "--num-speculative-tokens 0: must be at least 1"),
        (("--num-speculative-tokens", "33"), "--num-speculative-tokens 33: must be at most 32"),
        (("--speculation", "draft"), "--draft-model DIR: one needs the other"),
        (("--speculation", "draft", "--draft-model", "/nowhere"), "--draft-model /nowhere: no such directory"),
        (("--prompt-lookup-min", "4", "--prompt-lookup-max", "3"), "--prompt-lookup-min 4: must be at most"),
    ],
)
def test_options_that_can_not_be_are_one_line(options: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-m", "engine", "serve", "--model", str(tiny_model_dir()), "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 2
    assert words in ended.stderr
