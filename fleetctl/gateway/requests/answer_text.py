"""What an answer says, read from its bytes as OpenAI writes them: its words, how many tokens, whether it is whole."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class AnswerText(NamedTuple):
    """`texts`: of each choice by its index. `num_tokens`: of the output; None: nothing told it."""

    texts: tuple[str, ...] = ()
    num_tokens: int | None = None
    is_whole: bool = False
    has_error: bool = False


class AnswerReader:
    """Reads an answer in parts of any size. Words of the model are content, reasoning, and calls of tools."""

    __slots__ = ("_has_error", "_held", "_is_stream", "_is_whole", "_num_events", "_num_tokens", "_texts")

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._held = bytearray()
        self._texts: dict[int, list[str]] = {}
        self._num_events = 0
        self._num_tokens: int | None = None
        self._is_whole = False
        self._has_error = False

    def feed(self, data: bytes) -> None:
        """The next part."""
        self._held += data
        if not self._is_stream:
            return
        *lines, rest = self._held.replace(b"\r", b"\n").split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            self._note_line(bytes(line))

    def finish(self) -> AnswerText:
        """All that it said. To be called once, at its end."""
        if self._is_stream:
            self._note_line(bytes(self._held))
        else:
            self._is_whole = self._note_json(bytes(self._held))
        count = self._num_tokens if self._num_tokens is not None else (self._num_events or None)
        texts = tuple("".join(parts) for _, parts in sorted(self._texts.items()))
        return AnswerText(texts, count, self._is_whole and not self._has_error, self._has_error)

    def _note_line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._is_whole = True
        else:
            self._note_json(data)

    def _note_json(self, data: bytes) -> bool:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._has_error = True
            return False
        if value.get("error") is not None:
            self._has_error = True
        usage = value.get("usage")
        if isinstance(usage, dict) and isinstance(used := usage.get("completion_tokens"), int):
            self._num_tokens = used
        choices = value.get("choices")
        has_text = False
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and (words := _words(choice)):
                has_text = True
                index = choice.get("index")
                self._texts.setdefault(index if isinstance(index, int) else 0, []).append(words)
        self._num_events += has_text and self._is_stream
        return True


def _words(choice: dict[str, Any]) -> str:
    said = choice.get("delta") or choice.get("message")
    if not isinstance(said, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    parts = [said.get("reasoning_content") or said.get("reasoning"), said.get("content")]
    calls = said.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            parts += [function.get("name"), function.get("arguments")]
    return "".join(part for part in parts if isinstance(part, str))
