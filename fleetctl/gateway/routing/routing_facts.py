"""What a client asks for, as far as routing must know it: model, stream or not, how its prompt begins, how big it is.

It does not validate a request: the node does, and its answer goes to the client as it is. A body is read by types that
know the few fields that routing needs; no object is built for the rest. What does not fit them is read without types
where that is cheap, and otherwise counts as a prompt of its length without a prefix.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from fleetctl.gateway.routing.json_cost import MAX_CHEAP_VALUES, has_more_than, is_cheap_to_parse
from fleetctl.gateway.routing.prefix_blocks import CHARS_PER_TOKEN, Blocks, text_blocks, token_blocks

HEAD_CHARS = 32_768  # of the canonical prompt, kept while its node is chosen
KEY_CHARS = 512  # by them a prompt that nobody was sent before finds its node
DEFAULT_OUTPUT_TOKENS = 256  # when a request gives no max_tokens
MAX_DEADLINE_S = 1e9
MAX_OUTPUT_TOKENS = 16_384  # one request's claim must not blind the balance
MAX_PROMPT_IDS = 1_000_000  # token ids are cheap to read: 25 ms for so many

COMPLETION_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"
RESPONSES_PATH = "/v1/responses"
GENERATION_PATHS = frozenset({COMPLETION_PATH, CHAT_PATH})
# Another node of ours goes on with these where one stopped: after all of the answer that the client has.
MOVABLE_PATHS = GENERATION_PATHS | {RESPONSES_PATH}
# Answered with vectors or scores: nothing is generated, and no prompt is worth finding the node that had it before.
POOLING_PATHS = frozenset({"/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank"})
# All that asks a model: read for its model and its size, and counted on its tenant's account.
WORK_PATHS = GENERATION_PATHS | POOLING_PATHS | {RESPONSES_PATH}


class BadBodyError(Exception):
    """The body can't be read. The message is for the client."""


class RoutingFacts(NamedTuple):
    """`head`: the canonical prompt's first characters; `blocks`: all of it as a chain of hashes.

    `tokens`: rough cost, prompt and output together. `input_tokens`: the prompt's part of it. `output_tokens`: what the
    client asks for at most; None: it does not say. `deadline_s`: seconds from its arrival after which the client wants
    no answer. `user`: whom the client says it asks for, `session`: its header, `request_id`: the id that it gives its
    request (vLLM's field, not checked); empty: it does not say.
    """

    model: str | None = None
    stream: bool = False
    head: str = ""
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int | None = None
    deadline_s: float | None = None
    blocks: Blocks = ()
    user: str = ""
    session: str = ""
    request_id: str = ""

    def key_text(self, after_tokens: int = 0) -> str:
        """The characters by which the prompt is told from others that share so many tokens with it."""
        at = after_tokens * CHARS_PER_TOKEN
        return self.head[at : at + KEY_CHARS] or self.head[-KEY_CHARS:]

    @property
    def output_estimate(self) -> int:
        """How many tokens the answer is taken to have."""
        return self.tokens - self.input_tokens


_Scalar = str | int | float | bool | None


class _Body(Struct):
    """The fields that routing reads; all others are skipped. The prompt is decoded in a second step."""

    model: _Scalar = None
    stream: _Scalar = None
    user: _Scalar = None
    request_id: _Scalar = None
    max_completion_tokens: _Scalar = None
    max_tokens: _Scalar = None
    deadline_s: _Scalar = None
    max_output_tokens: _Scalar = None
    instructions: _Scalar = None
    messages: Raw = Raw(b"[]")
    input: Raw = Raw(b"null")
    prompt: Raw = Raw(b"null")
    tools: Raw = Raw(b"null")


class _Part(Struct):
    text: str | None = None


class _Message(Struct):
    role: str | None = None
    content: str | list[_Part] | None = None


class _Item(Struct):
    """Of a response's input: a message, a call, or what came of one."""

    role: str | None = None
    content: str | list[_Part] | None = None
    arguments: str | None = None
    output: str | list[_Part] | None = None


class _TooManyValuesError(Exception):
    """So many objects would be built that the event loop would stand."""


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_input = msgspec.json.Decoder(str | list[_Item] | None).decode
_decode_prompt = msgspec.json.Decoder(str | list[str | int | list[int]] | None).decode
# UnicodeDecodeError: msgspec checks the bytes of strings that it returns only.
_UNFIT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _TooManyValuesError)
_SCALAR_FIELDS = (
    "stream",
    "user",
    "request_id",
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "deadline_s",
)
_NO_TOOLS = frozenset({b"null", b"[]", b"{}", b'""', b"0", b"false"})


def read_routing_facts(path: str, body: bytes) -> RoutingFacts:
    """What routing needs of a completion request's body. Raises BadBodyError when it is not a JSON object.

    What strict JSON forbids and Python writes (NaN, half a surrogate pair) passes, but not among very many values.
    """
    try:
        fields = _decode_body(body)
    except _UNFIT as error:
        if is_cheap_to_parse(body):
            return _read_untyped(path, body)
        if not body.lstrip().startswith(b"{"):
            raise BadBodyError("the body must be a JSON object") from error
        if not isinstance(error, msgspec.ValidationError):
            raise BadBodyError("the body is not valid JSON") from error
        return _facts(_Body(), "", len(body), (), None)
    model = fields.model if isinstance(fields.model, str) else None
    if path in POOLING_PATHS:
        return _pooling_facts(fields, len(body), model)
    try:
        if path == CHAT_PATH:
            text, chars = _typed_chat(fields.messages, body)
            tools = bytes(fields.tools)  # templates write them before the messages
            blocks = text_blocks(text, model if tools in _NO_TOOLS else (model, tools))
            head = text[:HEAD_CHARS]
        elif path == RESPONSES_PATH:
            text = _typed_response(fields, body)
            tools = bytes(fields.tools)
            blocks = text_blocks(text, model if tools in _NO_TOOLS else (model, tools))
            head, chars = text[:HEAD_CHARS], len(text)
        else:
            if len(body) > MAX_PROMPT_IDS and has_more_than(MAX_PROMPT_IDS, body, b","):
                raise _TooManyValuesError
            head, chars, blocks = _completion_prompt(_decode_prompt(fields.prompt), model)
    except _UNFIT:
        if is_cheap_to_parse(body):  # braces and commas of the text itself cost nothing
            return _read_untyped(path, body)
        head, chars, blocks = "", len(body), ()
    return _facts(fields, head, chars, blocks, model)


def _typed_chat(messages: Raw, body: bytes) -> tuple[str, int]:
    """As `_chat_prompt`. Raises _TooManyValuesError, and what msgspec does."""
    if len(body) > 3 * MAX_CHEAP_VALUES and has_more_than(MAX_CHEAP_VALUES, body, b"{"):  # `{},` is three bytes
        raise _TooManyValuesError
    parts: list[str] = []
    chars = 0
    for message in _decode_messages(messages):
        content = message.content
        if content is None:
            content = ""
        elif not isinstance(content, str):
            content = "".join([part.text for part in content if part.text is not None])
        chars += len(content)
        parts += (str(message.role), "\n", content, "\n")  # no copy of a long text but the one that joins them
    return "".join(parts), chars


def _typed_response(fields: _Body, body: bytes) -> str:
    """Instructions and items, one after the other. Raises _TooManyValuesError, and what msgspec does."""
    if len(body) > 3 * MAX_CHEAP_VALUES and has_more_than(MAX_CHEAP_VALUES, body, b"{"):
        raise _TooManyValuesError
    parts = [fields.instructions] if isinstance(fields.instructions, str) else []
    given = _decode_input(fields.input)
    if isinstance(given, str):
        parts.append(given)
    for item in given if isinstance(given, list) else ():
        for content in (item.content, item.output):
            if isinstance(content, list):
                content = "".join([part.text for part in content if part.text is not None])
            parts.append(f"{item.role}\n{content or ''}")
        parts.append(item.arguments or "")
    return "\n".join(parts)


def _read_untyped(path: str, body: bytes) -> RoutingFacts:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBodyError("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise BadBodyError("the body must be a JSON object")
    return routing_facts_of(path, value)


def routing_facts_of(path: str, value: dict[str, Any]) -> RoutingFacts:
    """As `read_routing_facts`, of a body of any shape that was parsed already."""
    model = value.get("model")
    model = model if isinstance(model, str) else None
    if path in POOLING_PATHS:
        return _pooling_facts(_scalars(value), len(json.dumps(value)), model)
    if path == RESPONSES_PATH:
        text = "\n".join([str(value.get("instructions") or ""), json.dumps(value.get("input"))])
        return _facts(_scalars(value), text[:HEAD_CHARS], len(text), text_blocks(text, model), model)
    if path == CHAT_PATH:
        text, chars = _chat_prompt(value.get("messages"))
        tools = value.get("tools")  # templates write them before the messages
        blocks = text_blocks(text, (model, repr(tools)) if tools else model)
        head = text[:HEAD_CHARS]
    else:
        head, chars, blocks = _completion_prompt(value.get("prompt"), model)
    return _facts(_scalars(value), head, chars, blocks, model)


def _scalars(value: dict[str, Any]) -> _Body:
    found: dict[str, Any] = {name: value.get(name) for name in _SCALAR_FIELDS}
    return _Body(**found)


def _pooling_facts(fields: _Body, num_bytes: int, model: str | None) -> RoutingFacts:
    """Of a request whose texts are all input, wherever they stand in its body."""
    facts = _facts(fields, "", num_bytes, (), model)
    return facts._replace(stream=False, tokens=facts.input_tokens, output_tokens=0)


def _facts(fields: _Body, head: str, chars: int, blocks: Blocks, model: str | None) -> RoutingFacts:
    input_tokens, output_tokens = chars // CHARS_PER_TOKEN, _output_tokens(fields)
    return RoutingFacts(
        model=model,
        stream=fields.stream is True,
        head=head,
        tokens=input_tokens + min(output_tokens or DEFAULT_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        deadline_s=_deadline_s(fields.deadline_s),
        blocks=blocks,
        user=fields.user if isinstance(fields.user, str) else "",
        request_id=fields.request_id if isinstance(fields.request_id, str) else "",
    )


def _deadline_s(asked: Any) -> float | None:
    """None for what is no limit; what makes no sense the node refuses."""
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 < asked < MAX_DEADLINE_S:
        return None
    return float(asked)


def _output_tokens(fields: _Body) -> int | None:
    for asked in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens):
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            return asked
    return None


def _chat_prompt(messages: Any) -> tuple[str, int]:
    """Role and text of each message, one after the other: equal conversations give equal text, however encoded.

    Returns the text, and the characters of the messages alone.
    """
    if not isinstance(messages, list):
        return "", 0
    parts: list[str] = []
    chars = 0
    for message in messages:
        if not isinstance(message, dict):
            continue
        text = content_text(message.get("content"))
        chars += len(text)
        parts.append(f"{message.get('role')}\n{text}\n")
    return "".join(parts), chars


def content_text(content: Any) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def _completion_prompt(prompt: Any, model: str | None) -> tuple[str, int, Blocks]:
    """First characters, size in characters and blocks; of several prompts the blocks of the first."""
    if isinstance(prompt, str):
        return prompt[:HEAD_CHARS], len(prompt), text_blocks(prompt, model)
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            head = " ".join(map(str, prompt[: KEY_CHARS // CHARS_PER_TOKEN]))
            return head[:KEY_CHARS], len(prompt) * CHARS_PER_TOKEN, _id_blocks(prompt, model)
        head, _, blocks = _completion_prompt(prompt[0], model)
        return head, sum(_num_chars(one) for one in prompt), blocks
    return "", 0, ()


def _id_blocks(prompt: list[Any], model: str | None) -> Blocks:
    try:
        return token_blocks(prompt, model)
    except TypeError:  # something in it has no hash: no token ids, and the node says so
        return ()


def _num_chars(prompt: Any) -> int:
    """Characters of one of several prompts; what is nested deeper counts for nothing."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt) * CHARS_PER_TOKEN
    return 0
