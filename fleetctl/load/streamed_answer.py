"""One answer as the client saw it, read event by event or in one piece, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class EventLines:
    """Turns reads of any size into the data of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def events_in(self, data: bytes) -> Iterator[bytes]:
        """The events that are whole with these bytes."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


@dataclass(slots=True)
class StreamedAnswer:
    """What came back for one request. None: it never came. Times are monotonic seconds."""

    sent_at: float
    status: int | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    has_token_ids: bool = False  # the node tells token ids at all
    ids: set[str] = field(default_factory=set)  # of the answer: one, also when it moved
    num_finishes: int = 0
    num_dones: int = 0
    completion_tokens: int | None = None  # as the usage says
    prompt_tokens: int | None = None
    error: str | None = None  # an error event, or what broke the connection
    is_garbled: bool = False
    is_plain: bool = False  # in one piece: nobody knows when its first token was there
    first_token_at: float | None = None
    last_token_at: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    ended_at: float | None = None

    def take_plain(self, data: bytes, at: float) -> None:
        """Take in an answer that came in one piece: its only event, and its end."""
        self.is_plain = True
        if (body := self._parsed(data)) is None:
            return
        choices = [{**choice, "delta": choice.get("message") or {}} for choice in body.get("choices") or ()]
        self._take_body({**body, "choices": choices}, at)
        self.num_dones += 1

    def take_event(self, data: bytes, at: float) -> None:
        """Take one event's data in."""
        if data == b"[DONE]":
            self.num_dones += 1
        elif (event := self._parsed(data)) is not None:
            self._take_body(event, at)

    def _parsed(self, data: bytes) -> dict[str, Any] | None:
        """The object; None, and the answer is garbled, when it is none."""
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if isinstance(event, dict):
            return event
        self.is_garbled = True
        return None

    def _take_body(self, event: dict[str, Any], at: float) -> None:
        if event.get("error"):
            self.error = _message(event["error"])
            return
        if isinstance(event.get("id"), str):
            self.ids.add(event["id"])
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.completion_tokens = usage.get("completion_tokens")
            self.prompt_tokens = usage.get("prompt_tokens")
        for choice in event.get("choices") or ():
            self._take_choice(choice, at)

    def _take_choice(self, choice: dict[str, Any], at: float) -> None:
        text = (choice.get("delta") or {}).get("content") or ""
        token_ids = choice.get("token_ids")
        if choice.get("finish_reason") is not None:
            self.num_finishes += 1
        if token_ids is not None:
            self.has_token_ids = True
            self.token_ids.extend(token_ids)
        self.text += text
        if token_ids or text:
            if self.last_token_at is None:
                self.first_token_at = at
            else:
                self.gaps_s.append(at - self.last_token_at)
            self.last_token_at = at

    @property
    def num_tokens(self) -> int | None:
        """Output tokens received; the usage's word where the node tells no ids."""
        return len(self.token_ids) if self.has_token_ids else self.completion_tokens

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, as the client saw it."""
        return None if self.first_token_at is None or self.is_plain else self.first_token_at - self.sent_at


def _message(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("code") or error.get("message") or error)[:200]
    return str(error)[:200]
