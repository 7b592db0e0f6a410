"""Lines of an answer as they come, for streams whose lines end at a line feed and nowhere else.

`httpx.Response.aiter_lines` ends a line at whatever `str.splitlines` does: U+2028, U+0085 and others, which JSON leaves
as they are. An event that holds one would come in pieces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx


async def lines_of(response: httpx.Response) -> AsyncIterator[str]:
    """Each line without its end, which may be CRLF; of what follows the last one, what there is."""
    begun: list[bytes] = []
    async for part in response.aiter_bytes():
        first, *rest = part.split(b"\n")
        begun.append(first)
        for line in rest:
            yield _text(b"".join(begun))
            begun = [line]
    if last := b"".join(begun):
        yield _text(last)


def split_lines(text: str) -> list[str]:
    """The same of an answer that is there as a whole."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
