"""The body of an answer, up to a size: whoever we ask may send more than we can keep."""

from __future__ import annotations

import httpx


async def read_limited(response: httpx.Response, limit: int) -> bytes | None:
    """The body of a streamed response, unpacked; None when it is longer than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)
