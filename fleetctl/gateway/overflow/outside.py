"""What is sent outside and what comes back, whichever API the endpoint speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TEMPLATE_TOKENS = 1024
"""More than services write around a prompt by themselves, for tools above all."""


class NotExpressibleError(Exception):
    """The request says what the endpoint can't be asked, or what has no upper bound of tokens. Names the field."""


class OutsideError(Exception):
    """The endpoint gave no answer, or not a whole one. `was_sent`: it may have worked, and may want to be paid."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class Usage(NamedTuple):
    """Tokens that the endpoint counted."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class OutsideRequest:
    """One request as it goes out. `max_tokens`: an upper bound of its prompt's tokens, and its output's."""

    target: str  # encoded path and query
    body: bytes
    is_stream: bool
    max_input_tokens: int
    max_output_tokens: int
    wants_usage: bool  # the client asked for usage in its stream


@dataclass(slots=True)
class OutsideAnswer(ABC):
    """An answer as it comes. `usage` is known once all of it was read, where the endpoint tells it."""

    status: int
    content_type: str
    retry_after_s: int = 1
    usage: Usage | None = field(default=None, init=False)

    @abstractmethod
    def events(self) -> AsyncGenerator[bytes, None]:
        """Whole server-sent events in OpenAI's shape, [DONE] included. Raises OutsideError."""

    @abstractmethod
    async def whole(self) -> bytes:
        """The whole body in OpenAI's shape. Raises OutsideError."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection back, or close it when the answer was not read to its end."""


def output_limit(body: Mapping[str, Any]) -> int | None:
    """The output tokens that a request allows for each of its answers; None when it states none."""
    for key in ("max_completion_tokens", "max_tokens"):
        asked = body.get(key)
        if asked is not None:
            if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
                raise NotExpressibleError(key)
            return asked
    return None


def max_input_tokens(body: bytes) -> int:
    """An upper bound of a prompt's tokens: no tokenizer makes more than there are bytes of JSON around and in it."""
    return len(body) + TEMPLATE_TOKENS


def refuse_unbounded(body: Mapping[str, Any]) -> None:
    """Raises NotExpressibleError for content whose tokens can't be bounded by its size: images, audio, files."""
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(_is_text(part) for part in content):
            raise NotExpressibleError("messages.content: a part that is no text")
    for tool in body.get("tools") or ():
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise NotExpressibleError("tools: one that is no function")


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the client asked for usage in its stream."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def usage_of(value: Any) -> Usage | None:
    """OpenAI's `usage` object as ours; None when it is none."""
    if not isinstance(value, dict):
        return None
    counts = [value.get(key, 0) for key in ("prompt_tokens", "completion_tokens")]
    if not all(isinstance(count, int) and count >= 0 for count in counts) or "prompt_tokens" not in value:
        return None
    return Usage(*counts)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("text", "input_text", "refusal")
