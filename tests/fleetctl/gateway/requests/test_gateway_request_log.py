"""The log line of each request: the form of all other lines, many at a time, and none lost at the end."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from fleetctl.gateway.requests.request_log import MAX_HELD, RequestLog
from fleetctl.kit.log import configure_logging
from tests.fixtures.gateway import until


@contextmanager
def logging_as(level: str, form: Literal["pretty", "json"]) -> Iterator[io.StringIO]:
    """What is written to stderr meanwhile."""
    stream, before = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        configure_logging(level, form)
        yield stream
    finally:
        sys.stderr = before
        configure_logging()


def test_lines_are_written_together_and_have_the_form_of_all_others() -> None:
    async def main() -> None:
        lines = RequestLog(now=lambda: 1_000_000_000.25)
        lines.write(request_id="r1", node=None, duration_s=0.5)
        lines.write(request_id="r2\n\x1b")
        assert stream.getvalue() == ""
        lines.flush()

    with logging_as("info", "json") as stream:
        asyncio.run(main())
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first == {
        "request_id": "r1",
        "node": None,
        "duration_s": 0.5,
        "event": "request.finished",
        "level": "info",
        "timestamp": "2001-09-09T01:46:40.250000Z",
    }
    assert second["request_id"] == "r2\n\x1b"


def test_lines_wait_neither_for_ever_nor_without_a_loop() -> None:
    async def main() -> None:
        lines = RequestLog()
        for number in range(MAX_HELD):
            lines.write(number=number)
        assert stream.getvalue().count("\n") == MAX_HELD
        lines.write(number=-1)
        await until(lambda: stream.getvalue().count("\n") > MAX_HELD)

    with logging_as("info", "json") as stream:
        asyncio.run(main())
        RequestLog().write(number=-2)
    assert json.loads(stream.getvalue().splitlines()[-1])["number"] == -2


def test_a_log_for_people_or_for_warnings_only_is_left_to_structlog() -> None:
    for level, form in (("warning", "json"), ("info", "pretty")):
        with logging_as(level, form) as stream:  # type: ignore[arg-type]
            RequestLog().write(request_id="r1")
            assert '"event"' not in stream.getvalue()
