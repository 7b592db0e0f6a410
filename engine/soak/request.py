"""Requests of all kinds, drawn from a seed: good, bad, too large, too late, given up. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WORDS = ("once", "upon", "a", "time", "the", "node", "held", "every", "block", "and", "gave", "it", "back", "🙂", "é")
NUM_KNOWN = 8
SHARED = "You are a careful assistant. Answer briefly and say what you do not know. " * 4  # found in the prefix cache


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request, and where its client hangs up: after so many events, or so many seconds."""

    kind: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    hang_up_events: int | None = None
    hang_up_s: float | None = None
    is_bad: bool = False  # no node would take it
    answer: str | None = None  # names the one answer that it must get, whatever else happens to the node


def draw_request(rng: random.Random) -> SoakRequest:
    """One request of the mix; the same state of `rng` gives the same request."""
    makers, weights = zip(*_MAKERS, strict=True)
    maker: Callable[[random.Random], SoakRequest] = rng.choices(makers, weights)[0]
    return maker(rng)


def known_requests() -> list[SoakRequest]:
    """Requests whose tokens are known once each was answered alone: greedy and seeded, with whatever changes a step."""
    return [_known_request(number, stream=False, headers={}) for number in range(NUM_KNOWN)]


def _known_request(number: int, *, stream: bool, headers: dict[str, str]) -> SoakRequest:
    rng = random.Random(number)
    words = _text(rng, 12)
    # Words that come again, so that tokens ahead have something to propose.
    body: dict[str, Any] = {"prompt": (SHARED if number % 2 else "") + f"{words} {words} {words}", "seed": number}
    body |= {"max_tokens": 60 + 20 * number, "ignore_eos": True, "return_token_ids": True}
    body["temperature"] = 0.0 if number % 3 == 0 else 0.8
    if number % 4 == 1:
        body |= {"logprobs": 2, "repetition_penalty": 1.2}
    if number % 4 == 3:
        body |= {"frequency_penalty": 0.5, "top_k": 20, "min_p": 0.01}
    sent = json.dumps(body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})).encode()
    return SoakRequest("known", COMPLETIONS, sent, headers, stream, answer=f"known-{number}")


def _known(rng: random.Random) -> SoakRequest:
    headers = {"X-Fleet-Handoff": "accept"} if rng.random() < 0.5 else {}
    return _known_request(rng.randrange(NUM_KNOWN), stream=rng.random() < 0.5, headers=headers)


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def _body(rng: random.Random, *, chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": rng.randint(1, 60), "priority": rng.choice((0, 0, 0, -5, 5))}
    prompt = (SHARED if rng.random() < 0.5 else "") + _text(rng, rng.randint(1, 60))
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if rng.random() < 0.5:
        body["seed"] = rng.randrange(1000)
    if rng.random() < 0.5:
        body["ignore_eos"] = True
    if rng.random() < 0.2:
        body["stop"] = ["the", _text(rng, 2)]
    if rng.random() < 0.2:
        body["logit_bias"] = {str(rng.randrange(3, 100)): rng.uniform(-5, 5)}
    return body


def _make(rng: random.Random, kind: str, body: dict[str, Any], *, chat: bool, **more: Any) -> SoakRequest:
    stream = bool(body.get("stream"))
    if stream:
        body["stream_options"] = {"include_usage": True}
    headers = {"X-Fleet-Handoff": "accept"} if rng.random() < 0.5 else {}
    headers |= more.pop("headers", {})
    path = CHAT if chat else COMPLETIONS
    return SoakRequest(kind, path, json.dumps(body).encode(), headers, stream, **more)


def _good(rng: random.Random) -> SoakRequest:
    chat, stream = rng.random() < 0.5, rng.random() < 0.6
    body = _body(rng, chat=chat) | {"stream": stream}
    return _make(rng, f"{'chat' if chat else 'completion'}{'-stream' if stream else ''}", body, chat=chat)


def _several(rng: random.Random) -> SoakRequest:
    body = _body(rng, chat=False) | {"n": rng.randint(2, 4), "stream": rng.random() < 0.5, "max_tokens": 12}
    body["prompt"] = [_text(rng, rng.randint(1, 20)) for _ in range(rng.randint(1, 3))]
    return _make(rng, "several-choices", body, chat=False)


def _logprobs(rng: random.Random) -> SoakRequest:
    if chat := rng.random() < 0.5:
        body = _body(rng, chat=True) | {"logprobs": True, "top_logprobs": 3}
    else:
        body = _body(rng, chat=False) | {"logprobs": 3}
    return _make(rng, "logprobs", body | {"stream": rng.random() < 0.5}, chat=chat)


def _echoed(rng: random.Random) -> SoakRequest:
    more = {"echo": True, "logprobs": rng.choice((None, 2)), "max_tokens": rng.randint(0, 8)}
    return _make(rng, "echo", _body(rng, chat=False) | more | {"stream": rng.random() < 0.5}, chat=False)


def _structured(rng: random.Random) -> SoakRequest:
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted: dict[str, Any] = rng.choice(
        (
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}},
            {"structured_outputs": {"choice": ["yes", "no"]}},
        )
    )
    body = _body(rng, chat=True) | wanted | {"stream": rng.random() < 0.5}
    return _make(rng, "structured", body, chat=True)


def _long(rng: random.Random) -> SoakRequest:
    body = _body(rng, chat=False) | {"max_tokens": 300, "ignore_eos": True, "stream": True}
    return _make(rng, "long", body, chat=False)


def _given_up(rng: random.Random) -> SoakRequest:
    stream = rng.random() < 0.7
    body = _body(rng, chat=True) | {"max_tokens": 300, "ignore_eos": True, "stream": stream}
    if stream and rng.random() < 0.6:
        return _make(rng, "given-up", body, chat=True, hang_up_events=rng.randint(1, 40))
    return _make(rng, "given-up", body, chat=True, hang_up_s=rng.uniform(0.001, 0.5))


def _late(rng: random.Random) -> SoakRequest:
    body = _body(rng, chat=True) | {"max_tokens": 300, "ignore_eos": True, "stream": rng.random() < 0.5}
    limit = {"X-Fleet-Deadline-S": f"{rng.uniform(0.001, 0.4):.4f}"}
    return _make(rng, "deadline", body, chat=True, headers=limit)


def _bad(rng: random.Random) -> SoakRequest:
    good = {"prompt": "x", "max_tokens": 2}
    content = rng.choice(
        (
            b"",
            b"{",
            b"[" * 5000,
            b"\xff\xfe",
            b'{"prompt": NaN}',
            b'{"prompt": "\\ud800"}',
            json.dumps({**good, "model": "other"}).encode(),
            json.dumps({**good, "temperature": 9}).encode(),
            json.dumps({**good, "n": 10**30}).encode(),
            json.dumps({**good, "logit_bias": {str(i): 1 for i in range(3000)}}).encode(),
            json.dumps({**good, "prompt": [10**9]}).encode(),
            json.dumps({**good, "prompt": ["x"] * 500}).encode(),
            json.dumps({**good, "max_tokens": 100_000}).encode(),
            json.dumps({**good, "stop": ["a"] * 100}).encode(),
        )
    )
    return SoakRequest("bad", COMPLETIONS, content, is_bad=True)


def _oversize(rng: random.Random) -> SoakRequest:
    text = "a " * (40_000 if rng.random() < 0.5 else 15_000)  # past the body's limit, or the context's
    return SoakRequest("oversize", COMPLETIONS, json.dumps({"prompt": text}).encode(), is_bad=True)


_MAKERS: tuple[tuple[Callable[[random.Random], SoakRequest], int], ...] = (
    (_good, 40),
    (_known, 12),
    (_several, 8),
    (_logprobs, 8),
    (_echoed, 4),
    (_structured, 4),
    (_long, 6),
    (_given_up, 20),
    (_late, 8),
    (_bad, 8),
    (_oversize, 2),
)
