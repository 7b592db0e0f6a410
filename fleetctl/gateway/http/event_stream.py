"""The borders of server-sent events, found only as far as needed to splice streams.

Only whole events go on to the client. So a hand-off is never half sent, and after a cut the next bytes, an error
event or another node's events, start at a border.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

MAX_EVENT_BYTES = 32 * 1024 * 1024  # a hand-off carries token ids: 7 bytes each, so millions of tokens fit
HANDOFF_EVENT = b"fleet.handoff"
_BORDERS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_BORDER = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = (b"data: [DONE]", b"data:[DONE]")
_LINE_START = (
    b":p "  # of what a node of ours tells beside its events; JSON has no line break, so no event has it inside
)
_NEXT_LINE = b"\n:p "
_LINE = re.compile(rb"^:p [^\n]*\n", re.MULTILINE)
_ALL_SENT = b":p $\n"
MAX_LINES_BYTES = 16 * 1024 * 1024  # of one stream; a stream that tells more can't be continued
# The last event of `/v1/responses`, which has no [DONE]. The response in it always has the word "error".
_RESPONSE_END = re.compile(rb"^event: ?response\.(?:completed|incomplete)\r?$", re.MULTILINE)
_RESPONSE_FAILED = re.compile(rb"^event: ?response\.failed\r?\n", re.MULTILINE)
_ERROR = re.compile(rb'^data: ?\{\s*"error"\s*:(?!\s*null)', re.MULTILINE)


class EventTooLongError(Exception):
    """An event without end: not an event stream, or not a sane one."""


class StreamError(NamedTuple):
    """The error with which a node ended its stream: OpenAI's `type` and `code`, where it gave them.

    `status`: the HTTP status that vLLM and SGLang write as its `code`.
    """

    kind: str | None = None
    code: str | None = None
    status: int | None = None


class ProgressLines:
    """What a stream's nodes told beside the events that were passed on: kept unread, until one of them dies."""

    __slots__ = ("_lines", "is_overfull")

    def __init__(self) -> None:
        self._lines = bytearray()
        self.is_overfull = False  # there was too much: nothing is kept any more

    def keep(self, lines: bytes) -> None:
        """Whole lines, with the events that they stand before."""
        self._lines += lines
        if len(self._lines) > MAX_LINES_BYTES:
            self.is_overfull = True
            self._lines.clear()

    @property
    def is_all_sent(self) -> bool:
        """Whether the client has everything but [DONE]."""
        return self._lines.endswith(_ALL_SENT)

    @property
    def num_tokens(self) -> int:
        """How many tokens they name."""
        return self._lines.count(b" ") - self._lines.count(b"\n")

    def text(self) -> str:
        """All of them, for the node that continues."""
        return self._lines.decode("latin-1")


class EventStreamReader:
    """Turns reads of any size into whole events. `is_done`, `error` and `handoff` say what has passed so far."""

    __slots__ = ("_held", "_lines", "error", "handoff", "is_done", "last_word")

    def __init__(self, lines: ProgressLines | None = None) -> None:
        """`lines`: the stream tells its progress, which is taken out of it and goes there."""
        self._held = bytearray()
        self._lines = lines
        self.is_done = False  # [DONE] has passed
        self.handoff: bytes | None = None  # the hand-off object as it was sent; events after it are dropped
        self.error: StreamError | None = None  # of the error event with which the node ended the stream
        self.last_word = b""  # that event, and what came after it: not forwarded

    def feed(self, data: bytes) -> bytes:
        """The events that `data` completes, up to an error or a hand-off. Raises EventTooLongError."""
        if self.error is not None:
            if len(self.last_word) < MAX_EVENT_BYTES:
                self.last_word += data
            return b""
        if not self._held and data.endswith((b"\n\n", b"\r\n\r\n")):
            whole = data
        else:
            search_from = max(0, len(self._held) - 3)
            self._held += data
            cut = _last_border(self._held, search_from)
            if cut == 0:
                if len(self._held) > MAX_EVENT_BYTES:
                    raise EventTooLongError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
                return b""
            whole = bytes(self._held[:cut])
            del self._held[:cut]
        lines = self._lines
        # `find` and not `in`, which tries a number first: of bytes in bytes it raises and drops an error each time.
        if lines is not None and whole.find(_LINE_START) >= 0:
            end = whole.find(b"\n") + 1
            if whole.startswith(_LINE_START) and whole.find(_NEXT_LINE, end) < 0:  # one event, as mostly
                lines.keep(whole[:end])
                whole = whole[end:]
            else:
                lines.keep(b"".join(_LINE.findall(whole)))
                whole = _LINE.sub(b"", whole)
        if whole.find(HANDOFF_EVENT) >= 0:
            split = _split_at_handoff(whole)
            if split is not None:
                whole, self.handoff = split
        if whole.find(b"[DONE]") >= 0 or whole.find(b'"error"') >= 0:
            return self._note(whole)
        return whole

    def finish(self) -> bytes:
        """What is still to be forwarded when the node ended its stream in order: a [DONE] without its blank line."""
        rest = bytes(self._held).rstrip(b"\r\n")
        self._held.clear()
        if not rest.endswith(_DONE):
            return b""
        self.is_done = True
        return rest + b"\n\n"

    def _note(self, whole: bytes) -> bytes:
        """What of it may be forwarded: all before an error event."""
        if whole.rstrip(b"\r\n").endswith(_DONE) or _RESPONSE_END.search(whole):
            self.is_done = True
        if b"response.failed" in whole and (failed := _RESPONSE_FAILED.search(whole)):
            self.last_word = whole[failed.start() :]
            self.error = _error_of_response(whole[failed.end() :].splitlines()[0].partition(b":")[2])
            return whole[: failed.start()]
        if b'"error"' in whole and (found := _ERROR.search(whole)):
            self.last_word = whole[found.start() :]
            self.error = error_of(self.last_word.splitlines()[0].partition(b":")[2])
            return whole[: found.start()]
        return whole


def error_of(body: bytes) -> StreamError:
    """What an error answer in OpenAI's shape says; SGLang leaves the word `error` around it out."""
    try:
        told = json.loads(body)
        error = told.get("error", told)
        kind, code = error.get("type"), error.get("code")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return StreamError()
    return StreamError(
        kind if isinstance(kind, str) else None,
        code if isinstance(code, str) else None,
        code if isinstance(code, int) and not isinstance(code, bool) else None,
    )


def _error_of_response(event: bytes) -> StreamError:
    """What the last event of a response that failed says. `reason` is our nodes' word; their clients know few codes."""
    try:
        error = json.loads(event)["response"]["error"]
        code = error.get("reason") or error.get("code")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return StreamError("server_error")
    return StreamError("server_error", code if isinstance(code, str) else None)


def _last_border(held: bytearray, start: int) -> int:
    """Where the last whole event ends, or 0."""
    ends = [at + len(border) for border in _BORDERS if (at := held.rfind(border, start)) >= 0]
    return max(ends, default=0)


def _split_at_handoff(whole: bytes) -> tuple[bytes, bytes] | None:
    """The events before the first hand-off, and its data. None: the words were only in some event's text."""
    start = 0
    for border in _BORDER.finditer(whole):
        data: list[bytes] = []
        is_handoff = False
        for line in whole[start : border.start()].splitlines():
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                is_handoff = value == HANDOFF_EVENT
            elif name == b"data":
                data.append(value)
        if is_handoff:
            return whole[:start], b"\n".join(data)
        start = border.end()
    return None
