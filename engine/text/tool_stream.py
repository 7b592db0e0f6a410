"""Splits an answer's text into what is said and which tools are called, while it grows.

What has come out after some characters depends on those characters alone, not on how they were grouped. So another
node that is given the same tokens goes on after the same piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine.text.detokenizer import longest_stop_prefix
from engine.text.tool_call_scan import CallScan, ValueScan
from engine.text.tool_formats import FORMATS, ToolFormatName

MAX_NAME_CHARS = 256  # what may stand between Mistral's marker and the arguments
_SPACE = " \t\r\n"
_SEPARATORS = "],;" + _SPACE  # what stands after a call, and is no text
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")


class ToolPiece(NamedTuple):
    """News of one call: its name in the first piece, then more and more of its arguments."""

    call: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class ToolCall:
    """A call as far as it is known."""

    name: str
    arguments: str


class ToolStream:
    """Push text, take `(content, pieces)`. `calls` is all that was called so far.

    Blanks before the first text and around calls are held: they are text only when text follows them.
    """

    def __init__(self, format_name: ToolFormatName, *, max_calls: int | None = None) -> None:
        """Calls after the first `max_calls` are left out."""
        self._format = FORMATS[format_name]
        self._max_calls = max_calls
        self._text = ""  # not yet understood
        self._state: Callable[[], bool] = self._in_content if self._format.is_marker_needed else self._at_start
        self._prefix = ""  # text before a possible call: content after all, if it becomes none
        self._scan: CallScan | None = None
        self._value: ValueScan | None = None
        self._is_open = False  # a call was begun to be shown
        self._num_shown = 0  # characters of its arguments
        self._num_calls = 0  # also those left out
        self._blanks = ""
        self._has_content = False  # since the last call
        self._out = ""
        self._pieces: list[ToolPiece] = []
        self.calls: list[ToolCall] = []

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and the last one is not cut off."""
        return bool(self.calls) and not self._is_open

    def push(self, text: str) -> tuple[str, tuple[ToolPiece, ...]]:
        """Take more text in; returns new content and new pieces of calls."""
        self._text += text
        while self._state():
            pass
        return self._take()

    def finish(self) -> tuple[str, tuple[ToolPiece, ...]]:
        """What was held back, when nothing follows: the beginning of a marker, or of a call that never became one."""
        if self._scan is not None and not self._is_open:
            self._say(self._prefix + self._scan.raw)
        elif not self._is_open:
            self._say_prefix()
        self._say(self._text)
        if not self.calls:
            self._out += self._blanks
        self._text = self._prefix = self._blanks = ""
        return self._take()

    def _take(self) -> tuple[str, tuple[ToolPiece, ...]]:
        merged: list[ToolPiece] = []
        for piece in self._pieces:
            if merged and merged[-1].call == piece.call:
                merged[-1] = merged[-1]._replace(arguments=merged[-1].arguments + piece.arguments)
            else:
                merged.append(piece)
        content, self._out, self._pieces = self._out, "", []
        return content, tuple(merged)

    def _say(self, text: str) -> None:
        text, self._blanks = self._blanks + text, ""
        if not self._has_content and not text.strip(_SPACE):
            self._blanks = text
            return
        self._has_content = True
        self._out += text

    # States: each reads on in `_text` and says whether there is more to do.

    def _at_start(self) -> bool:
        """Calls may begin the answer without a marker; after anything else all of it is text."""
        body, marker = self._text.lstrip(_SPACE), self._format.marker
        if not body or (len(body) < len(marker) and marker.startswith(body)):
            return False
        if marker and body.startswith(marker):
            self._begin_calls(len(self._text) - len(body) + len(marker))
        elif body[0] == ("[" if self._format.name == "json" else "{"):
            self._begin_calls(0)
        else:
            self._state = self._in_plain_text
        return True

    def _in_plain_text(self) -> bool:
        self._say(self._text)
        self._text = ""
        return False

    def _in_content(self) -> bool:
        marker = self._format.marker
        at = self._text.find(marker)
        if at < 0:
            shown = len(self._text) - longest_stop_prefix(self._text, (marker,))
            self._say(self._text[:shown])
            self._text = self._text[shown:]
            return False
        self._say(self._text[:at])
        self._text = self._text[at:]
        self._begin_calls(len(marker))
        return True

    def _begin_calls(self, num_chars: int) -> None:
        self._prefix, self._text = self._text[:num_chars], self._text[num_chars:]
        self._state = self._before_call

    def _before_call(self) -> bool:
        """After a marker or another call: here begins the next one, or the calls are over."""
        body = self._text.lstrip(_SPACE)
        if not body:
            return False
        num_blanks, char = len(self._text) - len(body), body[0]
        marker = self._format.marker
        if self._format.name == "mistral" and char == "[":  # another marker, or a list
            if len(body) < len(marker) and marker.startswith(body):
                return False
            if body.startswith(marker):
                self._leave_calls()
                return True
        is_after_marker = self._format.name == "mistral" and self._prefix.endswith(marker)
        if char == "{":
            self._move_to_prefix(num_blanks)
            self._scan, self._state = CallScan(), self._in_call
        elif char in "[,;]" and self._format.name != "hermes":
            self._move_to_prefix(num_blanks + 1)
            if char == "]":
                self._leave_calls()
        elif is_after_marker and _NAME.match(char):
            self._move_to_prefix(num_blanks)
            self._state = self._in_name
        else:
            self._leave_calls()
        return True

    def _move_to_prefix(self, num_chars: int) -> None:
        self._prefix, self._text = self._prefix + self._text[:num_chars], self._text[num_chars:]

    def _leave_calls(self) -> None:
        """What is in the prefix was no call."""
        self._say_prefix()
        self._state = self._in_content if self._format.is_marker_needed else self._in_plain_text

    def _say_prefix(self) -> None:
        prefix, self._prefix = self._prefix, ""
        if prefix.strip(_SEPARATORS) or not self._num_calls:
            self._say(prefix)

    def _in_call(self) -> bool:
        scan = self._scan
        assert scan is not None, "a call is being read"
        for at, char in enumerate(self._text):
            scan.feed(char)
            if scan.is_shown:
                self._show(scan.name or "", scan.arguments)
            if not (scan.is_done or scan.is_bad):
                continue
            self._text, self._scan = self._text[at + 1 :], None
            if self._is_open:
                self._end_call()
            else:
                self._prefix += scan.raw
                self._leave_calls()
            return True
        self._text = ""
        return False

    def _in_name(self) -> bool:
        """Mistral's newer form: a name, perhaps tokens in brackets, then the arguments."""
        at = self._text.find("{")
        if at < 0 and len(self._text) <= MAX_NAME_CHARS:
            return False
        name = self._text[: max(0, at)].partition("[")[0].strip(_SPACE)
        if not _NAME.fullmatch(name):
            self._leave_calls()
            return True
        self._text = self._text[at + 1 :]
        self._show(name, "{")
        self._value, self._state = ValueScan("{"), self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        value = self._value
        assert value is not None, "arguments are being read"
        for at, char in enumerate(self._text):
            value.feed(char)
            if value.is_done:
                self._add(self._text[: at + 1])
                self._text, self._value = self._text[at + 1 :], None
                self._end_call()
                return True
        self._add(self._text)
        self._text = ""
        return False

    def _show(self, name: str, arguments: str) -> None:
        if not self._is_open:
            self._is_open, self._num_shown = True, 0
            self._num_calls += 1
            self._prefix = self._blanks = ""
            if not self._is_left_out:
                self.calls.append(ToolCall(name, ""))
                self._pieces.append(ToolPiece(self._num_calls - 1, name, ""))
        self._add(arguments[self._num_shown :])

    def _add(self, arguments: str) -> None:
        self._num_shown += len(arguments)
        if arguments and not self._is_left_out:
            self.calls[-1].arguments += arguments
            self._pieces.append(ToolPiece(self._num_calls - 1, None, arguments))

    @property
    def _is_left_out(self) -> bool:
        return self._max_calls is not None and self._num_calls > self._max_calls

    def _end_call(self) -> None:
        self._is_open = self._has_content = False
        self._state = self._after_call if self._format.end else self._before_call

    def _after_call(self) -> bool:
        """The end marker is skipped where it stands."""
        body, end = self._text.lstrip(_SPACE), self._format.end
        if not body or (len(body) < len(end) and end.startswith(body)):
            return False
        self._text = body.removeprefix(end)
        self._state = self._in_content
        return True
