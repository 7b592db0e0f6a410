"""The soak's requests: of every kind that a node serves, with answers that a quiet run tells. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PLAIN_EVERY = 3
SHARED = "You are a careful assistant. Answer briefly and say what you do not know. " * 3  # found in the prefix cache

SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "string", "pattern": "^[a-z ]{30,40}$"}, "grade": {"enum": [1, 2, 3]}},
    "required": ["words", "grade"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "say", "parameters": SCHEMA}}
STOPS = ["th", "an", "zz"]  # of the made model's answers, the first ones come within some ten tokens
EACH_EVENT = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

Fields = Mapping[str, Any]
KINDS: Mapping[str, tuple[str, Fields]] = MappingProxyType(
    {
        "greedy": (COMPLETIONS, {"temperature": 0, "ignore_eos": True}),
        "seeded": (COMPLETIONS, {"temperature": 0.8, "ignore_eos": True}),
        "greedy chat": (CHAT, {"temperature": 0, "ignore_eos": True, "return_token_ids": True}),
        "seeded chat": (CHAT, {"ignore_eos": True}),
        "chat without a seed": (CHAT, {"ignore_eos": True, "seed": None}),
        "chat with logprobs": (CHAT, {"ignore_eos": True, "logprobs": True, "top_logprobs": 2}),
        "logprobs": (COMPLETIONS, {"ignore_eos": True, "logprobs": 2, "echo": True}),
        "stop strings": (COMPLETIONS, {"ignore_eos": True, "stop": STOPS, "min_tokens": 20}),
        "several choices": (CHAT, {"ignore_eos": True, "n": 3, "stop": STOPS, "min_tokens": 8}),
        "several prompts": (COMPLETIONS, {"ignore_eos": True, "return_token_ids": True}),
        "structured output": (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        "tools": (CHAT, {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}),
        "penalties": (CHAT, {"ignore_eos": True, "presence_penalty": 0.4, "logit_bias": {"65": 2}}),
        "usage in each event": (COMPLETIONS, {"ignore_eos": True, "return_token_ids": True}),
    }
)
"""Path and fields of each kind."""
UNBOUNDED = frozenset({"structured output", "tools"})  # a grammar ends them, not a number of tokens


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request. Its answer is the same on every node; without a seed, under every request id."""

    kind: str
    path: str
    content: str  # its body as JSON, without the model
    is_streamed: bool
    has_seed: bool = True

    def body(self, model: str) -> dict[str, Any]:
        """What is sent."""
        fields: dict[str, Any] = json.loads(self.content)
        return {"model": model, **fields}


def make_requests(count: int, seed: int) -> list[SoakRequest]:
    """Every kind in turn, streamed or plain, short or long."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    made = []
    for number in range(count):
        turn, at = divmod(number, len(kinds))
        made.append(_make(kinds[at], number, rng, is_streamed=(turn + at) % PLAIN_EVERY != 0))
    return made


def _make(kind: str, number: int, rng: random.Random, *, is_streamed: bool) -> SoakRequest:
    path, fields = KINDS[kind]
    prompt = SHARED * (rng.random() < 0.5) + _words(rng, rng.choice((8, 40, 200)))
    max_tokens = rng.choice((8, 40, 120, 300))
    body: dict[str, Any] = {"max_tokens": 400 if kind in UNBOUNDED else max_tokens, "seed": number, **fields}
    if body["seed"] is None:
        del body["seed"]
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = [prompt, _words(rng, 5)] if kind == "several prompts" else prompt
    if "min_tokens" in body:
        body["max_tokens"] = max(max_tokens, 2 * body["min_tokens"])
    if is_streamed:
        usage = EACH_EVENT if kind == "usage in each event" else {"stream_options": {"include_usage": True}}
        body |= {"stream": True, **usage}
    return SoakRequest(kind, path, json.dumps(body, sort_keys=True), is_streamed, has_seed="seed" in body)


def _words(rng: random.Random, count: int) -> str:
    return " ".join(f"word{rng.randrange(500)}" for _ in range(count))
