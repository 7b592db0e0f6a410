"""The known prompt: how each kind of engine is asked to complete it, and what its answer says. Pure.

Each kind has several ways to ask, the most telling first: an engine that refuses one (400, 422) is asked by the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetctl.engines.greedy_answer import Answer, Candidate, Token

PROMPT = "Monday, Tuesday, Wednesday,"
"""Whatever a model is for, it goes on with certainty: near ties are rare, also where no log probabilities are given.
Short: a whole block would be answered from the prefix cache, and most of the model would not be asked."""
ANSWER_TOKENS = 8
NUM_BEST = 3
LATEST = 1_000_000  # vLLM: the request with the lowest number goes first


class BadAnswerError(ValueError):
    """What came is no completion."""


@dataclass(frozen=True, slots=True)
class Question:
    """One POST that asks for the completion."""

    path: str
    body: Mapping[str, Any] = field(default_factory=dict)


def questions(engine: str, model: str, latest: int | None = None) -> Sequence[Question]:
    """The ways to ask this kind of engine, the most telling first. `latest`: the priority that lets everybody else go
    first, where the engine has one."""
    if engine == "tgi":
        return tuple(_of_tgi())
    if engine == "sglang":
        return tuple(_of_sglang(latest))
    return tuple(_of_openai(engine, model, LATEST if engine == "vllm" else None))


def latest_of_sglang(info: Mapping[str, Any]) -> int | None:
    """The priority after all others, by `/server_info`; None where it schedules by none."""
    if info.get("enable_priority_scheduling") is not True:
        return None
    return LATEST if info.get("schedule_low_priority_values_first") is True else -LATEST


def answer_of(engine: str, told: object) -> Answer:
    """The answer in what the engine sent. Raises BadAnswerError."""
    try:
        if engine == "tgi":
            return _read_tgi(told)
        return _read_sglang(told) if engine == "sglang" else _read_openai(told)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswerError(f"no completion that we can read ({type(error).__name__}: {error})") from error


def _of_openai(engine: str, model: str, latest: int | None) -> Iterator[Question]:
    path = "/v1/completions"
    plain = {"model": model, "prompt": PROMPT, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    more: dict[str, Any] = {"logprobs": NUM_BEST}
    if engine in ("vllm", "trtllm", "llamacpp"):
        more["ignore_eos"] = True
    if engine == "llamacpp":
        more["cache_prompt"] = False  # else what a slot has kept decides the batches, and with them near ties
    if latest is not None:
        yield Question(path, {**plain, **more, "priority": latest})
    yield Question(path, {**plain, **more})
    yield Question(path, plain)


def _of_tgi() -> Iterator[Question]:
    plain = {"max_new_tokens": ANSWER_TOKENS, "do_sample": False, "details": True}
    yield Question("/generate", {"inputs": PROMPT, "parameters": {**plain, "top_n_tokens": NUM_BEST}})
    yield Question("/generate", {"inputs": PROMPT, "parameters": plain})


def _of_sglang(latest: int | None) -> Iterator[Question]:
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    body = {"text": PROMPT, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": NUM_BEST}
    if latest is not None:
        yield Question("/generate", {**body, "priority": latest})
    yield Question("/generate", body)
    yield Question("/generate", {"text": PROMPT, "sampling_params": sampling})


def _read_openai(told: Any) -> Answer:
    choice = told["choices"][0]
    given = choice.get("logprobs") or {}
    if "content" in given:  # as in chats: llama.cpp
        tokens = tuple(
            Token(
                one["token"],
                _nats(one["logprob"]),
                tuple(Candidate(best["token"], _nats(best["logprob"])) for best in one.get("top_logprobs") or ()),
            )
            for one in given["content"] or ()
        )
    else:
        names, chances = given.get("tokens") or (), given.get("token_logprobs") or ()
        best = given.get("top_logprobs") or [None] * len(names)
        tokens = tuple(
            Token(name, _nats(chance), tuple(Candidate(key, _nats(value)) for key, value in (top or {}).items()))
            for name, chance, top in zip(names, chances, best, strict=True)
        )
    return Answer(_text(choice["text"]), tokens)


def _read_tgi(told: Any) -> Answer:
    told = told[0] if isinstance(told, list) else told
    details = told.get("details") or {}
    named = details.get("tokens") or ()
    best = details.get("top_tokens") or [()] * len(named)
    tokens = tuple(
        Token(str(one["id"]), _nats(one["logprob"]), tuple(Candidate(str(b["id"]), _nats(b["logprob"])) for b in top))
        for one, top in zip(named, best, strict=True)
    )
    return Answer(_text(told["generated_text"]), tokens)


def _read_sglang(told: Any) -> Answer:
    meta = told.get("meta_info") or {}
    chosen = meta.get("output_token_logprobs") or ()
    best = meta.get("output_top_logprobs") or [()] * len(chosen)
    tokens = tuple(
        Token(str(token), _nats(chance), tuple(Candidate(str(one[1]), _nats(one[0])) for one in top or ()))
        for (chance, token, *_), top in zip(chosen, best, strict=True)
    )
    return Answer(_text(told["text"]), tokens)


def _nats(value: Any) -> float:
    """A log probability. NaN and infinity are as vLLM writes them, so that JSON can hold them everywhere."""
    return float(value) if math.isfinite(value) else -9999.0


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"its text is {type(value).__name__}")
    return value
