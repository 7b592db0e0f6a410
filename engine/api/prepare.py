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
from engine.api.schema import (
    MAX_ECHOED_LOGPROBS,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Message,
    TokenizeBody,
    WorkBody,
)
from engine.api.token_rules import bad_words, repetition, thinking
from engine.api.tools import chat_grammar, plan_tools
from engine.node.generation_request import MAX_SEED, GenerationRequest, Kind, seed_of
from engine.node.refusal import TooLongError, check_fits
from engine.node.request_record import Arrival
from engine.node.served_model import INLINE_CHARS, ServedModel
from engine.protocol.step import SamplingParams
from engine.text.tokenizer import BadChatError

LEFT_OUT_FACTOR = 4  # a template may leave out some of a history, but hardly three quarters
PLAIN_CHARS_PER_TOKEN = 16  # a text with so many is no prose: what is longer is judged by its beginning
TRUNCATED_CONTEXTS = 16  # what may be cut from is no longer than so many contexts: all of it is tokenised
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
    texts: list[str] = []
    prompts: list[tuple[int, ...]] = []
    for prompt in _prompts(body):
        if isinstance(prompt, str):
            token_ids = await tokenise(
                model, prompt, add_special_tokens=body.add_special_tokens, contexts=contexts(body)
            )
        else:
            token_ids = checked_ids(model, prompt)
        whole, token_ids = token_ids, truncated(model, body, token_ids, body.max_tokens)
        if not token_ids:
            raise ApiError(400, "prompt: must hold at least one token", param="prompt", code="invalid_value")
        # Before the next one is tokenised.
        check_fits(len(token_ids), 1 if body.max_tokens is None else body.max_tokens, model.max_sequence_tokens)
        prompts.append(token_ids)
        if body.echo:
            if isinstance(prompt, str) and len(whole) == len(token_ids):
                texts.append(prompt)
                continue
            hides = body.skip_special_tokens is not False
            texts.append(model.tokenizer.decode(token_ids, skip_special_tokens=hides))
    num_choices = max(_or(body.n, 1), _or(body.best_of, 1))
    max_tokens = _room(model, prompts, DEFAULT_COMPLETION_TOKENS) if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: must be at least 1, or 0 with echo", param="max_tokens", code="invalid_value")
    if body.echo and body.logprobs is not None:
        _check_scored("logprobs", body.logprobs, prompts, num_choices)
    request = _generation_request(
        model, body, "completion", name, arrival, prompts, max_tokens, body.logprobs, tuple(texts)
    )
    if num_choices > request.n:
        request = _with_best(request, num_choices)
    return with_grammar(request, await output_grammar(model, body, arrival.client))


async def chat_request(model: ServedModel, body: ChatBody, arrival: Arrival) -> GenerationRequest:
    """What a body asks for, as one request. Raises ApiError, TooLongError, RefusedError."""
    name = check_model(model, body.model)
    plan = plan_tools(model, body)
    asked = body.max_completion_tokens or body.max_tokens
    prompt = await _tokenise_chat(model, body, body.messages, plan.rendered, contexts=contexts(body))
    prompt = truncated(model, body, prompt, asked)
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
    return await tokenise(model, body.prompt or "", add_special_tokens=adds)


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
    if body.prompt_logprobs is not None:
        _check_scored("prompt_logprobs", body.prompt_logprobs, prompts, _or(body.n, 1))
    scored = [num for num in (num_logprobs if echo_texts else None, body.prompt_logprobs) if num is not None]
    logprob_ids = checked_ids(model, body.logprob_token_ids or [], param="logprob_token_ids")
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
            stop_token_ids=checked_ids(model, body.stop_token_ids or [], param="stop_token_ids"),
            num_logprobs=len(logprob_ids) or num_logprobs,
            num_prompt_logprobs=max(scored, default=None),
            logit_bias=_biases(model, body),
            allowed_token_ids=checked_ids(model, body.allowed_token_ids or [], param="allowed_token_ids"),
            bad_words=bad_words(model.tokenizer, body.bad_words or []),
            thinking=thinking(model.tokenizer, body.thinking_token_budget),
            repetition=repetition(body.repetition_detection),
            logprob_token_ids=logprob_ids,
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
        prompt_logprobs=body.prompt_logprobs,
        shows_special_tokens=body.skip_special_tokens is False,
        shows_token_ids=bool(body.return_tokens_as_token_ids),
    )


def _with_best(request: GenerationRequest, num_drawn: int) -> GenerationRequest:
    """The request for which so many choices are drawn, of which the best are answered with."""
    is_silent = request.sampling.num_logprobs is None
    sampling = replace(request.sampling, num_logprobs=0) if is_silent else request.sampling
    return msgspec.structs.replace(
        request, n=num_drawn, num_best=request.n, sampling=sampling, hides_logprobs=is_silent
    )


def _check_scored(param: str, num_top: int, prompts: list[tuple[int, ...]], num_choices: int) -> None:
    asked = sum(map(len, prompts)) * num_choices * (num_top + 1)
    if asked > MAX_ECHOED_LOGPROBS:
        message = f"{param}: {asked} log probabilities of prompt tokens, at most {MAX_ECHOED_LOGPROBS} are allowed"
        raise ApiError(400, message, param=param, code="invalid_value")


def contexts(body: WorkBody) -> int:
    """How many contexts long a text may be."""
    return 1 if body.truncate_prompt_tokens is None else TRUNCATED_CONTEXTS


def truncated(
    model: ServedModel, body: WorkBody, token_ids: tuple[int, ...], max_tokens: int | None
) -> tuple[int, ...]:
    """The last tokens of a prompt: so many as the body wants, or as fit beside the answer."""
    wanted = body.truncate_prompt_tokens
    if wanted is None:
        return token_ids
    most = model.max_sequence_tokens
    if wanted > most:
        message = f"truncate_prompt_tokens: {wanted} is more than this model's context of {most} tokens"
        raise ApiError(400, message, param="truncate_prompt_tokens", code="invalid_value")
    kept = max(1, most - max(1, _or(max_tokens, 1))) if wanted == -1 else wanted
    return token_ids[-kept:]


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


def checked_ids(model: ServedModel, token_ids: list[int], param: str = "prompt") -> tuple[int, ...]:
    if token_ids and (largest := max(token_ids)) >= model.facts.vocab_size:
        raise ApiError(400, f"{param}: token id {largest} is out of the vocabulary", param=param, code="invalid_value")
    return tuple(token_ids)


def _biases(model: ServedModel, body: GenerationBody) -> tuple[tuple[int, float], ...]:
    pairs = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    checked_ids(model, list(pairs), param="logit_bias")
    return tuple(sorted(pairs.items()))


async def detokenize(model: ServedModel, token_ids: list[int]) -> str:
    """Raises ApiError."""
    checked_ids(model, token_ids, param="tokens")
    return await model.beside_loop(len(token_ids), lambda: model.tokenizer.decode(token_ids))


def _check_length(model: ServedModel, num_chars: int, factor: int = 1) -> None:
    """Raises TooLongError for text that can't fit `factor` contexts however it is tokenised, which takes seconds."""
    least = model.tokenizer.least_tokens(num_chars)
    if least > factor * model.max_sequence_tokens:
        raise TooLongError(
            f"This model's maximum context length is {model.max_sequence_tokens} tokens. However, your text of "
            f"{num_chars} characters has at least {least} tokens. Please shorten it."
        )


async def tokenise(
    model: ServedModel, text: str | tuple[str, str], *, add_special_tokens: bool, contexts: int = 1
) -> tuple[int, ...]:
    """Token ids of a text, or of a pair of texts. Raises TooLongError."""
    size = len(text) if isinstance(text, str) else sum(map(len, text))
    _check_length(model, size, contexts)
    return await model.beside_loop(
        size, lambda: _encode(model, text, add_special_tokens=add_special_tokens, contexts=contexts)
    )


def _encode(
    model: ServedModel, text: str | tuple[str, str], *, add_special_tokens: bool, contexts: int = 1
) -> tuple[int, ...]:
    """Raises TooLongError for a text of far more tokens than fit into so many contexts, from its beginning alone."""
    limit = contexts * model.max_sequence_tokens
    if isinstance(text, tuple):
        for one in text:
            _encode(model, one, add_special_tokens=False, contexts=contexts)
        return model.tokenizer.encode_pair(*text)
    if len(text) > PLAIN_CHARS_PER_TOKEN * limit:
        least = model.tokenizer.count(text[: PLAIN_CHARS_PER_TOKEN * limit])
        if least > 2 * limit:  # where it was cut, a few tokens may be other ones
            raise TooLongError(
                f"This model's maximum context length is {model.max_sequence_tokens} tokens. However, the first "
                f"{PLAIN_CHARS_PER_TOKEN * limit} of the {len(text)} characters of your text have {least} tokens. "
                "Please shorten it."
            )
    return model.tokenizer.encode(text, add_special_tokens=add_special_tokens)


async def _tokenise_chat(
    model: ServedModel,
    body: ChatBody | TokenizeBody,
    messages: list[Message],
    tools: tuple[dict[str, Any], ...] | None,
    *,
    contexts: int = 1,
) -> tuple[int, ...]:
    def encode() -> tuple[int, ...]:
        try:
            shown = [message.for_template() for message in messages]
        except (ValueError, RecursionError) as exc:  # JSON of thousands of digits or levels
            raise BadChatError(f"messages: the arguments of a tool call can't be read: {exc}") from exc
        text = model.tokenizer.render_chat(
            shown,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            tools=tools,
            arguments=body.chat_template_kwargs or {},
        )
        _check_length(model, len(text), contexts)
        return _encode(model, text, add_special_tokens=False, contexts=contexts)  # the template writes them itself

    size = sum(message.num_chars for message in messages)
    _check_length(model, size, LEFT_OUT_FACTOR * contexts)  # before it is rendered, which takes seconds as well
    size += INLINE_CHARS * len(tools or ())  # their schemas are not measured: they go to a thread
    try:
        token_ids = await model.beside_loop(size, encode)
    except BadChatError as exc:
        raise ApiError(400, str(exc), param="messages") from exc
    if not token_ids:
        raise ApiError(400, "messages: the conversation has no tokens", param="messages")
    return token_ids
