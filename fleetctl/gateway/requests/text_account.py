"""What is kept of a stream of an engine that is not ours, so that another node can go on behind its text.

Such an engine tells no token ids and continues nobody's stream. But it completes a prompt, and where it takes an
unfinished last message, a chat: so prompt and text so far are its next request, and the new stream's events follow
under the first one's id. Not exact: docs/gateway.md says what may differ at the seam. vLLM and SGLang are known:
their OpenAI-compatible servers' request fields and defaults are what the tables below hold.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.gateway.requests.model_names import OWN_ENGINE
from fleetctl.gateway.routing.json_cost import is_cheap_to_parse
from fleetctl.gateway.routing.routing_facts import CHAT_PATH, COMPLETION_PATH

MAX_TEXT_CHARS = 4 * 1024 * 1024  # of one answer; a longer one can't be continued
# Engines whose chats go on behind an unfinished last message, and whose completions have this many tokens by default.
KNOWN_ENGINES = frozenset({"vllm", "sglang"})
DEFAULT_COMPLETION_TOKENS = 16
# Fields that mean for the rest of an answer what they mean for all of it. A request with any other is not continued.
_CARRIED = frozenset(
    {
        "add_special_tokens",
        "deadline_s",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_p",
        "min_tokens",
        "model",
        "priority",
        "prompt",
        "repetition_penalty",  # counts the prompt's tokens as it does the answer's
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
# Fields that may be there with a value that asks for nothing. Others need what text alone does not tell.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "logprobs": (False,),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none",),
    "use_beam_search": (False,),
}
_NOT_TEXT = ("reasoning_content", "reasoning", "tool_calls", "function_call")  # in a delta
_LIMITS = ("max_tokens", "max_completion_tokens")
_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)", re.DOTALL)


def is_continuable(path: str, engine: str, request: Any) -> bool:
    """Whether the rest of the answer can be asked for with the text so far: one plain text, nothing counted in it."""
    if engine in ("", OWN_ENGINE) or not isinstance(request, dict):
        return False
    for name, value in request.items():
        if value is None or name in _CARRIED:
            continue
        if not any(value == one and type(value) is type(one) for one in _NEUTRAL.get(name, ())):
            return False
    if path == COMPLETION_PATH:
        return isinstance(request.get("prompt"), str) and (engine in KNOWN_ENGINES or "max_tokens" in request)
    return path == CHAT_PATH and engine in KNOWN_ENGINES and isinstance(request.get("messages"), list)


def continued_request(path: str, request: dict[str, Any], text: str, num_tokens: int) -> dict[str, Any]:
    """The request for what follows `text`, which has so many tokens."""
    rest = dict(request)
    if path == COMPLETION_PATH:
        rest["prompt"] = request["prompt"] + text
        if rest.get("max_tokens") is None:
            rest["max_tokens"] = DEFAULT_COMPLETION_TOKENS
    elif text:
        rest["messages"] = [*request["messages"], {"role": "assistant", "content": text}]
        rest |= {"continue_final_message": True, "add_generation_prompt": False}
    for name in _LIMITS:
        if isinstance(limit := rest.get(name), int):
            rest[name] = max(1, limit - num_tokens)
    if isinstance(least := rest.get("min_tokens"), int):
        rest["min_tokens"] = max(0, least - num_tokens)
    return rest


class TextAccount:
    """One answer's text over all nodes, and how the events of later nodes are made the first one's."""

    __slots__ = (
        "_blank_tail",
        "_head",
        "_is_chat",
        "_is_lost",
        "_num_before",
        "_num_chars",
        "_num_parts",
        "_owed",
        "_path",
        "_request",
        "_text",
        "endpoint",
        "is_finished",
        "num_tokens",
    )

    def __init__(self, path: str, request: bytes | None, endpoint: Endpoint) -> None:
        """`request`: the body as it went to `endpoint`, the first node."""
        self.endpoint = endpoint
        self.num_tokens = 0  # as the node counted them, else events with text
        self.is_finished = False  # the client has the last of the text
        self._path = path
        self._is_chat = self._path == CHAT_PATH
        self._request = request
        self._text: list[str] = []
        self._num_chars = 0
        self._blank_tail = 0  # tokens at the end that are white space only
        self._head: dict[str, Any] = {}  # what all events of the first node have in common
        self._num_parts = 0
        self._num_before = 0  # tokens of earlier nodes
        self._owed = ""  # white space that the client has, and that the node was not told
        self._is_lost = not is_continuable(self._path, endpoint.engine, _parsed(request))

    @property
    def is_empty(self) -> bool:
        """Whether the client has nothing of it yet."""
        return not self._head

    @property
    def can_continue(self) -> bool:
        """Whether another node of the same engine can be asked for the rest."""
        return not self._is_lost and not self.is_empty and not self.is_finished

    def begin_part(self) -> None:
        """Another node's events follow."""
        self._num_parts += 1
        if self._num_parts > 1:
            text = "".join(self._text)
            self._owed = text[len(text.rstrip()) :]
            self._num_before = self.num_tokens = self.num_tokens - self._blank_tail
            self._blank_tail = 0

    def body(self) -> bytes:
        """What another node is asked.

        White space at the end is left for it to say again: chat templates cut it off, and tokenizers join it to the
        word behind it.
        """
        text = "".join(self._text).rstrip()
        request = continued_request(self._path, _parsed(self._request), text, self.num_tokens - self._blank_tail)
        return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()

    def follow(self, events: bytes) -> bytes:
        """What the client gets of these whole events. The first node's pass as they are."""
        if self._num_parts > 1:
            return b"".join([self._follow_one(event) for event in _EVENT.findall(events)])
        if not self._is_lost:
            for event in _EVENT.findall(events):
                self._follow_one(event)
        return events

    def _follow_one(self, event: bytes) -> bytes:
        if b"data:" not in event:
            return event  # a comment
        data = event.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return event
        value = _parsed(data)
        choices = value.get("choices") if isinstance(value, dict) else None
        if not isinstance(choices, list) or len(choices) > 1 or not all(isinstance(one, dict) for one in choices):
            self._lose()
            return event
        if not self._head:
            self._head = {name: value[name] for name in ("id", "created", "model") if name in value} or {"id": ""}
        has_content = self._read_choice(choices[0]) if choices else True
        usage = value.get("usage")
        if isinstance(usage, dict):
            self._read_usage(usage)
        if self._num_parts <= 1:
            return event
        if not has_content:
            return b""
        return b"data: " + json.dumps(value | self._head, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

    def _read_choice(self, choice: dict[str, Any]) -> bool:
        """Keep its text, and take out of it what the client has; False when nothing is left."""
        holder = choice.get("delta") if self._is_chat else choice
        if not isinstance(holder, dict) or choice.get("logprobs") or any(holder.get(one) for one in _NOT_TEXT):
            self._lose()
            return True
        name = "content" if self._is_chat else "text"
        said = holder.get(name) or ""
        is_last = choice.get("finish_reason") is not None
        is_opening = self._is_chat and not said and not is_last and "role" in holder
        if self._num_parts > 1:
            holder.pop("role", None)
        if is_opening or not isinstance(said, str):
            return False
        if said or not is_last:
            self.num_tokens += 1
            self._blank_tail = 0 if said.strip() else self._blank_tail + 1
        piece = self._without_owed(said)
        if piece is not said:
            holder[name] = piece
        self._keep(piece)
        self.is_finished = self.is_finished or is_last
        return bool(piece) or is_last

    def _without_owed(self, piece: str) -> str:
        owed = self._owed
        if not owed or not piece:
            return piece
        if piece.startswith(owed):
            self._owed = ""
            return piece[len(owed) :]
        if owed.startswith(piece):
            self._owed = owed[len(piece) :]
            return ""
        self._owed = ""
        return piece

    def _read_usage(self, usage: dict[str, Any]) -> None:
        """Take its count; in a later node's words, the tokens before it are no part of the prompt but of the answer."""
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(output, int):
            return
        usage["prompt_tokens"] = max(0, prompt - self._num_before)
        usage["completion_tokens"] = self.num_tokens = output + self._num_before
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]

    def _keep(self, piece: str) -> None:
        if self._is_lost:
            return
        self._text.append(piece)
        self._num_chars += len(piece)
        if self._num_chars > MAX_TEXT_CHARS:
            self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        self._text.clear()


def _parsed(body: bytes | None) -> Any:
    if body is not None and not is_cheap_to_parse(body):
        return None
    try:
        return json.loads(body or b"null")
    except (ValueError, RecursionError):
        return None
