"""From a validated body to an `Ask`: names, prompts as token ids, sampling with its seed drawn.

Everything that a request needs later is settled here, the seed included, so that another node can go on with it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from engine.api.errors import ApiError
from engine.api.schema import ChatBody, CompletionBody, GenerationBody, Message, TokenizeBody
from engine.inflight import MAX_SEED, Ask, Kind
from engine.node import Node
from engine.step import SamplingParams
from engine.tokenizer import BadChatError

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
INLINE_CHARS = 4096  # tokenising more than this takes longer than a step: it goes to a thread
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's

T = TypeVar("T")


def request_id_of(given: str | None) -> str:
    """The client's X-Request-Id when it is usable, else a new one."""
    return given if given is not None and REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def check_model(node: Node, name: str | None) -> str:
    """The name to answer with. None is this node's only model."""
    if name is None:
        return node.config.model_name
    if name not in node.config.served_model_names:
        raise ApiError(404, f"The model `{name}` does not exist.", code="model_not_found", param="model")
    return name


async def completion_ask(node: Node, body: CompletionBody, request_id: str) -> Ask:
    """Raises ApiError."""
    model = check_model(node, body.model)
    texts, prompts = [], []
    for prompt in _prompts(body):
        if isinstance(prompt, str):
            token_ids = await _tokenise(node, prompt, add_special_tokens=body.add_special_tokens)
        else:
            token_ids = _checked_ids(node, prompt)
        if not token_ids:
            raise ApiError(400, "prompt: must hold at least one token", param="prompt")
        prompts.append(token_ids)
        if body.echo:
            echo = prompt if isinstance(prompt, str) else node.tokenizer.decode(token_ids, skip_special_tokens=True)
            texts.append(echo)
    max_tokens = body.max_tokens or _room(node, prompts, DEFAULT_COMPLETION_TOKENS)
    return _ask(node, body, "completion", model, request_id, prompts, max_tokens, body.logprobs, tuple(texts))


async def chat_ask(node: Node, body: ChatBody, request_id: str) -> Ask:
    """Raises ApiError."""
    model = check_model(node, body.model)
    prompt = await _tokenise_chat(node, body.messages, add_generation_prompt=body.add_generation_prompt)
    max_tokens = body.max_completion_tokens or body.max_tokens or _room(node, [prompt], None)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _ask(node, body, "chat", model, request_id, [prompt], max_tokens, num_logprobs, ())


async def tokenize(node: Node, body: TokenizeBody) -> tuple[int, ...]:
    """Raises ApiError."""
    check_model(node, body.model)
    if body.messages is not None:
        return await _tokenise_chat(node, body.messages, add_generation_prompt=body.add_generation_prompt)
    adds = True if body.add_special_tokens is None else body.add_special_tokens
    return await _tokenise(node, body.prompt or "", add_special_tokens=adds)


def _ask(
    node: Node,
    body: GenerationBody,
    kind: Kind,
    model: str,
    request_id: str,
    prompts: list[tuple[int, ...]],
    max_tokens: int,
    num_logprobs: int | None,
    echo_texts: tuple[str, ...],
) -> Ask:
    cap = node.config.max_output_tokens
    if cap is not None and max_tokens > cap:
        raise ApiError(400, f"max_tokens: {max_tokens} is more than this node's limit of {cap}", param="max_tokens")
    if body.min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens: {body.min_tokens} is more than max_tokens {max_tokens}", param="min_tokens")
    prefix = "chatcmpl" if kind == "chat" else "cmpl"
    return Ask(
        id=f"{prefix}-{request_id}",
        request_id=request_id,
        kind=kind,
        model=model,
        created=int(time.time()),
        prompts=tuple(prompts),
        n=_or(body.n, 1),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(body.temperature, 1.0),
            top_k=max(0, _or(body.top_k, 0)),  # -1 and 0 both keep all
            top_p=_or(body.top_p, 1.0),
            min_p=_or(body.min_p, 0.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            seed=secrets.randbelow(MAX_SEED) if body.seed is None else body.seed & MAX_SEED,
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop_token_ids=_checked_ids(node, body.stop_token_ids or [], param="stop_token_ids"),
            num_logprobs=num_logprobs,
            logit_bias=_biases(node, body),
        ),
        stop=body.stop_strings,
        include_stop=body.include_stop_str_in_output,
        echo_texts=echo_texts,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        return_token_ids=body.return_token_ids,
        priority=body.priority,
        deadline_s=body.deadline_s,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return [ids]
    return [item for item in prompt if not isinstance(item, int)]


def _room(node: Node, prompts: list[tuple[int, ...]], wanted: int | None) -> int:
    """Tokens left for the answer. At least 1: a prompt that fills the context is refused at admission."""
    room = max(1, node.max_sequence_tokens - max(len(p) for p in prompts))
    limits = [limit for limit in (wanted, node.config.max_output_tokens) if limit is not None]
    return min([room, *limits])


def _checked_ids(node: Node, token_ids: list[int], param: str = "prompt") -> tuple[int, ...]:
    for token_id in token_ids:
        if token_id >= node.facts.vocab_size:
            raise ApiError(400, f"{param}: token id {token_id} is out of the vocabulary", param=param)
    return tuple(token_ids)


def _biases(node: Node, body: GenerationBody) -> tuple[tuple[int, float], ...]:
    pairs = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    _checked_ids(node, list(pairs), param="logit_bias")
    return tuple(sorted(pairs.items()))


async def _tokenise(node: Node, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    return await _away(node, len(text), lambda: node.tokenizer.encode(text, add_special_tokens=add_special_tokens))


async def _tokenise_chat(node: Node, messages: list[Message], *, add_generation_prompt: bool) -> tuple[int, ...]:
    def encode() -> tuple[int, ...]:
        text = node.tokenizer.render_chat(
            [message.for_template() for message in messages], add_generation_prompt=add_generation_prompt
        )
        return node.tokenizer.encode(text, add_special_tokens=False)  # the template writes them itself

    size = sum(len(m.content) if isinstance(m.content, str) else INLINE_CHARS for m in messages if m.content)
    try:
        token_ids = await _away(node, size, encode)
    except BadChatError as exc:
        raise ApiError(400, str(exc), param="messages") from exc
    if not token_ids:
        raise ApiError(400, "messages: the conversation has no tokens", param="messages")
    return token_ids


async def _away(node: Node, size_chars: int, work: Callable[[], T]) -> T:
    delay_s = node.faults.slow_tokenizer
    if delay_s is not None:
        await asyncio.to_thread(time.sleep, delay_s)  # in the threads that tokenising shares: they run short as well
    return work() if size_chars <= INLINE_CHARS else await asyncio.to_thread(work)
