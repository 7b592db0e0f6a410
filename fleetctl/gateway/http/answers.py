"""What the gateway itself says to a client: errors in OpenAI's shape, as an answer or as a stream's last event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
MAX_RETRY_AFTER_S = 60  # of what others say: a node that restarts is back sooner


class WholeAnswer(NamedTuple):
    """A complete answer of the gateway itself; its Content-Length is set when it is sent."""

    status: int
    body: bytes
    headers: RawHeaders = (JSON_TYPE,)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error the gateway answers by itself. `retry_after_s` becomes the Retry-After header."""

    status: int
    message: str
    kind: str  # OpenAI's `type`
    code: str
    param: str | None = None
    retry_after_s: int | None = None
    is_final: bool = False  # OpenAI's clients are told not to send the request again
    allow: str | None = None  # methods of the path: the Allow header
    limit: str | None = None  # which limit of the gateway refused it: the X-Fleet-Limit header

    def body(self) -> bytes:
        """The answer's JSON, in OpenAI's shape."""
        detail = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": detail}).encode()

    def event(self) -> bytes:
        """One server-sent event: how a stream that already began says that it failed."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Whether and when the client should come again."""
        if self.is_final:
            return [(b"x-should-retry", b"false")]
        if self.allow is not None:
            return [(b"allow", self.allow.encode())]
        headers = [] if self.retry_after_s is None else [(b"retry-after", str(self.retry_after_s).encode())]
        if self.limit is not None:
            headers.append((b"x-fleet-limit", self.limit.encode()))
        return headers

    def whole(self) -> WholeAnswer:
        """The error as an answer of its own."""
        return WholeAnswer(self.status, self.body(), [JSON_TYPE, *self.headers()])


def bad_request(
    message: str, *, param: str | None = None, status: int = 400, code: str = "invalid_request"
) -> ErrorAnswer:
    """What no node would do better with: the client has to change something."""
    return ErrorAnswer(status, message, "invalid_request_error", code, param=param)


def not_found(path: str) -> ErrorAnswer:
    """404; of the path, its first 200 characters."""
    return bad_request(f"no such path: {path[:200]}", status=404, code="not_found")


def wrong_method(method: str, path: str, allow: str) -> ErrorAnswer:
    """405: the path takes other methods."""
    message = f"{method[:20]} is no method of {path[:200]}"
    return ErrorAnswer(405, message, "invalid_request_error", "method_not_allowed", allow=allow)


def unavailable(message: str, *, retry_after_s: int = 1, code: str = "no_node_available") -> ErrorAnswer:
    """503: nobody can serve it now."""
    return ErrorAnswer(503, message, "service_unavailable", code, retry_after_s=retry_after_s)


def overloaded(message: str, *, retry_after_s: int = 1) -> ErrorAnswer:
    """429: nodes are well and have too much to do."""
    return ErrorAnswer(429, message, "rate_limit_error", "overloaded", retry_after_s=retry_after_s)


def upstream_failed(message: str, *, code: str = "upstream_failed") -> ErrorAnswer:
    """502: a node had the request and did not end it."""
    return ErrorAnswer(502, message, "server_error", code)


def final(message: str, *, code: str) -> ErrorAnswer:
    """502 that a client should not send again: the request may be what ends nodes."""
    return ErrorAnswer(502, message, "server_error", code, is_final=True)


def poison(message: str) -> ErrorAnswer:
    """500 that a client should not send again: the request is what ends nodes."""
    return ErrorAnswer(500, message, "server_error", "poison", is_final=True)


def in_flight(message: str) -> ErrorAnswer:
    """409: a request of this id is under way, here or by another gateway."""
    return ErrorAnswer(409, message, "invalid_request_error", "request_in_flight", retry_after_s=1)


def timed_out(message: str, *, code: str) -> ErrorAnswer:
    """504: a limit on the wait has passed."""
    return ErrorAnswer(504, message, "server_error", code)


def json_answer(status: int, value: object) -> WholeAnswer:
    """`value` as a JSON answer."""
    return WholeAnswer(status, json.dumps(value).encode())


def read_retry_after_s(value: str | None) -> int:
    """Seconds of a Retry-After header that we pass on: within a minute; 1 without a number."""
    if value is None or not (value.isascii() and value.isdigit()):
        return 1
    return max(1, min(int(value[:6]), MAX_RETRY_AFTER_S))
