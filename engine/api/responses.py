"""What `/v1/responses` answers: the response object, and its events in the order that clients follow. Pure.

Each event has a type and a number. The items of the output are the text, as one message, then each call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.api.chunks import chat_logprob, event
from engine.api.schema_responses import ResponsesBody
from engine.api.text_logprobs import TokenTexts
from engine.api.tool_chunks import call_id
from engine.node.choice import Choice, ChoiceDelta, make_choice
from engine.node.inflight import Fate, InflightRequest
from engine.node.stream_progress import read_told_events
from engine.protocol.messages import FinishReason, SequenceUpdate

Json = dict[str, Any]


@dataclass(slots=True)
class _OpenText:
    """A message while its text comes."""

    place: int
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)


@dataclass(slots=True)
class _OpenCall:
    """A call while its arguments come."""

    place: int
    call: int
    name: str
    arguments: str = ""


class ResponseEvents:
    """The events of one stream: `of` each delta, then `end`. `lines`: what was told beside them, by all its nodes."""

    def __init__(self, inflight: InflightRequest, body: ResponsesBody, texts: TokenTexts) -> None:
        self._inflight = inflight
        self._body = body
        self._texts = texts
        self._number = 0
        self._output: list[Json] = []  # items that are done
        self._open: _OpenText | _OpenCall | None = None
        self._held: list[Json] = []  # log probabilities of tokens whose text has not come out yet
        self._has_begun = False
        self._num_told = 0  # events that the client has of another node
        self._ended_by: str | None = None  # how the choice finished, until a line has told it
        self.lines = ""

    def resume(self, lines: str) -> bytes:
        """Brings fresh events to where another node left them, by the same deltas. Returns what it did not send."""
        told, inflight = read_told_events(lines), self._inflight
        self._num_told, self.lines = told.num_events, lines
        choice = make_choice(inflight.request, 0, "resumed", self._texts.tokenizer)
        events: list[bytes] = []
        for batch in told.batches:
            told_end = None if batch.is_stopped_by_string else batch.finish_reason
            reason = None if told_end is None else FinishReason(told_end)
            delta = choice.apply(SequenceUpdate(choice.seq_id, batch.token_ids, finish_reason=reason))
            if delta is not None:
                events += self._of(delta)
        return b"".join(events)

    def of(self, delta: ChoiceDelta) -> bytes:
        """The events of one delta."""
        if self._inflight.progress is not None:
            self._inflight.progress.hold(0, delta.token_ids)
            self._ended_by = delta.finish_reason
        return b"".join(self._of(delta))

    def end(self) -> bytes:
        """The last events, once the request has its outcome."""
        return b"".join(self._end())

    def _of(self, delta: ChoiceDelta) -> Iterator[bytes]:
        yield from self._begin()
        pieces = list(delta.tool_pieces)
        while pieces and pieces[0].name is None:  # of the call that is open: text is what follows it
            yield from self._go_on(pieces.pop(0).arguments)
        if delta.text or not isinstance(self._open, _OpenCall):  # a call's tokens are no text
            self._held += self._logprobs(delta)
        if delta.text:
            if not isinstance(self._open, _OpenText):
                yield from self._close()
                yield from self._open_text()
            yield self._say_text(delta.text)
        for piece in pieces:
            if piece.name is not None:
                yield from self._close()
                self._held = []
                yield self._open_call(piece.call, piece.name)
            yield from self._go_on(piece.arguments)

    def _end(self) -> Iterator[bytes]:
        yield from self._begin()
        inflight, choice = self._inflight, self._inflight.choices[0]
        if inflight.outcome is not Fate.FINISHED:
            message = inflight.error or "the response ended early"
            error = {"code": "server_error", "message": message, "reason": inflight.error_code}
            # Without a line: the caller keeps it from the client where another node can go on.
            yield self._numbered("response.failed", response=self._response("failed") | {"error": error})
            return
        if self._open is None and not self._output:
            yield from self._open_text()
        yield from self._close(choice)
        status = status_of(choice)
        yield self._event(f"response.{status}", response=self._response(status))

    def _begin(self) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            for kind in ("response.created", "response.in_progress"):
                yield self._event(kind, response=self._response("in_progress"))

    def _open_text(self) -> Iterator[bytes]:
        self._open = _OpenText(len(self._output))
        item = message_item(self._inflight, self._open.place, None, [], "in_progress")
        yield self._event("response.output_item.added", output_index=self._open.place, item=item)
        yield self._event("response.content_part.added", content_index=0, part=text_part("", []), **self._where())

    def _say_text(self, text: str) -> bytes:
        open_text = self._open
        assert isinstance(open_text, _OpenText)
        logprobs, self._held = self._held, []
        open_text.text += text
        open_text.logprobs += logprobs
        where = self._where()
        return self._event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs, **where)

    def _go_on(self, arguments: str) -> Iterator[bytes]:
        if arguments and isinstance(self._open, _OpenCall):
            self._open.arguments += arguments
            yield self._event("response.function_call_arguments.delta", delta=arguments, **self._where())

    def _open_call(self, call: int, name: str) -> bytes:
        self._open = _OpenCall(len(self._output), call, name)
        item = call_item(self._inflight, self._open.place, call, name, "", "in_progress")
        return self._event("response.output_item.added", output_index=self._open.place, item=item)

    def _close(self, ended: Choice | None = None) -> Iterator[bytes]:
        """The end of the open item; `ended`: the choice, if this is its last item."""
        status = "completed" if ended is None else status_of(ended)
        where = self._where()
        match self._open:
            case None:
                return
            case _OpenText() as message:
                logprobs, self._held = message.logprobs + self._held, []
                part = text_part(message.text, logprobs)
                yield self._event(
                    "response.output_text.done", content_index=0, text=message.text, logprobs=logprobs, **where
                )
                yield self._event("response.content_part.done", content_index=0, part=part, **where)
                item = message_item(self._inflight, message.place, message.text, logprobs, status)
            case _OpenCall() as call:
                arguments = call.arguments
                yield self._event("response.function_call_arguments.done", name=call.name, arguments=arguments, **where)
                item = call_item(self._inflight, call.place, call.call, call.name, arguments, status)
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open = None

    def _where(self) -> Json:
        if self._open is None:
            return {}
        kind = "msg" if isinstance(self._open, _OpenText) else "fc"
        return {"item_id": item_id(self._inflight, kind, self._open.place), "output_index": self._open.place}

    def _logprobs(self, delta: ChoiceDelta) -> list[Json]:
        wanted = self._inflight.request.sampling.num_logprobs
        if wanted is None:
            return []
        pairs = zip(delta.token_ids, delta.logprobs, strict=False)
        return [chat_logprob(token_id, entry, wanted, self._texts) for token_id, entry in pairs]

    def _response(self, status: str) -> Json:
        return response_object(self._inflight, self._body, status, self._output)

    def _event(self, kind: str, **fields: Any) -> bytes:
        written = self._numbered(kind, **fields)
        return b"" if self._number <= self._num_told else self._line() + written

    def _numbered(self, kind: str, **fields: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(numbered, kind)

    def _line(self) -> bytes:
        """One for each event, so that another node knows how many the client has."""
        progress, choice = self._inflight.progress, self._inflight.choices[0]
        if progress is None:
            return b""
        ended_by, self._ended_by = self._ended_by, None
        is_string = ended_by == "stop" and isinstance(choice.stop_reason, str)
        line = progress.line(0, ended_by, is_stopped_by_string=is_string)
        self.lines += line.decode()
        return line


def whole_response(inflight: InflightRequest, body: ResponsesBody, texts: TokenTexts) -> Json:
    """The answer to a request without `stream`."""
    choice, request = inflight.choices[0], inflight.request
    status, text = status_of(choice), "".join(choice.pieces)
    calls = [] if choice.tools is None else choice.tools.calls
    output: list[Json] = []
    wanted = request.sampling.num_logprobs
    if text or not calls:
        pairs = zip(choice.output_token_ids, choice.logprobs, strict=False)
        logprobs = [] if wanted is None else [chat_logprob(token, entry, wanted, texts) for token, entry in pairs]
        output.append(message_item(inflight, 0, text, logprobs, "completed" if calls else status))
    for index, call in enumerate(calls):
        own = status if index + 1 == len(calls) else "completed"
        output.append(call_item(inflight, len(output), index, call.name, call.arguments, own))
    return response_object(inflight, body, status, output)


def status_of(choice: Choice) -> str:
    """As the response says how it ended."""
    return "completed" if choice.finish_reason == "stop" else "incomplete"


def item_id(inflight: InflightRequest, kind: str, place: int) -> str:
    """Of an item of the output: the same whenever it is told of."""
    return f"{kind}_{inflight.request.request_id}_{place}"


def text_part(text: str, logprobs: list[Json]) -> Json:
    """The content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def message_item(inflight: InflightRequest, place: int, text: str | None, logprobs: list[Json], status: str) -> Json:
    """A message of the output; without text it has just begun."""
    return {
        "id": item_id(inflight, "msg", place),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text, logprobs)],
    }


def call_item(inflight: InflightRequest, place: int, call: int, name: str, arguments: str, status: str) -> Json:
    """A call of the output."""
    return {
        "id": item_id(inflight, "fc", place),
        "type": "function_call",
        "call_id": call_id(inflight.request, inflight.choices[0], call),
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def response_object(inflight: InflightRequest, body: ResponsesBody, status: str, output: list[Json]) -> Json:
    """OpenAI's object; usage once it has ended."""
    request, sampling = inflight.request, inflight.request.sampling
    has_ended = status in ("completed", "incomplete", "failed")
    form = None if body.text is None else body.text.format
    choice = body.tool_choice
    return {
        "id": request.answer_id,
        "object": "response",
        "created_at": request.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": request.model,
        "output": list(output),
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": body.truncation or "disabled",
        "usage": _usage(inflight) if has_ended else None,
        "user": body.user,
    }


def _usage(inflight: InflightRequest) -> Json:
    prompt, output = inflight.num_prompt_tokens, inflight.num_output_tokens
    cached = min(inflight.choices[0].num_cached_tokens or 0, prompt)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }
