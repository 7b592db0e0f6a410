"""Lines of a stream end at a line feed, whatever else a text holds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from fleetctl.kit.line_feed import lines_of, split_lines

pytestmark = pytest.mark.anyio

ODD = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def lines_of_parts(*parts: bytes) -> list[str]:
    async def come() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return [line async for line in lines_of(httpx.Response(200, content=come()))]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_lines_end_at_a_line_feed_only_however_they_come(size: int) -> None:
    text = f"data: {ODD}\r\n\n: alive\nwithout an end"
    sent = text.encode()
    told = await lines_of_parts(*(sent[at : at + size] for at in range(0, len(sent), size)))
    assert told == [f"data: {ODD}", "", ": alive", "without an end"]
    assert split_lines(text) == told


async def test_an_empty_answer_has_no_lines_and_a_broken_letter_breaks_none() -> None:
    assert await lines_of_parts() == split_lines("") == []
    assert await lines_of_parts(b"a\xff\n") == ["a\ufffd"]
