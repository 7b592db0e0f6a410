"""The first lines of HTTP messages: what a client's say, checked, and ours as bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

import httptools

from fleetctl.gateway.http.answers import ErrorAnswer, RawHeaders, bad_request

CHUNKED = b"transfer-encoding: chunked\r\n"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("latin-1") for status in HTTPStatus
}
_BODILESS = frozenset({204, 304})
_MAX_CACHED_TARGETS = 1024
_MAX_CACHED_TARGET_BYTES = 200  # strangers choose targets: long ones must not fill the cache


class RequestHead(NamedTuple):
    """A request without its body. `path` is decoded and without the query, `target` as the client encoded both."""

    method: str
    path: str
    target: str
    headers: list[tuple[bytes, bytes]]  # in their order, names in lower case
    first: Mapping[bytes, bytes]  # the first value of each of them
    is_http10: bool
    keeps_alive: bool


class BadHeadError(Exception):
    """A head that can't be served. `answer` is for the client."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class _Targets:
    """Targets already read: clients ask for the same few."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, str]] = {}

    def read(self, url: bytes) -> tuple[str, str]:
        """Decoded path, and encoded target. Raises BadHeadError."""
        known = self._known.get(url)
        if known is None:
            known = _read_target(url)
            if len(url) <= _MAX_CACHED_TARGET_BYTES:
                if len(self._known) >= _MAX_CACHED_TARGETS:
                    self._known.clear()
                self._known[url] = known
        return known


_targets = _Targets()


def read_head(
    method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], *, version: str, keeps_alive: bool
) -> RequestHead:
    """Check what the parser leaves to us. Raises BadHeadError."""
    path, target = _targets.read(url)
    is_http10 = version == "1.0"
    if version not in ("1.1", "1.0"):
        raise BadHeadError(bad_request(f"HTTP/{version} is not spoken here", status=505, code="http_version"))
    if method == b"CONNECT":
        raise BadHeadError(bad_request("this is no proxy for connections", status=405, code="method_not_allowed"))
    first = dict(reversed(headers))
    if b"expect" in first and any(one.lower() != b"100-continue" for one in _values(headers, b"expect")):
        raise BadHeadError(bad_request("only 100-continue can be expected", status=417, code="expectation_failed"))
    if b"transfer-encoding" in first and (
        is_http10 or any(one.lower() != b"chunked" for one in _values(headers, b"transfer-encoding"))
    ):
        raise BadHeadError(bad_request("the only transfer encoding is chunked, in HTTP/1.1", code="bad_http"))
    is_repeated = len(first) < len(headers) and len(_values(headers, b"host")) > 1
    if is_repeated or (b"host" not in first and not is_http10):
        raise BadHeadError(bad_request("exactly one Host header is needed", code="bad_http"))
    return RequestHead(method.decode("latin-1"), path, target, headers, first, is_http10, keeps_alive and not is_http10)


def _values(headers: RawHeaders, name: bytes) -> list[bytes]:
    return [value for each, value in headers if each == name]


def _read_target(url: bytes) -> tuple[str, str]:
    if not url.isascii():
        raise BadHeadError(bad_request("the path must be percent-encoded", code="bad_http"))
    if not url.startswith(b"/"):
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError as error:
            raise BadHeadError(bad_request("the request's target is no path", code="bad_http")) from error
        if not parsed.schema or not parsed.path:
            raise BadHeadError(bad_request("the request's target is no path", code="bad_http"))
        url = parsed.path + (b"?" + parsed.query if parsed.query else b"")
    target = url.partition(b"#")[0].decode("ascii")
    path = target.partition("?")[0]
    return (unquote(path) if "%" in path else path), target


class _Date:
    """The Date header's value, made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """The whole header line."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = f"date: {formatdate(now, usegmt=True)}\r\n".encode("ascii")
        return self._line


_date = _Date()


def has_body(method: str, status: int) -> bool:
    """Whether an answer has one at all."""
    return method != "HEAD" and status not in _BODILESS and status >= 200


def answer_head(status: int, headers: RawHeaders, framing: bytes, *, keeps_alive: bool) -> bytes:
    """Status line and headers, with the blank line. `framing`: header lines that say how long the body is.

    Raises ValueError for a header that would end its own line.
    """
    first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    tail = b"\r\n" if keeps_alive else b"connection: close\r\n\r\n"
    return b"".join((first, _date.line(), header_lines(headers), framing, tail))


def header_lines(headers: RawHeaders) -> bytes:
    """The headers, each with the end of its line. Raises ValueError for one that would end its own line."""
    lines = [b": ".join(pair) for pair in headers]
    lines.append(b"")
    joined = b"\r\n".join(lines)
    if joined.count(b"\n") != len(headers) or joined.count(b"\r") != len(headers):
        raise ValueError("a header has a line break")
    return joined
