"""From a validated body to a `GenerationRequest`: names, prompts as token ids, sampling with its seed settled.

Everything that a request needs later is settled here, the seed included, so that another node can go on with it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from engine.api.constrain import output_grammar
from engine.api.errors import ApiError
from engine.api.schema import MAX_ECHOED_LOGPROBS, ChatBody, CompletionBody, GenerationBody, Message, TokenizeBody
from engine.api.tools import chat_grammar, plan_tools
from engine.node.generation_request import MAX_SEED, GenerationRequest, Kind, seed_of
from engine.node.refusal import TooLongError, check_fits
from engine.node.request_record import Arrival
from engine.node.served_model import INLINE_CHARS, ServedModel
from engine.protocol.step import SamplingParams
from engine.text.tokenizer import BadChatError

LEFT_OUT_FACTOR = 4  # a template may leave out some of a history, but hardly three quarters
PLAIN_CHARS_PER_TOKEN = 16  # a text with so many is no prose: what is longer is judged by its beginning
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's

T = TypeVar("T")


def check_model(model: ServedModel, name: str | None) -> str:
    """The name to answer with. None is this node's only model."""
    if name is None:
        return model.names[0]
    if name not in model.names:
        raise ApiError(404, f"The model `{name}` does not exist.", code="model_not_found", param="model")
    return name


async def completion_request(model: ServedModel, body: CompletionBody, arrival: Arrival) -> GenerationRequest:
    """What a body asks for, as one request. Raises ApiError, TooLongError, RefusedError."""
    name = check_model(model, body.model)
    texts, prompts = [], []
    for prompt in _prompts(body):
        if isinstance(prompt, str):
            token_ids = await _tokenise(model, prompt, add_special_tokens=body.add_special_tokens)
        else:
            token_ids = _checked_ids(model, prompt)
        if not token_ids:
            raise ApiError(400, "prompt: must hold at least one token", param="prompt", code="invalid_value")
        # Before the next one is tokenised.
        check_fits(len(token_ids), 1 if body.max_tokens is None else body.max_tokens, model.max_sequence_tokens)
        prompts.append(token_ids)
        if body.echo:
            echo = prompt if isinstance(prompt, str) else model.tokenizer.decode(token_ids, skip_special_tokens=True)
            texts.append(echo)
    max_tokens = _room(model, prompts, DEFAULT_COMPLETION_TOKENS) if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: must be at least 1, or 0 with echo", param="max_tokens", code="invalid_value")
    if body.echo and body.logprobs is not None:
        asked = sum(map(len, prompts)) * _or(body.n, 1) * (body.logprobs + 1)
        if asked > MAX_ECHOED_LOGPROBS:
            message = f"logprobs: {asked} log probabilities of prompt tokens, at most {MAX_ECHOED_LOGPROBS} are allowed"
            raise ApiError(400, message, param="logprobs", code="invalid_value")
    request = _generation_request(
        model, body, "completion", name, arrival, prompts, max_tokens, body.logprobs, tuple(texts)
    )
    return with_grammar(request, await output_grammar(model, body, arrival.client))


async def chat_request(model: ServedModel, body: ChatBody, arrival: Arrival) -> GenerationRequest:
    """What a body asks for, as one request. Raises ApiError, TooLongError, RefusedError."""
    name = check_model(model, body.model)
    plan = plan_tools(model, body)
    prompt = await _tokenise_chat(model, body, body.messages, plan.rendered)
    asked = body.max_completion_tokens or body.max_tokens
    max_tokens = asked or _room(model, [prompt], model.facts.sampling.max_new_tokens)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    request = _generation_request(model, body, "chat", name, arrival, [prompt], max_tokens, num_logprobs, ())
    request = msgspec.structs.replace(request, tool_format=plan.format, max_tool_calls=plan.max_calls)
    return with_grammar(request, await chat_grammar(model, body, body, plan, arrival.client))


def with_grammar(request: GenerationRequest, grammar: str | None) -> GenerationRequest:
    """The request with what its answer must look like."""
    return msgspec.structs.replace(request, sampling=replace(request.sampling, grammar=grammar))


def with_deadline(request: GenerationRequest, deadline_s: float) -> GenerationRequest:
    """The request with this deadline, unless its own is earlier."""
    return msgspec.structs.replace(request, deadline_s=min(deadline_s, request.deadline_s or deadline_s))


async def tokenize(model: ServedModel, body: TokenizeBody) -> tuple[int, ...]:
    """Raises ApiError."""
    check_model(model, body.model)
    if body.messages is not None:
        tools = tuple(tool.for_template() for tool in body.tools) if body.tools else None
        return await _tokenise_chat(model, body, body.messages, tools)
    adds = True if body.add_special_tokens is None else body.add_special_tokens
    return await _tokenise(model, body.prompt or "", add_special_tokens=adds)


def _generation_request(
    model: ServedModel,
    body: GenerationBody,
    kind: Kind,
    name: str,
    arrival: Arrival,
    prompts: list[tuple[int, ...]],
    max_tokens: int,
    num_logprobs: int | None,
    echo_texts: tuple[str, ...],
) -> GenerationRequest:
    cap = model.max_output_tokens
    if cap is not None and max_tokens > cap:
        message = f"max_tokens: {max_tokens} is more than this node's limit of {cap}"
        raise ApiError(400, message, param="max_tokens", code="invalid_value")
    if body.min_tokens > max_tokens:
        message = f"min_tokens: {body.min_tokens} is more than max_tokens {max_tokens}"
        raise ApiError(400, message, param="min_tokens", code="invalid_value")
    defaults = model.facts.sampling
    prefix = "chatcmpl" if kind == "chat" else "cmpl"
    return GenerationRequest(
        answer_id=f"{prefix}-{arrival.request_id}",
        request_id=arrival.request_id,
        kind=kind,
        model=name,
        created=int(time.time()),
        prompts=tuple(prompts),
        n=_or(body.n, 1),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(body.temperature, defaults.temperature),
            top_k=max(0, _or(body.top_k, defaults.top_k)),  # -1 and 0 both keep all
            top_p=_or(body.top_p, defaults.top_p),
            min_p=_or(body.min_p, defaults.min_p),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
            seed=seed_of(arrival.seed_id) if body.seed is None else body.seed & MAX_SEED,
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop_token_ids=_checked_ids(model, body.stop_token_ids or [], param="stop_token_ids"),
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_logprobs if echo_texts else None,
            logit_bias=_biases(model, body),
        ),
        stop=body.stop_strings,
        include_stop=body.include_stop_str_in_output,
        echo_texts=echo_texts,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        continuous_usage=body.stream_options is not None and body.stream_options.continuous_usage_stats,
        cache_salt=body.cache_salt or "",
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


def _room(model: ServedModel, prompts: list[tuple[int, ...]], wanted: int | None) -> int:
    """Tokens left for the answer. At least 1: a prompt that fills the context is refused at admission."""
    room = max(1, model.max_sequence_tokens - max(len(p) for p in prompts))
    limits = [limit for limit in (wanted, model.max_output_tokens) if limit is not None]
    return min([room, *limits])


def _checked_ids(model: ServedModel, token_ids: list[int], param: str = "prompt") -> tuple[int, ...]:
    if token_ids and (largest := max(token_ids)) >= model.facts.vocab_size:
        raise ApiError(400, f"{param}: token id {largest} is out of the vocabulary", param=param, code="invalid_value")
    return tuple(token_ids)


def _biases(model: ServedModel, body: GenerationBody) -> tuple[tuple[int, float], ...]:
    pairs = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    _checked_ids(model, list(pairs), param="logit_bias")
    return tuple(sorted(pairs.items()))


async def detokenize(model: ServedModel, token_ids: list[int]) -> str:
    """Raises ApiError."""
    _checked_ids(model, token_ids, param="tokens")
    return await model.beside_loop(len(token_ids), lambda: model.tokenizer.decode(token_ids))


def _check_length(model: ServedModel, num_chars: int, factor: int = 1) -> None:
    """Raises TooLongError for text that can't fit `factor` contexts however it is tokenised, which takes seconds."""
    least = model.tokenizer.least_tokens(num_chars)
    if least > factor * model.max_sequence_tokens:
        raise TooLongError(
            f"This model's maximum context length is {model.max_sequence_tokens} tokens. However, your text of "
            f"{num_chars} characters has at least {least} tokens. Please shorten it."
        )


async def _tokenise(model: ServedModel, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    _check_length(model, len(text))
    return await model.beside_loop(len(text), lambda: _encode(model, text, add_special_tokens=add_special_tokens))


def _encode(model: ServedModel, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Raises TooLongError for a text of far more tokens than can fit, from its beginning alone."""
    limit = model.max_sequence_tokens
    if len(text) > PLAIN_CHARS_PER_TOKEN * limit:
        least = model.tokenizer.count(text[: PLAIN_CHARS_PER_TOKEN * limit])
        if least > 2 * limit:  # where it was cut, a few tokens may be other ones
            raise TooLongError(
                f"This model's maximum context length is {limit} tokens. However, the first "
                f"{PLAIN_CHARS_PER_TOKEN * limit} of the {len(text)} characters of your text have {least} tokens. "
                "Please shorten it."
            )
    return model.tokenizer.encode(text, add_special_tokens=add_special_tokens)


async def _tokenise_chat(
    model: ServedModel, body: ChatBody | TokenizeBody, messages: list[Message], tools: tuple[dict[str, Any], ...] | None
) -> tuple[int, ...]:
    def encode() -> tuple[int, ...]:
        try:
            shown = [message.for_template() for message in messages]
        except (ValueError, RecursionError) as exc:  # JSON of thousands of digits or levels
            raise BadChatError(f"messages: the arguments of a tool call can't be read: {exc}") from exc
        text = model.tokenizer.render_chat(
            shown,
            add_generation_prompt=body.add_generation_prompt,
            tools=tools,
            arguments=body.chat_template_kwargs or {},
        )
        _check_length(model, len(text))
        return _encode(model, text, add_special_tokens=False)  # the template writes them itself

    size = sum(message.num_chars for message in messages)
    _check_length(model, size, LEFT_OUT_FACTOR)  # before it is rendered, which takes seconds as well
    size += INLINE_CHARS * len(tools or ())  # their schemas are not measured: they go to a thread
    try:
        token_ids = await model.beside_loop(size, encode)
    except BadChatError as exc:
        raise ApiError(400, str(exc), param="messages") from exc
    if not token_ids:
        raise ApiError(400, "messages: the conversation has no tokens", param="messages")
    return token_ids
