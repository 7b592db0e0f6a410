"""What OpenAI's clients read: chunks of a stream, whole answers, usage, logprobs. Pure: from a request to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.api.text_logprobs import Scored, TokenTexts, finite, joined, shown, text_logprobs
from engine.api.tool_chunks import chat_delta, chat_message
from engine.node.choice import Choice, ChoiceDelta
from engine.node.inflight import InflightRequest
from engine.node.stream_progress import all_sent_line
from engine.protocol.step import TokenLogprobs
from engine.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


def event(payload: object, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encode(payload) + b"\n\n"


def delta_events(inflight: InflightRequest, delta: ChoiceDelta, tokenizer: Tokenizer) -> bytes:
    """The events of one delta: before a choice's first, its opening (role, or the echoed prompt).

    Each stands behind the line that says what it covers, where the caller asked for it.
    """
    request, choice, progress = inflight.request, delta.choice, inflight.progress
    parts = []
    if not choice.is_opened:
        choice.is_opened = True
        opening = _opening(inflight, choice, tokenizer)
        if progress is not None and opening:
            parts.append(progress.line(choice.index))
        parts.append(opening)
    inflight.num_sent_tokens += len(delta.token_ids)
    if progress is not None:
        progress.hold(choice.index, delta.token_ids)
    with_tokens = request.return_token_ids or request.sampling.num_logprobs is not None
    if delta.text or delta.tool_pieces or delta.finish_reason is not None or (delta.token_ids and with_tokens):
        entry: dict[str, Any] = {"index": choice.index}
        if request.kind == "chat":
            entry["delta"] = chat_delta(request, delta)
        else:
            entry["text"] = delta.text
        entry["logprobs"] = _logprobs(inflight, choice, delta.token_ids, delta.logprobs, delta.char_offset, tokenizer)
        entry["finish_reason"] = delta.finish_reason and choice.shown_finish_reason
        if delta.finish_reason is not None:
            entry["stop_reason"] = choice.stop_reason
        if request.return_token_ids:
            entry["token_ids"] = delta.token_ids
        if progress is not None:
            is_string = choice.finish_reason == "stop" and isinstance(choice.stop_reason, str)
            parts.append(progress.line(choice.index, delta.finish_reason, is_stopped_by_string=is_string))
        parts.append(event(_chunk(inflight, [entry])))
    return b"".join(parts)


def _opening(inflight: InflightRequest, choice: Choice, tokenizer: Tokenizer) -> bytes:
    request = inflight.request
    entry: dict[str, Any] = {"index": choice.index, "logprobs": None, "finish_reason": None}
    if request.kind == "chat":
        entry["delta"] = {"role": "assistant", "content": ""}
    elif request.echo_texts:
        entry["text"] = _echo(inflight, choice)
        entry["logprobs"] = _echoed_logprobs(inflight, choice, tokenizer)
        choice.prompt_logprobs.clear()  # they are many, and sent
    elif request.return_token_ids:
        entry["text"] = ""
    else:
        return b""
    if request.return_token_ids:
        entry["token_ids"] = ()
        entry["prompt_token_ids"] = choice.prompt
    return event(_chunk(inflight, [entry]))


def _echo(inflight: InflightRequest, choice: Choice) -> str:
    """The prompt as it is repeated before the answer."""
    texts = inflight.request.echo_texts
    return texts[choice.index // inflight.request.n] if texts else ""


def _echoed_logprobs(inflight: InflightRequest, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any] | None:
    shown = TokenTexts.of(inflight.request, tokenizer)
    return text_logprobs(_scored_prompt(choice), inflight.request.sampling.num_logprobs, 0, shown)


def _scored_prompt(choice: Choice) -> list[Scored]:
    return list(zip(choice.prompt, [None, *choice.prompt_logprobs], strict=False))


def usage_event(inflight: InflightRequest) -> bytes:
    """The last event before [DONE], for streams that asked for usage."""
    line = b"" if inflight.progress is None else all_sent_line()
    return line + event(_chunk(inflight, []) | {"usage": usage(inflight, inflight.num_output_tokens)})


def _chunk(inflight: InflightRequest, choices: list[dict[str, Any]]) -> dict[str, Any]:
    request = inflight.request
    chunk: dict[str, Any] = {
        "id": request.answer_id,
        "object": "chat.completion.chunk" if request.kind == "chat" else "text_completion",
        "created": request.created,
        "model": request.model,
        "choices": choices,
    }
    if request.include_usage:
        chunk["usage"] = usage(inflight, inflight.num_sent_tokens) if request.continuous_usage else None
    return chunk


def whole_answer(inflight: InflightRequest, tokenizer: Tokenizer) -> bytes:
    """The answer to a request without `stream`."""
    request = inflight.request
    answer: dict[str, Any] = {
        "id": request.answer_id,
        "object": "chat.completion" if request.kind == "chat" else "text_completion",
        "created": request.created,
        "model": request.model,
        "choices": [
            _whole_choice(inflight, choice, tokenizer) | {"index": index}
            for index, choice in enumerate(_answered(inflight))
        ],
        "usage": usage(inflight, inflight.num_output_tokens),
    }
    if request.kind == "chat" and request.prompt_logprobs is not None:
        answer["prompt_logprobs"] = _prompt_logprobs(inflight.choices[0], request.prompt_logprobs, tokenizer)
    return _encode(answer)


def _answered(inflight: InflightRequest) -> Sequence[Choice]:
    """All choices, or of each prompt's the best ones, the best first."""
    request = inflight.request
    if request.num_best is None:
        return inflight.choices
    best: list[Choice] = []
    for first in range(0, len(inflight.choices), request.n):
        drawn = inflight.choices[first : first + request.n]
        best += sorted(drawn, key=lambda choice: -choice.mean_logprob)[: request.num_best]
    return best


def _prompt_logprobs(choice: Choice, num_top: int, tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """vLLM's form: for each prompt token but the first, by token id, its own and the most likely ones at its place."""

    def told(token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": shown(tokenizer.piece(token_id))}

    entries: list[dict[str, Any] | None] = [None]
    for token_id, entry in zip(choice.prompt[1:], choice.prompt_logprobs, strict=False):
        found = {str(token_id): told(token_id, entry.chosen, entry.rank)}
        for rank, (other, logprob) in enumerate(entry.top[:num_top], start=1):
            found.setdefault(str(other), told(other, logprob, rank))
        entries.append(found)
    return entries


def _whole_choice(inflight: InflightRequest, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
    request, text = inflight.request, "".join(choice.pieces)
    entry: dict[str, Any] = {"index": choice.index}
    if request.kind == "chat":
        entry["message"] = chat_message(request, choice)
    else:
        entry["text"] = _echo(inflight, choice) + text
    entry["logprobs"] = _logprobs(inflight, choice, choice.output_token_ids, choice.logprobs, 0, tokenizer)
    if request.kind == "completion" and request.prompt_logprobs is not None:
        entry["prompt_logprobs"] = _prompt_logprobs(choice, request.prompt_logprobs, tokenizer)
    if request.echo_texts and request.sampling.num_logprobs is not None and not request.hides_logprobs:
        entry["logprobs"] = joined(_echoed_logprobs(inflight, choice, tokenizer), entry["logprobs"])
    entry["finish_reason"] = choice.shown_finish_reason
    entry["stop_reason"] = choice.stop_reason
    if request.return_token_ids:
        entry["token_ids"] = choice.output_token_ids
        entry["prompt_token_ids"] = choice.prompt
    return entry


def usage(inflight: InflightRequest, output: int) -> dict[str, Any]:
    """Token counts of the whole request, also of what other nodes did for it; `output` tokens of its answer."""
    prompt = inflight.num_prompt_tokens
    cached = sum(c.num_cached_tokens or 0 for c in inflight.choices if c.index % inflight.request.n == 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
    }


def _logprobs(
    inflight: InflightRequest,
    choice: Choice,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    char_offset: int,
    tokenizer: Tokenizer,
) -> dict[str, Any] | None:
    wanted = inflight.request.sampling.num_logprobs
    if wanted is None or not logprobs or inflight.request.hides_logprobs:
        return None
    pairs = list(zip(token_ids, logprobs, strict=False))
    texts = TokenTexts.of(inflight.request, tokenizer)
    if inflight.request.kind == "chat":
        return {"content": [chat_logprob(token_id, entry, wanted, texts) for token_id, entry in pairs]}
    return text_logprobs(pairs, wanted, len(_echo(inflight, choice)) + char_offset, texts)


def chat_logprob(token_id: int, entry: TokenLogprobs, wanted: int, texts: TokenTexts) -> dict[str, Any]:
    """A drawn token, with the `wanted` most likely ones at its place."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        piece = texts.tokenizer.piece(token)
        return {"token": texts.name(token), "logprob": finite(logprob), "bytes": list(piece)}

    return one(token_id, entry.chosen) | {"top_logprobs": [one(token, lp) for token, lp in entry.top[:wanted]]}
