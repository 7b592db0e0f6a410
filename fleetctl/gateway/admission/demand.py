"""What a request asks for, as far as admission must know it, and what it really used."""

from __future__ import annotations

import re
from typing import NamedTuple

from fleetctl.gateway.routing.json_cost import with_fields

_USAGE = b'"usage":'
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens":\s*(\d{1,12})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens":\s*(\d{1,12})')
MAX_USAGE_BYTES = 4096  # a usage object is a few hundred bytes


def with_response_cap(body: bytes, cap: int) -> bytes:
    """As `with_output_cap`, in the words of `/v1/responses`."""
    return with_fields(body, {"max_output_tokens": cap})


def with_output_cap(body: bytes, cap: int) -> bytes:
    """The JSON object with `max_tokens` set, for a client that named no limit. Without a parse where that is safe."""
    at = body.find(b"{")
    if at >= 0 and b'"max_tokens"' not in body and b'"max_completion_tokens"' not in body:
        rest = body[at + 1 :]
        comma = b"" if rest.lstrip().startswith(b"}") else b","
        return b'%s{"max_tokens":%d%s%s' % (body[:at], cap, comma, rest)
    return with_fields(body, {"max_tokens": cap}, without=frozenset({"max_completion_tokens"}))


class Demand(NamedTuple):
    """One request before it is let in. `deadline_at`: monotonic seconds after which its client wants no answer."""

    request_id: str
    model: str | None = None
    input_tokens: int = 0  # estimated
    output_tokens: int | None = None  # what it asks for at most; None: it does not say
    size_bytes: int = 0  # of its body, which is held while it waits
    deadline_at: float | None = None
    is_work: bool = True  # of a model; others need a key, and nothing is counted of them


class Usage(NamedTuple):
    """Tokens that a request used. `is_exact`: as its node said; else counted by us."""

    input_tokens: int
    output_tokens: int
    is_exact: bool = True


class UsageMeter:
    """Reads the usage from an answer as it passes: the node's own words when there are any, else events are counted.

    Text inside JSON can't hold an unescaped quote, so `"usage":` is always a key and never a model's words.
    """

    __slots__ = ("_tail", "has_answer", "num_events")

    def __init__(self) -> None:
        self._tail = b""
        self.num_events = 0
        self.has_answer = False  # a node began to answer: its prompt was worked on

    def note_stream(self, data: bytes) -> None:
        """Whole events that go to the client."""
        self.has_answer = True
        self.num_events += data.count(b"\n\n") or data.count(b"\r\n\r\n")
        at = data.rfind(_USAGE)
        if at < 0:
            return
        if not data.startswith(b"null", at + len(_USAGE)):
            self._tail = data[at : at + MAX_USAGE_BYTES]

    def note_whole(self, body: bytes) -> None:
        """The body of an answer that is no stream."""
        self.has_answer = True
        at = body.rfind(_USAGE)
        if at >= 0:
            self._tail = body[at : at + MAX_USAGE_BYTES]

    def usage(self, estimated_input_tokens: int) -> Usage | None:
        """What was used; None when no node began to answer. Without the node's words an event counts as one token."""
        if not self.has_answer:
            return None
        prompt, output = _PROMPT.search(self._tail), _OUTPUT.search(self._tail)
        if prompt is not None:
            return Usage(int(prompt[1]), int(output[1]) if output else 0)
        return Usage(estimated_input_tokens, self.num_events, is_exact=False)
